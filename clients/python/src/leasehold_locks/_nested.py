"""Detects a thread or task that waits for a lock that it holds itself, and tells the agent what it holds meanwhile."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any

from . import _shared
from ._agent import Agent
from ._errors import DeadlockError
from ._guard import BaseGuard, log
from ._hold import Message
from ._requests import LockSettings


class _Here(threading.local):
    """The guards that this thread has acquired, each with the task that acquired it."""

    def __init__(self) -> None:
        self.guards: list[tuple[weakref.ref[asyncio.Task[Any]] | None, LockSettings, weakref.ref[BaseGuard]]] = []


_here = _Here()


def remember(settings: LockSettings, guard: BaseGuard) -> None:
    """Notes that the current thread and task have acquired this lock."""
    task = _task()
    _here.guards = [entry for entry in _here.guards if _is_held(entry[2]())]
    _here.guards.append((None if task is None else weakref.ref(task), settings, weakref.ref(guard)))


def forbid(settings: LockSettings) -> None:
    """Refuses a wait that cannot end, because the current thread and task hold the lock in a block that they can leave
    only after the wait. Warns if they hold it with a guard, which another thread or task could release."""
    task, name = _task(), settings.name
    own = [
        guard
        for of, held, ref in _here.guards
        if (None if of is None else of()) is task
        and _excludes(held, settings)
        and (guard := ref()) is not None
        and _is_held(guard)
    ]
    who = "thread" if task is None else "task"
    permits = int(dict(settings.fields).get("permits") or 1)
    if sum(guard.in_block for guard in own) >= permits:
        raise DeadlockError(
            f"this {who} holds `{name}` and would wait for itself",
            ["a lock is not reentrant: pass the guard to the inner function instead"],
        )
    if len(own) >= permits:
        log.warning("this %s holds %r and waits for itself, unless another releases the guard", who, name)


def holding(fields: Message) -> Message:
    """Returns a request for a lock with the numbers of the holds that the current thread and task have in blocks, which
    they can leave only after the wait. The innermost one comes first."""
    agent, task = _shared.kept(), _task()
    guards = [ref() for of, _, ref in reversed(_here.guards) if (None if of is None else of()) is task]
    holds = [guard._hold.number for guard in guards if guard is not None and _waits_in(guard, agent)]
    return {**fields, "holding": holds[:8]} if holds else fields


def _waits_in(guard: BaseGuard, agent: Agent | None) -> bool:
    return guard.in_block and guard._agent is agent and _is_held(guard)


def _excludes(held: LockSettings, wanted: LockSettings) -> bool:
    """Returns whether a hold of ``held`` uses up what ``wanted`` needs."""
    modes = [dict(settings.fields).get("mode") for settings in (held, wanted)]
    return held.store == wanted.store and bool(held.names & wanted.names) and modes != ["shared", "shared"]


def _is_held(guard: BaseGuard | None) -> bool:
    # The guards of a parent process are not held here.
    return guard is not None and not guard._agent.is_forked() and guard.is_held


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # No event loop runs in this thread.
        return None
