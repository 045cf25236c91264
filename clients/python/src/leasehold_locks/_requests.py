"""The fields of requests, and the values of answers, for both the blocking and the asyncio interface."""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from typing import Any

from ._errors import AgentError
from ._hold import Message
from ._types import Duration, milliseconds


@dataclass(frozen=True)
class LockSettings:
    """What is acquired, and how."""

    store: str | None
    name: str
    fields: tuple[tuple[str, Any], ...]

    def request(self, op: str, timeout: Duration | None = None, **more: Any) -> Message:
        message = {"op": op, **target(self.store, self.name), **dict(self.fields), **more}
        if timeout is not None:
            message["wait_ms"] = milliseconds(timeout, "timeout")
        return message


def lock_settings(
    store: str | None,
    name: str,
    *,
    ttl: Duration | None,
    note: str | None,
    owner: str | None,
    lock_delay: Duration | None,
    store_timeout: Duration | None,
    barge: bool,
    **more: Any,
) -> LockSettings:
    fields: dict[str, Any] = {"note": note, "owner": owner, **more}
    for field, value in (("ttl", ttl), ("lock_delay", lock_delay), ("store_timeout", store_timeout)):
        if value is not None:
            fields[f"{field}_ms"] = milliseconds(value, field)
    if barge:
        fields["barge"] = True
    return LockSettings(store, name, tuple((key, value) for key, value in fields.items() if value is not None))


def target(store: str | None, lock: str | None = None) -> Message:
    message: Message = {}
    if store is not None:
        message["store"] = store
    if lock is not None:
        message["lock"] = lock
    return message


def store_url(given: str | None) -> str | None:
    """The store's URL. A relative path of SQLite counts from this process's folder, not from the agent's."""
    if given is None:
        given = os.environ.get("LEASEHOLD_STORE") or None
    if given is None:
        return None
    scheme, colon, path = given.partition(":")
    if colon and scheme.lower() == "sqlite" and path and path[0] not in "/?:":
        folder = os.getcwd().replace("%", "%25").replace("?", "%3F")
        return f"sqlite:{folder.rstrip('/')}/{path}"
    return given


def encoded(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def decoded(message: Message) -> bytes | None:
    content = message.get("content")
    return None if content is None else base64.b64decode(content)


def expect(message: Message, event: str) -> Message:
    if message["ev"] != event:
        raise AgentError(f"the agent answered with {str(message.get('ev'))!r}")
    return message


def was_held(message: Message, event: str) -> bool:
    return bool(expect(message, event).get("was_held"))
