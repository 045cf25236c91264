"""Measures locks from Python, and prints a line of JSON. `./bench-clients` runs it.

bench.py CONTENDER SECONDS [STORE]
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from urllib.parse import parse_qs, urlsplit

contender, seconds, *rest = sys.argv[1:]


def leasehold() -> Callable[[], None]:
    from leasehold_locks import Locker

    lock = Locker(rest[0]).lock("bench")

    def once() -> None:
        with lock.hold():
            pass

    return once


def redis_py() -> Callable[[], None]:
    import redis

    lock = redis.Redis.from_url(rest[0]).lock("bench-redis-py", timeout=30)

    def once() -> None:
        with lock:
            pass

    return once


def python_redis_lock() -> Callable[[], None]:
    import redis
    import redis_lock

    lock = redis_lock.Lock(redis.Redis.from_url(rest[0]), "bench-python-redis-lock", expire=30)

    def once() -> None:
        with lock:
            pass

    return once


def filelock() -> Callable[[], None]:
    from filelock import FileLock

    lock = FileLock("bench.lock")

    def once() -> None:
        with lock:
            pass

    return once


def python_dynamodb_lock() -> Callable[[], None]:
    import boto3
    from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

    options = {"region_name": "us-east-1", "endpoint_url": parse_qs(urlsplit(rest[0]).query)["endpoint"][0]}
    table, client = "bench-python-dynamodb-lock", boto3.client("dynamodb", **options)
    with contextlib.suppress(client.exceptions.ResourceInUseException):  # an earlier round created the table
        DynamoDBLockClient.create_dynamodb_table(client, table_name=table)
    locks = DynamoDBLockClient(boto3.resource("dynamodb", **options), table_name=table)

    def once() -> None:
        with locks.acquire_lock("bench"):
            pass

    return once


def measure(once: Callable[[], None]) -> list[float]:
    for _ in range(20):
        once()
    times: list[float] = []
    end = time.perf_counter() + float(seconds)
    while (start := time.perf_counter()) < end:
        once()
        times.append(time.perf_counter() - start)
    return times


def of_the_rust_library() -> list[float]:
    """Measures the Rust library in a separate program, which LEASEHOLD_BENCH names
    (crates/leasehold-bench/src/contender.rs)."""
    # Uses a new lock each time, because the program may end during an acquisition, and the lock is then held until its
    # lease ends. On DynamoDB, the first grant of a new lock takes a second longer.
    options = {"lock": f"bench-rust/{os.getpid()}", "seconds": float(seconds) + 1, "store": rest[0]}
    options |= {"tasks": 1, "ttl-ms": 30_000, "hold-us": 0}
    command = [os.environ["LEASEHOLD_BENCH"], "contender", "ours", "contend"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    said = subprocess.run(command, input="go\n", stdout=subprocess.PIPE, text=True, check=True).stdout
    # E TASK ASKED GRANTED RELEASING RELEASED, in microseconds.
    events = [[int(word) for word in line.split()[1:]] for line in said.splitlines() if line.startswith("E ")]
    return [(released - asked) / 1_000_000 for _, asked, _, _, released in events]


def start_of_an_agent() -> list[float]:
    """Measures the time from the first request of a process to its response. Ends the agent before each measurement."""
    from leasehold_locks import Locker, _shared

    times: list[float] = []
    end = time.perf_counter() + float(seconds)
    while time.perf_counter() < end:
        _shared._at_exit()
        start = time.perf_counter()
        Locker("mem:").capabilities()
        times.append(time.perf_counter() - start)
    return times


def memory_of_workers(count: int = 32) -> dict[str, float]:
    """Measures the memory of the agents of 32 prefork workers, each with a held lock, in MiB. Pages that agents share
    count once."""
    from leasehold_locks import Locker, _shared

    locker = Locker(rest[0])
    pipes, workers = [], []
    for number in range(count):
        told, tell = os.pipe()
        worker = os.fork()
        if worker == 0:
            with locker.lock(f"worker/{number}").hold():
                os.write(tell, f"{_shared.shared()._process.pid:8}".encode())
                time.sleep(600)
        pipes.append(told)
        workers.append(worker)
    agents = [int(os.read(pipe, 8)) for pipe in pipes]
    proportional = [memory(agent, "Pss") for agent in agents]
    private = [memory(agent, "Private_Clean") + memory(agent, "Private_Dirty") for agent in agents]
    for worker in workers:
        os.kill(worker, 9)
        os.waitpid(worker, 0)
    return {
        "agents": count,
        "proportional_mib": sum(proportional) / 1_024,
        "private_each_mib": sum(private) / 1_024 / count,
        "one_alone_mib": memory_alone(),
    }


def memory(pid: int, what: str) -> int:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(f"{what}:"))


def memory_alone() -> float:
    from leasehold_locks import Locker, _shared

    with Locker(rest[0]).lock("alone").hold():
        return memory(_shared.shared()._process.pid, "Rss") / 1_024


LOCKS = {
    "leasehold": leasehold,
    "redis-py": redis_py,
    "python-redis-lock": python_redis_lock,
    "filelock": filelock,
    "python-dynamodb-lock": python_dynamodb_lock,
}
OTHERS = {"memory": memory_of_workers, "rust": of_the_rust_library, "start": start_of_an_agent}
print(json.dumps(OTHERS[contender]() if contender in OTHERS else measure(LOCKS[contender]())))
