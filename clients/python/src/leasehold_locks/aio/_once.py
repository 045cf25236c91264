"""Jobs that run once per period, for asyncio."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Generic, ParamSpec, TypeVar

from .. import _nested
from .._hold import Message
from .._requests import LockSettings, expect
from .._types import AlreadyRan, Duration, Ran, milliseconds
from ._call import begin
from ._locks import Guard

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

    async def run(self, job: Callable[[], Awaitable[T]]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period. The job is cancelled if the lock is lost."""
        if self._request.get("wait_ms") != 0 and "nowait" not in self._request:
            _nested.forbid(self._settings)
        request = await begin(self._request)
        message = await request.next()
        if message["ev"] == "already_ran":
            return AlreadyRan.of(message)
        expect(message, "held")
        guard = Guard(request.agent, request.hold)
        guard._enter(sys._getframe())
        _nested.remember(self._settings, guard)
        try:
            value = await job()
        except BaseException as error:
            await guard._leave(error)  # Another process may run the job in this period.
            raise
        await guard._leave(None, self._period)
        return Ran(value)


class OnceDecorator:
    """See :meth:`Locker.once`."""

    def __init__(self, make: Callable[[], Once[Any]]) -> None:
        self._make = make

    def __call__(self, job: Callable[P, Awaitable[T]]) -> Callable[P, Awaitable[Ran[T] | AlreadyRan]]:
        once: Once[T] = self._make()

        @functools.wraps(job)
        async def run(*args: P.args, **kwargs: P.kwargs) -> Ran[T] | AlreadyRan:
            return await once.run(lambda: job(*args, **kwargs))

        return run

    async def run(self, job: Callable[[], Awaitable[T]]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period."""
        once: Once[T] = self._make()
        return await once.run(job)
