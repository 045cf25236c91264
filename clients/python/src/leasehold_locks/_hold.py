"""The state of a held lock and of a pending request, from the messages that this process has read. :mod:`._agent`
changes the state under its lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ._clock import Deadline, Moment
from ._errors import LeaseholdError, LockLost

Message = dict[str, Any]


class Hold:
    """A held lock."""

    __slots__ = (
        "_deadline",
        "_listeners",
        "_loss",
        "_over",
        "has_guard",
        "name",
        "number",
        "token",
        "tokens",
    )

    def __init__(
        self,
        number: int,
        name: str,
        token: int | None,
        tokens: dict[str, int] | None,
        deadline: Deadline,
    ) -> None:
        self.number = number
        self.name = name
        self.token = token
        #: The token of each lock. An agent of an earlier version sends none.
        self.tokens = tokens if tokens is not None or token is None else {name: token}
        self._deadline = deadline
        self._listeners: list[Callable[[LockLost], None]] = []
        self._loss: LockLost | None = None
        self._over = False
        #: Whether there is a guard, which releases the hold when it is garbage collected.
        self.has_guard = False

    @property
    def is_over(self) -> bool:
        """Whether the lock is known to be lost or released. Does not read the clocks."""
        return self._over

    @property
    def loss(self) -> LockLost | None:
        return self._loss

    def raise_if_over(self) -> None:
        if self._loss is not None:
            # Raises a new error each time, because a raised error collects tracebacks.
            raise LockLost(str(self._loss.args[0]), self._loss.reason, self._loss.help)
        if self._over:
            raise LockLost(f"lock `{self.name}` was released", "over")

    def left_us(self, now: Moment) -> int:
        """Returns the time until the deadline. It is zero or negative if the deadline has passed."""
        return self._deadline.remaining_us(now)

    def expired(self) -> LockLost:
        """Returns the loss of a hold whose deadline has passed."""
        if self._deadline.at_limit:
            return LockLost(f"lock `{self.name}` was lost: it was held for as long as its limit allows", "limit")
        return LockLost(f"lock `{self.name}` was lost: its lease was not renewed in time", "expired")

    def listen(self, listener: Callable[[LockLost], None]) -> None:
        """Calls ``listener`` once if the lock is lost."""
        if self._loss is not None:
            listener(self._loss)
        elif not self._over:
            self._listeners.append(listener)

    def renewed(self, deadline: Deadline) -> None:
        """Applies a renewal that was read. A loss is final, and a late message about an earlier renewal changes
        nothing."""
        if deadline.start.boot_us >= self._deadline.start.boot_us:
            self._deadline = deadline

    def lose(self, loss: LockLost) -> bool:
        """Returns whether it was held until now."""
        if self._over:
            return False
        self._over = True
        self._loss = loss
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener(loss)
        return True

    def end(self) -> bool:
        """Returns whether it was held until now."""
        if self._over:
            return False
        self._over = True
        self._listeners.clear()
        return True


class Pending:
    """A request that has no final response yet."""

    __slots__ = ("_deliver", "abandoned", "hold", "id", "op")

    def __init__(self, op: str, deliver: Callable[[Message | LeaseholdError], None]) -> None:
        #: Set when the request is sent.
        self.id = -1
        self.op = op
        #: The hold of the final response.
        self.hold: Hold | None = None
        self.abandoned = False
        self._deliver = deliver

    def deliver(self, outcome: Message | LeaseholdError) -> None:
        if not self.abandoned:
            self._deliver(outcome)

    def conclude(self, outcome: Message | LeaseholdError) -> None:
        """Delivers the final response. Drops the reference to the call, so that its finalizer runs at once."""
        self.deliver(outcome)
        self._deliver = _ignore


def _ignore(_: Message | LeaseholdError) -> None:
    pass
