"""The base classes of lockers and locks in both interfaces. They create locks and build requests with one response."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from ._guard import BaseGuard
from ._hold import Message
from ._requests import LockSettings, Operation, expect, lock_settings, store_url, target, was_held
from ._types import Capabilities, Duration, Report, Status, milliseconds

L = TypeVar("L")
E = TypeVar("E")
W = TypeVar("W")
G = TypeVar("G", bound=BaseGuard)


class BaseLocker(Generic[L, W, E]):
    """A store of locks."""

    _lock: Callable[[LockSettings], L]
    _rw_lock: Callable[[L, L], W]
    _election: Callable[[LockSettings], E]

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
        max_hold: Duration | None = None,
        store_timeout: Duration | None = None,
        barge: bool = False,
    ) -> L:
        """Returns the lock called ``name``.

        ``ttl`` is how long others wait if this process dies (30 s by default). ``note`` and ``owner`` describe the
        holder to others. With ``lock_delay``, others wait longer after a holder's lease has lapsed. ``max_hold`` limits
        how long the lock is held: then it is lost, for the reason ``limit``, and others get it when its lease has
        ended. ``store_timeout`` is how long the store may take to respond. With ``barge``, earlier waiters have no
        precedence.
        """
        return self._lock(
            self._settings(
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                max_hold=max_hold,
                store_timeout=store_timeout,
                barge=barge or None,
            )
        )

    def lock_all(
        self,
        names: Iterable[str],
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        max_hold: Duration | None = None,
        store_timeout: Duration | None = None,
        barge: bool = False,
    ) -> L:
        """Returns the locks called ``names``, at most 64, which are acquired together: all or none.

        They are acquired in the order of the bytes of their names, so that acquisitions with names in common never wait
        for each other for ever. A loss of one is the loss of all, and a release frees all. Each has its own token:
        see ``guard.tokens``. ``max_hold`` counts from the grant of the first lock.
        """
        several = [names] if isinstance(names, str) else sorted(names, key=str.encode)
        return self._lock(
            self._settings(
                ", ".join(several),
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                max_hold=max_hold,
                store_timeout=store_timeout,
                barge=barge or None,
                locks=several,
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
        max_hold: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> L:
        """Returns a lock with up to ``permits`` holders. ``permits`` is at most 64.

        The first acquisition records the number in the store. One with another number raises :class:`SizeError`.
        """
        return self._lock(
            self._settings(
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                max_hold=max_hold,
                store_timeout=store_timeout,
                mode="permit",
                permits=permits,
            )
        )

    def rw_lock(
        self,
        name: str,
        *,
        readers: int | None = None,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        max_hold: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> W:
        """Returns a readers-writer lock. It has two locks: ``locker.rw_lock("index").shared`` and ``exclusive``.

        It has up to ``readers`` shared holders: 8 by default, and at most 64. The first acquisition records the
        number in the store. One with another number raises :class:`SizeError`.
        """
        shared, exclusive = (
            self._lock(
                self._settings(
                    name,
                    ttl=ttl,
                    note=note,
                    owner=owner,
                    lock_delay=lock_delay,
                    max_hold=max_hold,
                    store_timeout=store_timeout,
                    mode=mode,
                    readers=readers,
                )
            )
            for mode in ("shared", "exclusive")
        )
        return self._rw_lock(shared, exclusive)

    def election(
        self,
        name: str,
        *,
        value: str | None = None,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        max_hold: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> E:
        """Returns the election called ``name``. This candidate advertises ``value`` while it leads."""
        return self._election(
            self._settings(
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                max_hold=max_hold,
                store_timeout=store_timeout,
                mode="leader",
                value=value,
            )
        )

    def _settings(self, name: str, **settings: Any) -> LockSettings:
        return lock_settings(self._store, name, **settings)

    # The requests with one response. Each interface sends them in its own way.

    def _status(self, name: str) -> Operation[Status]:
        return Operation(self._request("status", name), lambda answer: Status.of(expect(answer, "status")))

    def _wait_free(self, name: str, timeout: Duration | None) -> Operation[None]:
        more: Message = {} if timeout is None else {"wait_ms": milliseconds(timeout, "timeout")}
        return Operation(self._request("wait_free", name, **more), _done, None)

    def _evict(self, name: str, token: int, reason: str | None) -> Operation[bool]:
        more: Message = {} if reason is None else {"reason": reason}
        request = self._request("evict", name, token=token, **more)
        return Operation(request, lambda answer: was_held(answer, "evicted"))

    def _sweep(self, name: str, older_than: Duration, dry_run: bool) -> Operation[bool]:
        more = {"older_than_ms": milliseconds(older_than, "older_than"), "dry_run": dry_run}
        return Operation(self._request("sweep", name, **more), lambda answer: bool(expect(answer, "swept")["deleted"]))

    def _resize(self, name: str, permits: int | None, readers: int | None, ttl: Duration | None) -> Operation[int]:
        if (permits is None) == (readers is None):
            raise TypeError("resize() takes either permits or readers")
        more: Message = {"mode": "permit", "permits": permits}
        if permits is None:
            more = {"mode": "shared", "readers": readers}
        if ttl is not None:
            more["ttl_ms"] = milliseconds(ttl, "ttl")
        request = self._request("resize", name, **more)
        return Operation(request, lambda answer: int(expect(answer, "resized")["before"]), None)

    def _init(self) -> Operation[None]:
        return Operation(self._request("init"), _done)

    def _capabilities(self) -> Operation[Capabilities]:
        return Operation(self._request("capabilities"), lambda answer: Capabilities.of(expect(answer, "capabilities")))

    def _doctor(self, ttl: Duration | None, thorough: bool) -> Operation[Report]:
        more: Message = {} if ttl is None else {"ttl_ms": milliseconds(ttl, "ttl")}
        fields = self._request("doctor", thorough=thorough, **more)
        return Operation(fields, lambda answer: Report.of(expect(answer, "report")), None)

    def _renew_ticket(self, ticket: str) -> Operation[float]:
        return Operation(
            self._request("renew_ticket", ticket=ticket),
            lambda answer: int(expect(answer, "ticket_renewed")["remaining_ms"]) / 1_000,
        )

    def _release_ticket(self, ticket: str) -> Operation[bool]:
        return Operation(self._request("release_ticket", ticket=ticket), lambda answer: was_held(answer, "released"))

    def _request(self, op: str, lock: str | None = None, **more: Any) -> Message:
        return {"op": op, **target(self._store, lock), **more}

    def __repr__(self) -> str:
        return "<Locker>"  # A URL may contain a password.


class BaseLock(Generic[G]):
    """A named lock, with the settings for acquiring it."""

    def __init__(self, settings: LockSettings) -> None:
        self._settings = settings
        self._held: Entered[G] = Entered()

    @property
    def name(self) -> str:
        return self._settings.name

    def locked(self) -> bool:
        """Returns whether this object holds the lock."""
        return any(guard.is_held for guard in self._held.all())

    @property
    def token(self) -> int:
        """The fencing token of the lock that :meth:`acquire` acquired."""
        return self._latest().token

    def check(self) -> None:
        """Checks that the lock that :meth:`acquire` acquired is still held."""
        self._latest().check()

    def _latest(self) -> G:
        try:
            return self._held.latest()
        except LookupError:
            raise RuntimeError("the lock is not acquired") from None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Entered(Generic[G]):
    """Guards, each with the thread and the task that acquired it. Has no lock, which a fork could leave locked.

    A thread or task gets its own latest guard. One that has none gets another's: a ``threading.Lock`` may be released
    by another thread, and a generator may be closed by another thread or task. With ``strict``, that guard must be the
    only one.
    """

    def __init__(self, strict: bool = False) -> None:
        self._strict = strict
        self._guards: list[tuple[tuple[int, object], G]] = []

    def add(self, guard: G) -> None:
        self._guards.append((_caller(), guard))

    def all(self) -> list[G]:
        return [guard for _, guard in list(self._guards)]

    def latest(self) -> G:
        """Raises :class:`LookupError` if there is none."""
        return self._choose()[1]

    def pop(self) -> G:
        """Removes and returns the latest guard. Raises :class:`LookupError` if there is none."""
        while True:
            entry = self._choose()
            try:
                self._guards.remove(entry)
            except ValueError:  # Another thread was faster.
                continue
            return entry[1]

    def _choose(self) -> tuple[tuple[int, object], G]:
        guards, caller = list(self._guards), _caller()
        own = [entry for entry in guards if entry[0] == caller]
        if not own and self._strict and len(guards) > 1:
            raise LookupError("another thread or task leaves one of several blocks that share an object of hold()")
        return (own or guards)[-1]


def _caller() -> tuple[int, object]:
    """Returns the current thread and task."""
    try:
        return threading.get_ident(), asyncio.current_task()
    except RuntimeError:  # No event loop runs in this thread.
        return threading.get_ident(), None


def _done(answer: Message) -> None:
    expect(answer, "done")
