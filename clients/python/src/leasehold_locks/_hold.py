"""A held lock and a pending request, as far as this process has read. Guarded by the lock of their agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import _clock
from ._clock import Deadline, Moment
from ._errors import LeaseholdError, LockLost

if TYPE_CHECKING:
    from ._agent import Agent

Message = dict[str, Any]


class Hold:
    """A held lock."""

    __slots__ = ("_agent", "_deadline", "_listeners", "_loss", "_over", "has_guard", "name", "number", "token")

    def __init__(self, agent: Agent, number: int, name: str, token: int | None, deadline: Deadline) -> None:
        self.number = number
        self.name = name
        self.token = token
        self._agent = agent
        self._deadline = deadline
        self._listeners: list[Callable[[LockLost], None]] = []
        self._loss: LockLost | None = None
        self._over = False
        #: Whether a guard releases it when it is garbage collected.
        self.has_guard = False

    @property
    def agent(self) -> Agent:
        return self._agent

    def check(self) -> None:
        """Raises :class:`LockLost` unless the lock is certain to be held now."""
        self._agent.forbid_forked()
        with self._agent.lock:
            # An unread renewal is not a loss. The end of the agent is one.
            self._agent.drain()
            self._expire(_clock.now())
            self._raise_if_over()

    def _raise_if_over(self) -> None:
        if self._loss is not None:
            # A new error each time: a raised error collects tracebacks.
            raise LockLost(str(self._loss.args[0]), self._loss.reason, self._loss.help)
        if self._over:
            raise LockLost(f"lock `{self.name}` was released", "over")

    def remaining(self) -> float:
        """For how many seconds the lock is certain to be held without a renewal; 0 if it is over."""
        self._agent.forbid_forked()
        with self._agent.lock:
            self._agent.drain()
            now = _clock.now()
            self._expire(now)
            if self._over:
                return 0.0
            return max(0.0, self._deadline.remaining_us(now) / 1_000_000)

    @property
    def is_over(self) -> bool:
        """Whether the lock is known to be lost or released. Does not read the clocks."""
        return self._over

    @property
    def loss(self) -> LockLost | None:
        return self._loss

    def listen(self, listener: Callable[[LockLost], None]) -> None:
        """Calls ``listener`` once if the lock is lost. It must not block."""
        with self._agent.lock:
            if self._loss is not None:
                listener(self._loss)
            elif not self._over:
                self._listeners.append(listener)

    def renewed(self, deadline: Deadline) -> None:
        """A renewal was read. A loss is final, and a late message about an earlier renewal changes nothing."""
        if deadline.start.boot_us >= self._deadline.start.boot_us:
            self._deadline = deadline

    def _expire(self, now: Moment) -> int:
        """Loses the lock if its deadline has passed. Returns the time that is left, in microseconds."""
        left = self._deadline.remaining_us(now)
        if left <= 0 and not self._over:
            self.lose(LockLost(f"lock `{self.name}` was lost: its lease was not renewed in time", "expired"))
            # The agent may be late itself. It must not keep what this process gave up.
            self._agent.send_release(self)
        return left

    def lose(self, loss: LockLost) -> None:
        if self._over:
            return
        self._over = True
        self._loss = loss
        self._agent.forget(self)
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(loss)

    def end(self) -> bool:
        """Ends the hold before its release is sent. Returns whether it was held until now."""
        if self._over:
            return False
        self._over = True
        self._listeners.clear()
        self._agent.forget(self)
        return True


class Pending:
    """A request that has no final response yet."""

    __slots__ = ("_agent", "_deliver", "abandoned", "hold", "id", "op")

    def __init__(self, agent: Agent, op: str, deliver: Callable[[Message | LeaseholdError], None]) -> None:
        #: Given when it is sent.
        self.id = -1
        self.op = op
        #: The hold of the final response.
        self.hold: Hold | None = None
        self.abandoned = False
        self._agent = agent
        self._deliver = deliver

    def deliver(self, outcome: Message | LeaseholdError) -> None:
        if not self.abandoned:
            self._deliver(outcome)

    def conclude(self, outcome: Message | LeaseholdError) -> None:
        """Delivers the final response. Does not keep the call alive any longer, so that its finalizer runs at once."""
        self.deliver(outcome)
        self._deliver = _ignore

    def abandon(self) -> None:
        """Gives the request up. If it was granted a lock, or will be, the lock is released."""
        if self._agent.is_forked():
            return
        with self._agent.lock:
            self.abandoned = True
            if self.hold is not None:
                self._agent.release(self.hold)
            else:
                self._agent.cancel(self)


def _ignore(_: Message | LeaseholdError) -> None:
    pass
