#!/usr/bin/env python3
"""Plays the part of `leasehold agent` by a script, to test clients against agents that misbehave. See README.md."""

import json
import os
import pathlib
import sys
import time

BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def clocks(ago_us=0, boot_ago_us=None, wall_ago_us=None):
    """Returns the readings of both clocks some time ago."""
    return {
        "boot_us": time.clock_gettime_ns(BOOT) // 1_000 - (ago_us if boot_ago_us is None else boot_ago_us),
        "wall_us": time.time_ns() // 1_000 - (ago_us if wall_ago_us is None else wall_ago_us),
    }


class Script:
    def __init__(self, steps):
        self.steps = list(steps)
        self.ids = {}

    def run(self):
        for number, step in enumerate(self.steps):
            (kind, value), = ((key, step[key]) for key in ("expect", "expect_all", "send", "raw", "fill", "exit", "end") if key in step)
            if kind == "expect":
                self.expect(number, value)
            elif kind == "expect_all":
                wanted = list(value)
                while wanted:
                    self.expect_one_of(number, wanted)
            elif kind == "send":
                self.write("".join(self.line(message) for message in value))
            elif kind == "raw":
                self.write(value)
            elif kind == "fill":
                self.write("x" * value)
            elif kind == "exit":
                return report("done")
            elif kind == "end":
                while line := sys.stdin.readline():
                    if json.loads(line)["op"] not in value:
                        return report(f"step {number}: unexpected {line}")
                return report("done")
        return report("done")

    def expect(self, number, wanted):
        self.expect_one_of(number, [wanted])

    def expect_one_of(self, number, wanted):
        """Reads a request and removes it from `wanted`."""
        line = sys.stdin.readline()
        request = json.loads(line) if line else {}
        for one in wanted:
            if all(request.get(key) == value for key, value in one.items()):
                wanted.remove(one)
                self.ids[request["op"]] = request["id"]
                return
        raise SystemExit(report(f"step {number}: {line or 'end of file'!r} instead of {wanted}"))

    def line(self, template):
        message = dict(template)
        if "to" in message:
            message["id"] = self.ids[message.pop("to")]
        if "clocks" in message:
            message.update(clocks(**message.pop("clocks")))
        return json.dumps(message) + "\n"

    @staticmethod
    def write(text):
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except BrokenPipeError:
            pass


def report(outcome):
    """Records the outcome of the script: what the client did wrong, or `done`. A client may kill this process at any
    time, so the file is renamed once it is complete."""
    log = pathlib.Path(os.environ["LEASEHOLD_SCENARIO_LOG"])
    written = log.with_suffix(".new")
    written.write_text(outcome)
    written.replace(log)
    return 0


if __name__ == "__main__":
    scenarios = json.loads(pathlib.Path(__file__).with_name("scenarios.json").read_text())
    chosen = next(one for one in scenarios if one["name"] == os.environ["LEASEHOLD_SCENARIO"])
    hello = [{"expect": {"op": "hello", "protocol": 1}}]
    greeting = {"to": "hello", "ev": "hello", "protocol": 1, "version": "0", "pid": os.getpid(), "clocks": {}}
    if chosen.get("greets", True):
        hello.append({"send": [greeting]})
    sys.exit(Script(hello + chosen["script"]).run())
