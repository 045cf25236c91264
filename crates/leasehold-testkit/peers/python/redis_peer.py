"""Takes locks in Redis with the lock of redis-py. What it does and says is written in ../go/peers.go.

    --address HOST:PORT --lock KEY --ttl SECONDS

It does not renew the lock.
"""

import argparse
import sys
import time
from pathlib import Path

import redis
from redis.lock import Lock


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=["hold", "try", "increment"])
    parser.add_argument("--address", required=True)
    parser.add_argument("--lock", required=True)
    parser.add_argument("--ttl", type=int, required=True)
    parser.add_argument("--file", type=Path)
    parser.add_argument("--times", type=int)
    options = parser.parse_args()
    host, _, port = options.address.rpartition(":")
    lock = Lock(redis.Redis(host=host, port=int(port)), options.lock, timeout=options.ttl, sleep=0.05)
    if options.verb == "hold":
        hold(lock)
    elif options.verb == "try":
        attempt(lock)
    else:
        increment(lock, options.file, options.times)


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
        # Neither atomic nor locked: two processes at once lose an addition or read half a number.
        file.write_text(str(number + 1))
        until = since_boot()
        lock.release()
        say(begin, until)


def since_boot():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def say(*words):
    print(*words, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (redis.RedisError, OSError, ValueError) as error:
        print("peer:", error, file=sys.stderr)
        sys.exit(2)
