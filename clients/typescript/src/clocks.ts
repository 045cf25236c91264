// Deadlines, and the two clocks that they are measured with. All figures are in microseconds.

import { closeSync, openSync, readSync } from "node:fs";
import { Garbage, number, type Message } from "./message.js";

/** A reading of both clocks. */
export interface Moment {
  /** The boot clock, which also counts while the machine sleeps. */
  readonly boot: number;
  readonly wall: number;
}

/** Two clocks. */
export interface Clocks {
  /** Reads both clocks. Returns `null` if one cannot be read. No lock counts as held then. */
  read(): Moment | null;
  /** How far a reading may be below the time. */
  readonly resolution: number;
  /** Whether `boot` is the number that the agent calls `boot_us`. */
  readonly sharedBoot: boolean;
}

// Keeps the original functions, because test frameworks replace them with clocks that stand still.
const dateNow = Date.now.bind(Date);
const hrtime = process.hrtime.bigint.bind(process.hrtime);

/** Linux: /proc/uptime contains the boot clock, in hundredths of a second. */
class LinuxClocks implements Clocks {
  readonly resolution = 10_000;
  readonly sharedBoot = true;
  readonly #buffer = Buffer.alloc(64);
  #file: number | null = null;

  read(): Moment | null {
    try {
      this.#file ??= openSync("/proc/uptime", "r");
      const length = readSync(this.#file, this.#buffer, 0, this.#buffer.length, 0);
      const found = /^(\d{1,10})\.(\d\d) /.exec(this.#buffer.toString("latin1", 0, length));
      if (found === null) return null;
      return { boot: Number(found[1]) * 1_000_000 + Number(found[2]) * 10_000, wall: dateNow() * 1_000 };
    } catch {
      if (this.#file !== null) closeSync(this.#file);
      this.#file = null;
      return null;
    }
  }
}

/**
 * macOS: `process.hrtime` counts while the machine sleeps, but it is not the agent's clock. It measures how long ago a
 * message was read. Only the wall clock shows how old the message was at that time.
 */
export class OtherClocks implements Clocks {
  readonly resolution = 1_000;
  readonly sharedBoot = false;

  read(): Moment | null {
    return { boot: Number(hrtime() / 1_000n), wall: dateNow() * 1_000 };
  }
}

export const clocks: Clocks = process.platform === "linux" ? new LinuxClocks() : new OtherClocks();

/** How much the clocks of host and agent may seem to differ. */
const TOLERANCE = 50_000;

/** The time until which a lock is held. */
export class Deadline {
  readonly #start: Moment;
  readonly #span: number;
  readonly #clocks: Clocks;
  /** Whether it is the limit of the hold. */
  readonly isLimit: boolean;

  private constructor(start: Moment, span: number, isLimit: boolean, of: Clocks) {
    this.#start = start;
    this.#span = span;
    this.isLimit = isLimit;
    this.#clocks = of;
  }

  /** Reads the deadline in a message that has just arrived. */
  static from(message: Message, of: Clocks = clocks): Deadline {
    let boot = number(message["boot_us"]);
    const [wall, span] = [number(message["wall_us"]), number(message["span_us"])];
    if (span < 0) throw new Garbage("a negative span");
    const now = of.read();
    if (of.sharedBoot) {
      if (now !== null && boot > now.boot + TOLERANCE) throw new Garbage("a deadline that begins in the future");
    } else {
      // If a clock cannot be read, `remaining` is 0.
      boot = now === null ? -Infinity : now.boot - Math.max(0, now.wall - wall);
    }
    return new Deadline({ boot, wall }, span, message["at_limit"] === true, of);
  }

  /** Returns how long the lock is certain to be held, by the clock on which more time has passed. */
  remaining(now: Moment | null = this.#clocks.read()): number {
    if (now === null) return 0;
    const elapsed = Math.max(now.boot - this.#start.boot, now.wall - this.#start.wall);
    return Math.max(0, this.#span - elapsed - this.#clocks.resolution);
  }

  /** Returns whether the span of this deadline began before that of `other`. */
  isOlderThan(other: Deadline): boolean {
    return this.#start.boot < other.#start.boot;
  }
}

/**
 * Returns how the clocks of the agent differ from those of this process, or `null` if they are the same. `hello` is the
 * agent's message, received between the two readings.
 */
export function mismatch(
  before: Moment | null,
  hello: Message,
  after: Moment | null,
  of: Clocks = clocks,
): string | null {
  if (before === null || after === null) return "this process cannot read its clocks";
  const differs = (low: number, agent: number, high: number): string | null => {
    if (agent < low - TOLERANCE) return `${Math.ceil((low - agent) / 1_000)} ms behind`;
    if (agent > high + TOLERANCE) return `${Math.ceil((agent - high) / 1_000)} ms ahead of`;
    return null;
  };
  const boot = of.sharedBoot ? differs(before.boot, number(hello["boot_us"]), after.boot) : null;
  if (boot !== null) return `the boot clock of the agent is ${boot} /proc/uptime of this process`;
  const wall = differs(before.wall, number(hello["wall_us"]), after.wall);
  return wall === null ? null : `the wall clock of the agent is ${wall} the one of this process`;
}
