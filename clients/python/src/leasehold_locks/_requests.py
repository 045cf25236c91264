"""Builds requests and reads responses for both the blocking and the asyncio interface."""

from __future__ import annotations

import base64
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from ._errors import AgentError
from ._hold import Message
from ._types import Duration, milliseconds

T = TypeVar("T")

#: How long an agent may take to respond to a request that does not wait for other holders, in seconds. This is longer
#: than a store may take.
ANSWER_TIMEOUT = 120.0

#: The same for a write of an object, whose store may have to be examined first.
OBJECT_TIMEOUT = ANSWER_TIMEOUT + 120.0

#: How much of an invocation's time a wait leaves, so that the function can report that the lock is held.
_RESERVED_MS = 1_000


@dataclass(frozen=True)
class Operation(Generic[T]):
    """A request with one response."""

    fields: Message
    read: Callable[[Message], T]
    limit: float | None = ANSWER_TIMEOUT


class Invocation(Protocol):
    """The context of an invocation, as AWS Lambda passes it to a function."""

    def get_remaining_time_in_millis(self) -> int:
        """Returns the time that remains until the invocation is ended."""
        ...


def within(timeout: Duration | None, context: Invocation | None) -> Duration | None:
    """Returns the time limit of a wait that must end before its invocation does."""
    if context is None:
        return timeout
    left = max(0, context.get_remaining_time_in_millis() - _RESERVED_MS)
    return (left if timeout is None else min(left, milliseconds(timeout, "timeout"))) / 1_000


@dataclass(frozen=True)
class LockSettings:
    """The lock to acquire, and the settings for acquiring it."""

    store: str | None
    name: str
    fields: tuple[tuple[str, Any], ...]

    @property
    def names(self) -> frozenset[str]:
        return frozenset(dict(self.fields).get("locks") or (self.name,))

    def request(self, op: str, timeout: Duration | None = None, **more: Any) -> Message:
        several = any(field == "locks" for field, _ in self.fields)
        message = {"op": op, **target(self.store, None if several else self.name), **dict(self.fields), **more}
        if timeout is not None:
            message["wait_ms"] = milliseconds(timeout, "timeout")
        return message


def lock_settings(store: str | None, name: str, **settings: Any) -> LockSettings:
    """Returns the settings of a lock. The agent chooses those that are ``None``."""
    name = _text(name, "the name of a lock is a text")
    fields: dict[str, Any] = {}
    for field, value in settings.items():
        if value is None:
            continue
        if field in ("ttl", "lock_delay", "max_hold", "store_timeout"):
            fields[f"{field}_ms"] = milliseconds(value, field)
        else:
            fields[field] = value
    return LockSettings(store, name, tuple(fields.items()))


def longest(fields: Message) -> float | None:
    """Returns for how many seconds an acquisition may wait and retry, or ``None`` if it has no limit."""
    wait_ms = fields.get("wait_ms", 0 if fields["op"] == "try" else None)
    return None if wait_ms is None else float(wait_ms + fields.get("store_timeout_ms", 0)) / 1_000


def release(hold: int, cooldown: Duration | None) -> Message:
    """Returns the request to release a hold. The agent refuses a cooldown of zero, which means none."""
    period = 0 if cooldown is None else milliseconds(cooldown, "cooldown")
    return {"op": "release", "hold": hold, **({"cooldown_ms": period} if period > 0 else {})}


def target(store: str | None, lock: str | None = None) -> Message:
    message: Message = {}
    if store is not None:
        message["store"] = store
    if lock is not None:
        message["lock"] = lock
    return message


def store_url(given: str | None) -> str | None:
    """Returns the store's URL. A relative SQLite path is relative to this process's folder, not to the agent's."""
    if given is None:
        given = os.environ.get("LEASEHOLD_STORE") or None
    if given is None:
        return None
    given = _text(given, "a store is a URL such as 'sqlite:locks.db'")
    scheme, colon, path = given.partition(":")
    if colon and scheme.lower() == "sqlite" and path and path[0] not in "/?:":
        folder = os.getcwd().replace("%", "%25").replace("?", "%3F")
        return f"sqlite:{folder.rstrip('/')}/{path}"
    return given


def _text(value: object, rule: str) -> str:
    """Returns the text, or raises :class:`TypeError` with the ``rule``."""
    if not isinstance(value, str):
        raise TypeError(f"{rule}, and not {value!r}")
    return value


def encoded(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def decoded(message: Message) -> bytes | None:
    content = message.get("content")
    return None if content is None else base64.b64decode(content)


def expect(message: Message, event: str) -> Message:
    if message["ev"] != event:
        raise AgentError(f"the agent responded with {str(message.get('ev'))!r}")
    return message


def was_held(message: Message, event: str) -> bool:
    return bool(expect(message, event).get("was_held"))
