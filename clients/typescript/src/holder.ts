// Holders of locks, as other processes see them.

import { flag, list, number, object, optional, string, token, type Message } from "./message.js";

/**
 * A process that has a lock, had it, or waits for it. Other machines wrote these texts, so check them before you print
 * them.
 */
export interface Holder {
  readonly name: string | null;
  readonly host: string | null;
  /** The process id, usually of an agent or of a command. 0 for a ticket. */
  readonly pid: number | null;
  readonly note: string | null;
  /** The value that a leader advertises. */
  readonly value: string | null;
  /** The limit of the hold in milliseconds, from the grant on. */
  readonly maxHoldMs: number | null;
}

/** The grant because of which a lock is not free. */
export interface HeldBy {
  readonly holder: Holder | null;
  readonly token: bigint | null;
  /** How long the holder has had the lock, in milliseconds. */
  readonly heldMs: number | null;
  /** If the lock is reserved: for how many milliseconds it has been free. */
  readonly freeMs: number | null;
  /** If the holder is dead, its lease ends within this time, in milliseconds. */
  readonly lapsesWithinMs: number | null;
  /** Whether the lock is in its cooldown. No process holds it then. */
  readonly inCooldown: boolean;
  /** Whether the lock is reserved for the first waiter. No process holds it then. */
  readonly reserved: boolean;
  /** The description of a holder that leasehold did not write. */
  readonly foreign: string | null;
  /** How many processes wait before this one. */
  readonly ahead: number | null;
  /** The process that waits directly before this one. `null` for the first in line, or if it is unknown. */
  readonly waiterAhead: Holder | null;
}

/** @internal */
export function readHolder(value: Message): Holder {
  return {
    name: optional(value, "name", string),
    host: optional(value, "host", string),
    pid: optional(value, "pid", number),
    note: optional(value, "note", string),
    value: optional(value, "value", string),
    maxHoldMs: optional(value, "max_hold_ms", number),
  };
}

/** @internal */
export function readHeldBy(value: Message): HeldBy {
  return {
    holder: optional(value, "holder", (inner) => readHolder(object(inner))),
    token: optional(value, "token", token),
    heldMs: optional(value, "held_ms", number),
    freeMs: optional(value, "free_ms", number),
    lapsesWithinMs: optional(value, "lapses_within_ms", number),
    inCooldown: optional(value, "in_cooldown", flag) ?? false,
    reserved: optional(value, "reserved", flag) ?? false,
    foreign: optional(value, "foreign", (inner) => (typeof inner === "string" ? inner : JSON.stringify(inner))),
    ahead: optional(value, "ahead", number),
    waiterAhead: optional(value, "waiter_ahead", (inner) => readHolder(object(inner))),
  };
}

/** An earlier or the current grant of a lock. */
export interface PastGrant {
  readonly token: bigint | null;
  /** How the grant ended, such as `released`. `null` if it has not ended. */
  readonly end: string | null;
  readonly from: Date | null;
  readonly until: Date | null;
  readonly holder: Holder | null;
  /** Who evicted the holder and why, if it was evicted and the store knows. Another machine wrote these texts. */
  readonly evicted: { readonly by: string; readonly reason: string } | null;
}

/** The state of a lock. */
export interface LockStatus {
  readonly lock: string;
  readonly state: "free" | "held" | "reserved" | "cooldown" | "lapsed" | (string & {});
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
      evicted: optional(past, "evicted", (value) => {
        const why = object(value);
        return { by: string(why["by"]), reason: string(why["reason"]) };
      }),
    })),
  };
}
