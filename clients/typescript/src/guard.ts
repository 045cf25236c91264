// A held lock.

import type { Agent } from "./agent.js";
import { AgentError, InvalidError, LockLostError, StoreError, UnsupportedError } from "./errors.js";
import type { Hold } from "./hold.js";
import { string } from "./message.js";

/**
 * A held lock. It is renewed in the background until it is released or lost.
 *
 * A guard that is not released keeps the process alive. Where the language has `await using`, it releases itself.
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

  /** The name of the lock. Of a semaphore or a shared lock, the name of the permit. */
  get lock(): string {
    return this.#hold.lock;
  }

  /**
   * The fencing token: greater than that of every earlier grant of this lock. Send it with every write, and let the
   * resource refuse lower ones. Throws {@link UnsupportedError} if the store has no tokens.
   */
  get token(): bigint {
    if (this.#hold.token === null) throw new UnsupportedError("this store has no fencing tokens");
    return this.#hold.token;
  }

  /** Aborts when the lock is lost, with the {@link LockLostError} as its reason. Not when it is released. */
  get signal(): AbortSignal {
    return this.#hold.signal;
  }

  /** Settles with the error when the lock is lost. Stays pending if it is released. */
  get lost(): Promise<LockLostError> {
    return this.#hold.lost;
  }

  /**
   * Throws {@link LockLostError} if the lock is lost. It reads what the agent has sent, then the clocks, so it is right
   * also after the event loop was blocked or the machine slept. It waits for nothing, and takes some microseconds.
   *
   * After {@link release}, it throws {@link InvalidError}.
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

  /** Whether the lock is held, judged as {@link check} does. */
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
   * Renews the lease now. For programs whose clocks may have stood still, such as a serverless function that was frozen:
   * if this resolves, the lock was held. Rejects with {@link LockLostError} if it was lost.
   */
  async renew(): Promise<void> {
    this.check();
    const hold = this.#hold;
    const renewal = this.#agent.call("renew", { hold: hold.id }).catch((error: unknown) => {
      if (error instanceof LockLostError) this.#agent.lose(hold, error.reason, error.message, error.help);
      else if (hold.isHeld) throw error;
    });
    // Not `hold.lost`, which would keep a reaction of each renewal.
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
   * Releases the lock. Resolves to whether it was held until now; `false` if it was lost. Repeated calls do nothing more.
   *
   * Rejects with {@link StoreError} if the release did not reach the store. The guard is over nevertheless, and the
   * lease ends by itself.
   */
  release(): Promise<boolean> {
    return (this.#released ??= this.#release({}));
  }

  /** @internal Releases the lock, and keeps it from being granted for so long since its grant. */
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
   * Turns the lock into a ticket: a secret text with which another process goes on holding it. See
   * {@link Locker.resume}. This guard is over. The lease is not renewed meanwhile.
   */
  async ticket(): Promise<string> {
    this.check();
    const hold = this.#hold;
    this.#agent.finish(hold);
    // It was held until now: work that ends with a ticket has lost nothing.
    this.#released = Promise.resolve(true);
    const { message } = await this.#agent.call("ticket", { hold: hold.id });
    return string(message["ticket"]);
  }

  /** The loss, if the lock is lost. @internal */
  get loss(): LockLostError | null {
    return this.#hold.loss;
  }

  /**
   * Releases the lock at the end of an `await using` block. Throws {@link LockLostError} if the lock was lost and
   * {@link check} has not said so. An error of the store while releasing is not reported: the lease ends by itself.
   */
  async [Symbol.asyncDispose](): Promise<void> {
    // Otherwise the block has ended the hold, and has the result of that.
    const isHeld = this.#released === null && this.#hold.isHeld;
    const wasHeld = await untold(this.release(), true);
    if (this.loss !== null) {
      if (!this.#reported) throw this.loss;
    } else if (isHeld && !wasHeld) {
      throw new LockLostError(`the lock ${JSON.stringify(this.lock)} was lost`, "ended");
    }
  }
}

/** Waits for a release. Returns `otherwise` if it did not reach the store, which is not an error of the work. @internal */
export async function untold(release: Promise<boolean>, otherwise: boolean): Promise<boolean> {
  try {
    return await release;
  } catch (error) {
    if (error instanceof StoreError || error instanceof AgentError) return otherwise;
    throw error;
  }
}
