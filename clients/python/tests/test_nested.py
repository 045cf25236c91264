"""Tests threads and tasks that ask for a lock that they hold."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest

from conftest import LIMIT
from leasehold_locks import DeadlockError, Locker, LockHeld, aio

BLOCKS: list[Callable[[Locker], AbstractContextManager[object]]] = [
    lambda locker: locker.lock("x").hold(),
    lambda locker: locker.lock("x"),
    lambda locker: locker.lock("x").guard(),
    lambda locker: locker.election("x").hold(),
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_thread_that_waits_for_itself_is_refused(
    locker: Locker, block: Callable[[Locker], AbstractContextManager[object]]
) -> None:
    with block(locker):
        for again in (lambda: locker.lock("x").guard(), lambda: locker.lock("x").acquire(timeout=LIMIT)):
            with pytest.raises(DeadlockError, match="this thread holds `x`"):
                again()
        with pytest.raises(DeadlockError):
            locker.once("x", per=60).run(lambda: None)
        assert locker.lock("x").try_acquire() is None
        with pytest.raises(LockHeld, match="this process itself holds the lock"):
            locker.lock("x").guard(timeout=0)
    locker.lock("x").guard().release()


def test_a_job_that_waits_for_itself_is_refused(locker: Locker) -> None:
    with pytest.raises(DeadlockError):
        locker.once("x", per=60).run(lambda: locker.once("x", per=60).run(lambda: None))


def test_a_block_whose_lock_was_released_waits_for_nothing(locker: Locker) -> None:
    with locker.lock("x").hold() as guard:
        guard.release()
        with locker.lock("x").hold():
            pass


def test_readers_and_permits_are_counted(locker: Locker) -> None:
    rw, two = locker.rw_lock("rw"), locker.semaphore("two", 2)
    with rw.shared.hold(), rw.shared.hold(), pytest.raises(DeadlockError):
        rw.exclusive.guard()
    with two.hold(), two.hold(), pytest.raises(DeadlockError):
        two.guard()


def test_another_thread_waits_as_usual(locker: Locker) -> None:
    waits, done = threading.Event(), threading.Event()

    def wait() -> None:
        waits.set()
        with locker.lock("x").hold():
            done.set()

    with locker.lock("x").hold():
        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(LIMIT)
    thread.join(LIMIT)
    assert done.is_set()


def test_a_guard_that_another_thread_may_release_is_a_warning(locker: Locker, caplog: pytest.LogCaptureFixture) -> None:
    guard = locker.lock("x").guard()
    timer = threading.Timer(0.1, guard.release)
    timer.start()
    locker.lock("x").guard(timeout=LIMIT).release()
    timer.join()
    assert "waits for itself" in caplog.text


def in_generator(locker: Locker) -> Callable[[], object]:
    """Enters a block as a web framework does for a request, and returns what leaves it, perhaps in another thread."""

    @contextmanager
    def request() -> Generator[None]:
        with locker.lock("x").hold():
            yield

    entered = request()
    entered.__enter__()
    return lambda: entered.__exit__(None, None, None)


def in_stack(locker: Locker) -> Callable[[], object]:
    stack = ExitStack()
    stack.enter_context(locker.lock("x").hold())
    return stack.close


@pytest.mark.parametrize("enter", [in_generator, in_stack])
def test_a_block_that_another_thread_may_leave_is_a_warning(
    locker: Locker, enter: Callable[[Locker], Callable[[], object]], caplog: pytest.LogCaptureFixture
) -> None:
    leave = enter(locker)
    timer = threading.Timer(0.1, leave)
    timer.start()
    locker.lock("x").guard(timeout=LIMIT).release()
    timer.join()
    assert "waits for itself" in caplog.text


def test_locks_of_one_name_that_do_not_wait_for_each_other(locker: Locker) -> None:
    lock = locker.lock("x")
    for other in locker.semaphore("x", 2), locker.rw_lock("x").shared:
        with other.hold(), lock.hold(timeout=LIMIT):
            pass
    # A hold of a permit that the smaller semaphore does not have.
    with locker.lock("y/permit-2").hold(), locker.semaphore("y", 1).hold(timeout=LIMIT):
        pass
    with lock.hold(), pytest.raises(DeadlockError):
        locker.rw_lock("x").shared.guard()


def test_a_task_that_waits_for_itself_is_refused(url: str) -> None:
    async def run() -> None:
        locker = aio.Locker(url)

        async def other() -> None:
            async with locker.lock("x").hold():
                pass

        async with locker.lock("x").hold():
            with pytest.raises(DeadlockError, match="this task holds `x`"):
                await locker.lock("x").guard()
            waiting = asyncio.create_task(other())
            await asyncio.sleep(0)
        await waiting
        async with locker.lock("x").hold():
            with pytest.raises(DeadlockError):
                await locker.once("x", per=60).run(other)

    asyncio.run(run())


def test_threads_that_wait_for_each_other_are_told(locker: Locker) -> None:
    both = threading.Barrier(2)
    outcomes: list[str] = []

    def work(outer: str, inner: str) -> None:
        with locker.lock(outer).hold():
            both.wait(LIMIT)
            try:
                with locker.lock(inner).hold():
                    outcomes.append("held")
            except DeadlockError as error:
                outcomes.append(str(error))

    threads = [threading.Thread(target=work, args=names) for names in (("a", "b"), ("b", "a"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    deadlock, held = outcomes
    assert held == "held" and "holds `a` (token " in deadlock and "waits for `a`" in deadlock


def test_tasks_that_wait_for_each_other_are_told(url: str) -> None:
    async def work(outer: str, inner: str, own: asyncio.Event, other: asyncio.Event) -> str:
        locker = aio.Locker(url)
        async with locker.lock(outer).hold():
            own.set()
            await other.wait()
            try:
                async with locker.lock(inner).hold():
                    return "held"
            except DeadlockError:
                return "deadlock"

    async def run() -> list[str]:
        one, two = asyncio.Event(), asyncio.Event()
        both = asyncio.gather(work("a", "b", one, two), work("b", "a", two, one))
        return list(await asyncio.wait_for(both, LIMIT))

    assert sorted(asyncio.run(run())) == ["deadlock", "held"]
