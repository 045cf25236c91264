"""Handlers of functions that the platform freezes after their response."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from . import _shared
from ._call import Call
from ._errors import LockLeftOpen, StoreError
from ._requests import ANSWER_TIMEOUT

P = ParamSpec("P")
T = TypeVar("T")


def serverless(handler: Callable[P, T]) -> Callable[P, T]:
    """Raises an error if a guard of this process is open when ``handler`` returns.

    AWS Lambda freezes a function after its response, and a lock that it still holds is usually lost. This decorator
    releases the lock, and the invocation fails with :class:`LockLeftOpen`. If the handler raises an error, its guards
    are released too, and the error is raised unchanged.

    >>> @serverless
    ... def handler(event, context):
    ...     with locker.lock("import").hold(context=context) as g:
    ...         return save(event, fence=g.token)
    """

    @functools.wraps(handler)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        agent = _shared.running()
        if agent is not None:
            agent.collected.clear()  # Locks that earlier invocations left open have been reported.
        try:
            answer = handler(*args, **kwargs)
        except BaseException:
            _release_all()
            raise
        names = _release_all()
        if names:
            raise LockLeftOpen(names)
        return answer

    return wrapped


def _release_all() -> list[str]:
    """Releases all locks of this process. Returns the names of those whose guards were open."""
    agent = _shared.running()
    if agent is None:
        return []
    with agent.lock:
        # The guards of these locks were garbage collected. Their release was sent, but its response was not awaited.
        names = list(agent.collected)
        agent.collected.clear()
        held = agent.holds()
        calls = []
        for hold in held:
            try:
                agent.end(hold)
                calls.append(Call(agent, {"op": "release", "hold": hold.number}))
            except BaseException:
                agent.give_up(hold)
                raise
    for call in calls:
        with contextlib.suppress(StoreError):  # The lock then ends with its lease.
            call.next(ANSWER_TIMEOUT)
    return sorted({*names, *(hold.name for hold in held)})
