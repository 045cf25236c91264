"""Tests unexpected messages and errors. The agent is real, or follows a script."""

from __future__ import annotations

import asyncio
import gc
import inspect
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

import leasehold_locks
from conftest import LIMIT, agent
from leasehold_locks import AgentError, Locker, LockLost, StoreError, _call, _locks, aio
from leasehold_locks._agent import Agent
from leasehold_locks._guard import BaseGuard
from leasehold_locks.aio import _locks as aio_locks


@pytest.mark.parametrize(
    "held_by",
    ["x", [1], {"holder": "x"}, {"waiter_ahead": 5}, {"token": "x"}, {"held_ms": "x"}, {"held_ms": float("inf")}],
)
def test_a_holder_that_violates_the_protocol_is_the_death_of_the_agent(
    scripted: Callable[..., None], held_by: Any
) -> None:
    refusal = {"ev": "error", "kind": "held", "message": "held", "held_by": held_by}
    scripted({"expect": {"op": "acquire"}}, {"send": [{"to": "acquire", **refusal}]}, {"end": []})
    with pytest.raises(AgentError, match="violates the protocol"):
        _call.begin({"op": "acquire", "lock": "x"}).next(LIMIT)


def test_a_greeting_that_violates_the_protocol_is_no_agent(scripted: Callable[..., None]) -> None:
    refusal = {"to": "hello", "ev": "error", "kind": "held", "message": "held", "held_by": "x"}
    scripted({"send": [refusal]}, {"end": []}, greets=False)
    with pytest.raises(AgentError, match="is not the leasehold command"):
        Locker().lock("x").guard()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_error_of_the_thread_that_reads_is_the_death_of_the_agent(
    locker: Locker, monkeypatch: pytest.MonkeyPatch
) -> None:
    guard = locker.lock("x").guard()
    waiting = _call.begin({"op": "acquire", "store": locker._store, "lock": "x"})
    here = agent()

    def fails() -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(here, "_turn", fails)
    here._bell.ring()
    here._reader.join(LIMIT)
    assert not here.alive
    with pytest.raises(AgentError, match="could not be processed"):
        waiting.next(LIMIT)
    with pytest.raises(LockLost) as lost:
        guard.check()
    assert lost.value.reason == "agent"
    # The next request starts another agent.
    locker.lock("y").guard().release()


@pytest.mark.parametrize("interface", [leasehold_locks, aio], ids=["blocking", "asyncio"])
def test_a_renewal_that_the_agent_refuses_ends_the_hold(scripted: Callable[..., None], interface: Any) -> None:
    # The agent sends no event about the loss.
    deadline = {"span_us": 29_550_000, "clocks": {}}
    grant = {"to": "acquire", "ev": "held", "hold": 1, "lock": "x", "token": 41, **deadline}
    refusal = {"to": "renew", "ev": "error", "kind": "lost", "message": "evicted", "help": []}
    acquire, renew = {"expect": {"op": "acquire"}}, {"expect": {"op": "renew", "hold": 1}}
    scripted(acquire, {"send": [grant]}, renew, {"send": [refusal]}, {"end": []})

    async def main() -> None:
        guard = interface.Locker().lock("x").guard()
        guard = await guard if inspect.isawaitable(guard) else guard
        with pytest.raises(LockLost, match="evicted"):
            confirmed = guard.confirm()
            if inspect.isawaitable(confirmed):
                await confirmed
        with pytest.raises(LockLost, match="evicted"):
            guard.check()
        assert not guard.is_held and guard.remaining == 0

    asyncio.run(main())


async def resolved(value: Any) -> Any:
    return await value if inspect.isawaitable(value) else value


@pytest.mark.parametrize("interface", [leasehold_locks, aio], ids=["blocking", "asyncio"])
def test_the_agent_may_retry_for_as_long_as_the_request_allows(
    scripted: Callable[..., None], monkeypatch: pytest.MonkeyPatch, interface: Any
) -> None:
    # The agent retries a try within `store_timeout`, and a release with a cooldown until the lease ends.
    for locks in (_locks, aio_locks):
        monkeypatch.setattr(locks, "ANSWER_TIMEOUT", 0.0)
    grant = {"to": "try", "ev": "held", "hold": 1, "lock": "x", "token": 41, "span_us": 29_550_000, "clocks": {}}
    scripted(
        {"expect": {"op": "try"}},
        {"send": [grant]},
        {"expect": {"op": "release", "hold": 1}},
        {"send": [{"to": "release", "ev": "released", "was_held": True}]},
        {"end": []},
    )

    async def main() -> None:
        guard = await resolved(interface.Locker().lock("x", store_timeout=30).try_acquire())
        assert await resolved(guard.release(cooldown=60))

    asyncio.run(main())


@pytest.mark.parametrize("interface", [leasehold_locks, aio], ids=["blocking", "asyncio"])
def test_an_object_that_does_not_fit_into_a_request_costs_no_lock(
    scripted: Callable[..., None], interface: Any
) -> None:
    grant = {"to": "acquire", "ev": "held", "hold": 1, "lock": "x", "token": 41, "span_us": 29_550_000, "clocks": {}}
    scripted(
        {"expect": {"op": "acquire"}},
        {"send": [grant]},
        {"expect": {"op": "update"}},
        {"send": [{"to": "update", "ev": "content", "content": None}]},
        {"expect": {"op": "cancel"}},
        {"expect": {"op": "release", "hold": 1}},
        {"send": [{"to": "release", "ev": "released", "was_held": True}]},
        {"end": []},
    )
    large = bytes(1 << 20)

    async def change(_: bytes | None) -> bytes:
        return large

    def plain_change(_: bytes | None) -> bytes:
        return large

    async def main() -> None:
        guard = await resolved(interface.Locker().lock("x").guard())
        target = interface.open_object("s3://bucket/x")
        changes: Any = change if interface is aio else plain_change
        attempts: list[Callable[[], Any]] = [lambda: target.put(large, fence=41), lambda: target.update(changes)]
        for attempt in attempts:
            with pytest.raises(StoreError, match="longer than") as raised:
                await resolved(attempt())
            assert raised.value.kind == "limit"
            guard.check()
        await resolved(guard.release())

    asyncio.run(main())


class Interrupted(BaseException):
    """An exception that a signal handler can raise at any point."""


def interrupt(*_: object) -> None:
    raise Interrupted


@pytest.fixture
def uncollected() -> Iterator[None]:
    """Turns the garbage collector off. Objects must be finalized when their last reference is dropped."""
    gc.disable()
    yield
    gc.enable()


def test_a_grant_that_gets_no_guard_is_released(
    locker: Locker, monkeypatch: pytest.MonkeyPatch, uncollected: None
) -> None:
    lock, tickets = locker.lock("x", ttl=3_600), [locker.lock("x", ttl=3_600).guard().ticket()]
    attempts: list[Callable[[], object]] = [
        lambda: locker.resume(tickets[0]),
        lock.guard,
        lock.try_acquire,
        lambda: locker.once("x", per="1h", ttl=3_600).run(lambda: None),
    ]
    for attempt in attempts:
        with monkeypatch.context() as patch:
            patch.setattr(BaseGuard, "__init__", interrupt)
            with pytest.raises(Interrupted):
                attempt()
        locker.lock("x").guard(timeout=LIMIT).release()


def test_a_grant_that_gets_no_guard_is_released_with_asyncio(
    url: str, monkeypatch: pytest.MonkeyPatch, uncollected: None
) -> None:
    async def nothing() -> None:
        pass

    async def main() -> None:
        locker = aio.Locker(url)
        lock = locker.lock("x", ttl=3_600)
        ticket = await (await lock.guard()).ticket()
        attempts: list[Callable[[], Awaitable[object]]] = [
            lambda: locker.resume(ticket),
            lock.guard,
            lock.try_acquire,
            lambda: locker.once("x", per="1h", ttl=3_600).run(nothing),
        ]
        for attempt in attempts:
            with monkeypatch.context() as patch:
                patch.setattr(BaseGuard, "__init__", interrupt)
                with pytest.raises(Interrupted):
                    await attempt()
            await (await lock.guard(timeout=LIMIT)).release()

    asyncio.run(main())


@pytest.mark.parametrize("interface", [leasehold_locks, aio], ids=["blocking", "asyncio"])
def test_a_grant_that_comes_after_the_interruption_is_released(
    url: str, monkeypatch: pytest.MonkeyPatch, uncollected: None, interface: Any
) -> None:
    send = Agent._send

    def sends_and_raises(here: Agent, line: bytes) -> None:
        send(here, line)
        if b'"op":"acquire"' in line:
            raise Interrupted

    async def main() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Agent, "_send", sends_and_raises)
            with pytest.raises(Interrupted):
                guard = interface.Locker(url).lock("x", ttl=3_600).guard()
                if inspect.isawaitable(guard):
                    await guard
        Locker(url).lock("x").guard(timeout=LIMIT).release()

    asyncio.run(main())
