// Leader election, with observation.

import { Lock, parameters, under, type Ask, type Given, type Work } from "./lock.js";
import type { Guard } from "./guard.js";
import { readHolder, type Holder } from "./holder.js";
import { object, optional, string, token, type Message } from "./message.js";
import type { Claim } from "./nested.js";
import { type AcquireOptions, type LockOptions } from "./options.js";

/** The leader that an observer sees. */
export interface Leader {
  /** The value that the leader advertises, such as its address. */
  readonly value: string | null;
  /** The number of the leader's term, which is the fencing token of its lock. */
  readonly term: bigint | null;
  readonly holder: Holder | null;
}

/** The options of a candidate. */
export interface CampaignOptions extends AcquireOptions {
  /** The value that the leader advertises to observers. At most 1,024 characters. */
  readonly value?: string | undefined;
}

/** An election. At most one process leads, and others can see which one. */
export class Election {
  readonly #ask: Ask;
  readonly #settings: LockOptions;
  readonly #claim: Claim;
  readonly name: string;

  /** @internal */
  constructor(ask: Ask, claim: Claim, settings: LockOptions) {
    this.#ask = ask;
    this.name = claim.name;
    this.#settings = settings;
    this.#claim = claim;
  }

  /** Waits until this process is the leader. Release the guard to resign. */
  async campaign(options: CampaignOptions = {}): Promise<Guard> {
    const { value, ...rest } = options;
    const { mode, ...claim } = this.#claim;
    return new Lock(this.#ask, { ...claim, mode: { ...mode, value } }, this.#settings).acquire(rest);
  }

  /** Waits until this process is the leader, runs `work` as the leader, and resigns. See {@link Lock.using}. */
  async lead<T>(options: CampaignOptions | undefined, work: Work<T>): Promise<T>;
  async lead<T>(work: Work<T>): Promise<T>;
  async lead<T>(...given: Given<CampaignOptions, T>): Promise<T> {
    const [options, work] = parameters(given);
    return under(this.#claim, await this.campaign(options), options.signal, work);
  }

  /** Resolves to the current leader, or to `null` if there is none. */
  async leader(): Promise<Leader | null> {
    return readLeader((await this.#ask("leader", { lock: this.name })).message);
  }

  /**
   * Yields the current leader and then each change, until the caller leaves the loop or the signal aborts, which throws
   * the signal's reason. Skips leaders that come and go while the loop is busy.
   */
  async *observe(
    options: { readonly signal?: AbortSignal | undefined } = {},
  ): AsyncGenerator<Leader | null, void, void> {
    const { signal } = options;
    signal?.throwIfAborted();
    const stop = new AbortController();
    const cancelled = () => stop.abort(signal?.reason);
    signal?.addEventListener("abort", cancelled, { once: true });
    // Keeps only the latest leader.
    let latest: { readonly leader: Leader | null } | null = null;
    let wake = () => {};
    const progress = (message: Message) => {
      latest = { leader: readLeader(message) };
      wake();
    };
    const ended = this.#ask("observe", { lock: this.name }, { signal: stop.signal, progress });
    const failed = ended.then(() => {});
    failed.catch(() => {});
    try {
      for (;;) {
        while (latest === null) {
          await Promise.race([failed, new Promise<void>((resolve) => (wake = resolve))]);
          stop.signal.throwIfAborted();
        }
        const { leader }: { readonly leader: Leader | null } = latest;
        latest = null;
        yield leader;
        stop.signal.throwIfAborted();
      }
    } finally {
      signal?.removeEventListener("abort", cancelled);
      stop.abort();
    }
  }
}

function readLeader(message: Message): Leader | null {
  return optional(message, "leader", (value) => {
    const leader = object(value);
    return {
      value: optional(leader, "value", string),
      term: optional(leader, "term", token),
      holder: optional(leader, "holder", (holder) => readHolder(object(holder))),
    };
  });
}
