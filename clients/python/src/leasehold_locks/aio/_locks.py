"""Locks and guards of the interface for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import weakref
from collections.abc import AsyncIterator
from types import FrameType, TracebackType
from typing import Any

from .. import _nested
from .._base import BaseLock, Entered
from .._errors import LockHeld, LockLost, StoreError
from .._guard import BaseGuard, log
from .._hold import Message
from .._requests import ANSWER_TIMEOUT, Invocation, expect, longest, release, target, was_held, within
from .._types import Duration, Leader
from ._call import Call, begin, call


class Guard(BaseGuard):
    """A lock that is held. The agent renews it until it is released.

    A guard is an asynchronous context manager that releases the lock. If the lock is lost, the body is cancelled, and
    leaving it raises :class:`LockLost`.
    """

    _task: asyncio.Task[Any] | None = None
    _cancelling = 0
    _cancelled_by_loss = False

    async def confirm(self) -> None:
        """Renews the lease now and waits for the response. Correct even after a pause in which both clocks stopped."""
        self._agent.check(self._hold)
        request = Call(self._agent, {"op": "renew", "hold": self._hold.number})
        with self._lost_if_refused():
            expect(await request.next(), "renewed")
        self._agent.check(self._hold)

    async def release(self, cooldown: Duration | None = None) -> bool:
        """Releases the lock. Returns whether it was held until now. If this call is cancelled, the release
        continues."""
        agent, hold = self._agent, self._hold
        agent.forbid_forked()
        fields = release(hold.number, cooldown)
        with agent.lock:
            left = agent.remaining(hold)  # Detects a loss that was not noticed yet.
            try:
                if not agent.end(hold):
                    return False
                # Sends the request before this task waits for anything.
                request = Call(agent, fields)
            except BaseException:
                # A signal handler raised an exception, or the event loop has ended.
                agent.give_up(hold)
                raise
        # The agent tries to record a cooldown until the lease ends.
        return was_held(await request.next(left + ANSWER_TIMEOUT), "released")

    async def ticket(self) -> str:
        """Ends this hold and returns the lock as a ticket, which another process can resume. A ticket is a secret."""
        agent, hold = self._agent, self._hold
        agent.check(hold)
        with agent.lock:
            if not agent.end(hold):
                agent.check(hold)
            try:
                request = Call(agent, {"op": "ticket", "hold": hold.number})
            except BaseException:
                agent.give_up(hold)
                raise
        return str(expect(await request.next(ANSWER_TIMEOUT), "ticket")["ticket"])

    async def __aenter__(self) -> Guard:
        self._enter(sys._getframe(1))
        return self

    def _enter(self, block: FrameType) -> None:
        """Makes a loss cancel the current task, which is in ``block``."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a lock is held by a task")
        loop = asyncio.get_running_loop()
        self._task = task
        self.block = block
        self._cancelling = _cancelling(task)

        # A guard that is no longer used must be garbage collected, which releases it.
        guard = weakref.ref(self)

        def tell(_: LockLost) -> None:
            if (entered := guard()) is not None:
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(entered._cancel)

        self._agent.listen(self._hold, tell)

    def _cancel(self) -> None:
        # Does not cancel after the body, because the task may do something else by then.
        if self._task is not None:
            self._cancelled_by_loss = True
            self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._leave(error)

    async def _leave(self, error: BaseException | None, cooldown: Duration | None = None) -> None:
        task, self._task, self.block = self._task, None, None
        if self._agent.is_forked():
            return  # The lock belongs to the parent.
        if self._cancelled_by_loss and task is not None:
            self._cancelled_by_loss = False
            # Like asyncio.timeout: if others have cancelled the task too, it stays cancelled.
            if _uncancel(task) <= self._cancelling and isinstance(error, asyncio.CancelledError):
                self._raise_loss(error)
        completed = error is None
        if completed and self._hold.loss is None and self._hold.is_over:
            return  # The body released the lock.
        if completed:
            self._agent.check(self._hold)
        try:
            released = await self.release(cooldown)
        except StoreError as failed:
            if completed and cooldown is not None:
                raise
            log.warning("lock %r was not released and stays held until its lease ends: %s", self.name, failed)
        else:
            if completed and not released:
                raise LockLost(f"lock `{self.name}` was lost before it was released", "ended")

    def _raise_loss(self, cause: BaseException) -> None:
        try:
            self._agent.check(self._hold)
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


class Lock(BaseLock[Guard]):
    """A named lock, with the settings for acquiring it. Created by :meth:`Locker.lock` and similar methods."""

    def hold(self, timeout: Duration | None = None, *, context: Invocation | None = None) -> Holding:
        """Holds the lock during an ``async with`` statement. Waits for at most ``timeout``, or without a limit if there
        is none.

        Entering raises :class:`LockHeld` (a :class:`TimeoutError`) after the timeout. With the ``context`` of an AWS
        Lambda function, the wait ends at least one second before the invocation does.
        """
        return Holding(self, timeout, context)

    async def guard(self, timeout: Duration | None = None, *, context: Invocation | None = None) -> Guard:
        """Acquires the lock. Raises :class:`LockHeld` if another holder still has it after ``timeout``.

        For ``context``, see :meth:`hold`.
        """
        fields = self._settings.request("acquire", within(timeout, context))
        if fields.get("wait_ms") != 0:
            _nested.forbid(self._settings)
        return await self._acquired(_nested.holding(fields))

    async def try_acquire(self) -> Guard | None:
        """Acquires the lock if it is free now. Returns ``None`` if another holder has it."""
        try:
            return await self._acquired(self._settings.request("try"))
        except LockHeld:
            return None

    async def _acquired(self, fields: Message) -> Guard:
        request = await begin(fields)
        limit = None if (allowed := longest(fields)) is None else allowed + ANSWER_TIMEOUT
        expect(await request.next(limit), "held")
        guard = Guard(request.agent, request.hold)
        _nested.remember(self._settings, guard)
        return guard

    # The interface of asyncio.Lock.

    async def acquire(self) -> bool:
        """Acquires the lock, as :meth:`asyncio.Lock.acquire` does. Release it with :meth:`release`."""
        self._held.add(await self.guard())
        return True

    async def release(self) -> None:
        """Releases the lock that :meth:`acquire` acquired. Raises :class:`LockLost` if the lock was lost in the
        meantime."""
        try:
            guard = self._held.pop()
        except LookupError:
            raise RuntimeError("Lock is not acquired.") from None
        await guard._leave(None)


class Holding:
    """A lock during an ``async with`` statement: see :meth:`Lock.hold`."""

    def __init__(self, lock: Lock, timeout: Duration | None, context: Invocation | None) -> None:
        self._lock = lock
        self._timeout = timeout
        self._context = context
        self._entered: Entered[Guard] = Entered(strict=True)

    async def __aenter__(self) -> Guard:
        guard = await self._lock.guard(self._timeout, context=self._context)
        guard._enter(sys._getframe(1))
        self._entered.add(guard)
        return guard

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._entered.pop()._leave(error)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._lock!r}>"


class RwLock:
    """A lock with either several shared holders or one exclusive holder."""

    def __init__(self, shared: Lock, exclusive: Lock) -> None:
        self.shared = shared
        self.exclusive = exclusive

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shared.name!r}>"


class Election(Lock):
    """An election: one of several candidates leads. The holder of the lock is the leader, and its token is the term."""

    async def leader(self) -> Leader | None:
        """Reads the leader from the store. Returns ``None`` if there is none. The result may be outdated."""
        message = await call({"op": "leader", **target(self._settings.store, self.name)})
        return Leader.of(expect(message, "leader"))

    async def observe(self) -> AsyncIterator[Leader | None]:
        """Yields the leader, and then every change. Close the iterator to end it."""
        request = await begin({"op": "observe", **target(self._settings.store, self.name)})
        try:
            while True:
                yield Leader.of(expect(await request.next(), "leader"))
        finally:
            request.abandon()
