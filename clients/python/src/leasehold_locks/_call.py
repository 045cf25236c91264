"""Requests of the blocking interface."""

from __future__ import annotations

import threading
from collections import deque
from typing import TypeVar

from . import _shared
from ._agent import Agent
from ._errors import AgentError, LeaseholdError
from ._hold import Hold, Message, Pending
from ._requests import ANSWER_TIMEOUT, Operation

T = TypeVar("T")


class Call:
    """One request, and its messages."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        self._arrived = threading.Semaphore(0)
        self._outcomes: deque[Message | LeaseholdError] = deque()
        self.agent = agent
        self.pending = Pending(str(fields["op"]), self._deliver)
        agent.request(self.pending, fields)

    def __del__(self) -> None:
        # A signal handler can raise at any time before the lock that was granted has its guard.
        pending = getattr(self, "pending", None)
        if pending is not None:
            self.agent.drop_unguarded(pending)

    def abandon(self) -> None:
        """Gives the request up. If it was granted a lock, or will be, the lock is released."""
        self.agent.abandon(self.pending)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        self._outcomes.append(outcome)
        self._arrived.release()

    def arrives_within(self, limit: float | None) -> bool:
        """Whether a message arrives within ``limit``. If this is interrupted, the request is cancelled."""
        try:
            if not self._arrived.acquire(timeout=limit):
                return False
        except BaseException:
            self.abandon()
            raise
        self._arrived.release()
        return True

    def next(self, limit: float | None = None) -> Message:
        """The next message. An agent that does not respond within ``limit`` is ended."""
        if not self.arrives_within(limit):
            self.agent.kill("the agent does not respond")
            raise AgentError("the agent does not respond")
        self._arrived.acquire()
        outcome = self._outcomes.popleft()
        if isinstance(outcome, LeaseholdError):
            raise outcome
        return outcome


def call(fields: Message, limit: float | None = ANSWER_TIMEOUT) -> Message:
    return begin(fields).next(limit)


def run(operation: Operation[T]) -> T:
    return operation.read(call(operation.fields, operation.limit))


def hold_of(call: Call) -> Hold:
    hold = call.pending.hold
    assert hold is not None
    return hold


def begin(fields: Message) -> Call:
    """Sends a request. Starts the agent if there is none."""
    return Call(_shared.shared(), fields)
