"""Tests losses: what the holder notices, and when. The tests stop and kill the agent."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest

from conftest import LIMIT, Program, agent, agent_pid
from leasehold_locks import Locker, LockLost, StoreError, _clock

HOLDS = """
import sys
from leasehold_locks import Locker, LockLost
guard = Locker(sys.argv[1]).lock("x", ttl=sys.argv[2]).guard()
from leasehold_locks import _shared
print("held", _shared.shared()._process.pid, flush=True)
for line in sys.stdin:
    try:
        guard.check()
        print("held", flush=True)
    except LockLost as loss:
        print("lost", loss.reason, flush=True)
"""


def lost_event(guard: object) -> threading.Event:
    event = threading.Event()
    guard.on_lost(lambda _: event.set())  # type: ignore[attr-defined]
    return event


def stop_agent(pid: int, locker: Locker) -> None:
    """Stops an agent, but not while it writes, because no other process could write to the file until it continues."""
    while True:
        os.kill(pid, signal.SIGSTOP)
        try:
            locker.lock("probe").guard().release()
            return
        except StoreError:
            os.kill(pid, signal.SIGCONT)


def test_an_eviction_is_reported(locker: Locker) -> None:
    with pytest.raises(LockLost) as lost, locker.lock("x", ttl="10s").hold() as guard:
        event = lost_event(guard)
        locker.evict("x", guard.token)
        assert event.wait(LIMIT)
    assert lost.value.reason == "ended" and not guard.is_held and guard.remaining == 0


def test_a_hold_ends_at_its_limit(locker: Locker) -> None:
    with pytest.raises(LockLost) as lost, locker.lock("x", max_hold="1s", ttl="5s").hold() as guard:
        assert lost_event(guard).wait(LIMIT)
    assert lost.value.reason == "limit"
    locker.lock("x").guard(timeout=LIMIT).release()
    ended = locker.status("x").history[1]
    assert ended.end == "limit" and ended.holder is not None and ended.holder.max_hold == 1


def test_an_agent_forgets_a_hold_that_is_over(locker: Locker) -> None:
    # Otherwise, its thread would check a deadline that has passed again and again.
    released, evicted = locker.lock("x").guard(), locker.lock("y", ttl="10s").guard()
    here, event = agent(), lost_event(evicted)
    locker.evict("y", evicted.token)
    assert event.wait(LIMIT) and released.release()
    with here.lock:
        assert not here._holds


def test_the_end_of_the_agent_is_a_loss_at_once(locker: Locker) -> None:
    with pytest.raises(LockLost) as lost, locker.lock("x", ttl=3_600).hold() as guard:
        event = lost_event(guard)
        os.kill(agent_pid(), signal.SIGKILL)
        assert event.wait(LIMIT)
        guard.check()
    assert lost.value.reason == "agent"


def test_a_killed_agent_keeps_the_lock_from_others(locker: Locker, program: Callable[..., Program], url: str) -> None:
    # This process may still be in a step that it began after a check.
    guard = locker.lock("x", ttl=3_600).guard()
    os.kill(agent_pid(), signal.SIGKILL)
    agent()._reader.join()
    code = "import sys; from leasehold_locks import Locker; print(Locker(sys.argv[1]).lock('x').try_acquire())"
    assert program(code, url).line() == "None"
    assert not guard.is_held


def test_a_new_agent_serves_after_the_death_of_one(locker: Locker) -> None:
    locker.lock("x").guard().release()
    os.kill(agent_pid(), signal.SIGKILL)
    agent()._reader.join()
    locker.lock("x").guard().release()


def test_a_stopped_agent_is_a_loss_at_the_deadline(locker: Locker) -> None:
    guard = locker.lock("x", ttl="5s").guard()
    first = agent()
    event = lost_event(guard)
    os.kill(agent_pid(), signal.SIGSTOP)
    try:
        # No message can come, so this process finds the loss by itself.
        assert event.wait(LIMIT)
        with pytest.raises(LockLost) as lost:
            guard.check()
        assert lost.value.reason == "expired"
    finally:
        os.kill(first._process.pid, signal.SIGCONT)
    # The agent continues and reads the release. The lock is free, and the loss is final.
    locker.lock("x").guard(timeout=LIMIT).release()
    assert not guard.is_held and not guard.release()


def test_a_check_reads_the_clocks(locker: Locker, monkeypatch: pytest.MonkeyPatch) -> None:
    # Simulates a machine that has just woken from sleep, when no timer has fired yet.
    for clock in range(2):
        guard = locker.lock("x", ttl=3_600).guard()
        now = list(_clock.now())
        now[clock] += 3_600_000_000
        later = _clock.Moment(*now)
        monkeypatch.setattr(_clock, "now", lambda later=later: later)
        with pytest.raises(LockLost):
            guard.check()
        monkeypatch.undo()
        with pytest.raises(LockLost):
            guard.check()
        locker.lock("x").guard(timeout=LIMIT).release()


def test_an_unread_renewal_is_not_a_loss(locker: Locker) -> None:
    guard = locker.lock("x", ttl="6s").guard()
    here = agent()
    with here.lock:
        # The thread that reads waits for this lock, while the agent renews.
        first = guard._hold._deadline
        while _clock.now().boot_us <= first.start.boot_us + first.span_us + 100_000:
            time.sleep(0.05)
        assert guard._hold._deadline == first
        guard.check()
    guard.release()


def test_a_stopped_host_keeps_its_lock(program: Callable[..., Program], url: str) -> None:
    host = program(HOLDS, url, "6s")
    assert host.line().startswith("held")
    os.kill(host.process.pid, signal.SIGSTOP)
    # Longer than the lease.
    time.sleep(7)
    os.kill(host.process.pid, signal.SIGCONT)
    host.say("check")
    assert host.line() == "held"


def test_a_stop_of_both_is_a_loss(program: Callable[..., Program], url: str, locker: Locker) -> None:
    host = program(HOLDS, url, "8s")
    child = int(host.line().split()[1])
    stop_agent(child, locker)
    os.kill(host.process.pid, signal.SIGSTOP)
    # Others get the lock when the lease has ended.
    other = locker.lock("x").guard(timeout=LIMIT)
    # Continues the host first, so that its agent cannot notify it.
    os.kill(host.process.pid, signal.SIGCONT)
    host.say("check")
    assert host.line() == "lost expired"
    os.kill(child, signal.SIGCONT)
    host.say("check")
    assert host.line() == "lost expired"
    other.check()
    other.release()


def test_a_killed_host_frees_its_lock(program: Callable[..., Program], url: str, locker: Locker) -> None:
    host = program(HOLDS, url, "1h")
    assert host.line().startswith("held")
    host.process.kill()
    locker.lock("x").guard(timeout=LIMIT).release()


def test_the_agent_ends_with_its_host_although_children_have_the_pipe(
    program: Callable[..., Program], url: str, locker: Locker
) -> None:
    # A child that a C library forked has the pipe open, because Python's fork handlers did not close it.
    fork = """
import ctypes
child = ctypes.CDLL(None).fork()
if child == 0:
    ctypes.CDLL(None).pause()
print(child, flush=True)
for line in"""
    host = program(HOLDS.replace("\nfor line in", fork), url, "1h")
    assert host.line().startswith("held")
    child = int(host.line())
    try:
        host.process.kill()
        locker.lock("x").guard(timeout=LIMIT).release()
    finally:
        os.kill(child, signal.SIGKILL)
