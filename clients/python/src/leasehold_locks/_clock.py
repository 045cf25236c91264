"""The two clocks of a deadline. See "Clocks and deadlines" in docs/agent.md."""

from __future__ import annotations

import time
from typing import NamedTuple

#: The clock that also counts while the machine sleeps. On macOS, CLOCK_MONOTONIC does.
_BOOT: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

#: How much the clocks of an agent may differ from those of its host, in microseconds.
TOLERANCE_US = 50_000


class Moment(NamedTuple):
    """A reading of both clocks, in microseconds."""

    boot_us: int
    wall_us: int


def now() -> Moment:
    """Reads both clocks."""
    return Moment(time.clock_gettime_ns(_BOOT) // 1_000, time.time_ns() // 1_000)


class Deadline(NamedTuple):
    """A moment and the span after it for which a lock is certain to be held."""

    start: Moment
    span_us: int
    #: Whether it is the limit of the hold.
    at_limit: bool

    def remaining_us(self, at: Moment) -> int:
        """Returns the time that is left. It is zero or negative if the deadline has passed."""
        boot, wall = at.boot_us - self.start.boot_us, at.wall_us - self.start.wall_us
        # Uses the longer of the two elapsed times, rounded up.
        return self.span_us - (boot if boot > wall else wall) - 1
