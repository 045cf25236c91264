"""Acquires locks in Redis with the lock of redis-py.

    --address HOST:PORT --lock KEY --ttl SECONDS
"""

import redis
from redis.lock import Lock

import peer


def lock(options):
    host, _, port = options.address.rpartition(":")
    return Lock(redis.Redis(host=host, port=int(port)), options.lock, timeout=options.ttl, sleep=0.05)


if __name__ == "__main__":
    peer.main(["address"], lock, redis.RedisError)
