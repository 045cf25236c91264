"""Tests the interface for asyncio."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import pytest
import uvloop

import leasehold_locks
from conftest import LIMIT, agent, agent_pid
from leasehold_locks import AlreadyRan, LockLost, Ran, StoreError, aio
from leasehold_locks.aio import Locker

T = TypeVar("T")


@pytest.fixture(autouse=True, params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test runs on both event loops."""
    if request.param == "asyncio":
        return
    if sys.version_info >= (3, 11):

        def run(main: Coroutine[Any, Any, T]) -> T:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(main)

        monkeypatch.setattr(asyncio, "run", run)
    else:
        pytest.skip("Python 3.10 cannot run another loop")


@pytest.fixture
def locker(url: str) -> Locker:
    return Locker(url)


async def is_free(locker: Locker, name: str) -> None:
    """Waits until the lock is free."""
    await (await locker.lock(name).guard(timeout=LIMIT)).release()


def test_lock_has_the_shape_of_asyncio_lock(locker: Locker) -> None:
    async def main() -> None:
        lock = locker.lock("x", ttl=30)
        with pytest.raises(RuntimeError):
            lock.check()
        await lock.acquire()
        lock.check()
        assert lock.locked() and lock.token > 0
        await lock.release()
        with pytest.raises(RuntimeError):
            await lock.release()

    asyncio.run(main())


def test_both_interfaces_have_the_same_operations() -> None:
    def operations(of: type) -> dict[str, list[str]]:
        found = inspect.getmembers(of, inspect.isfunction)
        return {name: list(inspect.signature(call).parameters) for name, call in found if not name.startswith("_")}

    assert operations(Locker) == operations(leasehold_locks.Locker)
    assert operations(aio.Object) == operations(leasehold_locks.Object)
    # asyncio.Lock.acquire has no parameters. There is no `on_lost`, because a loss cancels the body.
    differing = {"acquire", "hold"}
    ours, others = operations(aio.Lock), operations(leasehold_locks.Lock)
    assert ours.keys() == others.keys()
    assert {name for name in ours if ours[name] != others[name]} == differing


def test_a_job_runs_once_per_period(locker: Locker) -> None:
    async def main() -> None:
        @locker.once("job", per="1h")
        async def job(number: int) -> int:
            return number

        first, second = await job(7), await job(8)
        assert isinstance(first, Ran) and first.value == 7 and isinstance(second, AlreadyRan)
        with pytest.raises(StoreError):
            await aio.open_object("sqlite:x").get()

    asyncio.run(main())


def test_a_loss_cancels_the_body(locker: Locker) -> None:
    async def main() -> None:
        ended = None
        with pytest.raises(LockLost) as lost:
            async with locker.lock("x", ttl="10s").hold() as guard:
                await locker.evict("x", guard.token)
                try:
                    await asyncio.sleep(LIMIT)
                except asyncio.CancelledError:
                    ended = "cancelled"
                    raise
        assert ended == "cancelled" and lost.value.reason == "ended"
        task = asyncio.current_task()
        assert task is not None
        if sys.version_info >= (3, 11):
            assert task.cancelling() == 0
        await asyncio.sleep(0)  # No cancellation is pending.

    asyncio.run(main())


def test_the_end_of_the_agent_cancels_the_body(locker: Locker) -> None:
    async def main() -> None:
        with pytest.raises(LockLost) as lost:
            async with locker.lock("x").hold():
                os.kill(agent_pid(), signal.SIGKILL)
                await asyncio.sleep(LIMIT)
        assert lost.value.reason == "agent"

    asyncio.run(main())


def test_a_stopped_agent_cancels_the_body_at_the_deadline(locker: Locker) -> None:
    async def main() -> None:
        async with locker.lock("x", ttl="500ms").hold():
            os.kill(agent_pid(), signal.SIGSTOP)
            await asyncio.sleep(LIMIT)

    try:
        with pytest.raises(LockLost):
            asyncio.run(main())
    finally:
        os.kill(agent()._process.pid, signal.SIGCONT)


def test_a_body_that_swallows_the_loss_leaves_as_lost(locker: Locker) -> None:
    async def main() -> None:
        with pytest.raises(LockLost):
            async with locker.lock("x").hold():
                os.kill(agent_pid(), signal.SIGKILL)
                try:
                    await asyncio.sleep(LIMIT)
                except asyncio.CancelledError:
                    pass

    asyncio.run(main())


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not count their cancellations before 3.11")
def test_a_cancellation_from_outside_is_not_replaced_by_a_loss(locker: Locker) -> None:
    async def main() -> None:
        inside = asyncio.Event()

        async def body() -> None:
            async with locker.lock("x").hold():
                inside.set()
                await asyncio.sleep(LIMIT)

        task = asyncio.ensure_future(body())
        await inside.wait()
        task.cancel()
        os.kill(agent_pid(), signal.SIGKILL)
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def cancelled_at(step: int, work: Callable[[], Awaitable[object]]) -> bool:
    """Cancels ``work`` after ``step`` short waits. Returns whether it was still running."""

    async def main() -> bool:
        task = asyncio.ensure_future(work())
        for _ in range(step):
            done, _ = await asyncio.wait([task], timeout=0.002)
            if done:
                break
        alive = task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            pass
        return alive

    return asyncio.run(main())


@pytest.mark.parametrize("start", ["with a new agent", "with a running agent"])
def test_cancelled_at_any_time_it_leaves_nothing_held(locker: Locker, start: str) -> None:
    async def work() -> None:
        async with locker.lock("x").hold():
            await asyncio.sleep(0)

    step, alive = 0, True
    while alive:
        if start == "with a running agent":
            agent()
        alive = cancelled_at(step, work)
        asyncio.run(is_free(locker, "x"))
        step += 1
    assert step > 1


def test_cancelled_when_the_grant_has_arrived_it_is_released(locker: Locker) -> None:
    async def main() -> None:
        here = await asyncio.get_running_loop().run_in_executor(None, agent)
        acquisition = asyncio.ensure_future(locker.lock("x", ttl=3_600).guard())
        await asyncio.sleep(0)
        while not here._holds:  # The event loop does not run here, so the task has not been notified yet.
            os.sched_yield()
        acquisition.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquisition
        await is_free(locker, "x")

    asyncio.run(main())


def test_a_cancelled_waiter_leaves_its_place(locker: Locker) -> None:
    async def main() -> None:
        async with locker.lock("x").hold():
            waiter = asyncio.ensure_future(locker.lock("x").guard())
            await asyncio.sleep(0.05)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter
        await is_free(locker, "x")

    asyncio.run(main())


def test_a_release_goes_on_if_its_task_is_cancelled(locker: Locker) -> None:
    async def main() -> None:
        guard = await locker.lock("x", ttl=3_600).guard()
        release = asyncio.ensure_future(guard.release())
        await asyncio.sleep(0)
        release.cancel()
        with pytest.raises(asyncio.CancelledError):
            await release
        await is_free(locker, "x")

    asyncio.run(main())


def test_a_task_group_and_a_timeout(locker: Locker) -> None:
    async def main() -> None:
        async def work(number: int) -> int:
            async with locker.lock(f"x{number % 3}").hold(timeout=LIMIT) as guard:
                await asyncio.sleep(0)
                return guard.token

        assert len(set(await asyncio.gather(*map(work, range(30))))) > 3
        async with locker.lock("x").hold():
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.create_task(locker.lock("x").guard()), 0.05)
        await is_free(locker, "x")

    asyncio.run(main())


def test_two_loops_share_an_agent(locker: Locker) -> None:
    async def main() -> int:
        async with locker.lock("x").hold():
            return agent_pid()

    assert asyncio.run(main()) == asyncio.run(main())
