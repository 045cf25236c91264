"""What the requests of both interfaces share."""

from __future__ import annotations

from ._agent import Agent
from ._errors import LeaseholdError
from ._hold import Hold, Message, Pending


class BaseCall:
    """One request. A subclass keeps its messages, and is ready for them before this is initialized."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        self.agent = agent
        self.pending = Pending(str(fields["op"]), self._deliver)
        agent.request(self.pending, fields)

    def __del__(self) -> None:
        # A signal handler can raise at any time before the lock that was granted has its guard.
        pending = getattr(self, "pending", None)
        if pending is not None:
            self.agent.drop_unguarded(pending)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        raise NotImplementedError

    @property
    def hold(self) -> Hold:
        """The lock that was granted, after ``held``."""
        hold = self.pending.hold
        assert hold is not None
        return hold

    def abandon(self) -> None:
        """Gives the request up. If it was granted a lock, or will be, the lock is released."""
        self.agent.abandon(self.pending)
