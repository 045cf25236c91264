// The agent: the child process that holds locks for this process. Starts it, sends requests, reads messages and ends
// it.
//
// Comments name the rules in docs/agent.md, "What a client must do", where the code implements them.

import { readSync } from "node:fs";
import { clearTimeout, setTimeout } from "node:timers";
import { clocks, mismatch } from "./clocks.js";
import { AgentError, InvalidError, StoreError, type LossReason } from "./errors.js";
import { Hold } from "./hold.js";
import { Lines } from "./lines.js";
import { excerpt, Garbage, number, object, optional, parse, string, type Message } from "./message.js";
import { AgentProcess } from "./process.js";
import { refusal } from "./refusal.js";

const PROTOCOL = 1;
/** How many holds the agent reads. */
const MAX_HOLDING = 8;
/** How long the command may take to respond with `hello`. */
const START_LIMIT_MS = 30_000;
/** How often deadlines are checked. Timers stop while the machine sleeps. */
const WATCH_MS = 1_000;
/** The number of bytes in a read. */
const CHUNK = 65_536;

// The original function, as in the module of the clocks.
const monotonic = performance.now.bind(performance);

/** The final response to a request. */
export interface Answer {
  readonly agent: Agent;
  readonly message: Message;
  /** The hold of a `held` message. */
  readonly hold?: Hold;
}

export interface CallOptions {
  /** Cancels the request. */
  readonly signal?: AbortSignal | undefined;
  /** Returns the numbers of the holds that the caller keeps while it waits. */
  readonly holding?: ((agent: Agent) => number[]) | undefined;
  /** Gets the messages before the final response. */
  readonly progress?: ((message: Message) => void) | undefined;
  /** The owner of the request and its hold. {@link Agent.abandon} ends both. */
  readonly owner?: object | undefined;
}

interface Pending {
  readonly op: string;
  readonly options: CallOptions;
  /** The caller no longer waits for the response. */
  abandoned: boolean;
  succeed(answer: Answer): void;
  fail(error: unknown): void;
}

/** Half of a character in a line of JSON, in which all other characters are written as they are. */
const LONE_SURROGATE = /(?<!\\)(?:\\\\)*\\ud[89a-f]/;
/** The requests that write an object. */
const WRITES = new Set(["put", "update", "answer"]);
/** The messages before the final response. */
const PROGRESS = new Set(["waiting", "names", "leader", "content"]);
/** The final responses, besides `error`. */
const FINAL = new Set([
  ...["hello", "held", "already_ran", "released", "renewed", "done", "ticket", "ticket_renewed", "status", "evicted"],
  ...["swept", "capabilities", "report", "leader", "object", "updated", "resized"],
]);

export class Agent {
  /** Settles when the agent is dead. */
  readonly ended: Promise<void>;
  readonly #process: AgentProcess;
  readonly #command: string;
  readonly #idleMs: number;
  readonly #lines = new Lines();
  readonly #pending = new Map<number, Pending>();
  readonly #holds = new Map<number, Hold>();
  #state: "open" | "closing" | "dead" = "open";
  #lastId = 0;
  /** The number of requests whose callers wait. */
  #awaited = 0;
  #watch: NodeJS.Timeout | null = null;
  #watchDue = Infinity;
  #idle: NodeJS.Timeout | null = null;
  #settleEnded!: () => void;

  private constructor(command: string, idleMs: number) {
    this.#command = command;
    this.#idleMs = idleMs;
    this.ended = new Promise((settle) => (this.#settleEnded = settle));
    this.#process = new AgentProcess(command, {
      data: (bytes) => {
        this.#lines.push(bytes);
        this.#read();
      },
      end: (how) => {
        this.drain();
        this.#die(how);
      },
    });
  }

  /** Starts an agent and compares its clocks with those of this process. */
  static async start(command: string, idleMs: number): Promise<Agent> {
    const agent = Agent.#spawn(command, idleMs);
    const limit = setTimeout(() => agent.#die(`did not respond for ${START_LIMIT_MS / 1000} s`), START_LIMIT_MS);
    limit.unref();
    try {
      await agent.#hello();
    } catch (error) {
      agent.#die("was refused");
      if (error instanceof AgentError) throw await agent.#process.withStderr(error);
      throw error;
    } finally {
      clearTimeout(limit);
    }
    return agent;
  }

  static #spawn(command: string, idleMs: number): Agent {
    try {
      return new Agent(command, idleMs);
    } catch (error) {
      throw new AgentError(`the command ${JSON.stringify(command)} could not be started: ${(error as Error).message}`);
    }
  }

  async #hello(): Promise<void> {
    const before = clocks.read();
    let differs: string | null = "no response";
    const fields = { protocol: PROTOCOL, pid: process.pid, client: "leasehold-typescript/0.1.0" };
    const { message } = await this.call("hello", fields, {
      // Compares the clocks when the response is read, and not later, when this function continues.
      progress: (hello) => {
        differs = mismatch(before, hello, clocks.read());
        this.#lines.limit = optional(object(hello["limits"] ?? {}), "line_bytes", number) ?? this.#lines.limit;
      },
    });
    if (message["protocol"] !== PROTOCOL) {
      throw new AgentError(`the agent of ${this.#command} does not support protocol ${PROTOCOL}`, [
        "Use a command and a package of the same version.",
      ]);
    }
    if (differs !== null) {
      throw new AgentError(`${differs}, so deadlines would be wrong`, [
        "Run the program and the leasehold command in the same container and time namespace, without faketime.",
        "If the clock of the machine was set just now, try again.",
      ]);
    }
  }

  /** Whether requests can be sent. */
  get isOpen(): boolean {
    return this.#state === "open";
  }

  /** Whether the agent is ending, because it was closed or idle. */
  get isClosing(): boolean {
    return this.#state === "closing";
  }

  // --- requests ---------------------------------------------------------------------------------------------------

  /** Sends a request. Rejects with the error of an error response, if the agent dies, or with the signal's reason. */
  call(op: string, fields: Message, options: CallOptions = {}): Promise<Answer> {
    return new Promise((resolve, reject) => {
      const { signal } = options;
      if (signal?.aborted) return reject(signal.reason as Error);
      if (this.#state !== "open") return reject(new AgentError("the agent has ended"));
      const id = ++this.#lastId;
      const holding = options.holding?.(this).slice(0, MAX_HOLDING);
      const line = JSON.stringify({ id, op, ...fields, ...(holding?.length ? { holding } : {}) }) + "\n";
      // The agent would exit, and release all locks.
      if (LONE_SURROGATE.test(line)) {
        return reject(new InvalidError("a text of the request is not valid Unicode"));
      }
      if (Buffer.byteLength(line) > this.#lines.limit) {
        return reject(new StoreError("limit", `the request is longer than ${this.#lines.limit} bytes`));
      }
      // Rule 7: the caller cancels the request.
      const cancel = () => {
        settle(() => reject(signal?.reason as Error));
        this.#send("cancel", { request: id });
      };
      const settle = (how: () => void) => {
        signal?.removeEventListener("abort", cancel);
        this.#give(pending, how);
      };
      const pending: Pending = {
        op,
        options,
        abandoned: false,
        succeed: (answer) => settle(() => resolve(answer)),
        fail: (error) => settle(() => reject(error as Error)),
      };
      signal?.addEventListener("abort", cancel, { once: true });
      this.#pending.set(id, pending);
      this.#awaited += 1;
      this.#stir();
      this.#process.write(line);
    });
  }

  /** Ends the wait for a request. Does nothing if it has ended before. */
  #give(pending: Pending, settle: () => void): void {
    if (pending.abandoned) return;
    pending.abandoned = true;
    this.#awaited -= 1;
    settle();
    this.#stir();
  }

  /** Sends a request whose response is ignored. */
  #send(op: string, fields: Message): void {
    if (this.#state === "dead") return;
    const id = ++this.#lastId;
    this.#pending.set(id, { op, options: {}, abandoned: true, succeed: () => {}, fail: () => {} });
    this.#process.write(JSON.stringify({ id, op, ...fields }) + "\n");
  }

  /** Requests the release of a hold without waiting for the response. */
  #releaseUnasked(hold: Hold): void {
    this.#send("release", { hold: hold.id });
  }

  // --- messages ---------------------------------------------------------------------------------------------------

  /** Rule 1: reads everything that has arrived, including what the event loop has not delivered yet. */
  drain(): void {
    const file = this.#process.outputFile;
    // Lines may be left from earlier reads, if user code calls this while a line is processed.
    this.#read();
    if (file === null) return;
    while (this.#alive()) {
      const chunk = Buffer.allocUnsafe(CHUNK);
      let length;
      try {
        length = readSync(file, chunk, 0, CHUNK, null);
      } catch (error) {
        const { code } = error as NodeJS.ErrnoException;
        if (code === "EINTR") continue;
        if (code === "EAGAIN") return;
        return this.#die(`cannot be read: ${String(code)}`);
      }
      if (length === 0) return this.#die("ended");
      this.#lines.push(chunk.subarray(0, length));
      this.#read();
    }
  }

  #alive(): boolean {
    return this.#state !== "dead";
  }

  /**
   * Processes all complete lines. This runs user code, which may call this again. Each line is processed once, in
   * order.
   */
  #read(): void {
    try {
      while (this.#alive()) {
        const line = this.#lines.next();
        if (line === null) return;
        this.#take(line);
      }
    } catch (error) {
      // Rule 4.
      if (!(error instanceof Garbage)) throw error;
      this.#die(`sent ${error.message}`);
    }
  }

  #take(line: string): void {
    const message = parse(line);
    const event = string(message["ev"]);
    if (!("id" in message)) return this.#news(event, message);
    if (message["id"] === null) throw new Garbage(optional(message, "message", string) ?? "an error without a request");
    const id = number(message["id"]);
    const pending = this.#pending.get(id);
    if (pending === undefined) throw new Garbage(`a response to no request: ${excerpt(line)}`);
    const { progress } = pending.options;
    if (PROGRESS.has(event) && !(event === "leader" && progress === undefined)) {
      if (!pending.abandoned) progress?.(message);
      return;
    }
    if (event !== "error" && !FINAL.has(event)) throw new Garbage(`an unknown message: ${excerpt(line)}`);
    if (event === "hello") progress?.(message);
    this.#settle(id, pending, event, message);
  }

  #settle(id: number, pending: Pending, event: string, message: Message): void {
    const settled = event === "error" ? refusal(message) : this.#answer(pending, event, message);
    this.#pending.delete(id);
    if (settled instanceof Error) pending.fail(settled);
    else pending.succeed(settled);
    if (this.#state === "open") this.#stir();
  }

  #answer(pending: Pending, event: string, message: Message): Answer {
    if (event === "renewed") this.#holds.get(number(message["hold"]))?.renewed(message);
    if (event !== "held") return { agent: this, message };
    // Registers the hold at once, because the next line may contain news about it.
    const hold = new Hold(pending.options.owner, message);
    if (pending.abandoned) {
      // Rule 7.
      this.#releaseUnasked(hold);
    } else {
      this.#holds.set(hold.id, hold);
      this.#watchWithin(hold.remaining());
    }
    return { agent: this, message, hold };
  }

  /** Processes news about a hold. Ignores news about an unknown hold, which this process has given up (rule 3). */
  #news(event: string, message: Message): void {
    if (event === "renewed") {
      this.#holds.get(number(message["hold"]))?.renewed(message);
    } else if (event === "lost") {
      const hold = this.#holds.get(number(message["hold"]));
      if (hold !== undefined) this.lose(hold, string(message["reason"]), string(message["message"]));
    }
    // Ignores unknown events, which a later agent may send.
  }

  // --- deadlines --------------------------------------------------------------------------------------------------

  /** Rules 1 and 2: checks whether the hold is held now, without a request to the agent. */
  judge(hold: Hold): void {
    this.drain();
    if (hold.remaining() <= 0) this.#expire(hold);
  }

  /** Gives up a hold for good because its deadline has passed, before the agent reports the loss. */
  #expire(hold: Hold): void {
    if (!hold.isHeld) return;
    // A stopped agent may renew the lease when it continues, so it must release the lock. It does not renew it beyond
    // the limit, and the work may still run.
    if (!hold.isAtLimit) this.#releaseUnasked(hold);
    const [reason, why]: [LossReason, string] = hold.isAtLimit
      ? ["limit", "it was held for as long as its limit allows"]
      : ["expired", "its lease was not renewed in time"];
    this.lose(hold, reason, `the lock ${JSON.stringify(hold.lock)} was lost: ${why}`);
  }

  /** Marks a hold as lost. Runs user code. */
  lose(hold: Hold, reason: LossReason | (string & {}), message: string, help: readonly string[] = []): void {
    if (!hold.isHeld) return;
    this.#holds.delete(hold.id);
    this.#stir();
    hold.lose(reason, message, help);
  }

  /** Marks a hold as released or passed on, whatever the agent responds. Returns whether it was held until now. */
  finish(hold: Hold): boolean {
    if (!hold.isHeld) return false;
    this.#holds.delete(hold.id);
    this.#stir();
    hold.finish();
    return true;
  }

  /** Checks all deadlines, and schedules the check of the next one. */
  #judgeAll(): void {
    this.#watch = null;
    this.#watchDue = Infinity;
    this.drain();
    const now = clocks.read();
    let next = Infinity;
    for (const hold of [...this.#holds.values()]) {
      const left = hold.remaining(now);
      if (left <= 0) this.#expire(hold);
      else next = Math.min(next, left);
    }
    if (this.#holds.size > 0 && next < Infinity) this.#watchWithin(next);
  }

  #watchWithin(microseconds: number): void {
    const wait = Math.min(WATCH_MS, Math.ceil(microseconds / 1_000));
    const due = monotonic() + wait;
    if (due >= this.#watchDue) return;
    if (this.#watch !== null) clearTimeout(this.#watch);
    this.#watchDue = due;
    // The pipe keeps the process alive while a lock is held, so the timer need not.
    this.#watch = setTimeout(() => this.#judgeAll(), wait).unref();
  }

  // --- end --------------------------------------------------------------------------------------------------------

  /**
   * Keeps this process alive while it holds a lock or waits for a response. Otherwise, ends the agent after the idle
   * time.
   */
  #stir(): void {
    if (this.#idle !== null) clearTimeout(this.#idle);
    this.#idle = null;
    const busy = this.#awaited > 0 || this.#holds.size > 0;
    this.#process.keepAlive(busy);
    if (!busy && this.#state === "open") this.#idle = setTimeout(() => void this.close(), this.#idleMs).unref();
  }

  /** Ends the requests of an owner, releases its holds, and ends the agent if it has no other requests or holds. */
  async abandon(owner: object, reason: Error): Promise<void> {
    for (const [id, pending] of [...this.#pending]) {
      if (pending.options.owner !== owner || pending.abandoned) continue;
      this.#send("cancel", { request: id });
      pending.fail(reason);
    }
    for (const hold of [...this.#holds.values()]) {
      if (hold.owner === owner && this.finish(hold)) this.#releaseUnasked(hold);
    }
    if (this.#awaited === 0 && this.#holds.size === 0) await this.close();
  }

  /** Closes the pipe (rule 8) and waits for the end of the agent, which releases its locks. */
  async close(): Promise<void> {
    if (this.#state === "open") {
      this.#state = "closing";
      this.#process.end();
    }
    await this.ended;
  }

  /** Rule 4: all holds are lost, all requests fail, and the agent is killed. */
  #die(how: string): void {
    if (this.#state === "dead") return;
    this.#state = "dead";
    for (const timer of [this.#watch, this.#idle]) if (timer !== null) clearTimeout(timer);
    this.#watch = this.#idle = null;
    this.#process.kill();
    this.#settleEnded();
    for (const hold of [...this.#holds.values()]) {
      this.lose(hold, "agent", `the lock ${JSON.stringify(hold.lock)} was lost: the agent ${how}`);
    }
    const message = `the agent of ${this.#command} ${how}`;
    for (const pending of [...this.#pending.values()]) {
      pending.fail(new AgentError(message, [], WRITES.has(pending.op)));
    }
    this.#pending.clear();
    this.#process.keepAlive(false);
  }
}
