"""Tests locks on each store. `./test` starts the servers."""

from __future__ import annotations

import os
import pathlib
import subprocess

import pytest

from leasehold_locks import Locker, LockLost, open_object

PREFIX = "LEASEHOLD_TEST_"

#: The URLs that ./test sets, except those of servers that leasehold must refuse.
SERVERS = {
    name.removeprefix(PREFIX): value
    for name, value in os.environ.items()
    if name.startswith(PREFIX) and "://" in value and not name.startswith(f"{PREFIX}BAD_")
}


def is_granted_to_another(url: str, name: str) -> bool:
    """Returns whether another process gets the lock without waiting."""
    command = [os.environ["LEASEHOLD_COMMAND"], "run", "--try", "--store", url, name, "--", "true"]
    code = subprocess.run(command, capture_output=True).returncode
    assert code in (0, 123)
    return code == 0


@pytest.mark.parametrize("store", ["SQLITE", *SERVERS])
def test_a_lock_on(store: str, tmp_path: pathlib.Path) -> None:
    url = SERVERS.get(store, f"sqlite:{tmp_path}/locks.db")
    locker = Locker(url)
    locker.init()
    name = f"clients/python-{os.getpid()}"
    lock = locker.lock(name, ttl=30)
    with lock.hold(timeout=60) as g:
        g.check()
        assert lock.try_acquire() is None
        assert not is_granted_to_another(url, name)
        first = g.token
        g.confirm()
        assert locker.status(name).state == "held"
    assert is_granted_to_another(url, name)
    guard = lock.try_acquire()
    assert guard is not None and guard.token > first
    assert list(locker.list("clients/python-")).count(name) == 1
    assert guard.release()


@pytest.mark.skipif("S3_MINIO" not in SERVERS, reason="no such server: ./test --with-servers")
def test_objects_on_s3() -> None:
    # Each run uses another object.
    place, _, options = SERVERS["S3_MINIO"].partition("?")
    url = f"{place}/python-{os.getpid()}.json?{options}"
    state = open_object(url, content_type="application/json")
    assert state.get() is None
    assert state.update(lambda content: (content or b"") + b"1")
    assert not state.update(lambda content: None)
    state.put(b"fenced 8", fence=8)
    with pytest.raises(LockLost) as refused:
        state.put(b"fenced 7", fence=7)
    assert refused.value.refused_by == 8
    calls = 0

    def change(content: bytes | None) -> bytes:
        nonlocal calls
        calls += 1
        if calls == 1:
            assert state.update(lambda _: b"faster")
        return (content or b"") + b" and later"

    assert state.update(change) and state.get() == b"faster and later" and calls == 2

    def fail(content: bytes | None) -> bytes:
        raise KeyError(content)

    with pytest.raises(KeyError):
        state.update(fail)
    assert state.get() == b"faster and later"
