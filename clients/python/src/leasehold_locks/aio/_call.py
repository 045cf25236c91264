"""Requests of the interface for asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TypeVar

from .. import _shared
from .._agent import Agent
from .._base_call import BaseCall
from .._errors import LeaseholdError
from .._hold import Message
from .._requests import ANSWER_TIMEOUT, Operation

T = TypeVar("T")


class Call(BaseCall):
    """One request and its messages."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        self._loop = asyncio.get_running_loop()
        self._outcomes: asyncio.Queue[Message | LeaseholdError] = asyncio.Queue()
        #: The number of messages that arrived and that no task has taken.
        self._untaken = 0
        super().__init__(agent, fields)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        self._untaken += 1
        # The event loop may have ended. Then no task waits for the message.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._outcomes.put_nowait, outcome)

    async def next(self, limit: float | None = None) -> Message:
        """Returns the next message. A cancellation cancels the request and releases a lock that it was granted.

        Kills an agent that does not respond within ``limit``.
        """
        timer = None
        if limit is not None:
            # The end of the agent ends the request. (In Python 3.11, asyncio.wait_for can swallow a cancellation.)
            timer = self._loop.call_later(limit, self._kill_unless_answered)
        try:
            outcome = await self._outcomes.get()
        except BaseException:
            self.abandon()
            raise
        finally:
            if timer is not None:
                timer.cancel()
        self._untaken -= 1
        if isinstance(outcome, LeaseholdError):
            raise outcome
        return outcome

    def _kill_unless_answered(self) -> None:
        with self.agent.lock:
            # The event loop may have been blocked, or this process stopped, in the meantime.
            self.agent.drain()
            if self._untaken == 0:
                self.agent.kill("the agent does not respond")


async def begin(fields: Message) -> Call:
    """Sends a request. Starts the agent in a thread, because that takes some milliseconds."""
    agent = _shared.kept()
    if agent is None:
        agent = await asyncio.get_running_loop().run_in_executor(None, _shared.shared)
    return Call(agent, fields)


async def call(fields: Message, limit: float | None = ANSWER_TIMEOUT) -> Message:
    return await (await begin(fields)).next(limit)


async def run(operation: Operation[T]) -> T:
    return operation.read(await call(operation.fields, operation.limit))
