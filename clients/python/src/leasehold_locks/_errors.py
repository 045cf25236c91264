"""The errors of this package."""

from __future__ import annotations

from typing import Any

from ._types import Holder, HolderInfo

__all__ = [
    "AgentError",
    "DeadlockError",
    "ForkedError",
    "LeaseholdError",
    "LockHeld",
    "LockLeftOpen",
    "LockLost",
    "SizeError",
    "StoreError",
]


class LeaseholdError(Exception):
    """The base of all errors of this package."""

    #: Advice on what to do about the error, one line per item.
    help: list[str]

    def __init__(self, message: str, help: list[str] | None = None) -> None:
        super().__init__(message)
        self.help = list(help or [])

    def __str__(self) -> str:
        return "\n  help: ".join([str(self.args[0]), *self.help])


class LockHeld(LeaseholdError, TimeoutError):
    """Another holder has the lock, and still had it at the end of the time limit."""

    #: The information about the holder.
    held_by: HolderInfo

    def __init__(self, message: str, held_by: HolderInfo | None = None, help: list[str] | None = None) -> None:
        super().__init__(message, help)
        # `pickle` creates the error from its message, and then restores its attributes.
        self.held_by = held_by or HolderInfo.of({})

    @property
    def holder(self) -> Holder | None:
        """The process that has the lock; ``None`` if it is unknown."""
        return self.held_by.holder


class LockLost(LeaseholdError):
    """The lock was lost. Stop the work that it protected. A loss is final: acquire the lock again."""

    #: ``expired``, ``limit``, ``taken_over``, ``ended``, ``deleted``, ``renewed_elsewhere``, ``agent``, ``refused``,
    #: ``over``.
    reason: str
    #: If a fenced write was refused, the higher token of an earlier write.
    refused_by: int | None

    def __init__(
        self, message: str, reason: str = "expired", help: list[str] | None = None, refused_by: int | None = None
    ) -> None:
        super().__init__(message, help)
        self.reason = reason
        self.refused_by = refused_by


class StoreError(LeaseholdError):
    """A problem with the store, its URL, its permissions or an argument. See :attr:`kind` and :attr:`help`."""

    #: ``unavailable``, ``denied``, ``invalid``, ``unsupported``, ``corrupt``, ``conflict``, ``limit``, ``agent``, ...
    kind: str
    #: Whether the write that failed may have been applied, or may be applied later.
    maybe_applied: bool

    def __init__(
        self, message: str, kind: str = "unavailable", help: list[str] | None = None, maybe_applied: bool = False
    ) -> None:
        super().__init__(message, help)
        self.kind = kind
        self.maybe_applied = maybe_applied


class SizeError(StoreError):
    """The store has another number of permits or readers for this name. ``Locker.resize`` changes it while nobody holds
    the lock."""

    #: The number that the acquisition asked for.
    asked: int
    #: The number in the store.
    stored: int

    def __init__(self, message: str, asked: int = 0, stored: int = 0, help: list[str] | None = None) -> None:
        super().__init__(message, "invalid", help)
        self.asked = asked
        self.stored = stored


class DeadlockError(LeaseholdError, RuntimeError):
    """The thread or task would wait forever: for a lock that it holds itself, or for another waiter that waits for a
    lock that this one holds, in a block each."""


class AgentError(StoreError):
    """The agent (the command ``leasehold agent``) could not be started, has ended, or does not respond."""

    def __init__(self, message: str, help: list[str] | None = None, maybe_applied: bool = False) -> None:
        super().__init__(message, "agent", help, maybe_applied)


class LockLeftOpen(LeaseholdError):
    """A handler with the decorator ``serverless`` returned while guards were open."""

    #: The names of the locks of these guards.
    names: list[str]

    def __init__(self, names: list[str]) -> None:
        super().__init__(
            f"the handler returned while it held {', '.join(f'`{name}`' for name in names)}",
            ["hold a lock in a `with` block, which ends before the handler returns"],
        )
        self.names = names

    def __reduce__(self) -> tuple[type[LockLeftOpen], tuple[list[str]]]:
        return LockLeftOpen, (self.names,)


class ForkedError(LeaseholdError, RuntimeError):
    """A guard was used in a forked child. A guard belongs to the process that acquired it."""


def of_message(message: dict[str, Any]) -> LeaseholdError:
    """Returns the error for an ``error`` message of the agent."""
    kind, text = str(message.get("kind")), str(message.get("message"))
    help = [str(line) for line in message.get("help") or []]
    if kind == "held":
        return LockHeld(text, HolderInfo.of(message.get("held_by") or {}), help)
    if kind == "lost":
        refused_by = message.get("refused_by")
        if refused_by is not None:
            return LockLost(text, "refused", help, int(refused_by))
        return LockLost(text, "expired", help)
    if kind == "deadlock":
        return DeadlockError(text, help)
    if (sizes := message.get("sizes")) is not None:
        return SizeError(text, int(sizes["asked"]), int(sizes["stored"]), help)
    return StoreError(text, kind, help, bool(message.get("maybe_applied")))
