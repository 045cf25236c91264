"""Real locks for the dashboard's tests: a store on SQLite, `leasehold serve`, and processes that hold locks and wait."""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

LIMIT = 120  # seconds to wait for an event, because a busy machine may be slow
HOSTILE = "<img src=x onerror=\"document.title='hacked'\"><script>document.title='hacked'</script> \u202eevil"
HOSTILE_NAME = "odd/<script>document.title='hacked'</script> & \"quotes\""


class Site:
    """A store, and the processes that use it. They end with the site."""

    def __init__(self, binary):
        self.binary = str(Path(binary).resolve())
        self.folder = tempfile.TemporaryDirectory(prefix="leasehold-ui-")
        self.store = f"sqlite:{self.folder.name}/locks.db"
        self.processes = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            self.stop(process)
        self.folder.cleanup()

    def stop(self, process):
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(LIMIT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def environment(self):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("LEASEHOLD_")}
        return {**kept, "LEASEHOLD_STORE": self.store, "LOGNAME": "ci", "HOME": self.folder.name}

    def command(self, *arguments, check=True):
        done = subprocess.run(
            [self.binary, *arguments], env=self.environment(), capture_output=True, text=True, timeout=LIMIT
        )
        if check and done.returncode != 0:
            raise AssertionError(f"leasehold {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def start(self, *arguments, **options):
        process = subprocess.Popen(
            [self.binary, *arguments], env=self.environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **options,
        )
        self.processes.append(process)
        return process

    def acquire(self, name, ttl="10m", owner="ci", note=None):
        """Holds a lock with a ticket, so no process renews it. Returns the ticket."""
        noted = ["--note", note] if note else []
        return self.command("acquire", name, "--try", "--ttl", ttl, "--owner", owner, *noted).strip()

    def release(self, ticket):
        self.command("release", ticket)

    def hold(self, name, ttl="30s", owner="ci", note="work"):
        """Starts a process that holds a lock until it is stopped. Returns the process when it has the lock."""
        process = self.start("run", name, "-q", "--ttl", ttl, "--owner", owner, "--note", note,
                             "--shell", "--", "echo held; exec sleep 10000")
        assert process.stdout.readline() == "held\n", f"{name} is not held"
        return process

    def wait(self, name, owner, note="waits"):
        """Starts a process that waits for a lock. Returns the process when it is in the line."""
        before = len(self.show(name).get("waiters", []))
        process = self.start("run", name, "-q", "--owner", owner, "--note", note, "--", "sleep", "10000")
        while len(self.show(name).get("waiters", [])) == before:
            assert process.poll() is None, f"{owner} does not wait for {name}"
            time.sleep(0.05)  # the command has no event for a place in the line
        return process

    def show(self, name):
        return json.loads(self.command("show", name, "--json"))

    def serve(self, *arguments):
        """Starts the server. Returns it with its `address` and the operator's `token`."""
        process = self.start("serve", "--listen", "127.0.0.1:0", "--json", *arguments)
        line = json.loads(process.stdout.readline())
        process.address, process.token = line["address"], line["operator_token"]
        return process


def requests(address):
    """Returns how many requests the server has sent to the store for viewers. This call causes none."""
    return count(address, "data-total")


def viewers(address):
    """Returns how many streams of events are open."""
    return count(address, "data-viewers")


def count(address, attribute):
    page = urllib.request.urlopen(f"{address}/ui/store", timeout=LIMIT).read().decode()
    return int(page.split(f'{attribute}="')[1].split('"')[0])


def populate(site):
    """Creates about 40 locks in all states, with waiters and history."""
    people = ["alice", "bob", "carol", "dave", "erin", "frank"]
    notes = ["deploy 4f2c91a", "migrate schema 118", "rotate certificates", "nightly report", "rebuild the index", "restore drill"]

    def past(name, number, last="release"):
        for at in range(number):
            ticket = site.acquire(name, owner=people[at % len(people)], note=notes[(at + len(name)) % len(notes)])
            time.sleep((0.1, 0.7, 0.3, 1.2)[at % 4])  # visible lengths in the timeline
            if at == number - 1 and last == "evict":
                site.command("evict", name, "--token", str(site.show(name)["token"]))
            else:
                site.release(ticket)

    past("deploy/prod/api", 7, last="evict")
    past("deploy/prod/web", 3)
    past("ci/release-notes", 2)
    for at, name in enumerate(["api", "web", "worker", "search"]):
        site.hold(f"deploy/prod/{name}", owner=people[at], note=notes[at], ttl=["30s", "20s", "2m", "1m"][at])
    for at, name in enumerate(["api", "web", "worker"]):
        site.acquire(f"deploy/staging/{name}", owner=people[at + 2], note=notes[at + 1], ttl=["15m", "1h", "10m"][at])
    for at, name in enumerate(["linux", "macos", "windows", "arm64"]):
        site.acquire(f"ci/runner/{name}", owner="ci", note=f"job {4810 + at}", ttl="1h")
    for at in range(1, 7):
        ticket = site.acquire(f"ci/cache/shard-{at}", owner=people[at % 6])
        if at % 3:
            site.release(ticket)
    for at, name in enumerate(["customers", "orders", "invoices", "ledger"]):
        ticket = site.acquire(f"db/migrate/{name}", owner=people[at], note=notes[1])
        if at != 1:
            site.release(ticket)
    for name in ["billing/close-month", "billing/dunning", "search/reindex", "search/warm-up", "mail/digest", "mail/bounces"]:
        ticket = site.acquire(name, owner="cron", note="nightly")
        if name in ("billing/dunning", "search/warm-up", "mail/bounces"):
            site.release(ticket)
    site.acquire("backup/db-1", ttl="1s", owner="cron", note="pg_dump db-1")
    site.acquire("backup/db-2", ttl="1s", owner="cron", note="pg_dump db-2")
    site.command("once", "report/weekly", "--per", "7d", "-q", "--owner", "cron", "--", "true")
    site.acquire(HOSTILE_NAME, owner="<b>mallory</b>", note=HOSTILE, ttl="1h")
    site.acquire("tenant/a-very-long-customer-name-without-any-separator-that-has-to-break-somewhere/export/2026-11-24",
                 owner="service-account-with-a-long-name", note="export of everything " * 5, ttl="1h")
    for name, waiters in [("deploy/prod/api", ["bob", "carol", "dave"]), ("deploy/staging/web", ["erin"]), ("search/reindex", ["ops", "cron"])]:
        for owner in waiters:
            site.wait(name, owner, note=f"{owner}'s change")
