// Warns of work that waits for a lock which it runs under. Whether work waits for a call that it has started is unknown.

import { AsyncLocalStorage } from "node:async_hooks";
import type { Guard } from "./guard.js";
import type { Message } from "./message.js";

/** A lock that is held or wanted: its store, its name, and the fields that make it a semaphore or a shared lock. */
export interface Claim {
  readonly store: string | undefined;
  readonly name: string;
  readonly mode: Message;
}

const blocks = new AsyncLocalStorage<readonly { readonly claim: Claim; readonly guard: Guard }[]>();

/** Runs work under a guard. */
export function inBlock<T>(claim: Claim, guard: Guard, work: () => T): T {
  return blocks.run([...(blocks.getStore() ?? []), { claim, guard }], work);
}

/** Warns if the caller runs under this lock: if its work waits for the call, the call waits for itself. */
export function warnNested(wanted: Claim): void {
  const own = (blocks.getStore() ?? []).filter(({ claim, guard }) => guard.held && claim.store === wanted.store);
  const held = new Set(own.flatMap(({ claim, guard }) => several(claim) ?? [guard.lock]));
  if (!waitsFor(wanted, held)) return;
  process.emitWarning(
    `work under the lock ${JSON.stringify(wanted.name)} asks for it again: if the work waits for this call, ` +
      "it waits for itself. Pass the guard to the inner function instead, or in the option `holding`",
    "LeaseholdWarning",
  );
}

/** Returns whether an acquisition waits for one of the `held` locks. */
function waitsFor(wanted: Claim, held: ReadonlySet<string>): boolean {
  const { name, mode } = wanted;
  if (mode["mode"] === "permit") {
    const permits = Array.from({ length: Number(mode["permits"]) }, (_, n) => `${name}/permit-${n + 1}`);
    return permits.length > 0 && permits.every((permit) => held.has(permit));
  }
  const readers = mode["mode"] === "exclusive" && [...held].some((lock) => lock.startsWith(`${name}/shared-`));
  return readers || (several(wanted) ?? [name]).some((lock) => held.has(lock));
}

/** Returns the names of several locks at once. */
function several(claim: Claim): readonly string[] | undefined {
  return claim.mode["locks"] as readonly string[] | undefined;
}
