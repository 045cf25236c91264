"""The agent of this process."""

from __future__ import annotations

import atexit
import os
import threading

from . import _command
from ._agent import Agent

_agent: Agent | None = None
_starting = threading.Lock()
_of_parents: list[Agent] = []


def running() -> Agent | None:
    """Returns the agent of this process if it is running."""
    agent = _agent
    return agent if agent is not None and agent.alive else None


def kept() -> Agent | None:
    """Returns the agent of this process if it is running. It does not end as idle before the next request."""
    agent = _agent
    return agent if agent is not None and agent.keep() else None


def shared() -> Agent:
    """Returns the agent of this process for the next request. Starts it if there is none."""
    global _agent
    agent = kept()
    if agent is not None:
        return agent
    with _starting:
        agent = kept()
        if agent is None:
            agent = _agent = Agent(_command.find())
        return agent


def _after_fork() -> None:
    global _agent, _starting
    _starting = threading.Lock()
    agent, _agent = _agent, None
    if agent is not None:
        agent.abandon_in_child()
        # Keeps the agent referenced, because its finalizers would wait for a process that is not a child of this one.
        _of_parents.append(agent)


def _at_exit() -> None:
    agent = running()
    if agent is not None:
        agent.stop()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
