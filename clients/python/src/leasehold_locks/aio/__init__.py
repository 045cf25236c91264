"""The interface for asyncio. It has the names of :mod:`leasehold_locks`, with ``async with`` and ``await``.

>>> from leasehold_locks.aio import Locker
>>> async def main() -> None:
...     async with Locker("sqlite:locks.db").lock("deploy/prod", ttl=30).hold(timeout=60) as g:
...         await deploy(fence=g.token)

If the lock is lost, the body is cancelled as by :func:`asyncio.timeout`, and the block raises
:class:`~leasehold_locks.LockLost`. If a waiting acquisition is cancelled, no lock stays acquired. If the task of a
release is cancelled, the release continues.
"""

from .._errors import AgentError, DeadlockError, ForkedError, LeaseholdError, LockHeld, LockLost, StoreError
from .._types import AlreadyRan, Ran
from ._locker import Locker
from ._locks import Election, Guard, Holding, Lock, RwLock
from ._objects import Object, open_object
from ._once import Once, OnceDecorator

__all__ = [
    "AgentError",
    "AlreadyRan",
    "DeadlockError",
    "Election",
    "ForkedError",
    "Guard",
    "Holding",
    "LeaseholdError",
    "Lock",
    "LockHeld",
    "LockLost",
    "Locker",
    "Object",
    "Once",
    "OnceDecorator",
    "Ran",
    "RwLock",
    "StoreError",
    "open_object",
]
