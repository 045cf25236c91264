// Detects work that waits for a lock which it runs under, and tells the agent under which locks work waits.

import { AsyncLocalStorage } from "node:async_hooks";
import type { Agent } from "./agent.js";
import { DeadlockError } from "./errors.js";
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

/** Throws {@link DeadlockError} if the caller runs under this lock, and so would wait for itself. */
export function forbidNested(wanted: Claim): void {
  const held = (blocks.getStore() ?? []).filter(({ claim, guard }) => guard.held && excludes(claim, wanted));
  if (held.length === 0 || held.length < Number(wanted.mode["permits"] ?? 1)) return;
  throw new DeadlockError(`this work holds ${JSON.stringify(wanted.name)} and would wait for itself`, [
    "a lock is not reentrant: pass the guard to the inner function instead",
  ]);
}

/** Returns the numbers of the holds under which the caller runs, the innermost first, for the agent that has them. */
export function holding(): (agent: Agent) => number[] {
  const guards = (blocks.getStore() ?? []).map(({ guard }) => guard).reverse();
  return (agent) => guards.map((guard) => guard.numberIn(agent)).filter((number) => number !== null);
}

function excludes(held: Claim, wanted: Claim): boolean {
  const shared = held.mode["mode"] === "shared" && wanted.mode["mode"] === "shared";
  return held.store === wanted.store && names(held).some((name) => names(wanted).includes(name)) && !shared;
}

/** Returns the locks of a claim: one, except for several locks at once. */
function names(claim: Claim): readonly unknown[] {
  const several = claim.mode["locks"];
  return Array.isArray(several) ? several : [claim.name];
}
