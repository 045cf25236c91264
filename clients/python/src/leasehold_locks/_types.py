"""The values that are read from the store."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Generic, Literal, TypeVar

__all__ = [
    "AlreadyRan",
    "Capabilities",
    "Duration",
    "Eviction",
    "Finding",
    "Holder",
    "HolderInfo",
    "Leader",
    "PastGrant",
    "Ran",
    "Report",
    "Status",
    "Waiter",
]

T = TypeVar("T")

#: Seconds, a timedelta, or a text such as ``"30s"``, ``"10m"``, ``"1h 30m"``, ``"250ms"``.
Duration = float | timedelta | str

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")


def milliseconds(duration: Duration, what: str) -> int:
    """Returns the duration in whole milliseconds, rounded up.

    >>> milliseconds("1h 30m", "ttl"), milliseconds(0.0001, "ttl"), milliseconds(timedelta(days=1), "ttl")
    (5400000, 1, 86400000)
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, str):
        text = duration.strip()
        if not re.fullmatch(rf"(?:{_PART.pattern})+", text):
            raise ValueError(f"{what} {duration!r} is not a duration such as '30s', '10m' or '1h 30m'")
        seconds = sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text))
    else:
        try:
            seconds = float(duration)
        except TypeError:
            raise TypeError(f"{what} {duration!r} is not a number of seconds, a timedelta or a text") from None
    if not 0 <= seconds <= 366 * 86_400:  # Also refuses NaN.
        raise ValueError(f"{what} {duration!r} is out of range: from 0 to 366 days")
    # Without the first rounding, 2.007 s would be 2007.0000000000002 ms, and so 2008.
    return math.ceil(round(seconds * 1_000, 6))


def _seconds(value: Any) -> float | None:
    return None if value is None else int(value) / 1_000


def _token(value: Any) -> int | None:
    return None if value is None else int(value)


@dataclass(frozen=True)
class Holder:
    """A process that holds, held or waits for a lock, by its own description."""

    name: str
    host: str
    #: The process id: 0 for a ticket, and that of the agent for a Python program.
    pid: int
    note: str | None = None
    #: The value that a leader advertises. Another machine wrote it, so validate it before use.
    value: str | None = None
    #: The limit of the hold in seconds, from the grant on.
    max_hold: float | None = None

    @staticmethod
    def of(fields: dict[str, Any] | None) -> Holder | None:
        if fields is None:
            return None
        return Holder(
            name=str(fields.get("name", "")),
            host=str(fields.get("host", "")),
            pid=int(fields.get("pid") or 0),
            note=fields.get("note"),
            value=fields.get("value"),
            max_hold=_seconds(fields.get("max_hold_ms")),
        )


@dataclass(frozen=True)
class HolderInfo:
    """The holder of a lock, according to the store."""

    holder: Holder | None = None
    token: int | None = None
    #: For how many seconds the holder has had the lock.
    held_for: float | None = None
    #: If the lock is reserved: for how many seconds it has been free.
    free_for: float | None = None
    #: If the holder is dead, its lease ends within this many seconds.
    lapses_within: float | None = None
    #: The lock is in its cooldown. No process holds it.
    in_cooldown: bool = False
    #: The lock is reserved for the first in line. No process holds it.
    reserved: bool = False
    #: The description of a holder that leasehold did not write.
    foreign: str | None = None
    #: How many others wait before this process.
    ahead: int | None = None
    #: The process that waits directly before this one. ``None`` for the first in line, or if it is unknown.
    waiter_ahead: Holder | None = None

    @staticmethod
    def of(fields: dict[str, Any]) -> HolderInfo:
        return HolderInfo(
            holder=Holder.of(fields.get("holder")),
            token=_token(fields.get("token")),
            held_for=_seconds(fields.get("held_ms")),
            free_for=_seconds(fields.get("free_ms")),
            lapses_within=_seconds(fields.get("lapses_within_ms")),
            in_cooldown=bool(fields.get("in_cooldown")),
            reserved=bool(fields.get("reserved")),
            foreign=fields.get("foreign"),
            ahead=fields.get("ahead"),
            waiter_ahead=Holder.of(fields.get("waiter_ahead")),
        )


@dataclass(frozen=True)
class Waiter:
    """A process in the line of waiters."""

    holder: Holder | None
    #: For how many seconds it has waited.
    waited: float | None


@dataclass(frozen=True)
class Eviction:
    """Who evicted a holder, and why. Another machine wrote these texts."""

    by: str
    reason: str

    @staticmethod
    def of(fields: dict[str, Any] | None) -> Eviction | None:
        return None if fields is None else Eviction(str(fields.get("by", "")), str(fields.get("reason", "")))


@dataclass(frozen=True)
class PastGrant:
    """A grant that has ended."""

    token: int
    end: str
    #: The start and the end in microseconds since 1970, by the clock of the store or of the holder's machine.
    from_us: int | None
    until_us: int | None
    holder: Holder | None
    #: Who evicted the holder and why, if it was evicted and the store knows.
    evicted: Eviction | None = None


@dataclass(frozen=True)
class Status:
    """The state of a lock."""

    name: str
    state: Literal["free", "held", "reserved", "cooldown", "lapsed"]
    held_by: HolderInfo | None
    #: The token of the latest grant.
    token: int | None
    waiters: tuple[Waiter, ...]
    history: tuple[PastGrant, ...]

    @staticmethod
    def of(fields: dict[str, Any]) -> Status:
        held_by = fields.get("held_by")
        return Status(
            name=fields["lock"],
            state=fields["state"],
            held_by=None if held_by is None else HolderInfo.of(held_by),
            token=_token(fields.get("token")),
            waiters=tuple(
                Waiter(Holder.of(waiter.get("holder")), _seconds(waiter.get("waited_ms")))
                for waiter in fields.get("waiters") or []
            ),
            history=tuple(
                PastGrant(
                    int(past["token"]),
                    past["end"],
                    past.get("from_us"),
                    past.get("until_us"),
                    Holder.of(past.get("holder")),
                    Eviction.of(past.get("evicted")),
                )
                for past in fields.get("history") or []
            ),
        )


@dataclass(frozen=True)
class Leader:
    """The leader of an election."""

    #: The value that the leader advertises. Another machine wrote it, so validate it before use.
    value: str | None
    #: The leader's fencing token.
    term: int | None
    holder: Holder | None

    @staticmethod
    def of(message: dict[str, Any]) -> Leader | None:
        fields = message.get("leader")
        if fields is None:
            return None
        return Leader(fields.get("value"), _token(fields.get("term")), Holder.of(fields.get("holder")))


@dataclass(frozen=True)
class Ran(Generic[T]):
    """The job ran now. True as a condition."""

    value: T

    def __bool__(self) -> Literal[True]:
        return True


@dataclass(frozen=True)
class AlreadyRan:
    """The job already ran in this period. False as a condition."""

    by: Holder | None
    token: int | None
    #: How many seconds ago that run was granted the lock.
    ago: float | None
    #: The job may run again after at most this many seconds.
    again_within: float | None

    def __bool__(self) -> Literal[False]:
        return False

    @staticmethod
    def of(fields: dict[str, Any]) -> AlreadyRan:
        return AlreadyRan(
            Holder.of(fields.get("holder")),
            _token(fields.get("token")),
            _seconds(fields.get("ago_ms")),
            _seconds(fields.get("again_within_ms")),
        )


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of a store."""

    store: str
    tokens: bool
    cooldowns: bool
    fifo: bool
    watches: bool
    sees_dead_processes: bool

    @staticmethod
    def of(fields: dict[str, Any]) -> Capabilities:
        return Capabilities(
            str(fields.get("store")),
            bool(fields.get("tokens")),
            bool(fields.get("cooldowns")),
            bool(fields.get("fifo")),
            bool(fields.get("watches")),
            bool(fields.get("sees_dead_processes")),
        )


@dataclass(frozen=True)
class Finding:
    """One check of the doctor."""

    check: str
    verdict: str
    seen: str
    help: str | None


@dataclass(frozen=True)
class Report:
    """The result of the doctor: whether a store is safe for locks."""

    safe: bool
    findings: tuple[Finding, ...]

    @staticmethod
    def of(fields: dict[str, Any]) -> Report:
        findings = tuple(
            Finding(str(found["check"]), str(found["verdict"]), str(found["seen"]), found.get("help"))
            for found in fields.get("findings") or []
        )
        return Report(bool(fields.get("safe")), findings)
