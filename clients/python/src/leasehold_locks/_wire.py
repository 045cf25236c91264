"""Reads the values of messages, and waits for messages."""

from __future__ import annotations

import contextlib
import os
import select
from typing import Any

from . import _clock
from ._clock import TOLERANCE_US, Deadline, Moment


class Garbage(Exception):
    """The agent sent something that violates the protocol."""


def integer(message: dict[str, Any], name: str) -> int:
    value = message[name]
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 53:
        raise Garbage
    return value


def deadline_of(message: dict[str, Any]) -> Deadline:
    start = Moment(integer(message, "boot_us"), integer(message, "wall_us"))
    # A span that begins in the future would be measured wrong. The boot clock is never set back, but the wall clock may
    # be.
    if start.boot_us > _clock.now().boot_us + TOLERANCE_US:
        raise Garbage
    return Deadline(start, integer(message, "span_us"), message.get("at_limit") is True)


def poll(wanted: list[tuple[int, int]], timeout: float | None) -> bool:
    """Waits until one of the descriptors is ready. Returns whether one is."""
    poller = select.poll()
    for descriptor, events in wanted:
        poller.register(descriptor, events)
    # Rounds up, because a loop that wakes just before a deadline would spin.
    return bool(poller.poll(None if timeout is None else int(timeout * 1_000) + 1))


class Bell:
    """Wakes the thread of an agent. Closes its pipe only when it is no longer referenced, so that no other file can get
    its descriptors earlier."""

    def __init__(self) -> None:
        self._in, self._out = os.pipe()
        os.set_blocking(self._in, False)
        os.set_blocking(self._out, False)

    def fileno(self) -> int:
        return self._in

    def ring(self) -> None:
        # A full pipe wakes the thread as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._out, b"x")

    def quiet(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._in, 4_096)

    def __del__(self) -> None:
        for descriptor in (self._in, self._out):
            with contextlib.suppress(OSError):
                os.close(descriptor)
