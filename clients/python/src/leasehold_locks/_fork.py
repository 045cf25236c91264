"""Detects forks, so that a child does not use the agent of its parent."""

from __future__ import annotations

import os

_generation = 0


def process() -> tuple[int, int]:
    """Identifies this process by its id and by the number of forks before it, because ids are reused."""
    return os.getpid(), _generation


def _after_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_after_fork)
