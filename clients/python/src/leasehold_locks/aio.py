"""The interface for asyncio: the names of :mod:`leasehold_locks`, with ``async with`` and ``await``.

>>> from leasehold_locks.aio import Locker
>>> async def main() -> None:
...     async with Locker("sqlite:locks.db").lock("deploy/prod", ttl=30).hold(timeout=60) as g:
...         await deploy(fence=g.token)

If the lock is lost, the body is cancelled, as :func:`asyncio.timeout` does it, and leaves as
:class:`~leasehold_locks.LockLost`. If a waiting acquisition is cancelled, nothing stays acquired. A release that was
begun goes on if its task is cancelled.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from . import _shared
from ._agent import Agent
from ._errors import AgentError, ForkedError, LeaseholdError, LockHeld, LockLost, StoreError
from ._guard import BaseGuard, log
from ._hold import Hold, Message, Pending
from ._requests import LockSettings, decoded, encoded, expect, lock_settings, store_url, target, was_held
from ._types import AlreadyRan, Capabilities, Duration, Leader, Ran, Report, Status, milliseconds

__all__ = [
    "AgentError",
    "AlreadyRan",
    "Election",
    "ForkedError",
    "Guard",
    "Holding",
    "LeaseholdError",
    "Lock",
    "LockHeld",
    "LockLost",
    "Locker",
    "Object",
    "Once",
    "Ran",
    "RwLock",
    "StoreError",
    "open_object",
]

P = ParamSpec("P")
T = TypeVar("T")

_ANSWER_TIMEOUT = 120.0


class _Call:
    """One request, and its messages."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        self._loop = asyncio.get_running_loop()
        self._outcomes: asyncio.Queue[Message | LeaseholdError] = asyncio.Queue()
        self.agent = agent
        self.pending: Pending = agent.request(fields, self._deliver)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        # The loop may have ended, and with it everybody who waits.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._outcomes.put_nowait, outcome)

    async def next(self, limit: float | None = None) -> Message:
        """The next message. If this is cancelled, so is the request; a lock that it was granted is released.

        An agent that does not answer within ``limit`` is ended.
        """
        timer = None
        if limit is not None:
            # The end of the agent ends the request. (asyncio.wait_for of Python 3.11 can swallow a cancellation.)
            timer = self._loop.call_later(limit, self.agent.kill, "the agent does not answer")
        try:
            outcome = await self._outcomes.get()
        except BaseException:
            self.pending.abandon()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        if isinstance(outcome, LeaseholdError):
            raise outcome
        return outcome


async def _begin(fields: Message) -> _Call:
    """Sends a request. Starting the agent takes some milliseconds, so a thread does it."""
    agent = _shared.running()
    if agent is None:
        agent = await asyncio.get_running_loop().run_in_executor(None, _shared.shared)
    return _Call(agent, fields)


async def _call(fields: Message, limit: float | None = _ANSWER_TIMEOUT) -> Message:
    return await (await _begin(fields)).next(limit)


class Guard(BaseGuard):
    """A lock that is held. The agent renews it until it is released.

    An asynchronous context manager that releases the lock. If the lock is lost, the body is cancelled and leaves as
    :class:`LockLost`.
    """

    _task: asyncio.Task[Any] | None = None
    _cancelling = 0
    _cancelled_by_loss = False

    async def confirm(self) -> None:
        """Renews the lease now, and waits for the answer. Right even after a pause in which both clocks stood still."""
        self._hold.check()
        call = _Call(self._hold.agent, {"op": "renew", "hold": self._hold.number})
        expect(await call.next(), "renewed")
        self._hold.check()

    async def release(self, cooldown: Duration | None = None) -> bool:
        """Releases the lock. Returns whether it was held until now. If this is cancelled, the release goes on."""
        hold = self._hold
        hold.agent.forbid_forked()
        fields: Message = {"op": "release", "hold": hold.number}
        if cooldown is not None:
            fields["cooldown_ms"] = milliseconds(cooldown, "cooldown")
        with hold.agent.lock:
            hold.remaining()  # Finds a loss that was not noticed yet.
            if not hold.end():
                return False
            # Sent here, before this waits for anything.
            call = _Call(hold.agent, fields)
        return was_held(await call.next(_ANSWER_TIMEOUT), "released")

    async def ticket(self) -> str:
        """Ends this hold, and returns the lock as a ticket, which another process can resume. A ticket is a secret."""
        hold = self._hold
        hold.check()
        with hold.agent.lock:
            if not hold.end():
                hold.check()
            call = _Call(hold.agent, {"op": "ticket", "hold": hold.number})
        return str(expect(await call.next(_ANSWER_TIMEOUT), "ticket")["ticket"])

    async def __aenter__(self) -> Guard:
        self._enter()
        return self

    def _enter(self) -> None:
        """From here on, a loss cancels this task."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lock is held by a task")
        loop = asyncio.get_running_loop()
        self._task = task
        self._cancelling = _cancelling(task)

        def tell(_: LockLost) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._cancel)

        self._hold.listen(tell)

    def _cancel(self) -> None:
        # Not after the body: the task may do something else by now.
        if self._task is not None:
            self._cancelled_by_loss = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None, cooldown: Duration | None = None) -> None:
        task, self._task = self._task, None
        if self._hold.agent.is_forked():
            return  # The lock is the parent's.
        if self._cancelled_by_loss and task is not None:
            self._cancelled_by_loss = False
            # As asyncio.timeout: if others have cancelled the task too, it stays cancelled.
            if _uncancel(task) <= self._cancelling and isinstance(error, asyncio.CancelledError):
                self._raise_loss(error)
        completed = error is None
        if completed and self._hold.loss is None and self._hold.is_over:
            return  # The body has released it.
        if completed:
            self._hold.check()
        try:
            released = await self.release(cooldown)
        except StoreError as failed:
            if completed and cooldown is not None:
                raise
            log.warning("lock %r was not released, and ends with its lease: %s", self.name, failed)
        else:
            if completed and not released:
                raise LockLost(f"lock `{self.name}` was lost before it was released", "ended")

    def _raise_loss(self, cause: BaseException) -> None:
        try:
            self._hold.check()
        except LockLost as loss:
            raise loss from cause


if sys.version_info >= (3, 11):

    def _cancelling(task: asyncio.Task[Any]) -> int:
        return task.cancelling()

    def _uncancel(task: asyncio.Task[Any]) -> int:
        return task.uncancel()

else:

    def _cancelling(task: asyncio.Task[Any]) -> int:
        return 0

    def _uncancel(task: asyncio.Task[Any]) -> int:
        return 0


class Lock:
    """A named lock, with the settings for acquiring it. Made by :meth:`Locker.lock` and its siblings."""

    def __init__(self, settings: LockSettings) -> None:
        self._settings = settings
        self._held: list[Guard] = []

    @property
    def name(self) -> str:
        return self._settings.name

    def hold(self, timeout: Duration | None = None) -> Holding:
        """Holds the lock during an ``async with`` statement. Waits for at most ``timeout``, or without a limit.

        Entering raises :class:`LockHeld` (a :class:`TimeoutError`) after the timeout.
        """
        return Holding(self, timeout)

    async def guard(self, timeout: Duration | None = None) -> Guard:
        """Acquires the lock. Raises :class:`LockHeld` if another holder still has it after ``timeout``."""
        return await self._acquired(self._settings.request("acquire", timeout))

    async def try_acquire(self) -> Guard | None:
        """Acquires the lock if it is free now; ``None`` if another holder has it."""
        try:
            return await self._acquired(self._settings.request("try"))
        except LockHeld:
            return None

    async def _acquired(self, fields: Message) -> Guard:
        call = await _begin(fields)
        wait_ms = fields.get("wait_ms", 0 if fields["op"] == "try" else None)
        limit = None if wait_ms is None else wait_ms / 1_000 + _ANSWER_TIMEOUT
        expect(await call.next(limit), "held")
        return Guard(_hold_of(call))

    # The shape of asyncio.Lock.

    async def acquire(self) -> bool:
        """Acquires the lock, as :meth:`asyncio.Lock.acquire` does. Release it with :meth:`release`."""
        self._held.append(await self.guard())
        return True

    async def release(self) -> None:
        """Releases what :meth:`acquire` acquired. Raises :class:`LockLost` if the lock was lost in the meantime."""
        if not self._held:
            raise RuntimeError("Lock is not acquired.")
        await self._held.pop()._leave(None)

    def locked(self) -> bool:
        """Whether this object holds the lock."""
        return any(guard.is_held for guard in self._held)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class Holding:
    """A lock during an ``async with`` statement: see :meth:`Lock.hold`."""

    def __init__(self, lock: Lock, timeout: Duration | None) -> None:
        self._lock = lock
        self._timeout = timeout
        self._guards: dict[asyncio.Task[Any] | None, list[Guard]] = {}

    async def __aenter__(self) -> Guard:
        guard = await self._lock.guard(self._timeout)
        guard._enter()
        self._guards.setdefault(asyncio.current_task(), []).append(guard)
        return guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        task = asyncio.current_task()
        guards = self._guards[task]
        guard = guards.pop()
        if not guards:
            del self._guards[task]
        await guard._leave(error)


class RwLock:
    """A lock with either several shared holders, at most eight, or one exclusive holder."""

    def __init__(self, shared: Lock, exclusive: Lock) -> None:
        self.shared = shared
        self.exclusive = exclusive


class Election(Lock):
    """One of several candidates leads. Holding the lock is leading; the token is the term."""

    async def leader(self) -> Leader | None:
        """The leader, by one read of the store; ``None`` if there is none. May be outdated."""
        message = await _call({"op": "leader", **target(self._settings.store, self.name)})
        return Leader.of(expect(message, "leader"))

    async def observe(self) -> AsyncIterator[Leader | None]:
        """The leader, then every change. Close the iterator to end it."""
        call = await _begin({"op": "observe", **target(self._settings.store, self.name)})
        try:
            while True:
                yield Leader.of(expect(await call.next(), "leader"))
        finally:
            call.pending.abandon()


class Once(Generic[T]):
    """A job that several machines start and one of them runs, once per period. Made by :meth:`Locker.once`."""

    def __init__(self, settings: LockSettings, period: Duration, timeout: Duration | None, nowait: bool) -> None:
        self._period = period
        more: Message = {"period_ms": milliseconds(period, "per")}
        if nowait:
            more["nowait"] = True
        self._request = settings.request("once", timeout, **more)

    async def run(self, job: Callable[[], Awaitable[T]]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period. It is cancelled if the lock is lost."""
        call = await _begin(self._request)
        message = await call.next()
        if message["ev"] == "already_ran":
            return AlreadyRan.of(message)
        expect(message, "held")
        guard = Guard(_hold_of(call))
        guard._enter()
        try:
            value = await job()
        except BaseException as error:
            await guard._leave(error)  # Another process may run it in this period.
            raise
        await guard._leave(None, self._period)
        return Ran(value)


class OnceDecorator:
    """See :meth:`Locker.once`."""

    def __init__(self, make: Callable[[], Once[Any]]) -> None:
        self._make = make

    def __call__(self, job: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[Ran[T] | AlreadyRan]]:
        once: Once[T] = self._make()

        @functools.wraps(job)
        async def run(*args: P.args, **kwargs: P.kwargs) -> Ran[T] | AlreadyRan:
            return await once.run(lambda: job(*args, **kwargs))

        return run

    async def run(self, job: Callable[[], Awaitable[T]]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period."""
        once: Once[T] = self._make()
        return await once.run(job)


class Object:
    """An object of a bucket, with several writers."""

    def __init__(self, url: str, content_type: str | None) -> None:
        self._url = url
        self._typed: Message = {} if content_type is None else {"content_type": content_type}

    async def get(self, fence: int | None = None) -> bytes | None:
        """The content; ``None`` if there is no object. With ``fence``, later writes with lower tokens are refused."""
        return decoded(expect(await _call(self._fields("get", fence)), "object"))

    async def put(self, content: bytes, *, fence: int) -> None:
        """Writes the object unless a higher token has written it: then raises :class:`LockLost`."""
        fields = {**self._fields("put", fence), **self._typed, "content": encoded(content)}
        expect(await _call(fields), "done")

    async def update(
        self, change: Callable[[bytes | None], Awaitable[bytes | None]], *, fence: int | None = None
    ) -> bool:
        """Replaces the content by ``await change(content)``, and calls it again if another writer was faster."""
        call = await _begin({**self._fields("update", fence), **self._typed})
        while True:
            message = await call.next(_ANSWER_TIMEOUT)
            if message["ev"] != "content":
                return bool(expect(message, "updated")["written"])
            try:
                content = await change(decoded(message))
            except BaseException:
                call.pending.abandon()
                raise
            answer = {"op": "answer", "request": call.pending.id, "content": encoded(content)}
            await _Call(call.agent, answer).next(_ANSWER_TIMEOUT)

    def _fields(self, op: str, fence: int | None) -> Message:
        return {"op": op, "object": self._url, **({} if fence is None else {"fence": str(fence)})}


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
        return Status.of(expect(await _call({"op": "status", **target(self._store, name)}), "status"))

    async def list(self, prefix: str = "") -> AsyncIterator[str]:
        """The names of all locks that have a record and begin with ``prefix``."""
        call = await _begin({"op": "list", **target(self._store), "prefix": prefix})
        try:
            while (message := await call.next(_ANSWER_TIMEOUT))["ev"] == "names":
                for name in message["names"]:
                    yield name
        finally:
            call.pending.abandon()

    async def break_lock(self, name: str, token: int) -> bool:
        """Ends the grant with this token. Returns whether that token still had the lock."""
        fields = {"op": "break", **target(self._store, name), "token": str(token)}
        return was_held(await _call(fields), "broken")

    async def capabilities(self) -> Capabilities:
        """What the store can do."""
        message = await _call({"op": "capabilities", **target(self._store)})
        return Capabilities.of(expect(message, "capabilities"))

    async def doctor(self, *, thorough: bool = False) -> Report:
        """Examines whether the store is safe for locks."""
        message = await _call({"op": "doctor", **target(self._store), "thorough": thorough}, None)
        return Report.of(expect(message, "report"))

    async def resume(self, ticket: str) -> Guard:
        """Renews the lock of a ticket, and keeps it from now on."""
        call = await _begin({"op": "resume", **target(self._store), "ticket": ticket})
        expect(await call.next(_ANSWER_TIMEOUT), "held")
        return Guard(_hold_of(call))

    async def release_ticket(self, ticket: str) -> bool:
        """Releases the lock of a ticket. Returns whether it was held until now."""
        fields = {"op": "release_ticket", **target(self._store), "ticket": ticket}
        return was_held(await _call(fields), "released")

    def __repr__(self) -> str:
        return "<Locker>"  # A URL may contain a password.


def open_object(url: str, *, content_type: str | None = None) -> Object:
    """Opens an object by its URL, such as ``s3://bucket/counter.json``. Makes no request."""
    return Object(url, content_type)


def _hold_of(call: _Call) -> Hold:
    hold = call.pending.hold
    assert hold is not None
    return hold
