"""Requests of the blocking interface."""

from __future__ import annotations

import threading
from collections import deque
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
        self._arrived = threading.Semaphore(0)
        self._outcomes: deque[Message | LeaseholdError] = deque()
        super().__init__(agent, fields)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        self._outcomes.append(outcome)
        self._arrived.release()

    def arrives_within(self, limit: float | None) -> bool:
        """Waits for a message for at most ``limit``. Returns whether it arrived. An exception cancels the request."""
        try:
            if self.agent.is_entered():
                raise RuntimeError("a signal handler or finalizer must not wait for the agent here")
            if not self._arrived.acquire(timeout=limit):
                return False
        except BaseException:
            self.abandon()
            raise
        self._arrived.release()
        return True

    def next(self, limit: float | None = None) -> Message:
        """Returns the next message. Kills an agent that does not respond within ``limit``."""
        if not self.arrives_within(limit):
            with self.agent.lock:
                # This process may have been stopped in the meantime.
                self.agent.drain()
                if not self._outcomes:
                    self.agent.kill("the agent does not respond")
        self._arrived.acquire()
        outcome = self._outcomes.popleft()
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
