// The options of acquisitions, and their conversion to fields of requests.

import { milliseconds, type Duration } from "./duration.js";
import { InvalidError } from "./errors.js";
import type { Guard } from "./guard.js";
import type { HeldBy } from "./holder.js";

/** The options for acquiring a lock. */
export interface LockOptions {
  /** How long the lock outlives this process if it dies without releasing it. From 500 ms; 30 s by default. */
  readonly ttl?: Duration | undefined;
  /** The name that others see for this holder. By default the user and the host. */
  readonly owner?: string | undefined;
  /** A note for others. */
  readonly note?: string | undefined;
  /** How much longer other processes wait after the lease has lapsed, before the lock is granted again. */
  readonly lockDelay?: Duration | undefined;
  /**
   * Limits how long the lock is held, from the grant on. Then it is lost (`limit`), and others get it when its lease has
   * ended.
   */
  readonly maxHold?: Duration | undefined;
  /** How long to keep trying a store that does not respond. */
  readonly storeTimeout?: Duration | undefined;
  /** If `true`, this process does not queue behind other waiters. */
  readonly barge?: boolean | undefined;
  /** Whether the lock will be passed on with {@link Guard.ticket}. */
  readonly forTicket?: boolean | undefined;
}

/** The options for waiting for a lock. */
export interface AcquireOptions extends LockOptions {
  /** How long to wait for the lock. Without this option, there is no limit. */
  readonly wait?: Duration | undefined;
  /** Ends the wait: the acquisition rejects with the signal's reason. */
  readonly signal?: AbortSignal | undefined;
  /**
   * The guards that the caller holds until this call has ended, and does not release before; eight at most. If it would
   * wait for itself, it rejects with {@link DeadlockError} at once. If processes wait for each other in a cycle, the
   * call of one of them rejects with {@link DeadlockError}.
   */
  readonly holding?: Guard | readonly Guard[] | undefined;
  /** Called with the holder while this process waits. */
  readonly onWaiting?: ((heldBy: HeldBy) => void) | undefined;
}

/** Returns the fields of a request for options. JSON omits fields that are `undefined`. */
export function fields(options: AcquireOptions): { [field: string]: unknown } {
  for (const option of Object.keys(options)) {
    if (!KNOWN.has(option)) throw new InvalidError(`there is no option ${JSON.stringify(option)}`);
  }
  return {
    ttl_ms: span("ttl", options.ttl),
    wait_ms: span("wait", options.wait),
    owner: options.owner,
    note: options.note,
    lock_delay_ms: span("lockDelay", options.lockDelay),
    max_hold_ms: span("maxHold", options.maxHold),
    store_timeout_ms: span("storeTimeout", options.storeTimeout),
    barge: options.barge,
    for_ticket: options.forTicket,
    report_waiting: options.onWaiting === undefined ? undefined : true,
  };
}

const KNOWN = new Set([
  ...["ttl", "wait", "owner", "note", "lockDelay", "maxHold", "storeTimeout", "barge", "forTicket", "signal", "holding", "onWaiting"],
]);

/** Merges the settings of a lock with the options of one request. An option that is `undefined` changes no setting. */
export function merged(settings: LockOptions, options: AcquireOptions): AcquireOptions {
  return { ...settings, ...Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined)) };
}

export function span(what: string, duration: Duration | undefined): number | undefined {
  return duration === undefined ? undefined : milliseconds(what, duration);
}
