"""Tests that a request that is invalid, too large, interrupted or late costs no lock."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pathlib
import pickle
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from conftest import LIMIT, agent
from leasehold_locks import (
    AgentError,
    ForkedError,
    LeaseholdError,
    Locker,
    LockHeld,
    LockLeftOpen,
    LockLost,
    StoreError,
    _agent,
    _call,
    aio,
    open_object,
)
from leasehold_locks._types import HolderInfo
from leasehold_locks.aio import _call as aio_call


class Interrupted(BaseException):
    """An exception that a signal handler can raise at any point."""


def is_free(locker: Locker) -> bool:
    """Returns whether the lock x is free within the limit."""
    locker.lock("x").guard(timeout=LIMIT).release()
    return True


def test_text_that_is_not_unicode_and_infinite_numbers_are_refused(locker: Locker) -> None:
    guard = locker.lock("x").guard()
    target = open_object("s3://bucket/x")
    attempts: list[Callable[[], object]] = [
        lambda: locker.lock("a\udcff").guard(),
        lambda: locker.lock("y", note="\ud800").guard(),
        lambda: target.update(lambda _: b"", attempts=math.inf),  # type: ignore[arg-type]
        lambda: target.update(lambda _: b"", attempts=10**400),
    ]
    for attempt in attempts:
        with pytest.raises(StoreError) as raised:
            attempt()
        assert raised.value.kind == "invalid"
        guard.check()
    with locker.lock("été \U0001f512").hold() as other:
        assert other.name == "été \U0001f512"
    assert guard.release()


def test_a_request_that_the_agent_does_not_read_in_time_is_refused(
    locker: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = locker.lock("x").guard()
    monkeypatch.setattr(_agent, "_MAX_UNSENT", 0)
    with pytest.raises(StoreError) as raised:
        locker.status("x")
    assert raised.value.kind == "limit"
    guard.check()
    assert guard.release()


def test_a_cooldown_of_zero_is_none(locker: Locker) -> None:
    assert locker.lock("x").guard().release(cooldown=0)
    assert is_free(locker)


def test_the_death_of_the_agent_leaves_the_effect_of_a_write_unknown(scripted: Callable[..., None]) -> None:
    for op, effect in (("put", True), ("get", False)):
        scripted({"expect": {"op": op}}, {"exit": True})
        target = open_object("s3://bucket/x")
        with pytest.raises(AgentError) as raised:
            target.put(b"", fence=1) if op == "put" else target.get()
        assert raised.value.maybe_applied == effect


def test_an_update_whose_answer_is_interrupted_is_cancelled(
    scripted: Callable[..., None], tmp_path: pathlib.Path
) -> None:
    scripted(
        {"expect": {"op": "update", "id": 1}},
        {"send": [{"to": "update", "ev": "content", "content": None}]},
        {"expect": {"op": "answer", "request": 1}},
        {"expect": {"op": "cancel", "request": 2}},
        {"expect": {"op": "cancel", "request": 1}},
        {"end": []},
    )

    async def main() -> None:
        task = asyncio.current_task()
        assert task is not None

        async def change(_: bytes | None) -> bytes:
            asyncio.get_running_loop().call_soon(task.cancel)
            return b""

        with pytest.raises(asyncio.CancelledError):
            await aio.open_object("s3://bucket/x").update(change)

    asyncio.run(main())
    agent().stop()
    assert (tmp_path / "log").read_text() == "done"


def test_a_blocked_event_loop_is_no_late_response(locker: Locker, url: str) -> None:
    async def main() -> None:
        guard = await aio.Locker(url).lock("x").guard()
        request = await aio_call.begin({"op": "status", "store": url, "lock": "x"})
        response = asyncio.create_task(request.next(0.1))
        await asyncio.sleep(0)
        time.sleep(3)  # The timer of the request is due when the loop continues.
        assert (await response)["state"] == "held"
        assert await guard.release()

    asyncio.run(main())


def test_a_release_that_is_interrupted_is_sent(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = locker.lock("x", ttl=3_600).guard()

    def interrupt(*_: object) -> None:
        raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(_call.Call, "__init__", interrupt)
        with pytest.raises(Interrupted):
            guard.release()
    assert is_free(locker)


def test_a_lock_is_released_although_the_event_loop_has_ended(locker: Locker, url: str) -> None:
    loop = asyncio.new_event_loop()

    entered = asyncio.Event()

    async def hold() -> None:
        async with aio.Locker(url).lock("x", ttl=3_600).hold():
            entered.set()
            await asyncio.Event().wait()

    task = loop.create_task(hold())
    loop.run_until_complete(entered.wait())
    loop.close()
    coroutine: Any = task.get_coro()
    with pytest.raises(RuntimeError, match="no running event loop"):
        coroutine.close()
    assert is_free(locker)
    task._log_destroy_pending = False  # type: ignore[attr-defined]


def test_a_signal_handler_inside_the_client_does_not_wait(locker: Locker) -> None:
    guard, other = locker.lock("x").guard(), locker.lock("y").guard()
    with agent().lock:
        assert guard.release(cooldown=3_600)
        for waits in (other.ticket, lambda: locker.status("x")):
            with pytest.raises(RuntimeError, match="signal handler"):
                waits()
    other.check()
    while locker.status("x").state == "held":
        time.sleep(0.01)
    assert locker.status("x").state == "cooldown"


def test_a_block_that_another_thread_leaves_ends_no_other_block(locker: Locker) -> None:
    holding = locker.semaphore("x", 2).hold()
    failures: list[LookupError] = []

    def locked() -> Iterator[None]:
        with holding:
            yield

    def close() -> None:
        try:
            generator.close()  # type: ignore[attr-defined]
        except LookupError as failure:
            failures.append(failure)

    def enter() -> None:
        next(generator)
        entered.set()
        done.wait(LIMIT)  # Another thread would get the same id.

    generator, entered, done = locked(), threading.Event(), threading.Event()
    first = threading.Thread(target=enter)
    first.start()
    assert entered.wait(LIMIT)
    with holding as guard:
        other = threading.Thread(target=close)
        other.start()
        other.join()
        guard.check()
    done.set()
    first.join()
    assert len(failures) == 1


def test_locks_can_be_pickled(locker: Locker) -> None:
    assert pickle.loads(pickle.dumps(locker.lock("x"))).name == "x"


def test_only_the_thread_of_the_agent_writes(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    locker.lock("x").guard().release()
    running, threads, write = agent(), set(), os.write

    def recorded(file: int, data: bytes) -> int:
        if file == running._to:
            threads.add(threading.current_thread())
        return write(file, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", recorded)
        locker.lock("x").guard().release()
    assert threads == {running._reader}


def test_an_interrupted_read_ends_the_agent(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = locker.lock("x").guard()

    read = os.read

    def interrupt(file: int, size: int) -> bytes:
        if threading.current_thread() is threading.main_thread():
            raise Interrupted
        return read(file, size)

    with monkeypatch.context() as patch:
        patch.setattr(os, "read", interrupt)
        with pytest.raises(Interrupted):
            guard.check()
    with pytest.raises(LockLost, match="interrupted"):
        guard.check()


def test_a_generator_that_another_thread_closes_releases_its_lock(locker: Locker) -> None:
    def locked() -> Iterator[None]:
        with locker.lock("x", ttl=3_600).hold():
            yield

    generator = locked()
    thread = threading.Thread(target=next, args=(generator,))
    thread.start()
    thread.join()
    generator.close()  # type: ignore[attr-defined]
    assert is_free(locker)


def test_a_generator_that_another_task_closes_releases_its_lock(locker: Locker, url: str) -> None:
    async def locked() -> AsyncIterator[None]:
        async with aio.Locker(url).lock("x", ttl=3_600).hold():
            yield

    async def main() -> None:
        async for _ in locked():
            break

    asyncio.run(main())
    assert is_free(locker)


def test_each_thread_has_its_own_guard_of_a_shared_lock(locker: Locker) -> None:
    lock, ours = locker.lock("x"), threading.Event()
    theirs = threading.Event()
    failures: list[LeaseholdError] = []

    def other() -> None:
        ours.wait(LIMIT)
        with lock:
            theirs.set()
            done.wait(LIMIT)
            try:
                lock.check()
            except LeaseholdError as failure:
                failures.append(failure)

    done = threading.Event()
    thread = threading.Thread(target=other)
    thread.start()
    with pytest.raises(LockLost):
        with lock:
            token = lock.token
            locker.evict("x", token)
            with contextlib.suppress(LockLost):
                lock._held.latest().confirm()
            ours.set()
            assert theirs.wait(LIMIT)
            assert lock.token == token, "not that of the other thread"
            with pytest.raises(LockLost):
                lock.check()
    done.set()
    thread.join()
    assert not failures, "the other thread lost its lock"


def test_errors_can_be_pickled() -> None:
    held = LockHeld("held", HolderInfo.of({"token": 41}), ["wait"])
    for error in (
        held,
        LockLost("lost", "refused", ["again"], 42),
        StoreError("down", "unavailable", ["try"], maybe_applied=True),
        AgentError("ended", ["start it"], maybe_applied=True),
        LockLeftOpen(["a", "b"]),
        ForkedError("forked"),
    ):
        copy: Any = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert (str(copy), copy.__dict__) == (str(error), error.__dict__)
