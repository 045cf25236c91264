// The state of a lock that the agent holds for this process. `Agent` changes this state.

import { Deadline, type Moment } from "./clocks.js";
import { LockLostError, type LossReason } from "./errors.js";
import { list, number, object, optional, string, token, type Message } from "./message.js";

export class Hold {
  /** The owner of the hold: see `CallOptions`. */
  readonly owner: object | undefined;
  readonly id: number;
  readonly lock: string;
  readonly token: bigint | null;
  /** The token of each lock. `null` if the store has no tokens. */
  readonly tokens: ReadonlyMap<string, bigint> | null;
  /** Settles with the loss. Stays pending if the hold is released. */
  readonly lost: Promise<LockLostError>;
  #state: "held" | "lost" | "over" = "held";
  #deadline: Deadline;
  #loss: LockLostError | null = null;
  readonly #abort = new AbortController();
  #settle!: (loss: LockLostError) => void;

  constructor(owner: object | undefined, held: Message) {
    this.owner = owner;
    this.id = number(held["hold"]);
    this.token = optional(held, "token", token);
    const several = optional(held, "locks", (locks) => list(locks).map(string)) ?? [];
    this.lock = several.length > 1 ? several.join(", ") : string(held["lock"]);
    const tokens = optional(held, "tokens", (tokens) =>
      Object.entries(object(tokens)).map(([lock, value]) => [lock, token(value)] as const),
    );
    this.tokens = tokens !== null ? new Map(tokens) : this.token === null ? null : new Map([[this.lock, this.token]]);
    this.#deadline = Deadline.from(held);
    this.lost = new Promise((settle) => (this.#settle = settle));
  }

  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  get loss(): LockLostError | null {
    return this.#loss;
  }

  get isHeld(): boolean {
    return this.#state === "held";
  }

  /** Returns how long the lock is certain to be held, in microseconds. Returns 0 if the hold is over. */
  remaining(now?: Moment | null): number {
    return this.#state === "held" ? this.#deadline.remaining(now) : 0;
  }

  /** Whether the deadline is the limit of the hold. */
  get isAtLimit(): boolean {
    return this.#deadline.isLimit;
  }

  /**
   * Applies a renewal by the agent. A stale renewal changes nothing (rule 5). Does not check whether the known deadline
   * has passed, because it is checked after all messages were read. A hold that was given up stays given up (rule 3).
   */
  renewed(message: Message): void {
    const deadline = Deadline.from(message);
    if (!deadline.isOlderThan(this.#deadline)) this.#deadline = deadline;
  }

  /** Marks a held lock as lost. Runs user code. */
  lose(reason: LossReason | (string & {}), message: string, help: readonly string[]): void {
    this.#state = "lost";
    this.#loss = new LockLostError(message, reason, help);
    this.#settle(this.#loss);
    this.#abort.abort(this.#loss);
  }

  /** Marks a held lock as released or passed on. */
  finish(): void {
    this.#state = "over";
  }
}
