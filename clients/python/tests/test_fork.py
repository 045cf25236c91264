"""Tests forks: a guard belongs to the process that acquired it, and a locker works in both processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable

import pytest

from conftest import LIMIT, agent, agent_pid
from leasehold_locks import ForkedError, Locker, _fork, _shared


def in_child(body: Callable[[], None]) -> None:
    """Runs ``body`` in a forked child, which ends without exit handlers."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            signal.alarm(int(LIMIT))
            body()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_a_guard_belongs_to_the_process_that_acquired_it(locker: Locker) -> None:
    holding = locker.lock("x").hold()
    guard = holding.__enter__()

    def child() -> None:
        for use in (guard.check, guard.release, guard.confirm, guard.ticket, lambda: guard.remaining):
            with pytest.raises(ForkedError):
                use()
        holding.__exit__(None, None, None)  # Does nothing.
        guard.__del__()

    in_child(child)
    guard.check()
    assert locker.lock("x").try_acquire() is None
    holding.__exit__(None, None, None)
    assert locker.status("x").state == "free"


def test_a_locker_starts_another_agent_in_a_child(locker: Locker) -> None:
    with locker.lock("x").hold() as guard:
        parents = agent_pid()

        def child() -> None:
            assert locker.lock("x").try_acquire() is None
            with locker.lock("y").hold(timeout=LIMIT) as mine:
                mine.check()
                assert agent_pid() != parents
            _shared._at_exit()

        in_child(child)
        guard.check()


def test_an_id_that_is_used_again_does_not_deceive(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = locker.lock("x").guard()
    host = os.getpid()

    def child() -> None:
        monkeypatch.setattr(os, "getpid", lambda: host)
        with pytest.raises(ForkedError):
            guard.check()

    in_child(child)
    guard.release()


def test_a_fork_without_handlers_is_noticed(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    guard = locker.lock("x").guard()
    monkeypatch.setattr(os, "getpid", lambda: 1)  # A child that a C library forked sees another id.
    with pytest.raises(ForkedError):
        guard.check()
    monkeypatch.undo()
    guard.check()
    guard.release()
    assert _fork.process()[0] == os.getpid()


def test_a_fork_while_other_threads_use_the_agent(locker: Locker) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            locker.lock("busy").guard().release()

    def child() -> None:
        locker.lock("mine").guard(timeout=LIMIT).release()
        _shared._at_exit()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _job(url: str) -> int:
    with Locker(url).lock("pool").hold(timeout=LIMIT) as guard:
        guard.check()
        return guard.token


def test_workers_of_multiprocessing(locker: Locker, url: str) -> None:
    with locker.lock("x").hold() as guard, multiprocessing.get_context("fork").Pool(3) as pool:
        tokens = pool.map(_job, [url] * 9)
        assert len(set(tokens)) == 9
        guard.check()


def test_a_child_does_not_keep_the_agent_of_its_parent(locker: Locker) -> None:
    locker.lock("x").guard().release()
    here = agent()
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writes)
        os.read(reads, 1)
        os._exit(0)
    try:
        _shared._at_exit()  # Closes the pipe to the agent, which ends if no other process has it open.
        assert here._process.returncode == 0
    finally:
        os.close(writes)
        os.close(reads)
        os.waitpid(child, 0)
