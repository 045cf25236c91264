"""Requests of the blocking interface."""

from __future__ import annotations

import queue
from typing import TypeVar

from . import _shared
from ._agent import Agent
from ._base_call import BaseCall
from ._errors import LeaseholdError
from ._hold import Message
from ._requests import ANSWER_TIMEOUT, Operation

T = TypeVar("T")


class Call(BaseCall):
    """One request and its messages."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        # Unlike other queues, this one may be used by a finalizer that interrupts its own methods.
        self._outcomes: queue.SimpleQueue[Message | LeaseholdError] = queue.SimpleQueue()
        #: The message that has arrived and was not returned yet.
        self._next: list[Message | LeaseholdError] = []
        super().__init__(agent, fields)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        self._outcomes.put(outcome)

    def arrives_within(self, limit: float | None) -> bool:
        """Waits for a message for at most ``limit``. Returns whether it arrived. An exception cancels the request."""
        try:
            self.agent.forbid_entered()
            self._next.append(self._outcomes.get(timeout=limit))
        except queue.Empty:
            return False
        except BaseException:
            self.abandon()
            raise
        return True

    def next(self, limit: float | None = None) -> Message:
        """Returns the next message. Kills an agent that does not respond within ``limit``."""
        if not self._next and not self.arrives_within(limit):
            with self.agent.lock:
                # This process may have been stopped in the meantime.
                self.agent.drain()
                if self._outcomes.empty():
                    self.agent.kill("the agent does not respond")
            self._next.append(self._outcomes.get())
        outcome = self._next.pop()
        if isinstance(outcome, LeaseholdError):
            raise outcome
        return outcome


def call(fields: Message, limit: float | None = ANSWER_TIMEOUT) -> Message:
    return begin(fields).next(limit)


def run(operation: Operation[T]) -> T:
    return operation.read(call(operation.fields, operation.limit))


def begin(fields: Message) -> Call:
    """Sends a request. Starts the agent if there is none."""
    return Call(_shared.shared(), fields)
