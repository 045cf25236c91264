"""The interface for asyncio: a store of locks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from .._call import ANSWER_TIMEOUT
from .._requests import LockSettings, expect, lock_settings, store_url, target, was_held
from .._types import Capabilities, Duration, Report, Status
from ._call import begin, call, hold_of
from ._locks import Election, Guard, Lock, RwLock
from ._once import Once, OnceDecorator


class Locker:
    """A store of locks, for asyncio. See :class:`leasehold_locks.Locker` for all parameters."""

    def __init__(self, store: str | None = None) -> None:
        self._store = store_url(store)

    def _settings(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
        barge: bool = False,
        **mode: Any,
    ) -> LockSettings:
        return lock_settings(
            self._store,
            name,
            ttl=ttl,
            note=note,
            owner=owner,
            lock_delay=lock_delay,
            store_timeout=store_timeout,
            barge=barge,
            **mode,
        )

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
        """The lock called ``name``."""
        return Lock(
            self._settings(
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
    ) -> Lock:
        """A lock with up to ``permits`` holders, at most 64."""
        return Lock(self._settings(name, ttl=ttl, note=note, owner=owner, mode="permit", permits=permits))

    def rw_lock(
        self, name: str, *, ttl: Duration | None = None, note: str | None = None, owner: str | None = None
    ) -> RwLock:
        """A readers-writer lock."""
        shared = self._settings(name, ttl=ttl, note=note, owner=owner, mode="shared")
        return RwLock(Lock(shared), Lock(self._settings(name, ttl=ttl, note=note, owner=owner, mode="exclusive")))

    def election(
        self,
        name: str,
        *,
        value: str | None = None,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
    ) -> Election:
        """The election called ``name``. ``value`` is what this candidate advertises while it leads."""
        return Election(self._settings(name, ttl=ttl, note=note, owner=owner, mode="leader", value=value))

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
    ) -> OnceDecorator:
        """Runs a job once per period, on one of several machines."""
        settings = self._settings(name, ttl=ttl, note=note, owner=owner)
        return OnceDecorator(lambda: Once(settings, per, timeout, nowait))

    async def status(self, name: str) -> Status:
        """The state of a lock."""
        return Status.of(expect(await call({"op": "status", **target(self._store, name)}), "status"))

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of all locks that have a record and begin with ``prefix``."""
        request = await begin({"op": "list", **target(self._store), "prefix": prefix})
        try:
            while (message := await request.next(ANSWER_TIMEOUT))["ev"] == "names":
                for name in message["names"]:
                    yield name
        finally:
            request.pending.abandon()

    async def break_lock(self, name: str, token: int) -> bool:
        """Ends the grant with this token. Returns whether that token still had the lock."""
        fields = {"op": "break", **target(self._store, name), "token": str(token)}
        return was_held(await call(fields), "broken")

    async def capabilities(self) -> Capabilities:
        """What the store can do."""
        message = await call({"op": "capabilities", **target(self._store)})
        return Capabilities.of(expect(message, "capabilities"))

    async def doctor(self, *, thorough: bool = False) -> Report:
        """Examines whether the store is safe for locks."""
        message = await call({"op": "doctor", **target(self._store), "thorough": thorough}, None)
        return Report.of(expect(message, "report"))

    async def resume(self, ticket: str) -> Guard:
        """Renews the lock of a ticket, and keeps it from now on."""
        request = await begin({"op": "resume", **target(self._store), "ticket": ticket})
        expect(await request.next(ANSWER_TIMEOUT), "held")
        return Guard(hold_of(request))

    async def release_ticket(self, ticket: str) -> bool:
        """Releases the lock of a ticket. Returns whether it was held until now."""
        fields = {"op": "release_ticket", **target(self._store), "ticket": ticket}
        return was_held(await call(fields), "released")

    def __repr__(self) -> str:
        return "<Locker>"  # A URL may contain a password.
