"""Each test gets its own agent and its own store."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from leasehold_locks import Locker, _shared
from leasehold_locks._agent import Agent

T = TypeVar("T")

#: The longest time that a test waits for an event, in seconds.
LIMIT = float(os.environ.get("LEASEHOLD_TEST_LIMIT", "60"))

ROOT = pathlib.Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def fresh(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    assert os.environ.get("LEASEHOLD_COMMAND"), "set LEASEHOLD_COMMAND to the command under test"
    monkeypatch.delenv("LEASEHOLD_STORE", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    _shared._at_exit()
    yield
    _shared._at_exit()


@pytest.fixture
def url(tmp_path: pathlib.Path) -> str:
    return f"sqlite:{tmp_path}/locks.db"


@pytest.fixture
def locker(url: str) -> Locker:
    return Locker(url)


def agent() -> Agent:
    return _shared.shared()


def agent_pid() -> int:
    return agent()._process.pid


def in_another_thread(call: Callable[[], T]) -> T:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()


@pytest.fixture
def scripted(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replaces the command with the agent of clients/conformance, which follows the steps of a script."""

    def use(*steps: dict[str, Any], greets: bool = True) -> None:
        command = shutil.copy(ROOT / "clients/conformance/agent.py", tmp_path)
        scenario = {"name": "scripted", "greets": greets, "script": steps}
        (tmp_path / "scenarios.json").write_text(json.dumps([scenario]))
        monkeypatch.setenv("LEASEHOLD_COMMAND", str(command))
        monkeypatch.setenv("LEASEHOLD_SCENARIO", "scripted")
        monkeypatch.setenv("LEASEHOLD_SCENARIO_LOG", str(tmp_path / "log"))

    return use


class Program:
    """Another Python process. Tests wait for its lines of output."""

    def __init__(self, code: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()


@pytest.fixture
def program() -> Iterator[Callable[..., Program]]:
    started: list[Program] = []

    def start(code: str, *arguments: str) -> Program:
        one = Program(code, *arguments)
        started.append(one)
        return one

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()
        for stream in (one.process.stdin, one.process.stdout):
            if stream is not None:
                stream.close()
