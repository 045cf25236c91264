"""Tests several locks at once with the real agent and SQLite."""

from __future__ import annotations

import pytest

from conftest import both, in_another_thread
from leasehold_locks import DeadlockError, LeaseholdError, Locker, LockHeld, LockLost, StoreError


@both
def test_several_locks_are_held_and_released_together(locker: Locker) -> None:
    locks = locker.lock_all(["b", "a"], ttl=30)
    with locks.hold(timeout=60) as guard:
        assert guard.tokens == {name: locker.status(name).token for name in ("a", "b")}
        assert guard.name == "a, b"
        with pytest.raises(StoreError, match="2 locks"):
            _ = guard.token
        for name in ("a", "b"):
            assert locker.lock(name).try_acquire() is None
        assert locker.lock_all({"b", "c"}).try_acquire() is None
        assert locker.status("c").state == "free"
    for name in ("a", "b"):
        assert locker.status(name).state == "free"
    with locker.lock("a").hold() as one:
        assert one.tokens == {"a": one.token}


@both
def test_a_wait_for_several_locks_leaves_nothing_held(locker: Locker) -> None:
    with locker.lock("b", owner="alice").hold():
        with pytest.raises(LockHeld, match="`b` is held by alice"):
            in_another_thread(lambda: locker.lock_all(["a", "b", "c"]).guard(timeout=0.2))
        assert [locker.status(name).state for name in ("a", "c")] == ["free", "free"]


@both
def test_the_loss_of_one_lock_is_the_loss_of_all(locker: Locker) -> None:
    guard = locker.lock_all(["a", "b"], ttl=3).guard()
    locker.evict("b", guard.tokens["b"])
    with pytest.raises(LockLost):
        guard.confirm()
    with pytest.raises(LockLost):
        guard.check()
    locker.wait_free("a", timeout=20)


@both
def test_one_ticket_holds_several_locks(locker: Locker) -> None:
    guard = locker.lock_all(["a", "b"]).guard()
    tokens = guard.tokens
    ticket = guard.ticket()
    assert locker.renew_ticket(ticket) > 0
    resumed = locker.resume(ticket)
    assert resumed.tokens == tokens and resumed.name == "a, b"
    assert resumed.release()
    assert not locker.release_ticket(ticket)


def test_a_thread_with_one_of_the_locks_does_not_wait_for_itself(locker: Locker) -> None:
    with locker.lock("b").hold(), pytest.raises(DeadlockError, match="this thread holds"):
        locker.lock_all(["a", "b"]).guard()
    with locker.lock_all(["a", "b"]).hold(), pytest.raises(DeadlockError, match="this thread holds"):
        locker.lock("a").guard()


@both
def test_names_that_cannot_be_held_together_are_errors(locker: Locker) -> None:
    for names, message in [(["a", "b", "a"], "`a` is named twice"), ([], "0 locks"), (["a", "b//c"], "b//c")]:
        with pytest.raises(LeaseholdError, match=message):
            locker.lock_all(names).guard()
