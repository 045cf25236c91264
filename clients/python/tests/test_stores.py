"""On S3: MinIO, which ./test starts."""

from __future__ import annotations

import os

import pytest

from leasehold_locks import Locker, LockLost, open_object

MINIO = os.environ.get("LEASEHOLD_TEST_S3_MINIO")

pytestmark = pytest.mark.skipif(MINIO is None, reason="no MinIO: ./test --with-servers")


def url(name: str) -> str:
    """The bucket of the tests, with another prefix in each run."""
    assert MINIO is not None
    place, _, options = MINIO.partition("?")
    return f"{place.rstrip('/')}-python-{os.getpid()}/{name}?{options}"


def test_a_lock_on_s3() -> None:
    locker = Locker(url("locks"))
    with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
        g.check()
        assert locker.lock("deploy/prod").try_acquire() is None
        first = g.token
    with locker.lock("deploy/prod").hold(timeout=60) as g:
        assert g.token > first
        g.confirm()
    assert list(locker.list()) == ["deploy/prod"]


def test_objects_on_s3() -> None:
    state = open_object(url("state.json"), content_type="application/json")
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
