// One lock that the agent holds for this process.

import type { Agent } from "./agent.js";
import { Deadline, type Moment } from "./clocks.js";
import { LockLostError, type LossReason } from "./errors.js";
import { number, optional, string, token, type Message } from "./message.js";

export class Hold {
  readonly agent: Agent;
  /** To whom it belongs: see `CallOptions`. */
  readonly owner: object | undefined;
  readonly id: number;
  readonly lock: string;
  readonly token: bigint | null;
  /** Settles with the loss. Stays pending if the hold is released. */
  readonly lost: Promise<LockLostError>;
  #state: "held" | "lost" | "over" = "held";
  #deadline: Deadline;
  #loss: LockLostError | null = null;
  readonly #abort = new AbortController();
  #settle!: (loss: LockLostError) => void;

  constructor(agent: Agent, owner: object | undefined, held: Message) {
    this.agent = agent;
    this.owner = owner;
    this.id = number(held["hold"]);
    this.lock = string(held["lock"]);
    this.token = optional(held, "token", token);
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

  /** How long it is certain to be held, in microseconds. 0 if it is over. */
  remaining(now?: Moment | null): number {
    return this.#state === "held" ? this.#deadline.remaining(now) : 0;
  }

  /**
   * The agent has renewed the lease. A stale renewal changes nothing (rule 5). Whether the deadline that was known has
   * passed does not matter here: it is judged when everything was read. A hold that was given up stays so (rule 3).
   */
  renewed(message: Message): void {
    const deadline = Deadline.from(message);
    if (!deadline.isOlderThan(this.#deadline)) this.#deadline = deadline;
  }

  /** The deadline has passed: the hold is given up for good, before the agent reports it. */
  expire(): void {
    if (this.#state !== "held") return;
    // The agent may be stopped, and renew when it continues: it must let go.
    this.agent.releaseUnasked(this.id);
    this.lose("expired", `the lock ${JSON.stringify(this.lock)} was lost: its lease was not renewed in time`);
  }

  lose(reason: LossReason | (string & {}), message: string, help: readonly string[] = []): void {
    if (this.#state !== "held") return;
    this.#state = "lost";
    this.#loss = new LockLostError(message, reason, help);
    this.agent.forget(this);
    this.#settle(this.#loss);
    this.#abort.abort(this.#loss);
  }

  /** The hold is released or passed on, whatever the agent responds. Returns whether it was held until now. */
  finish(): boolean {
    if (this.#state !== "held") return false;
    this.#state = "over";
    this.agent.forget(this);
    return true;
  }
}
