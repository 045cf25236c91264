"""Messages and errors that nobody expects. The agent is real, or follows a script."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

import leasehold_locks
from conftest import LIMIT, agent
from leasehold_locks import AgentError, Locker, LockLost, _call, aio


@pytest.mark.parametrize(
    "held_by", ["x", [1], {"holder": "x"}, {"behind": 5}, {"token": "x"}, {"held_ms": "x"}, {"held_ms": float("inf")}]
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
    # No event reports the loss.
    deadline = {"span_us": 29_550_000, "clocks": {}}
    grant = {"to": "acquire", "ev": "held", "hold": 1, "lock": "x", "token": "41", **deadline}
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
