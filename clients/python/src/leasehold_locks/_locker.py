"""The blocking interface."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Generic, ParamSpec, TypeVar

from . import _shared
from ._agent import Agent
from ._errors import AgentError, LeaseholdError, LockHeld, LockLost, StoreError
from ._guard import BaseGuard, log
from ._hold import Hold, Message, Pending
from ._requests import LockSettings, decoded, encoded, expect, lock_settings, store_url, target, was_held
from ._types import AlreadyRan, Capabilities, Duration, Leader, Ran, Report, Status, milliseconds

P = ParamSpec("P")
T = TypeVar("T")

#: How long an agent may take to answer what does not wait for others, in seconds: longer than a store may take.
_ANSWER_TIMEOUT = 120.0


class _Call:
    """One request, and its messages."""

    def __init__(self, agent: Agent, fields: Message) -> None:
        self._arrived = threading.Semaphore(0)
        self._outcomes: deque[Message | LeaseholdError] = deque()
        self.agent = agent
        self.pending: Pending = agent.request(fields, self._deliver)

    def _deliver(self, outcome: Message | LeaseholdError) -> None:
        self._outcomes.append(outcome)
        self._arrived.release()

    def arrives_within(self, limit: float | None) -> bool:
        """Whether a message arrives within ``limit``. If this is interrupted, the request is cancelled."""
        try:
            if not self._arrived.acquire(timeout=limit):
                return False
        except BaseException:
            self.pending.abandon()
            raise
        self._arrived.release()
        return True

    def next(self, limit: float | None = None) -> Message:
        """The next message. An agent that does not answer within ``limit`` is ended."""
        if not self.arrives_within(limit):
            self.agent.kill("the agent does not answer")
            raise AgentError("the agent does not answer")
        self._arrived.acquire()
        outcome = self._outcomes.popleft()
        if isinstance(outcome, LeaseholdError):
            raise outcome
        return outcome


def _call(fields: Message, limit: float | None = _ANSWER_TIMEOUT) -> Message:
    return _Call(_shared.shared(), fields).next(limit)


class Guard(BaseGuard):
    """A lock that is held. The agent renews it until it is released.

    A context manager that releases the lock. If the lock was lost and the body raised nothing, leaving the body raises
    :class:`LockLost`, so work that was not protected does not look successful. The thread in the body is never
    interrupted: call :meth:`check` before each step that must not be done twice.

    >>> with locker.lock("report").guard() as g:
    ...     g.check()  # still held? local, no request
    ...     save("report", fence=g.token)
    """

    def confirm(self, timeout: Duration | None = None) -> None:
        """Renews the lease now, and waits for the answer. Right even after a pause in which both clocks stood still.

        Raises :class:`LockLost` if the lock was lost, and :class:`StoreError` if the store has not answered after
        ``timeout``.
        """
        self._hold.check()
        limit = None if timeout is None else milliseconds(timeout, "timeout") / 1_000
        call = _Call(self._hold.agent, {"op": "renew", "hold": self._hold.number})
        if not call.arrives_within(limit):
            call.pending.abandon()
            raise StoreError("the store has not answered in time", "unavailable")
        expect(call.next(), "renewed")
        self._hold.check()

    def release(self, cooldown: Duration | None = None) -> bool:
        """Releases the lock. Returns whether it was held until now.

        With ``cooldown``, the lock is not granted again before this time has passed since it was granted.
        """
        hold = self._hold
        hold.agent.forbid_forked()
        fields: Message = {"op": "release", "hold": hold.number}
        if cooldown is not None:
            fields["cooldown_ms"] = milliseconds(cooldown, "cooldown")
        with hold.agent.lock:
            hold.remaining()  # Finds a loss that was not noticed yet.
            if not hold.end():
                return False
            call = _Call(hold.agent, fields)
        return was_held(call.next(_ANSWER_TIMEOUT), "released")

    def ticket(self) -> str:
        """Ends this hold, and returns the lock as a ticket, which another process can resume. A ticket is a secret."""
        hold = self._hold
        hold.check()
        with hold.agent.lock:
            if not hold.end():
                hold.check()
            call = _Call(hold.agent, {"op": "ticket", "hold": hold.number})
        return str(expect(call.next(_ANSWER_TIMEOUT), "ticket")["ticket"])

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error is None)

    def _leave(self, completed: bool, cooldown: Duration | None = None) -> None:
        if self._hold.agent.is_forked():
            return  # The lock is the parent's.
        if completed and self._hold.loss is None and self._hold.is_over:
            return  # The body has released it.
        if completed:
            self._hold.check()
        try:
            released = self.release(cooldown)
        except StoreError as failed:
            if completed and cooldown is not None:
                raise
            log.warning("lock %r was not released, and ends with its lease: %s", self.name, failed)
        else:
            if completed and not released:
                raise LockLost(f"lock `{self.name}` was lost before it was released", "ended")


class Lock:
    """A named lock, with the settings for acquiring it. Made by :meth:`Locker.lock` and its siblings."""

    def __init__(self, settings: LockSettings) -> None:
        self._settings = settings
        self._held: list[Guard] = []

    @property
    def name(self) -> str:
        return self._settings.name

    def hold(
        self, timeout: Duration | None = None, *, on_lost: Callable[[LockLost], object] | None = None
    ) -> Holding:
        """Holds the lock during a ``with`` statement. Waits for at most ``timeout``, or without a limit.

        >>> with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
        ...     g.check()
        ...     deploy(fence=g.token)

        Entering raises :class:`LockHeld` (a :class:`TimeoutError`) after the timeout. For leaving, see :class:`Guard`.
        ``on_lost`` is called in a thread of its own if the lock is lost.
        """
        return Holding(self, timeout, on_lost)

    def guard(self, timeout: Duration | None = None) -> Guard:
        """Acquires the lock. Raises :class:`LockHeld` if another holder still has it after ``timeout``."""
        return self._acquired(self._settings.request("acquire", timeout))

    def try_acquire(self) -> Guard | None:
        """Acquires the lock if it is free now; ``None`` if another holder has it.

        >>> guard = locker.lock("nightly").try_acquire()
        >>> if guard is not None:
        ...     with guard:
        ...         report()
        """
        try:
            return self._acquired(self._settings.request("try"))
        except LockHeld:
            return None

    def _acquired(self, fields: Message) -> Guard:
        # The agent keeps the time limit. Waiting for another holder may take as long as that.
        call = _Call(_shared.shared(), fields)
        wait_ms = fields.get("wait_ms", 0 if fields["op"] == "try" else None)
        limit = None if wait_ms is None else wait_ms / 1_000 + _ANSWER_TIMEOUT
        expect(call.next(limit), "held")
        return Guard(_hold_of(call))

    # The shape of threading.Lock.

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquires the lock as :meth:`threading.Lock.acquire` does. Release it with :meth:`release`."""
        if not blocking and timeout != -1:
            raise ValueError("can't specify a timeout for a non-blocking call")
        if timeout < 0 and timeout != -1:
            raise ValueError("timeout value must be a non-negative number")
        if not blocking:
            guard = self.try_acquire()
        else:
            try:
                guard = self.guard(None if timeout == -1 else timeout)
            except LockHeld:
                guard = None
        if guard is None:
            return False
        self._held.append(guard)
        return True

    def release(self) -> None:
        """Releases what :meth:`acquire` acquired. Raises :class:`LockLost` if the lock was lost in the meantime."""
        try:
            guard = self._held.pop()
        except IndexError:
            raise RuntimeError("release unlocked lock") from None
        guard._leave(True)

    def locked(self) -> bool:
        """Whether this object holds the lock."""
        return any(guard.is_held for guard in self._held)

    @property
    def token(self) -> int:
        """The fencing token of what :meth:`acquire` acquired."""
        return self._latest().token

    def check(self) -> None:
        """Checks that what :meth:`acquire` acquired is still held."""
        self._latest().check()

    def _latest(self) -> Guard:
        if not self._held:
            raise RuntimeError("the lock is not acquired")
        return self._held[-1]

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._held.pop()._leave(error is None)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"


class _Thread(threading.local):
    """The guards that a thread has entered."""

    def __init__(self) -> None:
        self.guards: list[Guard] = []


class Holding:
    """A lock during a ``with`` statement: see :meth:`Lock.hold`. Can be used again, and by several threads."""

    def __init__(self, lock: Lock, timeout: Duration | None, on_lost: Callable[[LockLost], object] | None) -> None:
        self._lock = lock
        self._timeout = timeout
        self._on_lost = on_lost
        self._thread = _Thread()

    def __enter__(self) -> Guard:
        guard = self._lock.guard(self._timeout)
        if self._on_lost is not None:
            guard.on_lost(self._on_lost)
        self._thread.guards.append(guard)
        return guard

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.guards.pop()._leave(error is None)


class RwLock:
    """A lock with either several shared holders, at most eight, or one exclusive holder."""

    #: Held together with other shared holders.
    shared: Lock
    #: Held alone.
    exclusive: Lock

    def __init__(self, shared: Lock, exclusive: Lock) -> None:
        self.shared = shared
        self.exclusive = exclusive


class Election(Lock):
    """One of several candidates leads. Holding the lock is leading; the token is the term.

    >>> with locker.election("scheduler", value="http://10.0.0.7:8080").hold() as leadership:
    ...     leadership.check()
    """

    def leader(self) -> Leader | None:
        """The leader, by one read of the store; ``None`` if there is none. May be outdated."""
        message = _call({"op": "leader", **target(self._settings.store, self.name)})
        return Leader.of(expect(message, "leader"))

    def observe(self) -> Iterator[Leader | None]:
        """The leader, then every change. Blocks for the next one. Close the iterator to end it."""
        call = _Call(_shared.shared(), {"op": "observe", **target(self._settings.store, self.name)})
        try:
            while True:
                yield Leader.of(expect(call.next(), "leader"))
        finally:
            call.pending.abandon()


class Once(Generic[T]):
    """A job that several machines start and one of them runs, once per period. Made by :meth:`Locker.once`."""

    def __init__(self, settings: LockSettings, period: Duration, timeout: Duration | None, nowait: bool) -> None:
        self._period = period
        more: Message = {"period_ms": milliseconds(period, "per")}
        if nowait:
            more["nowait"] = True
        self._request = settings.request("once", timeout, **more)

    def run(self, job: Callable[[], T]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period."""
        guard = self._begin()
        if isinstance(guard, AlreadyRan):
            return guard
        try:
            value = job()
        except BaseException:
            guard._leave(False)  # Another process may run it in this period.
            raise
        guard._leave(True, self._period)
        return Ran(value)

    def _begin(self) -> Guard | AlreadyRan:
        call = _Call(_shared.shared(), self._request)
        message = call.next()
        if message["ev"] == "already_ran":
            return AlreadyRan.of(message)
        expect(message, "held")
        return Guard(_hold_of(call))


class OnceDecorator:
    """See :meth:`Locker.once`."""

    def __init__(self, make: Callable[[], Once[Any]]) -> None:
        self._make = make

    def __call__(self, job: Callable[P, T]) -> Callable[P, Ran[T] | AlreadyRan]:
        once: Once[T] = self._make()

        @functools.wraps(job)
        def run(*args: P.args, **kwargs: P.kwargs) -> Ran[T] | AlreadyRan:
            return once.run(lambda: job(*args, **kwargs))

        return run

    def run(self, job: Callable[[], T]) -> Ran[T] | AlreadyRan:
        """Runs ``job`` unless it already ran in this period."""
        once: Once[T] = self._make()
        return once.run(job)


class Object:
    """An object of a bucket, with several writers."""

    def __init__(self, url: str, content_type: str | None) -> None:
        self._url = url
        self._content_type = content_type

    def get(self, fence: int | None = None) -> bytes | None:
        """The content; ``None`` if there is no object. With ``fence``, later writes with lower tokens are refused."""
        return decoded(expect(_call(self._fields("get", fence)), "object"))

    def put(self, content: bytes, *, fence: int) -> None:
        """Writes the object unless a higher token has written it: then raises :class:`LockLost`."""
        fields = self._fields("put", fence)
        expect(_call({**fields, **self._typed(), "content": encoded(content)}), "done")

    def update(
        self,
        change: Callable[[bytes | None], bytes | None],
        *,
        fence: int | None = None,
        attempts: int | None = None,
        within: Duration | None = None,
    ) -> bool:
        """Replaces the content by ``change(content)``, and calls it again if another writer was faster.

        ``change`` gets ``None`` if there is no object, and returns ``None`` to leave it as it is. Returns whether the
        object was written.
        """
        fields = {**self._fields("update", fence), **self._typed()}
        if attempts is not None:
            fields["attempts"] = attempts
        if within is not None:
            fields["within_ms"] = milliseconds(within, "within")
        call = _Call(_shared.shared(), fields)
        while True:
            message = call.next(_ANSWER_TIMEOUT)
            if message["ev"] != "content":
                return bool(expect(message, "updated")["written"])
            try:
                content = change(decoded(message))
            except BaseException:
                call.pending.abandon()
                raise
            answer = {"op": "answer", "request": call.pending.id, "content": encoded(content)}
            _Call(call.agent, answer).next(_ANSWER_TIMEOUT)

    def _fields(self, op: str, fence: int | None) -> Message:
        return {"op": op, "object": self._url, **({} if fence is None else {"fence": str(fence)})}

    def _typed(self) -> Message:
        return {} if self._content_type is None else {"content_type": self._content_type}


class Locker:
    """A store of locks: a URL such as ``sqlite:locks.db`` or ``s3://bucket/locks``, or an alias of ``config.toml``.

    Without a URL, the default store of the ``leasehold`` command (``LEASEHOLD_STORE``, ``config.toml``, a SQLite file).
    Makes no request. Works in forked children too.

    >>> locker = Locker("sqlite:locks.db")
    >>> with locker.lock("deploy/prod", ttl=30).hold(timeout=60) as g:
    ...     g.check()
    """

    def __init__(self, store: str | None = None) -> None:
        self._store = store_url(store)

    def lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
        barge: bool = False,
    ) -> Lock:
        """The lock called ``name``.

        ``ttl`` is how long others wait if this process dies (30 s by default). ``note`` and ``owner`` describe the
        holder to others. With ``lock_delay``, others wait longer after the lease of a holder has lapsed. The store may
        take ``store_timeout`` to answer. With ``barge``, waiters that came earlier have no precedence.
        """
        return Lock(
            lock_settings(
                self._store,
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                store_timeout=store_timeout,
                barge=barge,
            )
        )

    def semaphore(
        self,
        name: str,
        permits: int,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> Lock:
        """A lock with up to ``permits`` holders, at most 64."""
        return Lock(
            lock_settings(
                self._store,
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                store_timeout=store_timeout,
                barge=False,
                mode="permit",
                permits=permits,
            )
        )

    def rw_lock(
        self,
        name: str,
        *,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> RwLock:
        """A readers-writer lock.

        >>> with locker.rw_lock("index").shared.hold():
        ...     read()
        """

        def of(mode: str) -> Lock:
            return Lock(
                lock_settings(
                    self._store,
                    name,
                    ttl=ttl,
                    note=note,
                    owner=owner,
                    lock_delay=lock_delay,
                    store_timeout=store_timeout,
                    barge=False,
                    mode=mode,
                )
            )

        return RwLock(of("shared"), of("exclusive"))

    def election(
        self,
        name: str,
        *,
        value: str | None = None,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        lock_delay: Duration | None = None,
        store_timeout: Duration | None = None,
    ) -> Election:
        """The election called ``name``. ``value`` is what this candidate advertises while it leads."""
        return Election(
            lock_settings(
                self._store,
                name,
                ttl=ttl,
                note=note,
                owner=owner,
                lock_delay=lock_delay,
                store_timeout=store_timeout,
                barge=False,
                mode="leader",
                value=value,
            )
        )

    def once(
        self,
        name: str,
        *,
        per: Duration,
        timeout: Duration | None = None,
        nowait: bool = False,
        ttl: Duration | None = None,
        note: str | None = None,
        owner: str | None = None,
        store_timeout: Duration | None = None,
    ) -> OnceDecorator:
        """Runs a job once per period, on one of several machines.

        >>> @locker.once("nightly", per="23h")
        ... def nightly(day: str) -> str:
        ...     return f"report of {day}"
        >>> result = nightly("monday")
        >>> if result:
        ...     print(result.value)

        The function returns :class:`Ran` with its value, or :class:`AlreadyRan`. While another process runs the job, it
        waits, at most for ``timeout``; with ``nowait``, it raises :class:`LockHeld`. If the job raises an error, it may
        run again in the same period. A job whose lock was lost, or whose run could not be recorded, raises an error.
        """
        settings = lock_settings(
            self._store,
            name,
            ttl=ttl,
            note=note,
            owner=owner,
            lock_delay=None,
            store_timeout=store_timeout,
            barge=False,
        )
        return OnceDecorator(lambda: Once(settings, per, timeout, nowait))

    def status(self, name: str) -> Status:
        """The state of a lock."""
        return Status.of(expect(_call({"op": "status", **target(self._store, name)}), "status"))

    def list(self, prefix: str = "") -> Iterator[str]:
        """The names of all locks that have a record and begin with ``prefix``."""
        call = _Call(_shared.shared(), {"op": "list", **target(self._store), "prefix": prefix})
        try:
            while (message := call.next(_ANSWER_TIMEOUT))["ev"] == "names":
                yield from message["names"]
        finally:
            call.pending.abandon()

    def wait_free(self, name: str, timeout: Duration | None = None) -> None:
        """Waits until the lock is free, without acquiring it. Raises :class:`LockHeld` after ``timeout``."""
        fields = {"op": "wait_free", **target(self._store, name)}
        if timeout is not None:
            fields["wait_ms"] = milliseconds(timeout, "timeout")
        expect(_call(fields, None), "done")

    def break_lock(self, name: str, token: int) -> bool:
        """Ends the grant with this token. Its holder may be any process: make sure first that it has stopped. Returns
        whether that token still had the lock."""
        return was_held(_call({"op": "break", **target(self._store, name), "token": str(token)}), "broken")

    def sweep(self, name: str, *, older_than: Duration, dry_run: bool = False) -> bool:
        """Deletes the record of a lock that has been free for that long. Returns whether it did, or would."""
        fields = {"op": "sweep", **target(self._store, name), "dry_run": dry_run}
        fields["older_than_ms"] = milliseconds(older_than, "older_than")
        return bool(expect(_call(fields), "swept")["deleted"])

    def init(self) -> None:
        """Creates what the store needs, such as a file or a table."""
        expect(_call({"op": "init", **target(self._store)}), "done")

    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return Capabilities.of(expect(_call({"op": "capabilities", **target(self._store)}), "capabilities"))

    def doctor(self, *, ttl: Duration | None = None, thorough: bool = False) -> Report:
        """Examines whether the store is safe for locks. Takes a few seconds and some hundred requests."""
        fields = {"op": "doctor", **target(self._store), "thorough": thorough}
        if ttl is not None:
            fields["ttl_ms"] = milliseconds(ttl, "ttl")
        return Report.of(expect(_call(fields, None), "report"))

    def resume(self, ticket: str) -> Guard:
        """Renews the lock of a ticket, and keeps it from now on."""
        call = _Call(_shared.shared(), {"op": "resume", **target(self._store), "ticket": ticket})
        expect(call.next(_ANSWER_TIMEOUT), "held")
        return Guard(_hold_of(call))

    def renew_ticket(self, ticket: str) -> float:
        """Renews the lock of a ticket once. Returns for how many seconds it is certain to be held."""
        fields = {"op": "renew_ticket", **target(self._store), "ticket": ticket}
        return int(expect(_call(fields), "ticket_renewed")["remaining_ms"]) / 1_000

    def release_ticket(self, ticket: str) -> bool:
        """Releases the lock of a ticket. Returns whether it was held until now."""
        return was_held(_call({"op": "release_ticket", **target(self._store), "ticket": ticket}), "released")

    def __repr__(self) -> str:
        return "<Locker>"  # A URL may contain a password.


def open_object(url: str, *, content_type: str | None = None) -> Object:
    """Opens an object by its URL, such as ``s3://bucket/counter.json``. Makes no request."""
    return Object(url, content_type)


def _hold_of(call: _Call) -> Hold:
    hold = call.pending.hold
    assert hold is not None
    return hold
