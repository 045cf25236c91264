// A held lock.

import type { Agent } from "./agent.js";
import { AgentError, InvalidError, LockLostError, StoreError, UnsupportedError } from "./errors.js";
import type { Hold } from "./hold.js";
import { string } from "./message.js";

/**
 * A held lock. The agent renews it in the background until it is released or lost.
 *
 * A guard that is not released keeps the process alive. With `await using`, the guard releases itself at the end of the
 * block.
 *
 * @example
 * ```ts
 * import { Locker } from "leasehold";
 *
 * const locker = await Locker.open("mem:");
 * const guard = await locker.acquire("deploy/prod", { ttl: "30s", wait: "60s" });
 * try {
 *   guard.check(); // throws LockLostError if the lock is lost
 *   console.log(`write with token ${guard.token}`);
 * } finally {
 *   await guard.release();
 * }
 * await locker.close();
 * ```
 */
export class Guard implements AsyncDisposable {
  readonly #agent: Agent;
  readonly #hold: Hold;
  #released: Promise<boolean> | null = null;
  /** Whether the caller has seen the loss. */
  #reported = false;

  /** @internal */
  constructor(agent: Agent, hold: Hold) {
    this.#agent = agent;
    this.#hold = hold;
  }

  /** Returns the number of the hold, if this agent has it. @internal */
  numberIn(agent: Agent): number | null {
    return this.#agent === agent && this.held ? this.#hold.id : null;
  }

  /**
   * The name of the lock. For a semaphore or a shared lock, the name of the permit. For several locks, their names,
   * separated by commas.
   */
  get lock(): string {
    return this.#hold.lock;
  }

  /**
   * The fencing token: greater than that of every earlier grant of this lock. Send it with every write, and let the
   * resource refuse lower tokens. Throws {@link UnsupportedError} if the store has no tokens, or for several locks.
   */
  get token(): bigint {
    const { token, tokens } = this.#hold;
    if (token !== null) return token;
    throw new UnsupportedError(
      tokens === null ? "this store has no fencing tokens" : `a hold of ${tokens.size} locks has no single token`,
    );
  }

  /**
   * The fencing token of each lock, by its name. There is one, except for {@link Locker.lockAll}. Throws
   * {@link UnsupportedError} if the store has no tokens.
   */
  get tokens(): ReadonlyMap<string, bigint> {
    if (this.#hold.tokens === null) throw new UnsupportedError("this store has no fencing tokens");
    return this.#hold.tokens;
  }

  /**
   * Aborts when the lock is lost, with the {@link LockLostError} as its reason. Does not abort when the lock is
   * released.
   */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  /** Settles with the error when the lock is lost. Stays pending if the lock is released. */
  get lost(): Promise<LockLostError> {
    return this.#hold.lost;
  }

  /**
   * Throws {@link LockLostError} if the lock is lost. Reads the agent's messages and then the clocks, so the result is
   * correct even after the event loop was blocked or the machine slept. Waits for nothing, and takes a few
   * microseconds.
   *
   * Throws {@link InvalidError} after {@link release}.
   */
  check(): void {
    const hold = this.#hold;
    if (hold.isHeld) this.#agent.judge(hold);
    if (hold.loss !== null) {
      this.#reported = true;
      throw hold.loss;
    }
    if (!hold.isHeld) throw new InvalidError(`the lock ${JSON.stringify(hold.lock)} was released`);
  }

  /** Whether the lock is held, determined as in {@link check}. */
  get held(): boolean {
    const hold = this.#hold;
    if (hold.isHeld) this.#agent.judge(hold);
    return hold.isHeld;
  }

  /** For how many milliseconds the lock is certain to be held without another renewal. 0 if it is lost or released. */
  get remaining(): number {
    return this.held ? this.#hold.remaining() / 1_000 : 0;
  }

  /**
   * Renews the lease now. Use it in programs whose clocks may have stopped, such as a serverless function that was
   * frozen. If the promise resolves, the lock was held. Rejects with {@link LockLostError} if the lock was lost.
   */
  async renew(): Promise<void> {
    this.check();
    const hold = this.#hold;
    const renewal = this.#agent.call("renew", { hold: hold.id }).catch((error: unknown) => {
      if (error instanceof LockLostError) this.#agent.lose(hold, error.reason, error.message, error.help);
      else if (hold.isHeld) throw error;
    });
    // Does not use `hold.lost`, which would keep a reaction for each renewal.
    let stop!: () => void;
    const lost = new Promise<void>((resolve) => (stop = resolve));
    hold.signal.addEventListener("abort", stop, { once: true });
    try {
      await Promise.race([renewal, lost]);
    } finally {
      hold.signal.removeEventListener("abort", stop);
    }
    this.check();
  }

  /**
   * Releases the lock. Resolves to `true` if it was held until now, and to `false` if it was lost. Repeated calls do
   * nothing.
   *
   * Rejects with {@link StoreError} if the release did not reach the store. The guard is no longer held in this case
   * either, and the lease lapses.
   */
  release(): Promise<boolean> {
    return (this.#released ??= this.#release({}));
  }

  /** @internal Releases the lock. It is not granted again before `milliseconds` have passed since its grant. */
  releaseWithCooldown(milliseconds: number): Promise<boolean> {
    return (this.#released ??= this.#release({ cooldown_ms: milliseconds }));
  }

  async #release(fields: { readonly [field: string]: number }): Promise<boolean> {
    const hold = this.#hold;
    if (hold.isHeld) this.#agent.judge(hold);
    if (!this.#agent.finish(hold)) return false;
    const { message } = await this.#agent.call("release", { hold: hold.id, ...fields });
    return message["was_held"] === true;
  }

  /**
   * Turns the lock into a ticket, which is a secret text. With it, another process can continue to hold the lock. See
   * {@link Locker.resume}. This guard no longer holds the lock. Nothing renews the lease until the ticket is used.
   */
  async ticket(): Promise<string> {
    this.check();
    const hold = this.#hold;
    this.#agent.finish(hold);
    // The lock was held until now, so work that ends with a ticket has lost nothing.
    this.#released = Promise.resolve(true);
    const { message } = await this.#agent.call("ticket", { hold: hold.id });
    return string(message["ticket"]);
  }

  /** What `console.log` prints. @internal */
  [Symbol.for("nodejs.util.inspect.custom")](): string {
    const { lock, token, isHeld } = this.#hold;
    return `Guard(${JSON.stringify(lock)}, ${token === null ? "" : `token ${token}, `}${isHeld ? "held" : "over"})`;
  }

  /** The loss, if the lock is lost. @internal */
  get loss(): LockLostError | null {
    return this.#hold.loss;
  }

  /**
   * Releases the lock at the end of an `await using` block. Throws {@link LockLostError} if the lock was lost and
   * {@link check} has not reported it. Ignores an error of the store during the release, because the lease lapses.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    // If this is false, the block has ended the hold and has the result.
    const isHeld = this.#released === null && this.#hold.isHeld;
    const wasHeld = await settled(this.release(), true);
    if (this.loss !== null) {
      if (!this.#reported) throw this.loss;
    } else if (isHeld && !wasHeld) {
      throw new LockLostError(`the lock ${JSON.stringify(this.lock)} was lost`, "ended");
    }
  }
}

/**
 * Waits for a release. Returns `otherwise` if it did not reach the store, because this is not an error of the work.
 * @internal
 */
export async function settled(release: Promise<boolean>, otherwise: boolean): Promise<boolean> {
  try {
    return await release;
  } catch (error) {
    if (error instanceof StoreError || error instanceof AgentError) return otherwise;
    throw error;
  }
}
