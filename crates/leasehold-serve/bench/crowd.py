"""Measures a `leasehold serve` under many clients. Prints one figure per line.

    python3 crates/leasehold-serve/bench/crowd.py target/release/leasehold
        [--waiters N] [--viewers N] [--locks N] [--store URL]

Starts the server on a new SQLite file, or on the store at URL. Needs Linux, and no packages. Answers three questions:

1. How long does an acquisition with its release take, without and with other clients?
2. How often does the server send requests to the store while viewers watch its events, and while there is no client?
   How much processor time and memory does it need, with few or many held locks (`--locks 20000`)?
3. How much memory do waiting requests need, and does every waiter receive its lock?
"""

import argparse
import asyncio
import hashlib
import json
import os
import pathlib
import resource
import statistics
import sys
import tempfile
import time
import urllib.parse
import uuid

# The server admits 50 new requests per second of a principal.
PRINCIPALS = 64
WAITERS_OF_A_LOCK = 500

# How many connections acquire and release the locks that viewers see.
HOLDERS = 8


def most_per_minute(locks):
    """Returns the limit that docs/serve/limits.md states, for any number of viewers."""
    return 60 * (5 if locks <= 500 else 50)


class Client:
    """A connection that is kept open."""

    def __init__(self, address, principal=0):
        self.address, self.token = address, f"token-{principal}"
        self.reader = self.writer = None

    async def __aenter__(self):
        self.reader, self.writer = await asyncio.open_connection(*self.address)
        return self

    async def __aexit__(self, *_):
        self.writer.close()

    async def send(self, method, path, body=None):
        data = b"" if body is None else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        )
        if path == "/v1/holds":
            head += f"Idempotency-Key: {uuid.uuid4()}\r\n"
        self.writer.write(head.encode() + b"\r\n" + data)
        await self.writer.drain()

    async def head(self):
        status = int((await self.reader.readline()).split()[1])
        length = 0
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return status, length

    async def ask(self, method, path, body=None):
        await self.send(method, path, body)
        status, length = await self.head()
        body = await self.reader.readexactly(length)
        return status, json.loads(body) if body[:1] == b"{" else body.decode()

    async def acquire(self, lock, wait="0s", ttl="120s"):
        return await self.ask("POST", "/v1/holds", {"lock": lock, "ttl": ttl, "wait": wait})

    async def release(self, hold):
        status, answer = await self.ask("POST", "/v1/holds/release", {"ticket": hold["ticket"]})
        assert status == 200 and answer["released"], (status, answer)


def report(what, figure):
    print(f"{what}: {figure}", flush=True)


async def latencies(address, what, times=400):
    """Answers question 1."""
    took = []
    async with Client(address) as client:
        for number in range(times):
            # Changes the principal, to stay below the limit of each.
            client.token = f"token-{number % PRINCIPALS}"
            began = time.perf_counter()
            status, hold = await client.acquire("uncontended")
            assert status == 201, (status, hold)
            await client.release(hold)
            took.append((time.perf_counter() - began) * 1e3)
    took.sort()
    report(f"acquire and release, {what}", f"p50 {statistics.median(took):.2f} ms, p99 {took[times * 99 // 100]:.2f} ms")


async def metric(metrics, name):
    """Returns the sum of a metric over its labels."""
    async with Client(metrics) as client:
        _, text = await client.ask("GET", "/metrics")
    lines = [line for line in text.splitlines() if line.split(" ")[0].split("{")[0] == name]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


async def per_minute(metrics, seconds):
    before, began = await metric(metrics, "leasehold_store_requests_total"), time.perf_counter()
    await asyncio.sleep(seconds)
    sent = await metric(metrics, "leasehold_store_requests_total") - before
    return sent * 60 / (time.perf_counter() - began)


async def observe(metrics, server, seconds, what, bound=""):
    """Reports the requests to the store, the processor time and the memory of the server during the next seconds."""
    before, began = processor_time(server), time.perf_counter()
    requests = await per_minute(metrics, seconds)
    used = (processor_time(server) - before) * 100 / (time.perf_counter() - began)
    report(f"store requests per minute, {what}", f"{requests:.0f}{bound}")
    report(f"the server, {what}", f"{used:.1f} % of a processor, {memory(server):.0f} MiB")


async def each(address, items, do):
    """Calls `do` with a connection, a number and an item, for all items, on a few connections."""
    numbered = enumerate(items)

    async def work():
        async with Client(address) as client:
            for number, item in numbered:
                # Changes the principal, to stay below the limit of each.
                client.token = f"token-{number % PRINCIPALS}"
                await do(client, number, item)

    await asyncio.gather(*(work() for _ in range(min(HOLDERS, len(items)))))


async def watch(address, principal, opened, events):
    async with Client(address, principal) as client:
        await client.send("GET", "/v1/events")
        status, _ = await client.head()
        assert status == 200, status
        opened.release()
        async for line in client.reader:
            events[0] += line.startswith(b"data:")


async def be_viewers(host, port, count):
    """Runs in a separate process, because reading the events must not slow down the client that measures."""
    opened, events = asyncio.Semaphore(0), [0]
    tasks = [asyncio.create_task(watch((host, port), n % PRINCIPALS, opened, events)) for n in range(count)]
    for _ in tasks:
        await opened.acquire()
    print("open", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(events[0], flush=True)
    os._exit(0)


async def viewers(address, metrics, server, count, locks):
    """Answers question 2."""
    holds = []

    async def hold(client, number, _):
        # The server admits a limited number of new requests per second.
        while (acquired := await client.acquire(f"shown/{number}", ttl="1h"))[0] == 429:
            await asyncio.sleep(0.1)
        status, answer = acquired
        assert status == 201, (status, answer)
        holds.append((client.token, answer))

    async def release(client, _, held):
        client.token, answer = held
        await client.release(answer)

    began = time.perf_counter()
    await each(address, range(locks), hold)
    report(f"acquiring {locks} locks", f"{time.perf_counter() - began:.1f} s")
    await observe(metrics, server, 20, f"no viewer, {locks} locks")
    await latencies(address, f"no viewer, {locks} locks")
    began = time.perf_counter()
    process = await asyncio.create_subprocess_exec(
        sys.executable, __file__, "--be-viewers", *map(str, address), str(count),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )
    assert await process.stdout.readline() == b"open\n"
    report(f"opening {count} event streams", f"{time.perf_counter() - began:.1f} s")
    await observe(metrics, server, 30, f"{count} viewers, {locks} locks", f" (bound: {most_per_minute(locks)})")
    await latencies(address, f"{count} viewers, {locks} locks")
    process.stdin.close()
    report(f"events received by {count} viewers", (await process.stdout.readline()).decode().strip())
    await process.wait()
    while await metric(metrics, "leasehold_viewers"):
        await asyncio.sleep(0.1)
    await observe(metrics, server, 20, "after the viewers left")
    await each(address, holds, release)


async def wait_for(address, number, sent, turns):
    lock = f"crowd/{number // WAITERS_OF_A_LOCK}"
    async with Client(address, number % PRINCIPALS) as client:
        sent.release()
        while True:
            status, answer = await client.acquire(lock, wait="60s")
            if status == 201:
                break
            if status == 429:
                await asyncio.sleep(1)
            elif status != 423:
                raise AssertionError((status, answer))
        turns.append(answer["token"])
        await client.release(answer)


def processor_time(server):
    """Returns the seconds of processor time that the server has used."""
    times = pathlib.Path(f"/proc/{server.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")


def memory(server):
    status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


async def waiters(address, metrics, server, count):
    """Answers question 3."""
    before = memory(server)
    locks = range((count + WAITERS_OF_A_LOCK - 1) // WAITERS_OF_A_LOCK)
    async with Client(address) as client:
        holds = []
        for lock in locks:
            status, hold = await client.acquire(f"crowd/{lock}")
            assert status == 201, (status, hold)
            holds.append(hold)
        sent, turns = asyncio.Semaphore(0), []
        tasks = []
        for number in range(count):
            tasks.append(asyncio.create_task(wait_for(address, number, sent, turns)))
            await asyncio.sleep(1 / 1000)
        for _ in tasks:
            await sent.acquire()
        await asyncio.sleep(5)
        waiting = (memory(server) - before) * 1024 / count
        report(f"memory, {count} waiters", f"{memory(server):.0f} MiB ({before:.0f} before; {waiting:.1f} KiB each)")
        report(f"store requests per minute, {count} waiters", f"{await per_minute(metrics, 20):.0f}")
        await latencies(address, f"{count} waiters")
        for hold in holds:
            await client.ask("POST", "/v1/holds/renew", {"ticket": hold["ticket"]})
        began = time.perf_counter()
        for hold in holds:
            await client.release(hold)
        await asyncio.gather(*tasks)
        took = time.perf_counter() - began
        report(f"{count} grants of {len(locks)} locks, one after another", f"{took:.1f} s, {count / took:.0f} per second")
        report("memory at the end", f"{memory(server):.0f} MiB")


async def run(options, folder):
    tokens = "".join(
        f'[[token]]\nprincipal = "p{n}"\nsha256 = "{hashlib.sha256(f"token-{n}".encode()).hexdigest()}"\n'
        f'[[rule]]\nprincipal = "p{n}"\nallow = ["read", "acquire"]\n'
        for n in range(PRINCIPALS)
    )
    (folder / "access.toml").write_text(tokens)
    store = options.store or f"sqlite:{folder}/locks.db"
    arguments = ["--json", "--store", store, "serve", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"]
    # Three quarters of the connections may be requests that wait. All clients have one address.
    arguments += ["--behind-proxy", "--max-connections", str(4_096 + options.waiters * 4 // 3)]
    server = await asyncio.create_subprocess_exec(
        options.leasehold, *arguments, "--access", folder / "access.toml",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )
    try:
        serving = json.loads(await asyncio.wait_for(server.stdout.readline(), 30))
        address, metrics = (urllib.parse.urlsplit(serving[key]) for key in ("address", "metrics"))
        address, metrics = (address.hostname, address.port), (metrics.hostname, metrics.port)
        drain = asyncio.create_task(server.stdout.read())
        await latencies(address, "no other client")
        if options.viewers:
            await viewers(address, metrics, server, options.viewers, options.locks)
        if options.waiters:
            await waiters(address, metrics, server, options.waiters)
        server.terminate()
        await asyncio.wait_for(server.wait(), 60)
        await drain
    finally:
        if server.returncode is None:
            server.kill()


def main():
    if sys.argv[1:2] == ["--be-viewers"]:
        host, port, count = sys.argv[2:]
        asyncio.run(be_viewers(host, int(port), int(count)))
        return
    parser = argparse.ArgumentParser(description="Measures a `leasehold serve` under many clients.")
    parser.add_argument("leasehold", help="the command, built with the feature `serve` in release mode")
    parser.add_argument("--waiters", type=int, default=10_000, help="requests that wait for a lock (10000; 0: none)")
    parser.add_argument("--viewers", type=int, default=200, help="open event streams (200; 0: none)")
    parser.add_argument("--locks", type=int, default=20, help="held locks that the viewers see (20)")
    parser.add_argument("--store", help="the store URL of the server (a new SQLite file)")
    options = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run(options, pathlib.Path(folder)))


if __name__ == "__main__":
    main()
