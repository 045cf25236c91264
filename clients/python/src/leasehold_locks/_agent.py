"""The agent: the child process ``leasehold agent``, which acquires, renews and releases locks for this process.

Each process has one agent, which is started on first use. docs/agent.md describes the protocol. A thread reads the
agent's messages and watches the deadlines. One lock guards all state of an agent. Code under this lock never blocks.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from . import _clock, _command, _fork
from ._clock import TOLERANCE_US, Moment
from ._command import FIND
from ._errors import AgentError, ForkedError, LockLost, StoreError, of_message
from ._hold import Hold, Message, Pending
from ._wire import Bell, Garbage, deadline_of, integer, poll

_PROTOCOL = 1
_CLIENT = "leasehold-python/0.1.0"
#: How long the agent may take to start, in seconds.
_START_TIMEOUT = 10.0
#: How long an idle agent is kept, in seconds.
_IDLE = 60.0
#: The longest pause between two checks of the deadlines, in seconds. Timers stop while the machine sleeps.
_TICK = 1.0
#: The longest line, in both directions, in bytes.
_MAX_LINE = 1 << 20
#: How much unsent data may wait for an agent that does not read, in bytes.
_MAX_UNSENT = 16 << 20
#: How long an ending process waits for its agent to release the locks, in seconds.
_EXIT_TIMEOUT = 5.0

_INTERIM = {"waiting", "names", "content"}
#: The requests that write an object.
_WRITES = {"put", "update", "answer"}
#: The exceptions that a message can cause if it violates the protocol.
_VIOLATIONS = (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError, Garbage)


def _line(message: Message) -> bytes:
    try:
        if any(isinstance(value, int) and abs(value) >= 1 << 63 for value in message.values()):
            raise ValueError
        return json.dumps(message, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except ValueError:
        # The agent would exit, and release all locks.
        raise StoreError("a text of the request is not valid Unicode, or a number is too large", "invalid") from None


class Agent:
    """A running agent."""

    def __init__(self, command: str) -> None:
        self.lock = threading.RLock()
        self._host = _fork.process()
        self._ids = itertools.count(1)
        self._pending: dict[int, Pending] = {}
        self._holds: dict[int, Hold] = {}
        self._dropped: deque[Hold] = deque()
        #: The names of the latest locks whose guards were garbage collected while the locks were held.
        self.collected: deque[str] = deque(maxlen=100)
        self._unread = bytearray()
        self._unsent = bytearray()
        self._draining = False
        self._death: AgentError | None = None
        self._used = time.monotonic()
        self._next_look = time.monotonic() + _TICK
        self._process = _command.start(command)
        assert self._process.stdin is not None and self._process.stdout is not None
        self._to = self._process.stdin.fileno()
        self._from = self._process.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self._bell = Bell()
        try:
            self._greet(command)
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._close()
            raise
        self._reader = threading.Thread(target=self._run, name="leasehold-agent", daemon=True)
        self._reader.start()

    # --- start and end ------------------------------------------------------------------------------------------------

    def _greet(self, command: str) -> None:
        """Sends ``hello`` and compares the clocks."""
        before = _clock.now()
        self._send(_line({"id": 0, "op": "hello", "protocol": _PROTOCOL, "pid": self._host[0], "client": _CLIENT}))
        self._flush()
        line = self._first_line(command)
        after = _clock.now()
        try:
            hello = json.loads(line)
            if hello["ev"] == "error":
                raise of_message(hello)
            if hello["ev"] != "hello" or hello["protocol"] != _PROTOCOL:
                raise Garbage
            clocks = Moment(integer(hello, "boot_us"), integer(hello, "wall_us"))
        except _VIOLATIONS:
            raise AgentError(f"{command} is not the leasehold command, or has another version", [FIND]) from None
        if not all(
            early - TOLERANCE_US <= between <= late + TOLERANCE_US
            for early, between, late in zip(before, clocks, after, strict=True)
        ):
            raise AgentError(
                "the agent and this process have different clocks, so deadlines would be wrong",
                [
                    "do not use faketime, time namespaces or a virtualized /proc/uptime for only one of the two",
                    "if the clock was just set, try again",
                ],
            )

    def _first_line(self, command: str) -> bytes:
        end = time.monotonic() + _START_TIMEOUT
        while b"\n" not in self._unread:
            left = end - time.monotonic()
            if left <= 0:
                raise AgentError(f"{command} does not respond as an agent", [FIND])
            if poll([(self._from, select.POLLIN)], left):
                chunk = os.read(self._from, 1 << 16)
                if not chunk:
                    code = self._process.wait()
                    raise AgentError(f"{command} exited with {code} instead of starting an agent", [FIND])
                self._unread += chunk
                if len(self._unread) > _MAX_LINE:
                    raise AgentError(f"{command} is not the leasehold command", [FIND])
        line, _, rest = bytes(self._unread).partition(b"\n")
        self._unread = bytearray(rest)
        return line

    def is_forked(self) -> bool:
        return self._host != _fork.process()

    def forbid_forked(self) -> None:
        if self.is_forked():
            raise ForkedError(
                "this lock was acquired by another process, before a fork",
                ["acquire it again in this process; a Locker works in both"],
            )

    @property
    def alive(self) -> bool:
        return self._death is None and not self.is_forked()

    def keep(self) -> bool:
        """Returns whether the agent is alive. If so, it does not end as idle before the next request."""
        if self.is_forked():
            return False
        with self.lock:
            self._used = time.monotonic()
            return self._death is None

    def _close(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def abandon_in_child(self) -> None:
        """Gives up the agent in a forked child, because it is the parent's. Takes no lock: another thread may have held
        it."""
        self._death = AgentError("the agent belongs to the parent process")
        self._process.returncode = 0
        self._close()

    def _die(self, reason: str, kill: bool = True) -> None:
        """Marks the agent as dead: all holds are lost, and all requests fail. Called under the lock."""
        if self._death is None:
            self._death = AgentError(reason)
            if kill:
                with contextlib.suppress(OSError):
                    self._process.kill()
        # A signal handler may have interrupted an earlier call.
        reason = str(self._death.args[0])
        while self._holds:
            number, hold = next(iter(self._holds.items()))
            self.lose(hold, LockLost(f"lock `{hold.name}` was lost: {reason}", "agent"))
            self._holds.pop(number, None)
        while self._pending:
            number, request = next(iter(self._pending.items()))
            # Each request has its own error, because a raised error collects tracebacks.
            request.conclude(AgentError(reason, maybe_applied=request.op in _WRITES))
            self._pending.pop(number, None)
        self._bell.ring()

    def kill(self, reason: str) -> None:
        with self.lock:
            self._die(reason)

    def is_entered(self) -> bool:
        """Returns whether this thread is inside this class. A signal handler or a finalizer that has interrupted it
        must not wait for a response, which no thread could read."""
        owned: bool = self.lock._is_owned()  # type: ignore[attr-defined, unused-ignore]
        return owned or threading.current_thread() is getattr(self, "_reader", None)

    def forbid_entered(self) -> None:
        if self.is_entered():
            raise RuntimeError("a signal handler or finalizer must not wait for the agent here")

    def stop(self) -> None:
        """Ends the agent, which releases all locks, and waits until it has ended."""
        with self.lock:
            for hold in list(self._holds.values()):
                self.end(hold)
            self._flush()
            self._die("this process ends", kill=False)
        self._reader.join(_EXIT_TIMEOUT)

    # --- requests -----------------------------------------------------------------------------------------------------

    def request(self, pending: Pending, fields: Message) -> None:
        """Sends a request. Calls its ``deliver`` with each of its messages, or with an error. ``deliver`` must not
        block."""
        with self.lock:
            if self._death is not None:
                raise AgentError(str(self._death.args[0]))
            self._used = time.monotonic()
            self._dispatch(pending, fields)

    def abandon(self, pending: Pending) -> None:
        """Abandons a request. If it was granted a lock, or is granted one later, the lock is released."""
        if self.is_forked():
            return
        with self.lock:
            pending.abandoned = True
            if pending.hold is not None:
                self.release(pending.hold)
            elif pending.id in self._pending and self._death is None:
                self.post({"op": "cancel", "request": pending.id})

    def release(self, hold: Hold) -> None:
        """Releases a hold without waiting."""
        with self.lock:
            try:
                if self.end(hold):
                    self._send_release(hold)
            except BaseException:
                self.give_up(hold)
                raise

    def give_up(self, hold: Hold) -> None:
        """Ends a hold and requests its release, also if this was done before. Called under the lock."""
        self.end(hold)
        self._send_release(hold)

    def _send_release(self, hold: Hold) -> None:
        """Requests the release of a hold that this process gave up. Called under the lock."""
        if self._death is None:
            self.post({"op": "release", "hold": hold.number})

    def drop(self, hold: Hold) -> bool:
        """Releases a hold from a finalizer. Takes no lock. Returns whether it was held until now."""
        if hold.is_over or self.is_forked() or self._death is not None:
            return False
        self.collected.append(hold.name)
        self._dropped.append(hold)
        self._bell.ring()
        return True

    def drop_unguarded(self, pending: Pending) -> None:
        """Releases the lock that a request was granted, from the finalizer of its call, unless a guard will release
        it."""
        if pending.hold is not None and not pending.hold.has_guard:
            self.drop(pending.hold)

    def post(self, fields: Message) -> None:
        """Sends a request whose response is ignored. Called under the lock."""
        self._dispatch(Pending(str(fields["op"]), lambda _: None), fields)

    def _dispatch(self, pending: Pending, fields: Message) -> None:
        pending.id = next(self._ids)
        line = _line({"id": pending.id, **fields})
        # The agent would exit, and release all locks.
        if len(line) > _MAX_LINE:
            raise StoreError(f"the request is longer than {_MAX_LINE} bytes", "limit")
        if len(self._unsent) + len(line) > _MAX_UNSENT and pending.op not in ("release", "cancel"):
            raise StoreError("too many requests wait until the agent reads them", "limit")
        self._pending[pending.id] = pending
        self._send(line)

    def _send(self, line: bytes) -> None:
        """Makes the thread write ``line``. No other thread writes: a signal handler that raises an exception between
        the write and the record of what was written would make the agent get a part twice."""
        self._unsent += line
        self._bell.ring()

    def _flush(self) -> None:
        while self._unsent and self._death is None:
            try:
                del self._unsent[: os.write(self._to, self._unsent)]
            except BlockingIOError:
                return
            except OSError:
                # Messages that the agent wrote before its end may still be unread. The end of the file follows them.
                self._unsent.clear()

    # --- messages -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Reads all messages that have arrived. Called under the lock."""
        # A signal handler or a finalizer can call this while the same thread is inside it.
        if self._draining or self._death is not None:
            return
        self._draining = True
        try:
            while self._death is None:
                try:
                    chunk = os.read(self._from, 1 << 16)
                except BlockingIOError:
                    return
                except OSError:
                    chunk = b""
                if not chunk:
                    return self._die("the agent has ended")
                self._unread += chunk
                self._take_lines()
        except BaseException:
            # A signal handler raised an exception. A message may be lost.
            self._die("the client was interrupted while it read the agent's messages")
            raise
        finally:
            self._draining = False

    def _take_lines(self) -> None:
        *lines, rest = self._unread.split(b"\n")
        self._unread = rest
        try:
            for line in lines:
                if len(line) > _MAX_LINE:
                    raise Garbage
                self._take(json.loads(line))
            if len(rest) > _MAX_LINE:
                raise Garbage
        except _VIOLATIONS:
            self._die("the agent sent a message that violates the protocol")

    def _take(self, message: Any) -> None:
        if not isinstance(message, dict) or not isinstance(message.get("ev"), str):
            raise Garbage
        if "id" in message:
            self._take_answer(message)
        elif message["ev"] == "renewed":
            deadline = deadline_of(message)
            hold = self._holds.get(integer(message, "hold"))
            if hold is not None:
                hold.renewed(deadline)
        elif message["ev"] == "lost":
            hold = self._holds.get(integer(message, "hold"))
            if hold is not None:
                self.lose(hold, LockLost(str(message.get("message")), str(message.get("reason"))))

    def _take_answer(self, message: Message) -> None:
        if message["id"] is None:
            return self._die(f"the agent rejected a message of this client: {message.get('message')}")
        event = message["ev"]
        pending = self._pending.get(integer(message, "id"))
        if pending is None:
            raise Garbage
        if event in _INTERIM or (event == "leader" and pending.op == "observe"):
            return pending.deliver(message)
        if event == "held":
            pending.hold = self._begin(message)
        elif event == "renewed":
            hold = self._holds.get(integer(message, "hold"))
            if hold is not None:
                hold.renewed(deadline_of(message))
        # Converts the message before the request counts as answered. If that fails, the agent dies, and the request
        # still gets an error.
        outcome = of_message(message) if event == "error" else message
        self._used = time.monotonic()
        if pending.abandoned and pending.hold is not None:
            self.release(pending.hold)
        # Last, because a signal handler may raise an exception before.
        pending.conclude(outcome)
        del self._pending[pending.id]

    def _begin(self, message: Message) -> Hold:
        token = None if message.get("token") is None else integer(message, "token")
        number = integer(message, "hold")
        if number in self._holds:
            raise Garbage
        deadline = deadline_of(message)
        name, tokens = str(message["lock"]), message.get("tokens")
        if tokens is not None:
            tokens = {lock: integer(tokens, lock) for lock in tokens}
        several = message.get("locks") or ()
        if len(several) > 1:
            name = ", ".join(map(str, several))
        hold = Hold(number, name, token, tokens, deadline)
        self._holds[number] = hold
        self._look_within(deadline.remaining_us(_clock.now()) / 1_000_000)
        return hold

    # --- holds --------------------------------------------------------------------------------------------------------

    def holds(self) -> list[Hold]:
        """Returns the held locks. Called under the lock."""
        while self._dropped:
            self.release(self._dropped.popleft())
        return list(self._holds.values())

    def check(self, hold: Hold) -> None:
        """Raises :class:`LockLost` unless the lock is certain to be held now."""
        self.forbid_forked()
        with self.lock:
            # Reads all messages first, because an unread renewal is not a loss, but the end of the agent is one.
            self.drain()
            self._expire(hold, _clock.now())
            hold.raise_if_over()

    def remaining(self, hold: Hold) -> float:
        """Returns for how many seconds the lock is certain to be held without a renewal, or 0 if the hold is over."""
        self.forbid_forked()
        with self.lock:
            self.drain()
            left = self._expire(hold, _clock.now())
            return 0.0 if hold.is_over else left / 1_000_000

    def listen(self, hold: Hold, listener: Callable[[LockLost], None]) -> None:
        """Calls ``listener`` once if the lock is lost. ``listener`` must not block."""
        with self.lock:
            hold.listen(listener)

    def lose(self, hold: Hold, loss: LockLost) -> None:
        """Marks a hold as lost. Called under the lock."""
        if hold.lose(loss):
            self._holds.pop(hold.number, None)

    def end(self, hold: Hold) -> bool:
        """Ends a hold before its release is sent. Returns whether it was held until now. Called under the lock."""
        if not hold.end():
            return False
        self._holds.pop(hold.number, None)
        return True

    def _expire(self, hold: Hold, now: Moment) -> int:
        """Marks the hold as lost if its deadline has passed. Returns the time that is left, in microseconds."""
        left = hold.left_us(now)
        if left <= 0 and not hold.is_over:
            loss = hold.expired()
            try:
                self.lose(hold, loss)
            finally:
                # The agent may be late too. It must not keep a lock that this process gave up. It does not renew it
                # beyond the limit, and the work may still run.
                if loss.reason != "limit":
                    self._send_release(hold)
        return left

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _look_within(self, seconds: float) -> None:
        """Makes the thread check the deadlines within ``seconds``."""
        look = time.monotonic() + max(0.0, min(seconds, _TICK))
        if look < self._next_look:
            self._next_look = look
            if threading.current_thread() is not self._reader:
                self._bell.ring()

    def _run(self) -> None:
        try:
            while True:
                with self.lock:
                    if self._death is not None:
                        break
                    timeout = self._timeout()
                    wanted = [(self._from, select.POLLIN), (self._bell.fileno(), select.POLLIN)]
                    if self._unsent:
                        wanted.append((self._to, select.POLLOUT))
                poll(wanted, timeout)
                self._bell.quiet()
                with self.lock:
                    self._turn()
        except BaseException:
            # The messages are no longer read, so callers that wait for one would wait forever.
            with self.lock:
                self._die("the agent's messages could not be processed")
            raise
        finally:
            with self.lock:
                # Signals do not interrupt this thread.
                self._die("the agent has ended")
            self._bury()

    def _turn(self) -> None:
        while self._dropped:
            self.release(self._dropped.popleft())
        self._flush()
        self.drain()
        if self._holds and time.monotonic() >= self._next_look:
            now = _clock.now()
            lefts = [self._expire(hold, now) for hold in list(self._holds.values())]
            self._next_look = time.monotonic() + max(0.0, min(_TICK, min(lefts) / 1_000_000))
        if self._is_idle() and time.monotonic() - self._used >= _IDLE:
            self._die("the agent was idle", kill=False)

    def _is_idle(self) -> bool:
        return not (self._holds or self._pending or self._unsent)

    def _timeout(self) -> float | None:
        now = time.monotonic()
        if self._holds:
            return max(0.0, min(_TICK, self._next_look - now))
        if self._is_idle():
            return max(0.0, self._used + _IDLE - now)
        return None

    def _bury(self) -> None:
        """Closes the agent's stdin, which ends the agent, and waits for its process to end."""
        if self.is_forked():
            return
        self._close()
        try:
            self._process.wait(_EXIT_TIMEOUT + 5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
