"""The common part of the Python programs that acquire locks with another client.

../go/peers.go describes their commands. They do not renew their locks.
"""

import argparse
import sys
import time
from pathlib import Path


def main(names, make_lock, errors):
    """Runs the verb of the command line with the lock that make_lock makes from the options.

    names are required options in addition to the common ones. A lock has the methods acquire(blocking=True), which
    returns whether the lock was acquired, and release().
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["hold", "try", "increment"])
    for name in [*names, "lock"]:
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--ttl", type=int, required=True)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--times", type=int)
    options = parser.parse_args()
    try:
        lock = make_lock(options)
        if options.verb == "hold":
            hold(lock)
        elif options.verb == "try":
            attempt(lock)
        else:
            increment(lock, options.file, options.times)
    except (errors, OSError, ValueError) as error:
        print("peer:", error, file=sys.stderr)
        sys.exit(2)


def hold(lock):
    lock.acquire()
    say("granted")
    sys.stdin.read()
    lock.release()
    say("released")


def attempt(lock):
    if not lock.acquire(blocking=False):
        say("held")
        sys.exit(1)
    say("granted")
    lock.release()


def increment(lock, file, times):
    for _ in range(times):
        lock.acquire()
        begin = since_boot()
        number = int(file.read_text())
        # This is neither atomic nor locked. Two processes at once would lose an addition or read half a number.
        file.write_text(str(number + 1))
        until = since_boot()
        lock.release()
        say(begin, until)


def since_boot():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def say(*words):
    print(*words, flush=True)
