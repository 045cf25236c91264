// The errors of this package.

import type { HeldBy } from "./holder.js";

/**
 * What went wrong. `agent` means that the command could not be started, or that it died. The agent reports the others.
 */
export type ErrorKind =
  "held" | "lost" | "deadlock" | "unavailable" | "denied" | "invalid" | "unsupported" | "corrupt" | "conflict" | "limit" | "agent";

/** The base of all errors of this package. */
export class LeaseholdError extends Error {
  /** What went wrong. */
  readonly kind: ErrorKind;
  /** Advice for people on what to do about the error. Often empty. */
  readonly help: readonly string[];

  constructor(kind: ErrorKind, message: string, help: readonly string[] = [], options?: ErrorOptions) {
    super(message, options);
    this.name = new.target.name;
    this.kind = kind;
    this.help = help;
  }
}

/** Another process has the lock. */
export class LockHeldError extends LeaseholdError {
  /** The process that has the lock, and for how long. `null` if nothing is known about the holder. */
  readonly heldBy: HeldBy | null;

  constructor(message: string, help: readonly string[], heldBy: HeldBy | null) {
    super("held", message, help);
    this.heldBy = heldBy;
  }

  /** The holder, or `null` if it is not known. Other machines wrote its texts, so check them before you print them. */
  get holder(): HeldBy["holder"] {
    return this.heldBy?.holder ?? null;
  }
}

/**
 * Why a lock was lost.
 *
 * - `expired`: the lease was not renewed in time.
 * - `limit`: the lock was held for as long as {@link LockOptions.maxHold} allows.
 * - `taken_over`, `ended` (evicted, or released through a ticket), `deleted`, `renewed_elsewhere`: reported by the
 *   store.
 * - `agent`: the agent died, or sent a message that this package does not understand.
 * - `refused`: a write was refused because a holder with a higher token has written.
 */
export type LossReason =
  "expired" | "limit" | "taken_over" | "ended" | "deleted" | "renewed_elsewhere" | "agent" | "refused";

/** The lock was lost. Stop the work that it protected: another process may have the lock. */
export class LockLostError extends LeaseholdError {
  /** Why the lock was lost. A later agent may report reasons that are not in {@link LossReason}. */
  readonly reason: LossReason | (string & {});
  /** With the reason `refused`, the token that has written, if the store knows it. */
  readonly refusedBy: bigint | null;

  constructor(
    message: string,
    reason: LossReason | (string & {}),
    help: readonly string[] = [],
    refusedBy: bigint | null = null,
  ) {
    super("lost", message, help);
    this.reason = reason;
    this.refusedBy = refusedBy;
  }
}

/** The store failed: it cannot be reached, refuses the credentials, or has contents that cannot be understood. */
export class StoreError extends LeaseholdError {
  /** For writes of objects: whether the write may have been applied, or may be applied later. */
  readonly maybeApplied: boolean;

  constructor(kind: ErrorKind, message: string, help: readonly string[] = [], maybeApplied = false, cause?: unknown) {
    super(kind, message, help, cause === undefined ? undefined : { cause });
    this.maybeApplied = maybeApplied;
  }
}

/**
 * Work that runs under a lock (`using`, `once`, `lead`) would wait forever: for the same lock, or for other work that
 * waits for a lock that this one holds.
 */
export class DeadlockError extends LeaseholdError {
  constructor(message: string, help: readonly string[] = []) {
    super("deadlock", message, help);
  }
}

/** A URL, a name, a number or an option is invalid. Nothing was done. */
export class InvalidError extends LeaseholdError {
  constructor(message: string, help: readonly string[] = []) {
    super("invalid", message, help);
  }
}

/**
 * The store has another number of permits or readers for this name. `Locker.resize` changes it while nobody holds the
 * lock.
 */
export class SizeError extends InvalidError {
  /** The number that the acquisition asked for. */
  readonly asked: number;
  /** The number in the store. */
  readonly stored: number;

  constructor(message: string, asked: number, stored: number, help: readonly string[] = []) {
    super(message, help);
    this.asked = asked;
    this.stored = stored;
  }
}

/** The store, or this version of the command, does not support the operation. */
export class UnsupportedError extends LeaseholdError {
  constructor(message: string, help: readonly string[] = []) {
    super("unsupported", message, help);
  }
}

/**
 * The `leasehold` command could not be started, is too old, has other clocks than this process, or died. All locks that
 * it held are lost. The next operation starts the command again.
 */
export class AgentError extends LeaseholdError {
  /** For writes of objects: whether the write may have been applied, or may be applied later. */
  readonly maybeApplied: boolean;

  constructor(message: string, help: readonly string[] = [], maybeApplied = false) {
    super("agent", message, help);
    this.maybeApplied = maybeApplied;
  }
}
