"""Runs the scenarios of clients/conformance, in which the agent misbehaves."""

from __future__ import annotations

import asyncio
import json
import pathlib
from typing import Any

import pytest

import leasehold_locks
from conftest import ROOT
from leasehold_locks import AgentError, LeaseholdError, LockHeld, LockLost, _call, _shared, aio

KIT = ROOT / "clients/conformance"
SCENARIOS: list[dict[str, Any]] = json.loads((KIT / "scenarios.json").read_text())


@pytest.fixture(params=SCENARIOS, ids=[scenario["name"] for scenario in SCENARIOS])
def scenario(request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LEASEHOLD_COMMAND", str(KIT / "agent.py"))
    monkeypatch.setenv("LEASEHOLD_SCENARIO", request.param["name"])
    monkeypatch.setenv("LEASEHOLD_SCENARIO_LOG", str(tmp_path / "log"))
    return request.param


def conclude(scenario: dict[str, Any], log: pathlib.Path) -> None:
    _shared._at_exit()
    kinds = {action[1] for action in scenario["actions"]}
    if "agent" not in kinds and scenario.get("greets", True):
        assert log.read_text() == "done"


def outcome(error: LeaseholdError) -> str:
    if isinstance(error, LockHeld):
        return "refused"
    return "agent" if isinstance(error, AgentError) else "error"


def test_blocking_client(scenario: dict[str, Any], tmp_path: pathlib.Path) -> None:
    locker = leasehold_locks.Locker()
    guard = None
    for action, expected in scenario["actions"]:
        found = "?"
        try:
            if action == "acquire" and expected == "cancelled":
                call = _call.begin({"op": "acquire", "lock": "x"})
                call.abandon()
                found = "cancelled"
            elif action == "acquire":
                guard = locker.lock("x").guard()
                found = "held"
            elif action == "status":
                locker.status("x")
                found = "ok"
            elif action == "check":
                assert guard is not None
                guard.check()
                found = "held"
            elif action == "release":
                assert guard is not None
                found = "held" if guard.release() else "lost"
        except LockLost:
            found = "lost"
        except LeaseholdError as error:
            found = outcome(error)
        assert (action, found) == (action, expected)
    conclude(scenario, tmp_path / "log")


def test_asyncio_client(scenario: dict[str, Any], tmp_path: pathlib.Path) -> None:
    async def main() -> None:
        locker = aio.Locker()
        guard = None
        for action, expected in scenario["actions"]:
            found = "?"
            try:
                if action == "acquire" and expected == "cancelled":
                    await asyncio.get_running_loop().run_in_executor(None, _shared.shared)
                    acquisition = asyncio.ensure_future(locker.lock("x").guard())
                    await asyncio.sleep(0)
                    acquisition.cancel()
                    with pytest.raises(asyncio.CancelledError):
                        await acquisition
                    found = "cancelled"
                elif action == "acquire":
                    guard = await locker.lock("x").guard()
                    found = "held"
                elif action == "status":
                    await locker.status("x")
                    found = "ok"
                elif action == "check":
                    assert guard is not None
                    guard.check()
                    found = "held"
                elif action == "release":
                    assert guard is not None
                    found = "held" if await guard.release() else "lost"
            except LockLost:
                found = "lost"
            except LeaseholdError as error:
                found = outcome(error)
            assert (action, found) == (action, expected)

    asyncio.run(main())
    conclude(scenario, tmp_path / "log")
