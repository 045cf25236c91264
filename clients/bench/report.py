"""Prints the figures of `./bench-clients` as tables: report.py ROUNDS MEMORY."""

from __future__ import annotations

import json
import statistics
import sys

rounds = [json.loads(line) for line in open(sys.argv[1])]
memory = json.load(open(sys.argv[2]))
#: Pairs of contenders that are compared, in the same round.
ROWS = [
    ("python leasehold, SQLite", "rust leasehold, SQLite"),
    ("node leasehold, SQLite", "rust leasehold, SQLite"),
    ("go leasehold, SQLite", "rust leasehold, SQLite"),
    ("ruby leasehold, SQLite", "rust leasehold, SQLite"),
    ("python leasehold, Redis", "rust leasehold, Redis"),
    ("node leasehold, Redis", "rust leasehold, Redis"),
    ("go leasehold, Redis", "rust leasehold, Redis"),
    ("ruby leasehold, Redis", "rust leasehold, Redis"),
    ("python leasehold, DynamoDB", "rust leasehold, DynamoDB"),
    ("node leasehold, DynamoDB", "rust leasehold, DynamoDB"),
    ("python leasehold, Redis", "python redis-py, Redis"),
    ("python leasehold, Redis", "python python-redis-lock, Redis"),
    ("node leasehold, Redis", "node redlock, Redis"),
    ("python leasehold, DynamoDB", "python python-dynamodb-lock, DynamoDB"),
    ("node leasehold, DynamoDB", "node dynamodb-lock-client, DynamoDB"),
    ("python leasehold, SQLite", "python filelock, file"),
    ("node leasehold, SQLite", "node proper-lockfile, file"),
]


def median_ms(round: dict[str, list[float]], name: str) -> float:
    return statistics.median(round[name]) * 1_000


def spread(values: list[float], unit: str) -> str:
    return f"{statistics.median(values):.2f}{unit} ({min(values):.2f} to {max(values):.2f})"


print("| acquire and release | median | another lock | median | ratio |\n|---|---|---|---|---|")
for ours, theirs in [pair for pair in ROWS if all(name in rounds[0] for name in pair)]:
    us, them = ([median_ms(round, name) for round in rounds] for name in (ours, theirs))
    ratios = [a / b for a, b in zip(us, them)]
    print(f"| {ours} | {spread(us, ' ms')} | {theirs} | {spread(them, ' ms')} | {spread(ratios, '')} |")
starts = [median_ms(round, "start of an agent") for round in rounds]
print(f"\nThe start of an agent, to its first response: {spread(starts, ' ms')}.")
print(
    f"The memory of {memory['agents']} agents of prefork workers, each with a held lock: "
    f"{memory['proportional_mib']:.0f} MiB together (PSS), {memory['private_each_mib']:.1f} MiB private each; "
    f"one alone: {memory['one_alone_mib']:.0f} MiB (RSS)."
)
