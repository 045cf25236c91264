"""Tests gunicorn with ``--preload``: the process that forks the workers has created the locker and started an agent."""

from __future__ import annotations

import pathlib
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from conftest import LIMIT
from leasehold_locks import Locker

APPLICATION = """
import os
from leasehold_locks import ForkedError, Locker, _shared

locker = Locker({url!r})
preloaded = locker.lock("preloaded").guard()     # held by the process that forks
parents = _shared.shared()._process.pid


def application(environ, start_response):
    try:
        preloaded.check()
        raise AssertionError("a worker used the guard of its parent")
    except ForkedError:
        pass
    with locker.lock("count").hold(timeout=60) as guard:
        assert _shared.shared()._process.pid != parents
        number = int(open("count").read())
        with open("count", "w") as file:
            file.write(str(number + 1))
        guard.check()
    start_response("200 OK", [])
    return [f"{{os.getpid()}} {{_shared.shared()._process.pid}}".encode()]
"""

WORKERS = 4


@pytest.fixture
def server(tmp_path: pathlib.Path, url: str) -> Iterator[str]:
    """Starts a server with the application. Yields its address."""
    (tmp_path / "application.py").write_text(APPLICATION.format(url=url))
    (tmp_path / "count").write_text("0")
    command = [sys.executable, "-m", "gunicorn", "--preload", "--workers", str(WORKERS), "--bind", "127.0.0.1:0"]
    process = subprocess.Popen(
        [*command, "--timeout", "120", "application"], stderr=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert process.stderr is not None
    try:
        # gunicorn logs its address.
        address = next(line.split("Listening at: ")[1].split()[0] for line in process.stderr if "Listening at" in line)
        yield address
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=LIMIT)
        assert process.returncode == 0


def test_workers_of_gunicorn(server: str, tmp_path: pathlib.Path, locker: Locker) -> None:
    def request(_: int) -> tuple[str, str]:
        worker, _, agent = urllib.request.urlopen(server, timeout=LIMIT).read().decode().partition(" ")
        return worker, agent

    seen: set[tuple[str, str]] = set()
    total, deadline = 0, time.monotonic() + LIMIT
    with ThreadPoolExecutor(WORKERS) as threads:
        while len(seen) < 2:  # The system decides which worker accepts a connection.
            assert time.monotonic() < deadline
            seen.update(threads.map(request, range(20)))
            total += 20
    assert (tmp_path / "count").read_text() == str(total)
    workers, agents = ({pair[which] for pair in seen} for which in (0, 1))
    assert len(workers) == len(agents) == len(seen)
    # The process that forked the workers still holds its lock.
    assert locker.lock("preloaded").try_acquire() is None
