"""Runs the scenarios of clients/conformance, in which the agent misbehaves."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Callable
from typing import Any, cast

import pytest

from conftest import ROOT, Waiting, both
from leasehold_locks import AgentError, Guard, LeaseholdError, Locker, LockHeld, LockLost, _call, _shared, aio

KIT = ROOT / "clients/conformance"
SCENARIOS: list[dict[str, Any]] = json.loads((KIT / "scenarios.json").read_text())


@pytest.fixture(params=SCENARIOS, ids=[scenario["name"] for scenario in SCENARIOS])
def scenario(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LEASEHOLD_COMMAND", str(KIT / "agent.py"))
    monkeypatch.setenv("LEASEHOLD_SCENARIO", request.param["name"])
    monkeypatch.setenv("LEASEHOLD_SCENARIO_LOG", str(tmp_path / "log"))
    return request.param


def outcome(error: LeaseholdError) -> str:
    if isinstance(error, LockHeld):
        return "refused"
    return "agent" if isinstance(error, AgentError) else "error"


def cancel(locker: Locker | Waiting) -> str:
    """Sends an acquisition and cancels it."""
    if not isinstance(locker, Waiting):
        _call.begin({"op": "acquire", "lock": "x"}).abandon()
        return "cancelled"

    async def acquire() -> None:
        await asyncio.get_running_loop().run_in_executor(None, _shared.shared)
        acquisition = asyncio.ensure_future(aio.Locker().lock("x").guard())
        await asyncio.sleep(0)
        acquisition.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquisition

    locker.loop.run_until_complete(acquire())
    return "cancelled"


@both
def test_client(scenario: dict[str, Any], tmp_path: pathlib.Path, opened: Callable[..., Locker]) -> None:
    locker, guard = opened(), cast(Guard, None)
    for action, expected in scenario["actions"]:
        found = "held"
        try:
            if expected == "cancelled":
                found = cancel(locker)
            elif action == "acquire":
                guard = locker.lock("x").guard()
            elif action == "status":
                locker.status("x")
                found = "ok"
            elif action == "check":
                guard.check()
            elif not guard.release():
                found = "lost"
        except LockLost:
            found = "lost"
        except LeaseholdError as error:
            found = outcome(error)
        assert (action, found) == (action, expected)
    _shared._at_exit()
    kinds = {action[1] for action in scenario["actions"]}
    if "agent" not in kinds and scenario.get("greets", True):
        assert (tmp_path / "log").read_text() == "done"
