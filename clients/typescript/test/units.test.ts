// Tests durations, lines and clocks.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { InvalidError } from "leasehold";
import { Deadline, mismatch, OtherClocks, type Clocks, type Moment } from "#dist/clocks.js";
import { milliseconds } from "#dist/duration.js";
import { Lines } from "#dist/lines.js";
import { Garbage } from "#dist/message.js";
import { test } from "./fake.js";

test("durations are numbers of milliseconds, texts or durations of Temporal", async () => {
  const kit = new URL("../../conformance/durations.json", import.meta.url);
  const texts = JSON.parse(readFileSync(kit, "utf8")) as readonly [string, number | null][];
  const fails = () => {
    throw new RangeError("a month has no fixed length");
  };
  for (const [given, expected] of [
    ...texts,
    [1500, 1500],
    [0, 0],
    [0.1, 1],
    [-1, null],
    [NaN, null],
    [Infinity, null],
    [{ total: (unit: string) => (unit === "milliseconds" ? 90_000 : NaN) }, 90_000],
    [{ total: fails }, null],
    [null as unknown as string, null],
  ] as const) {
    const read = () => milliseconds("ttl", given);
    if (expected !== null) assert.equal(read(), expected, String(given));
    else assert.throws(read, (error) => error instanceof InvalidError && /^ttl /.test(error.message));
  }
});

test("lines are the same for every division into chunks", async () => {
  const text = "one\n\ntwo ü\nthree";
  const bytes = Buffer.from(text);
  for (let size = 1; size <= bytes.length; size += 1) {
    const [lines, found] = [new Lines(), [] as string[]];
    for (let from = 0; from < bytes.length; from += size) {
      lines.push(bytes.subarray(from, from + size));
      if (size % 2 === 0) continue;
      for (let line; (line = lines.next()) !== null;) found.push(line);
    }
    for (let line; (line = lines.next()) !== null;) found.push(line);
    assert.deepEqual(found, ["one", "", "two ü"]);
  }
});

test("a line at the limit is taken, a longer one is not", async () => {
  const lines = new Lines();
  lines.limit = 5;
  lines.push(Buffer.from("12345\n123"));
  assert.equal(lines.next(), "12345");
  assert.equal(lines.next(), null);
  lines.push(Buffer.from("456"));
  assert.throws(() => lines.next(), Garbage);
});

/** Clocks that a test sets. */
class SetClocks implements Clocks {
  now: Moment | null = { boot: 5_000_000, wall: 900_000_000 };
  constructor(
    readonly sharedBoot: boolean,
    readonly resolution = 0,
  ) {}
  read(): Moment | null {
    return this.now;
  }
}

const message = (boot: number, wall: number, span: number) => ({ boot_us: boot, wall_us: wall, span_us: span });

test("a deadline is judged by the clock on which more time has passed", async () => {
  const clocks = new SetClocks(true);
  const deadline = Deadline.from(message(5_000_000, 900_000_000, 1_000), clocks);
  for (const [boot, wall, remaining] of [
    [0, 0, 1_000],
    [400, 100, 600],
    [100, 400, 600],
    [999, -50_000, 1],
    [1_000, 0, 0],
    [0, 1_000, 0],
  ] as const) {
    clocks.now = { boot: 5_000_000 + boot, wall: 900_000_000 + wall };
    assert.equal(deadline.remaining(), remaining);
  }
  clocks.now = null;
  assert.equal(deadline.remaining(), 0);
});

test("what a clock does not resolve counts as elapsed", async () => {
  const clocks = new SetClocks(true, 10_000);
  const deadline = Deadline.from(message(5_000_000, 900_000_000, 10_001), clocks);
  assert.equal(deadline.remaining(), 1);
});

test("where the boot clocks differ, the age of a message is read from the wall clock", async () => {
  const clocks = new SetClocks(false);
  const deadline = Deadline.from(message(77, 899_999_600, 1_000), clocks);
  assert.equal(deadline.remaining(), 600);
  clocks.now = { boot: 5_000_500, wall: 900_000_000 };
  assert.equal(deadline.remaining(), 100);
  // The wall clock is set back by hand, and the other clock continues.
  clocks.now = { boot: 5_000_600, wall: 1 };
  assert.equal(deadline.remaining(), 0);
  // If a clock cannot be read when a message arrives, nothing is held.
  clocks.now = null;
  const unknown = Deadline.from(message(77, 900_000_000, 1_000), clocks);
  clocks.now = { boot: 5_000_000, wall: 900_000_000 };
  assert.equal(unknown.remaining(), 0);
});

test("the clocks of other systems tick", async () => {
  const clocks = new OtherClocks();
  const [first, second] = [clocks.read(), clocks.read()];
  assert.ok(first !== null && second !== null && second.boot >= first.boot && first.wall > 1e15);
  assert.equal(mismatch(first, message(1, first.wall, 0), second, clocks), null);
  assert.match(mismatch(first, message(1, first.wall - 60_000_000, 0), second, clocks) ?? "", /wall clock/);
});

test("clocks that cannot be read are a mismatch", async () => {
  const moment = { boot: 1, wall: 1 };
  assert.match(mismatch(null, message(1, 1, 1), moment) ?? "", /cannot read/);
  assert.match(mismatch(moment, message(1, 1, 1), null) ?? "", /cannot read/);
});
