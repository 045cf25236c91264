"""The interface for asyncio: a store of locks."""

from __future__ import annotations

from collections.abc import AsyncIterator

from .._base import BaseLocker
from .._requests import ANSWER_TIMEOUT, expect
from .._types import Capabilities, Duration, Report, Status
from ._call import begin, run
from ._locks import Election, Guard, Lock, RwLock
from ._once import Once, OnceDecorator


class Locker(BaseLocker[Lock, RwLock, Election]):
    """A store of locks, for asyncio. See :class:`leasehold_locks.Locker`."""

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
        """Runs a job once per period, on one of several machines. See :meth:`leasehold_locks.Locker.once`."""
        settings = self._settings(name, ttl=ttl, note=note, owner=owner, store_timeout=store_timeout)
        return OnceDecorator(lambda: Once(settings, per, timeout, nowait))

    async def status(self, name: str) -> Status:
        """Returns the state of a lock."""
        return await run(self._status(name))

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        """Yields the names of all locks that have a record and whose name begins with ``prefix``."""
        request = await begin(self._request("list", prefix=prefix))
        try:
            while (message := await request.next(ANSWER_TIMEOUT))["ev"] == "names":
                for name in message["names"]:
                    yield name
        finally:
            request.abandon()

    async def wait_free(self, name: str, timeout: Duration | None = None) -> None:
        """Waits until the lock is free, without acquiring it. Raises :class:`LockHeld` after ``timeout``."""
        await run(self._wait_free(name, timeout))

    async def evict(self, name: str, token: int, *, reason: str | None = None) -> bool:
        """Ends the grant with this token. Make sure first that its holder has stopped; the holder may be any process.
        The history of the lock keeps the ``reason``. Returns whether that token still held the lock."""
        return await run(self._evict(name, token, reason))

    async def sweep(self, name: str, *, older_than: Duration, dry_run: bool = False) -> bool:
        """Deletes the record of a lock that has been free for ``older_than``. Returns whether it did, or with
        ``dry_run`` would."""
        return await run(self._sweep(name, older_than, dry_run))

    async def resize(
        self, name: str, *, permits: int | None = None, readers: int | None = None, ttl: Duration | None = None
    ) -> int:
        """Changes the number of permits of a semaphore, or of readers of a readers-writer lock, in the store. Returns
        the number before. Raises :class:`LockHeld` if somebody holds the lock. The process must not be paused for
        longer than ``ttl`` meanwhile."""
        return await run(self._resize(name, permits, readers, ttl))

    async def init(self) -> None:
        """Creates what the store needs, such as a file or a table."""
        await run(self._init())

    async def capabilities(self) -> Capabilities:
        """Returns the capabilities of the store."""
        return await run(self._capabilities())

    async def doctor(self, *, ttl: Duration | None = None, thorough: bool = False) -> Report:
        """Checks whether the store is safe for locks. Takes seconds, and up to about 1,700 requests to a bucket."""
        return await run(self._doctor(ttl, thorough))

    async def resume(self, ticket: str) -> Guard:
        """Takes over the lock of a ticket: renews it now and keeps it."""
        request = await begin(self._request("resume", ticket=ticket))
        expect(await request.next(ANSWER_TIMEOUT), "held")
        return Guard(request.agent, request.hold)

    async def renew_ticket(self, ticket: str) -> float:
        """Renews the lock of a ticket once. Returns for how many seconds it is certain to be held."""
        return await run(self._renew_ticket(ticket))

    async def release_ticket(self, ticket: str) -> bool:
        """Releases the lock of a ticket. Returns whether it was held until now."""
        return await run(self._release_ticket(ticket))
