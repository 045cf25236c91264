"""Tests locks with the real agent and SQLite."""

from __future__ import annotations

import copy
import functools
import gc
import json
import os
import pathlib
import pickle
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import Any

import pytest

import leasehold_locks
from conftest import ROOT, agent, agent_pid, both, in_another_thread
from leasehold_locks import (
    AgentError,
    AlreadyRan,
    Guard,
    LeaseholdError,
    Locker,
    LockHeld,
    LockLeftOpen,
    LockLost,
    Ran,
    SizeError,
    StoreError,
    _shared,
    aio,
    open_object,
    serverless,
)
from leasehold_locks._requests import within
from leasehold_locks._types import Duration, milliseconds


@both
def test_a_lock_is_held_and_released(locker: Locker) -> None:
    lock = locker.lock("deploy/prod", ttl=30)
    with lock.hold(timeout=60) as first:
        first.check()
        assert 0 < first.remaining <= 30 and first.is_held and first.name == "deploy/prod"
    with lock.hold() as second:
        assert second.token > first.token
    assert locker.status("deploy/prod").state == "free"
    with pytest.raises(LockLost, match="released"):
        first.check()


@both
def test_a_held_lock_names_its_holder(locker: Locker) -> None:
    with locker.lock("x", note="make deploy", owner="alice").hold() as guard:
        assert locker.lock("x").try_acquire() is None
        with pytest.raises(LockHeld) as refused:
            in_another_thread(lambda: locker.lock("x").guard(timeout=0.1))
    assert isinstance(refused.value, TimeoutError) and refused.value.holder is not None
    assert (refused.value.holder.name, refused.value.holder.note) == ("alice", "make deploy")
    assert refused.value.holder.pid == agent_pid() and refused.value.held_by.token == guard.token
    assert refused.value.help and "alice" in str(refused.value)


@both
def test_an_error_in_the_body_is_not_replaced(locker: Locker) -> None:
    with pytest.raises(KeyError), locker.lock("x").hold() as guard:
        locker.evict("x", guard.token)
        raise KeyError
    assert locker.status("x").state == "free"


def test_lock_has_the_shape_of_threading_lock(locker: Locker) -> None:
    lock, other = locker.lock("x"), locker.lock("x")
    assert lock.acquire() and lock.locked() and lock.token > 0
    lock.check()
    assert not other.acquire(blocking=False) and not other.acquire(timeout=0.05) and not other.locked()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    for bad in ({"blocking": False, "timeout": 1}, {"timeout": -2}):
        with pytest.raises(ValueError):
            lock.acquire(**bad)  # type: ignore[arg-type]
    durations: list[Duration | None] = ["60s", timedelta(minutes=1), 60, -1, None]
    for duration in durations:
        assert lock.acquire(timeout=duration)
        lock.release()
    with lock:
        assert lock.locked()
    assert not lock.locked()


def test_threads_take_turns(locker: Locker) -> None:
    lock, inside, most = locker.lock("x"), 0, 0

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with lock.hold(timeout=60):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_a_dropped_guard_releases_its_lock(locker: Locker) -> None:
    guard = locker.lock("x").try_acquire()
    assert guard is not None
    del guard
    locker.lock("x").guard(timeout=60).release()


def test_a_guard_cannot_be_copied(locker: Locker) -> None:
    with locker.lock("x").hold() as guard:
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                attempt(guard)
        gc.collect()
        guard.check()  # A copy would have released the lock.


def test_locks_have_a_description() -> None:
    lockers: list[Locker | aio.Locker] = [Locker("mem:"), aio.Locker("mem:")]
    for locker in lockers:
        lock, index = locker.lock("x"), locker.rw_lock("index")
        assert [repr(item) for item in (locker, lock, lock.hold(), index)] == [
            "<Locker>",
            "<Lock 'x'>",
            "<Holding of <Lock 'x'>>",
            "<RwLock 'index'>",
        ]


def test_a_lock_is_confirmed_with_a_request(locker: Locker) -> None:
    with pytest.raises(LockLost), locker.lock("x").hold() as guard:
        guard.confirm()
        locker.evict("x", guard.token, reason="it hangs")
        guard.check()  # The eviction is not noticed yet.
        evicted = locker.status("x").history[0].evicted
        assert evicted is not None and evicted.reason == "it hangs" and "@" in evicted.by
        with pytest.raises(LockLost) as lost:
            guard.confirm(timeout=60)
        assert "it was evicted by " in str(lost.value) and ": it hangs" in str(lost.value)


@both
def test_semaphores_and_readers_writer_locks(locker: Locker) -> None:
    semaphore = locker.semaphore("pool", 2)
    with semaphore.hold() as one, semaphore.hold() as two:
        assert one.name != two.name and semaphore.try_acquire() is None
    index = locker.rw_lock("index")
    with index.shared.hold(), index.shared.hold():
        assert index.exclusive.try_acquire() is None
    with index.exclusive.hold(timeout=60) as alone:
        assert index.shared.try_acquire() is None
        alone.confirm()


@both
def test_another_number_of_permits_is_an_error_with_both(locker: Locker) -> None:
    with locker.semaphore("pool", 2).hold():
        with pytest.raises(SizeError, match="has 2 permits") as refused:
            locker.semaphore("pool", 3).guard()
        with pytest.raises(LockHeld):
            locker.resize("pool", permits=3)
    assert (refused.value.asked, refused.value.stored, refused.value.kind) == (3, 2, "invalid")
    copied = pickle.loads(pickle.dumps(refused.value))
    assert (copied.asked, copied.stored) == (3, 2)
    assert locker.resize("pool", permits=3, ttl=60) == 2
    locker.semaphore("pool", 3).guard().release()
    locker.rw_lock("index", readers=12).shared.guard().release()
    with pytest.raises(SizeError):
        locker.rw_lock("index").exclusive.guard()
    assert locker.resize("index", readers=8) == 12
    with pytest.raises(TypeError):
        locker.resize("index")


@both
def test_an_election_has_one_leader(locker: Locker) -> None:
    election = locker.election("scheduler", value="http://10.0.0.7:8080")
    changes = election.observe()
    assert next(changes) is None
    with election.hold() as leadership:
        leader = next(changes)
        assert leader is not None and leader.value == "http://10.0.0.7:8080" and leader.term == leadership.token
        assert election.leader() == leader
        assert election.try_acquire() is None
        with pytest.raises(LockHeld):
            in_another_thread(lambda: election.guard(timeout=0.1))
    assert next(changes) is None
    changes.close()  # type: ignore[attr-defined]


def test_a_job_runs_once_per_period(locker: Locker) -> None:
    days: list[str] = []

    @locker.once("nightly", per="23h", owner="ci-7")
    def nightly(day: str) -> int:
        """Reports."""
        days.append(day)
        if day == "sunday":
            raise KeyError(day)
        return len(days)

    with pytest.raises(KeyError):
        nightly("sunday")
    ran, again = nightly("monday"), nightly("tuesday")
    assert ran and isinstance(ran, Ran) and ran.value == 2
    assert not again and isinstance(again, AlreadyRan) and again.by is not None and again.by.name == "ci-7"
    assert 0 < (again.again_within or 0) <= 23 * 3_600 and days == ["sunday", "monday"]
    assert nightly.__doc__ == "Reports."


def test_a_job_that_lost_its_lock_raises(locker: Locker) -> None:
    def job() -> None:
        token = locker.status("job").token
        assert token is not None
        locker.evict("job", token)

    with pytest.raises(LeaseholdError):
        locker.once("job", per=60).run(job)


@both
def test_a_lock_is_passed_on_as_a_ticket(locker: Locker) -> None:
    guard = locker.lock("x").guard()
    ticket = guard.ticket()
    with pytest.raises(LockLost):
        guard.check()
    assert locker.renew_ticket(ticket) > 0
    with locker.resume(ticket) as resumed:
        assert resumed.token >= guard.token
    assert not locker.release_ticket(ticket) and locker.release_ticket(locker.lock("x").guard().ticket())
    for spoiled in (ticket[:-3], "lh2_hunter2"):
        with pytest.raises(StoreError) as error:
            locker.release_ticket(spoiled)
        assert error.value.kind == "invalid" and spoiled[4:] not in str(error.value)


@both
def test_a_wait_of_no_time_is_one_attempt(locker: Locker) -> None:
    with locker.lock("x").hold(timeout=0), pytest.raises(LockHeld):
        locker.lock("x").guard(timeout=0)


class Context:
    """The context that AWS Lambda passes to a function."""

    def __init__(self, remaining_ms: int) -> None:
        self.remaining_ms = remaining_ms

    def get_remaining_time_in_millis(self) -> int:
        return self.remaining_ms


@both
def test_a_wait_ends_before_its_invocation(locker: Locker) -> None:
    lock = locker.lock("x")
    with lock.hold(context=Context(60_000)):
        for context in (Context(1_050), Context(0)):
            with pytest.raises(LockHeld):
                in_another_thread(functools.partial(lock.guard, context=context))
        with pytest.raises(LockHeld):
            in_another_thread(lambda: lock.guard(0.01, context=Context(60_000_000)))


def test_a_handler_that_returns_with_an_open_guard_fails(locker: Locker) -> None:
    kept: list[Guard] = []

    @serverless
    def handler(event: str, context: Context) -> str:
        """Imports."""
        if event == "closed":
            with locker.lock("x").hold(context=context):
                return "done"
        guard = locker.lock("x").guard(context=context)
        if event == "kept":
            kept.append(guard)
        if event == "failed":
            raise KeyError(guard.name)
        return event

    assert (handler("closed", Context(60_000)), handler.__doc__) == ("done", "Imports.")
    for event in ("kept", "collected"):
        with pytest.raises(LockLeftOpen, match="`x`") as left:
            handler(event, Context(60_000))
        assert left.value.names == ["x"]
    with pytest.raises(KeyError):
        handler("failed", Context(60_000))
    assert handler("closed", Context(60_000)) == "done"
    assert not kept[0].is_held


@both
@pytest.mark.parametrize("method", ["acquire", "guard", "try_acquire"])
def test_a_lock_that_nothing_refers_to_is_released(locker: Locker, method: str) -> None:
    with pytest.warns(ResourceWarning, match="lock 'x' is released"):
        getattr(locker.lock("x", ttl=3_600), method)()
        gc.collect()
    locker.lock("x").guard(timeout=60).release()


def test_the_shorter_limit_of_a_wait_applies() -> None:
    assert within(None, Context(3_000)) == 2
    assert within("5s", Context(3_000)) == 2
    assert within("1s", Context(3_000)) == 1
    assert within(None, Context(500)) == 0
    assert within("5s", None) == "5s" and within(None, None) is None


@both
def test_inspection(locker: Locker) -> None:
    locker.init()
    with locker.lock("b").hold(), locker.lock("a/1").hold():
        assert list(locker.list()) == ["a/1", "b"] and list(locker.list("a/")) == ["a/1"]
    status = locker.status("b")
    assert status.state == "free" and status.history and not status.waiters
    assert locker.status("none").token is None
    assert not locker.evict("b", 5)
    assert locker.sweep("b", older_than=0, dry_run=True) and list(locker.list()) == ["a/1", "b"]
    assert locker.sweep("b", older_than=0) and not locker.sweep("b", older_than=0)
    locker.wait_free("b", timeout=60)
    with locker.lock("b").hold(), pytest.raises(LockHeld):
        locker.wait_free("b", timeout=3)
    assert locker.capabilities().store == "SQLite"
    report = locker.doctor(ttl="10s")
    assert report.findings and all(found.check for found in report.findings)


@both
def test_bad_arguments_get_clear_errors(locker: Locker) -> None:
    for name in ("", "a//b", "x" * 300):
        with pytest.raises(StoreError) as error:
            locker.lock(name).guard()
        assert error.value.kind == "invalid"
    with pytest.raises(StoreError, match="`ttl` is not from 500ms to "):
        locker.lock("x", ttl=0.1).guard()
    for permits in (0, -1):
        with pytest.raises(StoreError, match="`permits` is not an integer from 1 to 64"):
            locker.semaphore("x", permits).guard()
    names: list[Any] = [7, b"x", None]
    for name in names:
        with pytest.raises(TypeError, match="the name of a lock is a text"):
            locker.lock(name)
    with pytest.raises(TypeError, match="a store is a URL such as"):
        Locker(pathlib.Path("locks.db"))  # type: ignore[arg-type]
    with pytest.raises(StoreError) as denied:
        Locker("redis://user:hunter2@localhost:1/0?nonsense=hunter2").lock("x").guard()
    assert "hunter2" not in str(denied.value) + repr(denied.value)
    with pytest.raises(StoreError):
        open_object("s3://id:hunter2@bucket/key?x=y").get()


def test_durations() -> None:
    texts: list[tuple[str, int | None]] = json.loads((ROOT / "clients/conformance/durations.json").read_text())
    others: list[tuple[Duration, int]] = [(1, 1_000), (2.007, 2_007), (0.0001, 1), (timedelta(minutes=1), 60_000)]
    for duration, expected in [*texts, *others, (-1, None), (float("nan"), None), (float("inf"), None)]:
        if expected is not None:
            assert milliseconds(duration, "ttl") == expected
            continue
        with pytest.raises(ValueError, match="ttl"):
            milliseconds(duration, "ttl")
    with pytest.raises(TypeError, match="ttl None"):
        milliseconds(None, "ttl")  # type: ignore[arg-type]


def test_a_relative_store_stays_in_its_folder(tmp_path: pathlib.Path) -> None:
    agent()  # The agent starts in this folder.
    (tmp_path / "50%?").mkdir()
    os.chdir(tmp_path / "50%?")
    with Locker("sqlite:here.db").lock("x").hold():
        assert (tmp_path / "50%?" / "here.db").exists()


def test_a_command_that_is_not_an_agent(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in ("/bin/true", "/bin/cat", "/nonexistent"):
        monkeypatch.setenv("LEASEHOLD_COMMAND", command)
        with pytest.raises(AgentError) as error:
            locker.lock("x").guard()
        assert "LEASEHOLD_COMMAND" in str(error.value)


def test_an_isolated_python_runs_no_command_of_the_user(tmp_path: pathlib.Path) -> None:
    folders = [tmp_path / ".local" / "bin", tmp_path / "bin"]
    for folder in folders:
        folder.mkdir(parents=True)
        (folder / "leasehold").write_text("#!/bin/sh\n")
        (folder / "leasehold").chmod(0o755)
    source = pathlib.Path(leasehold_locks.__file__).parent.parent
    find = f"import sys; sys.path.insert(0, {str(source)!r}); from leasehold_locks._command import find; print(find())"
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path / "bin")}
    # Not the interpreter of a virtual environment, which has its own folder of commands.
    python = pathlib.Path(sys.base_prefix) / "bin" / "python3"
    found = subprocess.run([python, "-I", "-c", find], env=environment, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(tmp_path / "bin" / "leasehold")


def test_the_agent_ends_when_it_is_idle(locker: Locker) -> None:
    with pytest.MonkeyPatch.context() as patch:
        with locker.lock("x").hold():
            # Not set earlier: without a hold or a request, the agent could end before the first request.
            patch.setattr("leasehold_locks._agent._IDLE", 0.0)
            first = agent()
        first._reader.join()
    assert first._process.returncode == 0 and _shared.running() is None
    with locker.lock("x").hold():
        pass


def test_an_idle_agent_is_kept_for_the_request_that_follows(locker: Locker) -> None:
    locker.lock("x").guard().release()
    first = agent()
    with first.lock:
        # Simulates a function that was frozen for an hour. The thread that ends idle agents waits for the lock.
        first._used -= 3_600
        assert _shared.shared() is first
        assert time.monotonic() - first._used < 3_600
    locker.lock("x").guard().release()
    assert agent() is first
