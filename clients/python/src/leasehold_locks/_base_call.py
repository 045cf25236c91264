"""The base class of requests in both interfaces."""

from __future__ import annotations

from ._agent import Agent
from ._errors import LeaseholdError
from ._hold import Hold, Message, Pending


class BaseCall:
    """One request. A subclass stores the messages. It must be ready for them before it calls this initializer."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        self.agent = agent
        self.pending = Pending(str(fields["op"]), self._deliver)
        agent.request(self.pending, fields)

    def __del__(self) -> None:
        # A signal handler can raise an exception before the granted lock has its guard.
        pending = getattr(self, "pending", None)
        if pending is not None:
            self.agent.drop_unguarded(pending)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        raise NotImplementedError

    @property
    def hold(self) -> Hold:
        """The lock that was granted. Available after the message ``held``."""
        hold = self.pending.hold
        assert hold is not None
        return hold

    def abandon(self) -> None:
        """Abandons the request. If it was granted a lock, or is granted one later, the lock is released."""
        self.agent.abandon(self.pending)
