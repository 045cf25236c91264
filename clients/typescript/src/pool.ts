// One agent for each command in this process (and in each worker thread, which has its own modules).

import { Agent } from "./agent.js";

/** How long an idle agent is kept. */
const IDLE_MS = 60_000;

/** Starts the agent of one command on demand. */
export class Pool {
  static readonly #pools = new Map<string, Pool>();

  static of(command: string): Pool {
    const pool = this.#pools.get(command) ?? new Pool(command);
    this.#pools.set(command, pool);
    return pool;
  }

  readonly #command: string;
  #starting: Promise<Agent> | null = null;
  #agent: Agent | null = null;
  idleMs = IDLE_MS;

  private constructor(command: string) {
    this.#command = command;
  }

  /** The running agent, if there is one. */
  get current(): Agent | null {
    return this.#agent?.isOpen ? this.#agent : null;
  }

  /** Returns the running agent, or starts a new one if there is none. */
  async agent(): Promise<Agent> {
    if (this.current !== null) return this.current;
    this.#starting ??= Agent.start(this.#command, this.idleMs).finally(() => (this.#starting = null));
    return (this.#agent = await this.#starting);
  }
}
