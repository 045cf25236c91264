// A fake agent, which sends the messages that a test gives it.

import assert from "node:assert/strict";
import { chmodSync, existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer, type Server, type Socket } from "node:net";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test as nodeTest, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { clocks } from "#dist/clocks.js";
import { Locker } from "leasehold";
import type { Order } from "./relay.js";

export type Message = { [field: string]: unknown };

/** A process of a fake agent. */
export class Agent {
  readonly #socket: Socket;
  readonly #folder: string;
  readonly #requests: Message[] = [];
  readonly ended: Promise<unknown>;
  #wake = () => {};
  #marks = 0;
  #over = false;

  constructor(socket: Socket, folder: string) {
    this.#socket = socket;
    this.#folder = folder;
    this.ended = once(socket, "close");
    socket.on("error", () => {});
    socket.on("close", () => {
      this.#over = true;
      this.#wake();
    });
    createInterface({ input: socket }).on("line", (line) => {
      this.#requests.push(JSON.parse(line) as Message);
      this.#wake();
    });
  }

  #order(order: Order): void {
    this.#socket.write(JSON.stringify(order) + "\n");
  }

  /** Returns the next request, which must be this operation. */
  async next(op: string): Promise<Message> {
    while (this.#requests.length === 0) {
      assert.ok(!this.#over, `the agent ended before ${op}`);
      await new Promise<void>((resolve) => (this.#wake = resolve));
    }
    const request = this.#requests.shift() as Message;
    assert.equal(request["op"], op, JSON.stringify(request));
    return request;
  }

  /** Responds to the next request, and returns it. */
  async answer(op: string, answer: Message): Promise<Message> {
    const request = await this.next(op);
    this.send({ id: request["id"], ...answer });
    return request;
  }

  /** The number of requests that the test has not read. */
  get unread(): number {
    return this.#requests.length;
  }

  /** Sends messages in one write. */
  send(...messages: (Message | string | Uint8Array)[]): void {
    const parts = messages.map((message) => {
      if (message instanceof Uint8Array) return Buffer.from(message);
      return Buffer.from(typeof message === "string" ? message : JSON.stringify(message) + "\n");
    });
    this.#order({ write: Buffer.concat(parts).toString("base64") });
  }

  /** Blocks the event loop until everything that was sent is in the pipe. */
  blockUntilWritten(): void {
    const mark = join(this.#folder, `mark-${this.#marks++}`);
    this.#order({ mark });
    while (!existsSync(mark));
  }

  exit(code: number): void {
    this.#order({ exit: code });
  }

  closeOutput(): void {
    this.#order({ closeOutput: true });
  }
}

/** A folder with a command that starts fake agents. */
export class Fake {
  readonly command: string;
  readonly folder: string;
  readonly #server: Server;
  readonly #started: Socket[] = [];
  #wake = () => {};

  private constructor(folder: string) {
    this.folder = folder;
    const path = join(folder, "socket");
    this.command = join(folder, "leasehold");
    const relay = fileURLToPath(new URL("relay.js", import.meta.url));
    script(this.command, `exec '${process.execPath}' '${relay}' '${path}'`);
    this.#server = createServer((socket) => {
      this.#started.push(socket);
      this.#wake();
    }).listen(path);
  }

  static in(t: TestContext): Fake {
    const folder = mkdtempSync(join(tmpdir(), "leasehold-ts-"));
    const fake = new Fake(folder);
    t.after(() => {
      fake.#server.close();
      for (const socket of fake.#sockets) socket.destroy();
      rmSync(folder, { recursive: true, force: true });
    });
    return fake;
  }

  readonly #sockets: Socket[] = [];

  /** Returns the next agent that is started. */
  async agent(): Promise<Agent> {
    while (this.#started.length === 0) await new Promise<void>((resolve) => (this.#wake = resolve));
    const socket = this.#started.shift() as Socket;
    this.#sockets.push(socket);
    return new Agent(socket, this.folder);
  }

  /** Returns the next agent, after a good `hello`. */
  async greeted(): Promise<Agent> {
    const agent = await this.agent();
    await agent.answer("hello", hello());
    return agent;
  }

  /** Opens a locker. Returns it and its agent. */
  async open(idle?: string): Promise<[Locker, Agent]> {
    const opening = Locker.open("mem:", { command: this.command, idle });
    const agent = await this.greeted();
    await agent.answer("capabilities", { ev: "capabilities", store: "memory", tokens: true });
    return [await opening, agent];
  }
}

/** Writes an executable shell script. */
export function script(path: string, body: string): void {
  writeFileSync(path, `#!/bin/sh\n${body}\n`);
  chmodSync(path, 0o755);
}

/** Returns the clocks of this process as an agent reports them. */
export function now(): { boot_us: number; wall_us: number } {
  const moment = clocks.read();
  assert.ok(moment !== null);
  return { boot_us: moment.boot, wall_us: moment.wall };
}

/** Blocks the event loop without using the processor. */
export function block(milliseconds: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, milliseconds);
}

export function hello(changes: Message = {}): Message {
  return { ev: "hello", protocol: 1, version: "0.1.0", pid: 1, ...now(), limits: { line_bytes: 4096 }, ...changes };
}

/** Returns a deadline in `milliseconds` from now. */
export function until(milliseconds: number): Message {
  return { ...now(), span_us: milliseconds * 1_000 };
}

export function held(id: unknown, milliseconds = 60_000, changes: Message = {}): Message {
  return { id, ev: "held", hold: 1, lock: "x", token: 1763654400000041, ...until(milliseconds), ...changes };
}

/** Acquires a guard with a new agent. */
export async function guarded(fake: Fake, milliseconds = 60_000, changes: Message = {}) {
  const [locker, agent] = await fake.open();
  const acquiring = locker.acquire("x");
  const { id } = await agent.next("acquire");
  agent.send(held(id, milliseconds, changes));
  const guard = await acquiring;
  return { locker, agent, guard };
}

/** Defines a test that fails if it hangs. */
export function test(name: string, body: (t: TestContext) => Promise<void>): void {
  void nodeTest(name, { timeout: 60_000 }, body);
}
