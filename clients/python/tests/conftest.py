"""Each test gets its own agent and its own store."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

import pytest

from leasehold_locks import Locker, _shared, aio
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


class Waiting:
    """An object of the interface for asyncio whose calls wait, so that a test of the blocking interface can use it."""

    def __init__(self, of: object, loop: asyncio.AbstractEventLoop) -> None:
        self.of, self.loop = of, loop

    def __getattr__(self, name: str) -> Any:
        return self._waiting(getattr(self.of, name))

    def __enter__(self) -> Any:
        return self._waiting(self.of.__aenter__())  # type: ignore[attr-defined]

    def __exit__(self, *error: object) -> None:
        self._waiting(self.of.__aexit__(*error))  # type: ignore[attr-defined]

    def _waiting(self, value: Any) -> Any:
        if inspect.isawaitable(value):
            return self._waiting(self.loop.run_until_complete(value))
        if inspect.isasyncgen(value):
            return self._values(value)
        if inspect.ismethod(value):

            def call(*args: Any, **kwargs: Any) -> Any:
                return self._waiting(value(*args, **kwargs))

            return call
        return Waiting(value, self.loop) if type(value).__module__.startswith(aio.__name__) else value

    def _values(self, values: Any) -> Iterator[Any]:
        try:
            while True:
                yield self.loop.run_until_complete(anext(values))
        except StopAsyncIteration:
            pass
        finally:
            self.loop.run_until_complete(values.aclose())


#: Runs a test on both interfaces.
both = pytest.mark.parametrize("interface", ["blocking", "asyncio"])


@pytest.fixture
def interface() -> str:
    return "blocking"


@pytest.fixture
def opened(interface: str) -> Iterator[Callable[..., Locker]]:
    """Opens a store."""
    if interface == "blocking":
        yield Locker
        return
    loop = asyncio.new_event_loop()
    yield lambda *store: cast(Locker, Waiting(aio.Locker(*store), loop))
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()


@pytest.fixture
def locker(opened: Callable[..., Locker], url: str) -> Locker:
    return opened(url)


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
