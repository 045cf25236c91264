"""The base class of guards in both interfaces."""

from __future__ import annotations

import contextlib
import logging
import threading
import warnings
from collections.abc import Callable, Generator
from types import FrameType
from typing import NoReturn

from ._agent import Agent
from ._errors import LockLost, StoreError
from ._hold import Hold

log = logging.getLogger("leasehold_locks")


class BaseGuard:
    """A lock that is held."""

    _agent: Agent
    _hold: Hold
    #: The frame of the block that ends with the hold.
    block: FrameType | None = None

    def __init__(self, agent: Agent, hold: Hold) -> None:
        self._agent = agent
        self._hold = hold
        # Set last, so that the guard's finalizer can find the hold by then.
        hold.has_guard = True

    @property
    def name(self) -> str:
        """The name of the lock. For a semaphore or a shared hold, the name of the permit. For several locks, their
        names, separated by commas."""
        return self._hold.name

    @property
    def token(self) -> int:
        """The fencing token: greater than the token of every earlier grant of this lock. Send it with every write, and
        let the resource refuse lower tokens."""
        if self._hold.token is None:
            if self._hold.tokens is not None:
                raise StoreError(f"a hold of {len(self._hold.tokens)} locks has no single token", "unsupported")
            raise StoreError("locks in this store have no fencing tokens", "unsupported")
        return self._hold.token

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token of each lock, by its name. There is one, except for :meth:`Locker.lock_all`."""
        if self._hold.tokens is None:
            raise StoreError("locks in this store have no fencing tokens", "unsupported")
        return dict(self._hold.tokens)

    def check(self) -> None:
        """Checks that the lock is still held. The check is local and sends no request.

        Raises :class:`LockLost` if the lock was lost, and :class:`ForkedError` in a forked child.
        """
        self._agent.check(self._hold)

    @property
    def remaining(self) -> float:
        """For how many seconds the lock is certain to be held without another renewal, or 0 if the hold is over."""
        return self._agent.remaining(self._hold)

    @property
    def is_held(self) -> bool:
        """Whether the lock is still held, as in :meth:`check`."""
        return self._agent.remaining(self._hold) > 0

    def on_lost(self, call: Callable[[LockLost], object]) -> None:
        """Calls ``call`` in a new thread if the lock is lost."""

        def start(loss: LockLost) -> None:
            try:
                threading.Thread(target=call, args=(loss,), name="leasehold-on-lost", daemon=True).start()
            except RuntimeError:  # The interpreter is ending.
                log.debug("on_lost was not called: %s", loss)

        self._agent.listen(self._hold, start)

    @contextlib.contextmanager
    def _lost_if_refused(self) -> Generator[None, None, None]:
        """Marks the hold as lost if the agent refuses a renewal, before the agent reports the loss."""
        try:
            yield
        except LockLost as loss:
            with self._agent.lock:
                # Stores a new error, because a raised error keeps its frames.
                self._agent.lose(self._hold, LockLost(str(loss.args[0]), loss.reason, loss.help))
            raise

    def __del__(self) -> None:
        hold = getattr(self, "_hold", None)
        if hold is not None and self._agent.drop(hold):
            # Like a file that was not closed. `locker.lock("x").acquire()` alone holds nothing.
            text = f"lock {hold.name!r} is released, because nothing refers to its guard or lock object any more"
            warnings.warn(text, ResourceWarning, stacklevel=2, source=self)

    def __reduce__(self) -> NoReturn:
        # A copy would release the lock of the original when it is garbage collected.
        raise TypeError("a guard cannot be copied or pickled: to pass the lock to another process, pass its ticket()")

    def __repr__(self) -> str:
        state = "over" if self._hold.is_over else "held"
        return f"<{type(self).__name__} {self._hold.name!r} token={self._hold.token} {state}>"
