"""The blocking interface: a store of locks."""

from __future__ import annotations

from collections.abc import Iterator

from ._base import BaseLocker
from ._call import begin, run
from ._locks import Election, Guard, Lock, RwLock
from ._once import Once, OnceDecorator
from ._requests import ANSWER_TIMEOUT, expect
from ._types import Capabilities, Duration, Report, Status


class Locker(BaseLocker[Lock, RwLock, Election]):
    """A store of locks: a URL such as ``sqlite:locks.db`` or ``s3://bucket/locks``, or an alias of ``config.toml``.

    Without a URL, it is the default store of the ``leasehold`` command (``LEASEHOLD_STORE``, ``config.toml``, a SQLite
    file). Sends no request. Also works in forked children.

    >>> locker = Locker("sqlite:locks.db")
    >>> with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
    ...     g.check()
    >>> with locker.rw_lock("index").shared.hold():
    ...     read()
    """

    _lock, _rw_lock, _election = Lock, RwLock, Election

    def once(
        self,
        name: str,
        *,
        per: Duration,
        timeout: Duration | None = None,
        nowait: bool = False,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        store_timeout: Duration | None = None,
    ) -> OnceDecorator:
        """Runs a job once per period, on one of several machines.

        >>> @locker.once("nightly", per="12h")
        ... def nightly(day: str) -> str:
        ...     return f"report of {day}"
        >>> result = nightly("monday")
        >>> if result:
        ...     print(result.value)

        The function returns :class:`Ran` with the value of the job, or :class:`AlreadyRan`. While another process runs
        the job, the function waits for at most ``timeout``. With ``nowait``, it raises :class:`LockHeld` instead. If
        the job raises an error, it may run again in the same period. If the lock was lost, or the run could not be
        recorded, the function raises an error.
        """
        settings = self._settings(name, ttl=ttl, note=note, owner=owner, store_timeout=store_timeout)
        return OnceDecorator(lambda: Once(settings, per, timeout, nowait))

    def status(self, name: str) -> Status:
        """Returns the state of a lock."""
        return run(self._status(name))

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yields the names of all locks that have a record and whose name begins with ``prefix``."""
        request = begin(self._request("list", prefix=prefix))
        try:
            while (message := request.next(ANSWER_TIMEOUT))["ev"] == "names":
                yield from message["names"]
        finally:
            request.abandon()

    def wait_free(self, name: str, timeout: Duration | None = None) -> None:
        """Waits until the lock is free, without acquiring it. Raises :class:`LockHeld` after ``timeout``."""
        run(self._wait_free(name, timeout))

    def evict(self, name: str, token: int, *, reason: str | None = None) -> bool:
        """Ends the grant with this token. Make sure first that its holder has stopped; the holder may be any process.
        The history of the lock keeps the ``reason``. Returns whether that token still held the lock."""
        return run(self._evict(name, token, reason))

    def sweep(self, name: str, *, older_than: Duration, dry_run: bool = False) -> bool:
        """Deletes the record of a lock that has been free for ``older_than``. Returns whether it did, or with
        ``dry_run`` would."""
        return run(self._sweep(name, older_than, dry_run))

    def resize(
        self, name: str, *, permits: int | None = None, readers: int | None = None, ttl: Duration | None = None
    ) -> int:
        """Changes the number of permits of a semaphore, or of readers of a readers-writer lock, in the store. Returns
        the number before. Raises :class:`LockHeld` if somebody holds the lock. The process must not be paused for
        longer than ``ttl`` meanwhile."""
        return run(self._resize(name, permits, readers, ttl))

    def init(self) -> None:
        """Creates what the store needs, such as a file or a table."""
        run(self._init())

    def capabilities(self) -> Capabilities:
        """Returns the capabilities of the store."""
        return run(self._capabilities())

    def doctor(self, *, ttl: Duration | None = None, thorough: bool = False) -> Report:
        """Checks whether the store is safe for locks. Takes seconds, and up to about 1,700 requests to a bucket."""
        return run(self._doctor(ttl, thorough))

    def resume(self, ticket: str) -> Guard:
        """Takes over the lock of a ticket: renews it now and keeps it."""
        request = begin(self._request("resume", ticket=ticket))
        expect(request.next(ANSWER_TIMEOUT), "held")
        return Guard(request.agent, request.hold)

    def renew_ticket(self, ticket: str) -> float:
        """Renews the lock of a ticket once. Returns for how many seconds it is certain to be held."""
        return run(self._renew_ticket(ticket))

    def release_ticket(self, ticket: str) -> bool:
        """Releases the lock of a ticket. Returns whether it was held until now."""
        return run(self._release_ticket(ticket))
