"""Forks: how a child detects that an agent is its parent's."""

from __future__ import annotations

import os

_generation = 0


def process() -> tuple[int, int]:
    """Identifies this process: by its id, and by the number of forks before it, since ids are used again."""
    return os.getpid(), _generation


def _after_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_after_fork)
