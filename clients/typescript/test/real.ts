// The real command for tests that need it: LEASEHOLD_COMMAND, or the command that was built in this repository.

import { fork, type ChildProcess } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync } from "node:fs";
import { rm } from "node:fs/promises";
import { once } from "node:events";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test as nodeTest, type TestContext } from "node:test";
import { fileURLToPath } from "node:url";
import { StoreError, type Locker } from "leasehold";

const built = fileURLToPath(new URL("../../../target/debug/leasehold", import.meta.url));

export const command = process.env["LEASEHOLD_COMMAND"] ?? (existsSync(built) ? built : null);
if (command !== null) process.env["LEASEHOLD_COMMAND"] = command;

/** Defines a test with the real agent. Skips it if there is no command, or for the reason in `otherwise`. */
export function test(name: string, body: (t: TestContext) => Promise<void>, otherwise: string | false = false): void {
  const skip = command === null && "there is no leasehold command: set LEASEHOLD_COMMAND";
  void nodeTest(name, { timeout: 120_000, skip: skip || otherwise }, body);
}

export function folder(t: TestContext): string {
  const path = mkdtempSync(join(tmpdir(), "leasehold-ts-"));
  // An agent that is ending may still write. `rmSync` would not look for new files when it tries again.
  t.after(() => rm(path, { recursive: true, force: true, maxRetries: 20 }));
  return path;
}

/** Returns the URL of a new store. */
export function store(t: TestContext): string {
  return `sqlite:${join(folder(t), "locks.db")}`;
}

/** Returns the agents that a process has started. */
export function agentsOf(pid: number): number[] {
  return children(pid).filter((child) => {
    const arguments_ = readFileSync(`/proc/${child}/cmdline`, "latin1").split("\0");
    return arguments_[1] === "agent";
  });
}

/**
 * Stops an agent, but not while it writes, because no other process could write to the file until it continues.
 * `locker` has the same store and another agent.
 */
export async function stop(agent: number, locker: Locker): Promise<void> {
  for (;;) {
    process.kill(agent, "SIGSTOP");
    try {
      await (await locker.acquire("probe")).release();
      return;
    } catch (error) {
      if (!(error instanceof StoreError)) throw error;
      process.kill(agent, "SIGCONT");
    }
  }
}

function children(pid: number): number[] {
  const found = readFileSync(`/proc/${pid}/task/${pid}/children`, "latin1").trim();
  return found === "" ? [] : found.split(" ").map(Number);
}

/** A Node process that runs host.ts and holds locks. */
export class Host {
  readonly child: ChildProcess;
  /** The messages that the test has not read yet. */
  readonly #unread: unknown[] = [];

  constructor(t: TestContext, job: string, ...more: string[]) {
    this.child = fork(fileURLToPath(new URL("host.js", import.meta.url)), [job, ...more]);
    this.child.on("message", (message) => this.#unread.push(message));
    t.after(() => this.child.kill("SIGKILL"));
  }

  get pid(): number {
    return this.child.pid as number;
  }

  /** Returns the next message of the process. */
  async said(): Promise<unknown> {
    while (this.#unread.length === 0) await once(this.child, "message");
    return this.#unread.shift();
  }

  async exit(): Promise<unknown[]> {
    return once(this.child, "exit");
  }
}
