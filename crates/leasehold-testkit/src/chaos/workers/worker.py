"""A worker of `./chaos` that uses the Python client, with asyncio. It does what chaos/worker.rs does.

worker.py WHO KIND STORE LOCK TTL_MS FOLDER RESOURCE SEED
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import sys
import threading
from typing import Any

from leasehold_locks import LeaseholdError, LockHeld, LockLost, _shared
from leasehold_locks.aio import Guard, Locker

CRASHED = 77


def uptime_ms() -> int:
    """Returns true time. See chaos/true_time.rs."""
    with open("/proc/uptime") as file:
        seconds, hundredths = file.read().split()[0].split(".")
    return int(seconds) * 1_000 + int(hundredths) * 10


class History:
    """See chaos/history.rs."""

    def __init__(self, folder: str, who: str) -> None:
        self._who = who
        self._file = os.open(f"{folder}/{who}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL, 0o644)

    def tell(self, what: str, since: int, **more: Any) -> None:
        event = {**more, "what": what, "who": self._who, "from": since, "until": uptime_ms() + 10}
        os.write(self._file, (json.dumps(event) + "\n").encode())


class Resource:
    """See chaos/resource.rs."""

    def __init__(self, address: str, lock: str, who: str) -> None:
        host, _, port = address.rpartition(":")
        self._connection = socket.create_connection((host, int(port)))
        self._answers = self._connection.makefile("r")
        self._lock, self._who = lock, who
        self.asks_to_stay = False

    def ask(self, verb: str, token: int, value: int | None = None) -> int | None:
        """Returns the value of the counter, or ``None`` if the token is too low."""
        words = [verb, self._lock, str(token), self._who, *([] if value is None else [str(value)])]
        self._connection.sendall((" ".join(words) + "\n").encode())
        verdict, number, stay = self._answers.readline().split()
        self.asks_to_stay = stay == "stay"
        return int(number) if verdict == "accepted" else None


class Worker:
    def __init__(self, who: str, store: str, lock: str, ttl_ms: int, folder: str, resource: str, seed: int) -> None:
        self.random = random.Random(seed)
        self.history = History(folder, who)
        self.resource = Resource(resource, lock, who)
        self.ttl = ttl_ms / 1_000
        self.name = lock
        self.lock = Locker(store).lock(lock, ttl=self.ttl, owner=who)
        self.who = who
        self.grants = 0

    async def work(self) -> None:
        while True:
            since = uptime_ms()
            try:
                guard = await self.acquire()
            except LeaseholdError as error:
                self.history.tell("failed", since, error=f"{type(error).__name__}: {error}")
                await self.pause(50, 300)
                continue
            if guard is None:
                await self.pause(5, 60)
                continue
            self.grants += 1
            grant = Grant(self, guard, f"{self.who}#{self.grants}")
            grant.tell("granted", since)
            finished = await grant.use()
            if finished and self.random.random() < 0.04:
                os._exit(CRASHED)
            if finished and self.random.random() < 0.04:
                # When its agent dies, this process loses what it holds, and `check` fails.
                os.kill(_shared.shared()._process.pid, signal.SIGKILL)
                await grant.lost.wait()
                finished = False
            await grant.end(finished)
            await self.pause(0, 40)

    async def acquire(self) -> Guard | None:
        choice = self.random.random()
        if choice < 0.2:
            return await self.lock.try_acquire()
        try:
            if choice < 0.35:
                return await asyncio.wait_for(self.lock.guard(), self.random.random() * 0.8)
            return await self.lock.guard(timeout=self.ttl * 4)
        except (LockHeld, asyncio.TimeoutError):
            return None

    async def pause(self, least_ms: int, most_ms: int) -> None:
        await asyncio.sleep(self.random.randint(least_ms, most_ms) / 1_000)


class Grant:
    def __init__(self, worker: Worker, guard: Guard, name: str) -> None:
        self.worker = worker
        self.guard: Guard | None = guard
        self.token = guard.token
        self.name = name
        self.lost = asyncio.Event()
        loop = asyncio.get_running_loop()
        guard.on_lost(lambda _: loop.call_soon_threadsafe(self.lost.set))

    def tell(self, what: str, since: int, **more: Any) -> None:
        self.worker.history.tell(what, since, lock=self.worker.name, grant=self.name, token=self.token, **more)

    def is_held(self) -> bool:
        assert self.guard is not None
        try:
            self.guard.check()
        except LockLost:
            return False
        return True

    def checked(self) -> bool:
        since = uptime_ms()
        held = self.is_held()
        if held:
            self.tell("checked", since)
        return held

    async def use(self) -> bool:
        """Uses the lock for a while. Returns ``False`` if it was lost."""
        random = self.worker.random
        choice = random.random()
        rounds = random.randint(1, 3) if choice < 0.8 else random.randint(4, 14) if choice < 0.94 else 30
        for round in range(500):
            if round >= rounds and not self.worker.resource.asks_to_stay:
                break
            if not self.checked() or not await self.add_one() or not await self.pause_unless_lost():
                await self.write_late()
                return False
        return True

    async def add_one(self) -> bool:
        value = self.worker.resource.ask("read", self.token)
        if value is None:
            return False
        if self.worker.random.random() < 0.5 and not await self.pause_unless_lost():
            return False
        # A process can be stopped between this check and the write.
        if not self.checked():
            return False
        await self.worker.pause(0, 20)
        return self.worker.resource.ask("write", self.token, value + 1) is not None

    async def write_late(self) -> None:
        """Writes although the lock is lost. A lock cannot prevent that."""
        if not self.is_held():
            self.tell("lost", uptime_ms())
        await self.worker.pause(0, 40)
        value = self.worker.resource.ask("read", self.token)
        if value is not None:
            self.worker.resource.ask("write", self.token, value + 1)

    async def end(self, finished: bool) -> None:
        assert self.guard is not None
        self.worker.resource.ask("over", self.token)
        since, how = uptime_ms(), "dropped"
        if finished and self.worker.random.random() >= 0.15:
            try:
                how = "released" if await self.guard.release() else "lost before"
            except LeaseholdError as error:
                how = f"release failed: {error}"
        self.guard = None  # Dropping the guard releases the lock, if it is still held.
        self.tell("over", since, how=how)

    async def pause_unless_lost(self) -> bool:
        try:
            await asyncio.wait_for(self.lost.wait(), self.worker.random.randint(5, 60) / 1_000)
        except asyncio.TimeoutError:
            return True
        return False


def end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


async def main() -> None:
    who, _, store, lock, ttl_ms, folder, resource, seed = sys.argv[2:]
    threading.Thread(target=end_with_input, daemon=True).start()
    await Worker(who, store, lock, int(ttl_ms), folder, resource, int(seed)).work()


asyncio.run(main())
