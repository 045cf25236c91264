// A lock: a name with settings. Semaphores, readers-writer locks and elections are based on it.

import type { Answer, CallOptions } from "./agent.js";
import { InvalidError, LeaseholdError, LockHeldError, LockLostError, StoreError } from "./errors.js";
import { Guard, settled } from "./guard.js";
import { milliseconds, type Duration } from "./duration.js";
import { readHeldBy, readHolder, type Holder } from "./holder.js";
import { number, object, optional, token, type Message } from "./message.js";
import { inBlock, warnNested, type Claim } from "./nested.js";
import { fields, merged, span, type AcquireOptions, type LockOptions } from "./options.js";

/** Sends a request for a lock to the agent of its locker. @internal */
export type Ask = (
  op: string,
  fields: Message,
  options?: Pick<CallOptions, "signal" | "progress" | "holding">,
) => Promise<Answer>;

/** The work that a lock protects. `signal` aborts when the lock is lost, or when the caller's signal does. */
export type Work<T> = (signal: AbortSignal, guard: Guard) => T | PromiseLike<T>;

/** The options of a job that runs once per period. */
export interface OnceOptions extends AcquireOptions {
  /** The period, from grant to grant. */
  readonly per: Duration;
  /** If `true`, the call does not wait while another process runs the job. */
  readonly noWait?: boolean | undefined;
  /** Whether a failed job counts as run. By default, another process may try it at once. */
  readonly cooldownAfterFailure?: boolean | undefined;
}

/** Whether a job ran here, or has already run within its period. */
export type OnceResult<T> =
  | { readonly ran: true; readonly value: T }
  | {
      readonly ran: false;
      /** The process that ran the job. */
      readonly holder: Holder | null;
      readonly token: bigint | null;
      /** How long ago the job was started, in milliseconds. */
      readonly agoMs: number | null;
      /** The job may run again within this time, in milliseconds. */
      readonly againWithinMs: number | null;
    };

/** The parameters of a call that may leave out the options. @internal */
export type Given<O, T> = readonly [first: O | undefined | Work<T>, second?: Work<T>];

/** Returns the options and the work of a call. Checks the work, because without it nothing would end the hold. @internal */
export function parameters<O extends object, T>([first, second]: Given<O, T>): readonly [Partial<O>, Work<T>] {
  const [options, work] = typeof first === "function" ? [undefined, first] : [first, second];
  if (typeof work !== "function") throw new InvalidError("the work is not a function");
  return [options ?? {}, work];
}

/** A lock: a name with settings. The object itself holds nothing. */
export class Lock {
  readonly #ask: Ask;
  readonly #settings: LockOptions;
  readonly #claim: Claim;
  /** The name. */
  readonly name: string;

  /** @internal */
  constructor(ask: Ask, claim: Claim, settings: LockOptions) {
    this.#ask = ask;
    this.name = claim.name;
    this.#settings = settings;
    this.#claim = claim;
  }

  /**
   * Waits for the lock, runs `work` while holding it, and releases it. Resolves with the result of `work`.
   *
   * If the lock is lost, `signal` aborts and the promise rejects with {@link LockLostError} at once, even if `work`
   * continues. If the caller's signal aborts while `work` runs, `work` should end. The lock is held until `work` has
   * ended.
   *
   * If `work` asks for the same lock again, that call waits, with a warning. With the option `holding`, it rejects with
   * {@link DeadlockError} at once.
   */
  async using<T>(options: AcquireOptions | undefined, work: Work<T>): Promise<T>;
  async using<T>(work: Work<T>): Promise<T>;
  async using<T>(...given: Given<AcquireOptions, T>): Promise<T> {
    const [options, work] = parameters(given);
    return under(this.#claim, await this.acquire(options), options.signal, work);
  }

  /** Waits for the lock. Rejects with {@link LockHeldError} if it is still held after `wait`. */
  async acquire(options: AcquireOptions = {}): Promise<Guard> {
    if (span("wait", options.wait) !== 0) warnNested(this.#claim);
    return guardOf(await this.#request("acquire", options));
  }

  /** Acquires the lock if it is free. Resolves to `null` if it is held. */
  async tryAcquire(options: Omit<AcquireOptions, "wait" | "onWaiting"> = {}): Promise<Guard | null> {
    try {
      return guardOf(await this.#request("try", options));
    } catch (error) {
      if (error instanceof LockHeldError) return null;
      throw error;
    }
  }

  /**
   * Runs a job once per period among all processes that use this name. If `work` fails, another process may run it
   * within the same period. Rejects with {@link StoreError} if the job ran, but the run could not be recorded.
   */
  async once<T>(options: OnceOptions, work: Work<T>): Promise<OnceResult<T>> {
    parameters([options, work]);
    const { per, noWait, cooldownAfterFailure, ...rest } = options;
    const period = milliseconds("per", per);
    if (!noWait && span("wait", options.wait) !== 0) warnNested(this.#claim);
    const answer = await this.#request("once", rest, { period_ms: period, nowait: noWait });
    if (answer.hold === undefined) {
      const { message } = answer;
      return {
        ran: false,
        holder: optional(message, "holder", (holder) => readHolder(object(holder))),
        token: optional(message, "token", token),
        agoMs: optional(message, "ago_ms", number),
        againWithinMs: optional(message, "again_within_ms", number),
      };
    }
    const guard = guardOf(answer);
    const record = () => guard.releaseWithCooldown(period);
    const value = await under(this.#claim, guard, options.signal, work, {
      success: async () => {
        try {
          return await record();
        } catch (error) {
          throw unrecorded(this.name, error);
        }
      },
      failure: () => (cooldownAfterFailure ? record() : guard.release()),
    });
    return { ran: true, value };
  }

  #request(op: string, options: AcquireOptions, more: Message = {}): Promise<Answer> {
    const { signal, onWaiting, holding = [] } = options;
    const request = fields(merged(this.#settings, options));
    return this.#ask(
      op,
      { lock: "locks" in this.#claim.mode ? undefined : this.name, ...this.#claim.mode, ...request, ...more },
      {
        signal,
        holding: (agent) => [holding].flat().map((guard) => guard.numberIn(agent)).filter((number) => number !== null),
        progress: (message) => {
          const held = readHeldBy(object(message["held_by"]));
          // Does not call it here, because an error of the callback is not an error of the agent.
          if (onWaiting !== undefined) queueMicrotask(() => onWaiting(held));
        },
      },
    );
  }
}

function unrecorded(name: string, error: unknown): unknown {
  if (!(error instanceof LeaseholdError)) return error;
  const message = `the job ${JSON.stringify(name)} succeeded, but its run could not be recorded: ${error.message}`;
  return new StoreError(error.kind, message, error.help, false, error);
}

/** Returns the guard of a grant. Throws if the lock is already lost. @internal */
export function guardOf({ agent, hold }: Answer): Guard {
  if (hold === undefined) throw new StoreError("unavailable", "the agent granted no lock");
  const guard = new Guard(agent, hold);
  guard.check();
  return guard;
}

interface Endings {
  success(): Promise<boolean>;
  failure(): Promise<boolean>;
}

/** Runs work under a guard and releases the guard. @internal */
export async function under<T>(
  claim: Claim,
  guard: Guard,
  signal: AbortSignal | undefined,
  work: Work<T>,
  endings: Endings = { success: () => settled(guard.release(), true), failure: () => guard.release() },
): Promise<T> {
  const stop = new AbortController();
  const lost = () => stop.abort(guard.signal.reason);
  const cancelled = () => stop.abort(signal?.reason);
  guard.signal.addEventListener("abort", lost, { once: true });
  signal?.addEventListener("abort", cancelled, { once: true });
  try {
    if (signal?.aborted) throw signal.reason;
    const running = inBlock(claim, guard, async () => work(stop.signal, guard));
    const outcome = await Promise.race([running.then((value) => ({ value })), guard.lost]);
    if (outcome instanceof LockLostError) throw outcome;
    // The release checks whether the deadline has passed. Work that was done after it must not look protected.
    const held = await endings.success();
    if (!held) throw guard.loss ?? new LockLostError(`the lock ${JSON.stringify(guard.lock)} was lost`, "ended");
    return outcome.value;
  } catch (error) {
    if (guard.loss !== null) throw guard.loss;
    await settled(endings.failure(), false);
    throw error;
  } finally {
    guard.signal.removeEventListener("abort", lost);
    signal?.removeEventListener("abort", cancelled);
  }
}
