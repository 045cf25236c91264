// How others see the holder of a lock.

import { flag, list, number, object, optional, string, token, type Message } from "./message.js";

/** A process that has a lock, had it, or waits for it. Other machines wrote these texts: check them before you print them. */
export interface Holder {
  readonly name: string | null;
  readonly host: string | null;
  /** Process id; 0 for a ticket. Usually the process id of an agent or of a command. */
  readonly pid: number | null;
  readonly note: string | null;
  /** What a leader advertises. */
  readonly value: string | null;
}

/** What is known about the grant that keeps a lock from being free. */
export interface HeldBy {
  readonly holder: Holder | null;
  readonly token: bigint | null;
  /** How long it has had the lock, in milliseconds. */
  readonly heldMs: number | null;
  /** If it is dead, its lease ends within this time, in milliseconds. */
  readonly lapsesWithinMs: number | null;
  /** No process holds the lock: it is in its cooldown. */
  readonly inCooldown: boolean;
  /** No process holds the lock: it is reserved for the first waiter. */
  readonly reserved: boolean;
  /** What is known about a holder that leasehold did not write. */
  readonly foreign: string | null;
  /** How many wait before this process. */
  readonly ahead: number | null;
  /** Who waits directly before this process. `null` for the first in line, or if it is unknown. */
  readonly behind: Holder | null;
}

/** @internal */
export function readHolder(value: Message): Holder {
  return {
    name: optional(value, "name", string),
    host: optional(value, "host", string),
    pid: optional(value, "pid", number),
    note: optional(value, "note", string),
    value: optional(value, "value", string),
  };
}

/** @internal */
export function readHeldBy(value: Message): HeldBy {
  return {
    holder: optional(value, "holder", (inner) => readHolder(object(inner))),
    token: optional(value, "token", token),
    heldMs: optional(value, "held_ms", number),
    lapsesWithinMs: optional(value, "lapses_within_ms", number),
    inCooldown: optional(value, "in_cooldown", flag) ?? false,
    reserved: optional(value, "reserved", flag) ?? false,
    foreign: optional(value, "foreign", (inner) => (typeof inner === "string" ? inner : JSON.stringify(inner))),
    ahead: optional(value, "ahead", number),
    behind: optional(value, "behind", (inner) => readHolder(object(inner))),
  };
}

/** One earlier or present grant of a lock. */
export interface PastGrant {
  readonly token: bigint | null;
  /** How it ended, such as `released`. `null` if it has not ended. */
  readonly end: string | null;
  readonly from: Date | null;
  readonly until: Date | null;
  readonly holder: Holder | null;
}

/** The state of a lock. */
export interface LockStatus {
  readonly lock: string;
  readonly state: "free" | "held" | "lapsed" | "cooldown" | (string & {});
  readonly heldBy: HeldBy | null;
  /** The token of the latest grant. */
  readonly token: bigint | null;
  readonly waiters: readonly { readonly holder: Holder | null; readonly waitedMs: number | null }[];
  readonly history: readonly PastGrant[];
}

/** @internal */
export function readStatus(answer: Message): LockStatus {
  const holder = (value: Message) => optional(value, "holder", (inner) => readHolder(object(inner)));
  const date = (value: unknown) => new Date(number(value) / 1000);
  return {
    lock: string(answer["lock"]),
    state: string(answer["state"]),
    heldBy: optional(answer, "held_by", (inner) => readHeldBy(object(inner))),
    token: optional(answer, "token", token),
    waiters: (optional(answer, "waiters", list) ?? []).map(object).map((waiter) => ({
      holder: holder(waiter),
      waitedMs: optional(waiter, "waited_ms", number),
    })),
    history: (optional(answer, "history", list) ?? []).map(object).map((past) => ({
      token: optional(past, "token", token),
      end: optional(past, "end", string),
      from: optional(past, "from_us", date),
      until: optional(past, "until_us", date),
      holder: holder(past),
    })),
  };
}
