"""Locks and guards of the blocking interface."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import TracebackType

from . import _nested
from ._base import BaseLock, Entered
from ._call import Call, begin, call
from ._errors import LockHeld, LockLost, StoreError
from ._guard import BaseGuard, log
from ._hold import Message
from ._requests import ANSWER_TIMEOUT, Invocation, expect, longest, release, target, was_held, within
from ._types import Duration, Leader, milliseconds


class Guard(BaseGuard):
    """A lock that is held. The agent renews it until it is released.

    A guard is a context manager that releases the lock. If the lock was lost and the body raised no error, leaving the
    body raises :class:`LockLost`, so that unprotected work does not look successful. The thread in the body is never
    interrupted. Call :meth:`check` before each step that must not be done twice.

    >>> with locker.lock("report").guard() as g:
    ...     g.check()  # still held? local, no request
    ...     save("report", fence=g.token)
    """

    def confirm(self, timeout: Duration | None = None) -> None:
        """Renews the lease now and waits for the response. Correct even after a pause in which both clocks stopped.

        Raises :class:`LockLost` if the lock was lost, and :class:`StoreError` if the store has not responded after
        ``timeout``.
        """
        self._agent.check(self._hold)
        limit = None if timeout is None else milliseconds(timeout, "timeout") / 1_000
        request = Call(self._agent, {"op": "renew", "hold": self._hold.number})
        if not request.arrives_within(limit):
            request.abandon()
            raise StoreError("the store did not respond before the time limit", "unavailable")
        with self._lost_if_refused():
            expect(request.next(), "renewed")
        self._agent.check(self._hold)

    def release(self, cooldown: Duration | None = None) -> bool:
        """Releases the lock. Returns whether it was held until now.

        With ``cooldown``, the lock is not granted again before this time has passed since it was granted. A signal
        handler or finalizer that interrupts this module does not wait for the response.
        """
        agent, hold = self._agent, self._hold
        agent.forbid_forked()
        fields = release(hold.number, cooldown)
        entered = agent.is_entered()
        with agent.lock:
            left = agent.remaining(hold)  # Detects a loss that was not noticed yet.
            try:
                if not agent.end(hold):
                    return False
                if entered:
                    agent.post(fields)
                    return True
                request = Call(agent, fields)
            except BaseException:
                # A signal handler raised an exception.
                agent.give_up(hold)
                raise
        # The agent tries to record a cooldown until the lease ends.
        return was_held(request.next(left + ANSWER_TIMEOUT), "released")

    def ticket(self) -> str:
        """Ends this hold and returns the lock as a ticket, which another process can resume. A ticket is a secret."""
        agent, hold = self._agent, self._hold
        agent.forbid_entered()
        agent.check(hold)
        with agent.lock:
            if not agent.end(hold):
                agent.check(hold)
            try:
                request = Call(agent, {"op": "ticket", "hold": hold.number})
            except BaseException:
                agent.give_up(hold)
                raise
        return str(expect(request.next(ANSWER_TIMEOUT), "ticket")["ticket"])

    def __enter__(self) -> Guard:
        self.block = sys._getframe(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error is None)

    def _leave(self, completed: bool, cooldown: Duration | None = None) -> None:
        self.block = None
        if self._agent.is_forked():
            return  # The lock belongs to the parent.
        if completed and self._hold.loss is None and self._hold.is_over:
            return  # The body released the lock.
        if completed:
            self._agent.check(self._hold)
        try:
            released = self.release(cooldown)
        except StoreError as failed:
            if completed and cooldown is not None:
                raise
            log.warning("lock %r was not released and stays held until its lease ends: %s", self.name, failed)
        else:
            if completed and not released:
                raise LockLost(f"lock `{self.name}` was lost before it was released", "ended")


class Lock(BaseLock[Guard]):
    """A named lock, with the settings for acquiring it. Created by :meth:`Locker.lock` and similar methods."""

    def hold(
        self,
        timeout: Duration | None = None,
        *,
        context: Invocation | None = None,
        on_lost: Callable[[LockLost], object] | None = None,
    ) -> Holding:
        """Holds the lock during a ``with`` statement. Waits for at most ``timeout``, or without a limit if there is
        none.

        >>> with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
        ...     g.check()
        ...     deploy(fence=g.token)

        Entering raises :class:`LockHeld` (a :class:`TimeoutError`) after the timeout. :class:`Guard` describes what
        happens on leaving. If the lock is lost, ``on_lost`` is called in a new thread. With the ``context`` of an AWS
        Lambda function, the wait ends at least one second before the invocation does.
        """
        return Holding(self, timeout, context, on_lost)

    def guard(self, timeout: Duration | None = None, *, context: Invocation | None = None) -> Guard:
        """Acquires the lock. Raises :class:`LockHeld` if another holder still has it after ``timeout``.

        For ``context``, see :meth:`hold`.
        """
        fields = self._settings.request("acquire", within(timeout, context))
        if fields.get("wait_ms") != 0:
            _nested.forbid(self._settings)
        return self._acquired(_nested.holding(fields))

    def try_acquire(self) -> Guard | None:
        """Acquires the lock if it is free now. Returns ``None`` if another holder has it.

        >>> guard = locker.lock("nightly").try_acquire()
        >>> if guard is not None:
        ...     with guard:
        ...         report()
        """
        try:
            return self._acquired(self._settings.request("try"))
        except LockHeld:
            return None

    def _acquired(self, fields: Message) -> Guard:
        # The agent enforces the time limit. A wait for another holder may take until then.
        request = begin(fields)
        limit = None if (allowed := longest(fields)) is None else allowed + ANSWER_TIMEOUT
        expect(request.next(limit), "held")
        guard = Guard(request.agent, request.hold)
        _nested.remember(self._settings, guard)
        return guard

    # The interface of threading.Lock.

    def acquire(self, blocking: bool = True, timeout: Duration | None = -1) -> bool:
        """Acquires the lock as :meth:`threading.Lock.acquire` does. Release it with :meth:`release`.

        Without a ``timeout``, which may also be -1 or ``None``, waits without a limit.
        """
        limit = None if timeout == -1 else timeout
        if not blocking and limit is not None:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if isinstance(limit, (int, float)) and limit < 0:
            raise ValueError("timeout value must be a non-negative number")
        if not blocking:
            guard = self.try_acquire()
        else:
            try:
                guard = self.guard(limit)
            except LockHeld:
                guard = None
        if guard is None:
            return False
        self._held.add(guard)
        return True

    def release(self) -> None:
        """Releases the lock that :meth:`acquire` acquired. Raises :class:`LockLost` if the lock was lost in the
        meantime."""
        try:
            guard = self._held.pop()
        except LookupError:
            raise RuntimeError("release unlocked lock") from None
        guard._leave(True)

    def __enter__(self) -> Lock:
        self.acquire()
        self._held.latest().block = sys._getframe(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.pop()._leave(error is None)


class Holding:
    """A lock during a ``with`` statement: see :meth:`Lock.hold`. Can be reused, also by several threads."""

    def __init__(
        self,
        lock: Lock,
        timeout: Duration | None,
        context: Invocation | None,
        on_lost: Callable[[LockLost], object] | None,
    ) -> None:
        self._lock = lock
        self._timeout = timeout
        self._context = context
        self._on_lost = on_lost
        self._entered: Entered[Guard] = Entered(strict=True)

    def __enter__(self) -> Guard:
        guard = self._lock.guard(self._timeout, context=self._context)
        if self._on_lost is not None:
            guard.on_lost(self._on_lost)
        guard.block = sys._getframe(1)
        self._entered.add(guard)
        return guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop()._leave(error is None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._lock!r}>"


class RwLock:
    """A lock with either several shared holders or one exclusive holder."""

    #: Held together with other shared holders.
    shared: Lock
    #: Held alone.
    exclusive: Lock

    def __init__(self, shared: Lock, exclusive: Lock) -> None:
        self.shared = shared
        self.exclusive = exclusive

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.shared.name!r}>"


class Election(Lock):
    """An election: one of several candidates leads. The holder of the lock is the leader, and its token is the term.

    >>> with locker.election("scheduler", value="http://10.0.0.7:8080").hold() as leadership:
    ...     leadership.check()
    """

    def leader(self) -> Leader | None:
        """Reads the leader from the store. Returns ``None`` if there is none. The result may be outdated."""
        message = call({"op": "leader", **target(self._settings.store, self.name)})
        return Leader.of(expect(message, "leader"))

    def observe(self) -> Iterator[Leader | None]:
        """Yields the leader, and then every change. Blocks until the next change. Close the iterator to end it."""
        request = begin({"op": "observe", **target(self._settings.store, self.name)})
        try:
            while True:
                yield Leader.of(expect(request.next(), "leader"))
        finally:
            request.abandon()
