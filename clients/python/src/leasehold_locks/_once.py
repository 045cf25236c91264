"""Jobs that run once per period."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from . import _nested
from ._call import begin
from ._hold import Message
from ._locks import Guard
from ._requests import LockSettings, expect
from ._types import AlreadyRan, Duration, Ran, milliseconds

P = ParamSpec("P")
T = TypeVar("T")


class Once(Generic[T]):
    """A job that several machines start and one of them runs, once per period. Created by :meth:`Locker.once`."""

    def __init__(self, settings: LockSettings, period: Duration, timeout: Duration | None, nowait: bool) -> None:
        self._period = period
        self._settings = settings
        more: Message = {"period_ms": milliseconds(period, "per")}
        if nowait:
            more["nowait"] = True
        self._request = settings.request("once", timeout, **more)

    def run(self, job: Callable[[], T]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period."""
        guard = self._begin()
        if isinstance(guard, AlreadyRan):
            return guard
        guard.block = sys._getframe()
        try:
            value = job()
        except BaseException:
            guard._leave(False)  # Another process may run the job in this period.
            raise
        guard._leave(True, self._period)
        return Ran(value)

    def _begin(self) -> Guard | AlreadyRan:
        if self._request.get("wait_ms") != 0 and "nowait" not in self._request:
            _nested.forbid(self._settings)
        request = begin(self._request)
        message = request.next()
        if message["ev"] == "already_ran":
            return AlreadyRan.of(message)
        expect(message, "held")
        guard = Guard(request.agent, request.hold)
        _nested.remember(self._settings, guard)
        return guard


class OnceDecorator:
    """See :meth:`Locker.once`."""

    def __init__(self, make: Callable[[], Once[Any]]) -> None:
        self._make = make

    def __call__(self, job: Callable[P, T]) -> Callable[P, Ran[T] | AlreadyRan]:
        once: Once[T] = self._make()

        @functools.wraps(job)
        def run(*args: P.args, **kwargs: P.kwargs) -> Ran[T] | AlreadyRan:
            return once.run(lambda: job(*args, **kwargs))

        return run

    def run(self, job: Callable[[], T]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period."""
        once: Once[T] = self._make()
        return once.run(job)
