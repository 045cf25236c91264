"""Distributed locks on storage you already have: a local file, a bucket, a database, etcd or Kubernetes.

>>> from leasehold_locks import Locker
>>> locker = Locker("sqlite:locks.db")
>>> with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
...     g.check()
...     print("held with token", g.token)

:mod:`leasehold_locks.aio` is the same interface for asyncio.
"""

from ._errors import (
    AgentError,
    DeadlockError,
    ForkedError,
    LeaseholdError,
    LockHeld,
    LockLeftOpen,
    LockLost,
    SizeError,
    StoreError,
)
from ._locker import Locker
from ._locks import Election, Guard, Holding, Lock, RwLock
from ._objects import Object, open_object
from ._once import Once, OnceDecorator
from ._serverless import serverless
from ._types import (
    AlreadyRan,
    Capabilities,
    Duration,
    Eviction,
    Finding,
    Holder,
    HolderInfo,
    Leader,
    PastGrant,
    Ran,
    Report,
    Status,
    Waiter,
)

__version__ = "0.1.0"

__all__ = [
    "AgentError",
    "AlreadyRan",
    "Capabilities",
    "DeadlockError",
    "Duration",
    "Election",
    "Eviction",
    "Finding",
    "ForkedError",
    "Guard",
    "Holder",
    "HolderInfo",
    "Holding",
    "Leader",
    "LeaseholdError",
    "Lock",
    "LockHeld",
    "LockLeftOpen",
    "LockLost",
    "Locker",
    "Object",
    "Once",
    "OnceDecorator",
    "PastGrant",
    "Ran",
    "Report",
    "RwLock",
    "SizeError",
    "Status",
    "StoreError",
    "Waiter",
    "open_object",
    "serverless",
]
