"""Each test gets its own agent and its own store."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from leasehold_locks import Locker, _shared
from leasehold_locks._agent import Agent

#: No test waits longer for an event, in seconds.
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


class Program:
    """Another Python process, whose lines of output are awaited."""

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
