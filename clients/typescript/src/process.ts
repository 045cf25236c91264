// The agent as a process: its pipes and its end.

import { spawn, type ChildProcess } from "node:child_process";
import type { Socket } from "node:net";
import { clearTimeout, setTimeout } from "node:timers";
import { advice } from "./command.js";
import { AgentError } from "./errors.js";

/** How much of the agent's stderr is kept, in characters. */
const STDERR_KEPT = 4_096;
/** How long the stderr of a killed agent may take to end. */
const STDERR_LIMIT_MS = 2_000;
/** How long an agent that was asked to end may take. The agent gives itself 5 s to release locks. */
const END_LIMIT_MS = 10_000;

export interface Events {
  data(bytes: Uint8Array): void;
  /**
   * The output has ended, or the input cannot be written. May be called more than once. `how` completes "the agent
   * ...".
   */
  end(how: string): void;
}

export class AgentProcess {
  readonly #command: string;
  readonly #child: ChildProcess;
  readonly #closed: Promise<unknown>;
  readonly #input: Socket;
  readonly #output: Socket;
  #stderr = "";
  #failure: NodeJS.ErrnoException | null = null;
  #endLimit: NodeJS.Timeout | null = null;
  #keepsAlive = true;

  constructor(command: string, events: Events) {
    this.#command = command;
    // Node opens all pipes with close-on-exec and starts no shell (rule 10).
    const child = spawn(command, ["agent"], { stdio: ["pipe", "pipe", "pipe"] });
    this.#child = child;
    // If too many files are open, there are no pipes. Node's types do not show this.
    if ((child.stdin as unknown) === undefined) {
      child.once("error", () => {});
      throw new Error("too many files are open");
    }
    this.#closed = new Promise((closed) => {
      child.once("close", closed);
      child.once("error", closed);
    });
    child.once("error", (error) => {
      this.#failure = error;
      events.end(`could not be started: ${error.message}`);
    });
    this.#input = child.stdin as Socket;
    this.#output = child.stdout as Socket;
    child.once("exit", (code, signal) => {
      if (this.#endLimit !== null) clearTimeout(this.#endLimit);
      events.end(signal === null ? `ended with exit code ${code}` : `was killed by ${signal}`);
    });
    this.#input.on("error", (error) => events.end(`does not read: ${error.message}`));
    this.#output.on("error", (error) => events.end(`cannot be read: ${error.message}`));
    this.#output.on("data", (bytes: Buffer) => events.data(bytes));
    this.#output.once("end", () => events.end("ended"));
    child.stderr.on("data", (bytes: Buffer) => {
      this.#stderr = (this.#stderr + bytes.toString()).slice(-STDERR_KEPT);
    });
    (child.stderr as Socket).unref();
    child.unref();
    // Bun's input has no such function, and does not keep the process alive.
    (this.#input as Partial<Socket>).unref?.();
  }

  /**
   * The file descriptor of the output, for reading without the event loop. Node has no documented way to get it. Where
   * it is unknown (other runtimes), data that the event loop has not delivered counts as not arrived, which is safe.
   */
  get outputFile(): number | null {
    // Deno has a number in the same place, which is not a file descriptor of the process.
    if ("deno" in process.versions) return null;
    const handle = (this.#output as unknown as { _handle?: { fd?: unknown } | null })._handle;
    return typeof handle?.fd === "number" && handle.fd >= 0 ? handle.fd : null;
  }

  write(line: string): void {
    // The event `error` reports an error.
    if (this.#input.writable) this.#input.write(line);
  }

  keepAlive(alive: boolean): void {
    // Bun counts these calls.
    if (alive === this.#keepsAlive) return;
    this.#keepsAlive = alive;
    if (alive) this.#output.ref();
    else this.#output.unref();
  }

  /** Closes the input. */
  end(): void {
    this.#input.end();
    this.#child.ref();
    this.#endLimit = setTimeout(() => this.#child.kill("SIGKILL"), END_LIMIT_MS);
  }

  kill(): void {
    this.#child.kill("SIGKILL");
    this.#input.destroy();
    this.#output.destroy();
  }

  /** Returns the error for an agent that failed to start, with the agent's stderr. */
  async withStderr(error: AgentError): Promise<AgentError> {
    const command = JSON.stringify(this.#command);
    this.#child.ref();
    // The agent was killed, but another process may still have its stderr open.
    let limit: NodeJS.Timeout | undefined;
    await Promise.race([this.#closed, new Promise((done) => (limit = setTimeout(done, STDERR_LIMIT_MS)))]);
    clearTimeout(limit);
    if (this.#failure !== null) {
      const missing = this.#failure.code === "ENOENT";
      return new AgentError(
        missing
          ? `the command ${command} was not found`
          : `the command ${command} could not be started: ${this.#failure.message}`,
        advice(this.#command),
      );
    }
    if (/unrecognized subcommand/.test(this.#stderr)) {
      return new AgentError(`the command ${command} is too old: it has no agent`, [
        "Use a command and a package of the same version.",
      ]);
    }
    const said = this.#stderr.trim();
    return said === "" ? error : new AgentError(`${error.message}: ${said}`, error.help);
  }
}
