"""Detects a thread or task that waits for a lock that it holds itself, and tells the agent what it holds meanwhile."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from collections.abc import Iterator
from types import FrameType
from typing import Any, TypeAlias

from . import _shared
from ._errors import DeadlockError
from ._guard import BaseGuard, log
from ._hold import Message
from ._requests import LockSettings

#: A task, or ``None`` outside of tasks.
Task: TypeAlias = "weakref.ref[asyncio.Task[Any]] | None"


class _Here(threading.local):
    """The guards that this thread has acquired, each with the task that acquired it."""

    def __init__(self) -> None:
        self.guards: list[tuple[Task, LockSettings, weakref.ref[BaseGuard]]] = []


_here = _Here()


def remember(settings: LockSettings, guard: BaseGuard) -> None:
    """Notes that the current thread and task have acquired this lock."""
    _here.guards = [entry for entry in _here.guards if _is_held(entry[2]())]
    _here.guards.append((_task(), settings, weakref.ref(guard)))


def forbid(settings: LockSettings) -> None:
    """Refuses a wait that cannot end, because the current thread and task hold the lock in a block that they can leave
    only after the wait. Warns if they hold it otherwise, because another thread or task could release it."""
    held, in_blocks = set[str](), set[str]()
    for of, guard in _own():
        if of.store == settings.store:
            names = of.names if len(of.names) > 1 else {guard.name}
            held |= names
            if _runs_in(guard.block):
                in_blocks |= names
    who, name = "thread" if _task() is None else "task", settings.name
    if _waits_for(settings, in_blocks):
        raise DeadlockError(
            f"this {who} holds `{name}` and would wait for itself",
            ["a lock is not reentrant: pass the guard to the inner function instead"],
        )
    if _waits_for(settings, held):
        log.warning("this %s holds %r and waits for itself, unless another releases the guard", who, name)


def holding(fields: Message) -> Message:
    """Returns a request for a lock with the numbers of the holds that the current thread and task have in blocks, which
    they can leave only after the wait. The innermost one comes first."""
    agent = _shared.kept()
    holds = [guard._hold.number for _, guard in _own() if guard._agent is agent and _runs_in(guard.block)]
    return {**fields, "holding": holds[:-9:-1]} if holds else fields


def _own() -> Iterator[tuple[LockSettings, BaseGuard]]:
    """Yields what the current thread and task hold."""
    task = _task()
    for of, settings, ref in _here.guards:
        guard = ref()
        if of == task and guard is not None and _is_held(guard):
            yield settings, guard


def _runs_in(block: FrameType | None) -> bool:
    """Returns whether the caller runs in this block. A block of a generator or of an ``ExitStack`` is not on the stack,
    and others can end it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame is not block:
        frame = frame.f_back
    return frame is not None


def _waits_for(wanted: LockSettings, held: set[str]) -> bool:
    """Returns whether an acquisition waits for one of the ``held`` locks."""
    name, fields = wanted.name, dict(wanted.fields)
    mode = fields.get("mode")
    if mode == "permit":
        permits = [f"{name}/permit-{n}" for n in range(1, int(fields["permits"]) + 1)]
        return bool(permits) and held.issuperset(permits)  # The agent refuses a number below 1.
    if mode == "exclusive" and any(lock.startswith(f"{name}/shared-") for lock in held):
        return True
    return bool(wanted.names & held)


def _is_held(guard: BaseGuard | None) -> bool:
    # The guards of a parent process are not held here.
    return guard is not None and not guard._agent.is_forked() and guard.is_held


def _task() -> Task:
    try:
        task = asyncio.current_task()
    except RuntimeError:  # No event loop runs in this thread.
        return None
    return None if task is None else weakref.ref(task)
