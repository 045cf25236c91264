"""The blocking interface: a store of locks."""

from __future__ import annotations

from collections.abc import Iterator

from ._call import ANSWER_TIMEOUT, begin, call, hold_of
from ._locks import Election, Guard, Lock, RwLock
from ._once import Once, OnceDecorator
from ._requests import expect, lock_settings, store_url, target, was_held
from ._types import Capabilities, Duration, Report, Status, milliseconds


class Locker:
    """A store of locks: a URL such as ``sqlite:locks.db`` or ``s3://bucket/locks``, or an alias of ``config.toml``.

    Without a URL, the default store of the ``leasehold`` command (``LEASEHOLD_STORE``, ``config.toml``, a SQLite file).
    Makes no request. Works in forked children too.

    >>> locker = Locker("sqlite:locks.db")
    >>> with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
    ...     g.check()
    """

    def __init__(self, store: str | None = None) -> None:
        self._store = store_url(store)

    def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
        barge: bool = False,
    ) -> Lock:
        """The lock called ``name``.

        ``ttl`` is how long others wait if this process dies (30 s by default). ``note`` and ``owner`` describe the
        holder to others. With ``lock_delay``, others wait longer after the lease of a holder has lapsed. The store may
        take ``store_timeout`` to answer. With ``barge``, waiters that came earlier have no precedence.
        """
        return Lock(
            lock_settings(
                self._store,
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                store_timeout=store_timeout,
                barge=barge,
            )
        )

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> Lock:
        """A lock with up to ``permits`` holders, at most 64."""
        return Lock(
            lock_settings(
                self._store,
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                store_timeout=store_timeout,
                barge=False,
                mode="permit",
                permits=permits,
            )
        )

    def rw_lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> RwLock:
        """A readers-writer lock.

        >>> with locker.rw_lock("index").shared.hold():
        ...     read()
        """

        def of(mode: str) -> Lock:
            return Lock(
                lock_settings(
                    self._store,
                    name,
                    ttl=ttl,
                    note=note,
                    owner=owner,
                    lock_delay=lock_delay,
                    store_timeout=store_timeout,
                    barge=False,
                    mode=mode,
                )
            )

        return RwLock(of("shared"), of("exclusive"))

    def election(
        self,
        name: str,
        *,
        value: str | None = None,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> Election:
        """The election called ``name``. ``value`` is what this candidate advertises while it leads."""
        return Election(
            lock_settings(
                self._store,
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                store_timeout=store_timeout,
                barge=False,
                mode="leader",
                value=value,
            )
        )

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

        >>> @locker.once("nightly", per="23h")
        ... def nightly(day: str) -> str:
        ...     return f"report of {day}"
        >>> result = nightly("monday")
        >>> if result:
        ...     print(result.value)

        The function returns :class:`Ran` with its value, or :class:`AlreadyRan`. While another process runs the job, it
        waits, at most for ``timeout``; with ``nowait``, it raises :class:`LockHeld`. If the job raises an error, it may
        run again in the same period. A job whose lock was lost, or whose run could not be recorded, raises an error.
        """
        settings = lock_settings(
            self._store,
            name,
            ttl=ttl,
            note=note,
            owner=owner,
            lock_delay=None,
            store_timeout=store_timeout,
            barge=False,
        )
        return OnceDecorator(lambda: Once(settings, per, timeout, nowait))

    def status(self, name: str) -> Status:
        """The state of a lock."""
        return Status.of(expect(call({"op": "status", **target(self._store, name)}), "status"))

    def list(self, prefix: str = "") -> Iterator[str]:
        """The names of all locks that have a record and begin with ``prefix``."""
        request = begin({"op": "list", **target(self._store), "prefix": prefix})
        try:
            while (message := request.next(ANSWER_TIMEOUT))["ev"] == "names":
                yield from message["names"]
        finally:
            request.pending.abandon()

    def wait_free(self, name: str, timeout: Duration | None = None) -> None:
        """Waits until the lock is free, without acquiring it. Raises :class:`LockHeld` after ``timeout``."""
        fields = {"op": "wait_free", **target(self._store, name)}
        if timeout is not None:
            fields["wait_ms"] = milliseconds(timeout, "timeout")
        expect(call(fields, None), "done")

    def break_lock(self, name: str, token: int) -> bool:
        """Ends the grant with this token. Its holder may be any process: make sure first that it has stopped. Returns
        whether that token still had the lock."""
        return was_held(call({"op": "break", **target(self._store, name), "token": str(token)}), "broken")

    def sweep(self, name: str, *, older_than: Duration, dry_run: bool = False) -> bool:
        """Deletes the record of a lock that has been free for that long. Returns whether it did, or would."""
        fields = {"op": "sweep", **target(self._store, name), "dry_run": dry_run}
        fields["older_than_ms"] = milliseconds(older_than, "older_than")
        return bool(expect(call(fields), "swept")["deleted"])

    def init(self) -> None:
        """Creates what the store needs, such as a file or a table."""
        expect(call({"op": "init", **target(self._store)}), "done")

    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return Capabilities.of(expect(call({"op": "capabilities", **target(self._store)}), "capabilities"))

    def doctor(self, *, ttl: Duration | None = None, thorough: bool = False) -> Report:
        """Examines whether the store is safe for locks. Takes a few seconds and some hundred requests."""
        fields = {"op": "doctor", **target(self._store), "thorough": thorough}
        if ttl is not None:
            fields["ttl_ms"] = milliseconds(ttl, "ttl")
        return Report.of(expect(call(fields, None), "report"))

    def resume(self, ticket: str) -> Guard:
        """Renews the lock of a ticket, and keeps it from now on."""
        request = begin({"op": "resume", **target(self._store), "ticket": ticket})
        expect(request.next(ANSWER_TIMEOUT), "held")
        return Guard(hold_of(request))

    def renew_ticket(self, ticket: str) -> float:
        """Renews the lock of a ticket once. Returns for how many seconds it is certain to be held."""
        fields = {"op": "renew_ticket", **target(self._store), "ticket": ticket}
        return int(expect(call(fields), "ticket_renewed")["remaining_ms"]) / 1_000

    def release_ticket(self, ticket: str) -> bool:
        """Releases the lock of a ticket. Returns whether it was held until now."""
        return was_held(call({"op": "release_ticket", **target(self._store), "ticket": ticket}), "released")

    def __repr__(self) -> str:
        return "<Locker>"  # A URL may contain a password.
