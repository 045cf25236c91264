// An open store, the entry point of this package.

import type { Agent, Answer, CallOptions } from "./agent.js";
import { locate } from "./command.js";
import { milliseconds, type Duration } from "./duration.js";
import { Election } from "./election.js";
import { LeaseholdError } from "./errors.js";
import type { Guard } from "./guard.js";
import { readHeldBy, readStatus, type HeldBy, type LockStatus } from "./holder.js";
import { guardOf, Lock, parameters, type Given, type OnceOptions, type OnceResult, type Work } from "./lock.js";
import { flag, list, number, object, optional, string, type Message } from "./message.js";
import * as objects from "./objects.js";
import { span, type AcquireOptions, type LockOptions } from "./options.js";
import { Pool } from "./pool.js";

/** The options for opening a store. */
export interface LockerOptions {
  /**
   * The `leasehold` command. The default is `LEASEHOLD_COMMAND`, or else the command installed with this package, or
   * else `leasehold` in `PATH`.
   */
  readonly command?: string | undefined;
  /** How long an idle agent of this command is kept. 60 s by default. The option of the latest locker applies. */
  readonly idle?: Duration | undefined;
}

/** The capabilities of a store. */
export interface Capabilities {
  /** The kind of store, such as `sqlite`. */
  readonly store: string;
  /** Whether grants have fencing tokens. */
  readonly tokens: boolean;
  /** Whether locks can have a cooldown after a release, which {@link Locker.once} needs. */
  readonly cooldowns: boolean;
  /** Whether waiters get the lock in the order in which they came. */
  readonly fifo: boolean;
  /** Whether waiters are notified of changes and need not poll. */
  readonly watches: boolean;
  /** Whether the death of a holder is noticed before its lease ends. */
  readonly seesDeadProcesses: boolean;
}

/** The doctor's report about a store. It also has the other fields of `leasehold doctor --json`. */
export interface Report {
  readonly safe: boolean;
  readonly findings: readonly {
    readonly check: string;
    readonly verdict: string;
    readonly seen: unknown;
    readonly help: unknown;
  }[];
  readonly [field: string]: unknown;
}

/**
 * An open store. All lockers of a process (or worker thread) with the same command share one child process,
 * `leasehold agent`. This process is started on demand, and ends after a minute without held locks and requests.
 *
 * @example
 * ```ts
 * import { Locker } from "leasehold";
 *
 * const locker = await Locker.open("mem:");
 * const sum = await locker.using("report", { ttl: "30s", wait: "60s" }, async (signal, guard) => {
 *   signal.throwIfAborted();
 *   console.log(`write with token ${guard.token}`);
 *   return 40 + 2;
 * });
 * console.log(sum);
 * await locker.close();
 * ```
 */
export class Locker implements AsyncDisposable {
  readonly #pool: Pool;
  readonly #store: string | undefined;
  #closed = false;

  /**
   * Creates a locker for a store: a URL such as `sqlite:/var/lib/app/locks.db` or `s3://bucket/locks`, or an alias of
   * `config.toml`. Without one, uses the default store of the command. The first request starts the agent and checks
   * the URL.
   */
  constructor(store?: string, options: LockerOptions = {}) {
    // The agent was possibly started in another folder, and with another environment.
    this.#store = absolute(store ?? (process.env["LEASEHOLD_STORE"] || undefined));
    this.#pool = Pool.of(locate(options.command));
    if (options.idle !== undefined) this.#pool.idleMs = milliseconds("idle", options.idle);
  }

  /**
   * Creates a locker like the constructor, but also starts the agent and checks the URL. Sends nothing to the store.
   */
  static async open(store?: string, options: LockerOptions = {}): Promise<Locker> {
    const locker = new Locker(store, options);
    await locker.capabilities();
    return locker;
  }

  // --- locks ------------------------------------------------------------------------------------------------------

  /** Returns a lock with settings for all its acquisitions. */
  lock(name: string, settings: LockOptions = {}): Lock {
    return this.#lock(name, settings, {});
  }

  /**
   * Returns several locks, at most 64, that are acquired together: all or none. They are acquired in the order of the
   * bytes of their names, so that acquisitions with names in common never wait for each other for ever. A loss of one is
   * the loss of all, and a release frees all. Each has its own token: see {@link Guard.tokens}. `maxHold` counts from the
   * grant of the first lock.
   */
  lockAll(names: readonly string[], settings: LockOptions = {}): Lock {
    // The order of UTF-16 code units is not that of bytes for some names. It only matters for people.
    const several = [...names].sort();
    return this.#lock(several.join(", "), settings, { locks: several });
  }

  /**
   * Returns a semaphore, which has at most `permits` holders (1 to 64) at a time. The first acquisition records the number
   * in the store. One with another number rejects with {@link SizeError}.
   */
  semaphore(name: string, permits: number, settings: LockOptions = {}): Lock {
    return this.#lock(name, settings, { mode: "permit", permits });
  }

  /**
   * Returns a readers-writer lock, which has up to `readers` shared holders (1 to 64, by default 8) or one exclusive
   * holder. The first acquisition records the number in the store. One with another number rejects with
   * {@link SizeError}.
   */
  rwLock(
    name: string,
    settings: LockOptions & { readonly readers?: number | undefined } = {},
  ): { readonly shared: Lock; readonly exclusive: Lock } {
    const { readers, ...rest } = settings;
    return {
      shared: this.#lock(name, rest, { mode: "shared", readers }),
      exclusive: this.#lock(name, rest, { mode: "exclusive", readers }),
    };
  }

  /** Returns an election. At most one process leads, and others can see which one. */
  election(name: string, settings: LockOptions = {}): Election {
    const claim = { store: this.#store, name, mode: { mode: "leader" } };
    return new Election((op, fields, options) => this.#ask(op, fields, options), claim, settings);
  }

  #lock(name: string, settings: LockOptions, mode: Message): Lock {
    const claim = { store: this.#store, name, mode };
    return new Lock((op, fields, options) => this.#ask(op, fields, options), claim, settings);
  }

  /** Waits for a lock, runs `work` while holding it, and releases it. See {@link Lock.using}. */
  using<T>(name: string, options: AcquireOptions | undefined, work: Work<T>): Promise<T>;
  using<T>(name: string, work: Work<T>): Promise<T>;
  async using<T>(name: string, ...given: Given<AcquireOptions, T>): Promise<T> {
    return this.lock(name).using(...parameters(given));
  }

  /** Waits for a lock. Rejects with {@link LockHeldError} if it is still held after `wait`. */
  acquire(name: string, options: AcquireOptions = {}): Promise<Guard> {
    return this.lock(name).acquire(options);
  }

  /** Acquires a lock if it is free. Resolves to `null` if it is held. */
  tryAcquire(name: string, options: Omit<AcquireOptions, "wait" | "onWaiting"> = {}): Promise<Guard | null> {
    return this.lock(name).tryAcquire(options);
  }

  /** Runs a job once per period among all processes. See {@link Lock.once}. */
  once<T>(name: string, options: OnceOptions, work: Work<T>): Promise<OnceResult<T>> {
    return this.lock(name).once(options, work);
  }

  // --- tickets ----------------------------------------------------------------------------------------------------

  /** Resumes the lock of a ticket that {@link Guard.ticket} or the command `leasehold acquire` created. */
  async resume(ticket: string): Promise<Guard> {
    return guardOf(await this.#ask("resume", { ticket }));
  }

  /** Renews the lease of a ticket. Resolves to the milliseconds that remain. */
  async renewTicket(ticket: string): Promise<number> {
    return number((await this.#ask("renew_ticket", { ticket })).message["remaining_ms"]);
  }

  /** Releases the lock of a ticket. Resolves to whether it was held until now. */
  async releaseTicket(ticket: string): Promise<boolean> {
    return flag((await this.#ask("release_ticket", { ticket })).message["was_held"]);
  }

  // --- inspection -------------------------------------------------------------------------------------------------

  /** Resolves to the state of a lock: its holder, waiters, and latest grants. */
  async status(name: string): Promise<LockStatus> {
    return readStatus((await this.#ask("status", { lock: name })).message);
  }

  /** Resolves to the names of all locks of the store that begin with a prefix. */
  async list(prefix?: string): Promise<string[]> {
    const names: string[] = [];
    const progress = (message: Message) => names.push(...list(message["names"]).map(string));
    await this.#ask("list", { prefix }, { progress });
    return names;
  }

  /**
   * Waits until a lock is free, without acquiring it. Rejects with {@link LockHeldError} if it is still held after
   * `wait`.
   */
  async waitFree(name: string, options: Pick<AcquireOptions, "wait" | "signal" | "onWaiting"> = {}): Promise<void> {
    const { onWaiting } = options;
    const fields = { lock: name, wait_ms: span("wait", options.wait), report_waiting: onWaiting && true };
    const progress = (message: Message) => {
      const held: HeldBy = readHeldBy(object(message["held_by"]));
      if (onWaiting !== undefined) queueMicrotask(() => onWaiting(held));
    };
    await this.#ask("wait_free", fields, { signal: options.signal, progress });
  }

  /**
   * Evicts a holder if `token` is still its token. Its work may still run. The history of the lock keeps the `reason`.
   * Resolves to whether that holder had the lock.
   */
  async evict(name: string, token: bigint, options: { reason?: string | undefined } = {}): Promise<boolean> {
    const fields = { lock: name, token: Number(token), reason: options.reason };
    return flag((await this.#ask("evict", fields)).message["was_held"]);
  }

  /**
   * Deletes the record of a lock that has been free for `olderThan`. Resolves to whether it was deleted, or would be
   * with `dryRun`.
   */
  async sweep(
    name: string,
    options: { readonly olderThan: Duration; readonly dryRun?: boolean | undefined },
  ): Promise<boolean> {
    const fields = { lock: name, older_than_ms: span("olderThan", options.olderThan), dry_run: options.dryRun };
    return flag((await this.#ask("sweep", fields)).message["deleted"]);
  }

  /**
   * Changes the number of permits of a semaphore, or of readers of a readers-writer lock, in the store. Resolves to the
   * number before. Rejects with {@link LockHeldError} if somebody holds the lock. The process must not be paused for longer
   * than `ttl` meanwhile.
   */
  async resize(
    name: string,
    size: { readonly permits: number } | { readonly readers: number },
    options: { readonly ttl?: Duration | undefined } = {},
  ): Promise<number> {
    const mode = "permits" in size ? "permit" : "shared";
    const fields = { lock: name, mode, ...size, ttl_ms: span("ttl", options.ttl) };
    return number((await this.#ask("resize", fields)).message["before"]);
  }

  /** Creates what the store needs, such as a table. */
  async init(): Promise<void> {
    await this.#ask("init", {});
  }

  /** Resolves to the capabilities of the store. */
  async capabilities(): Promise<Capabilities> {
    const { message } = await this.#ask("capabilities", {});
    const can = (field: string) => optional(message, field, flag) ?? false;
    return {
      store: string(message["store"]),
      tokens: can("tokens"),
      cooldowns: can("cooldowns"),
      fifo: can("fifo"),
      watches: can("watches"),
      seesDeadProcesses: can("sees_dead_processes"),
    };
  }

  /** Checks whether the store is safe for locks. Writes test records. */
  async doctor(
    options: { readonly ttl?: Duration | undefined; readonly thorough?: boolean | undefined } = {},
  ): Promise<Report> {
    const fields = { ttl_ms: span("ttl", options.ttl), thorough: options.thorough };
    const { id, ev, ...report } = (await this.#ask("doctor", fields)).message;
    return report as unknown as Report;
  }

  // --- objects ----------------------------------------------------------------------------------------------------

  /**
   * Reads an object by a URL such as `s3://bucket/state.json`. Resolves to `null` if there is none. With `fence`, later
   * writes with lower tokens are refused.
   */
  async get(
    url: string,
    options: { readonly fence?: bigint | undefined; readonly signal?: AbortSignal | undefined } = {},
  ): Promise<Uint8Array | null> {
    return objects.get((op, fields, options) => this.#call(op, fields, options), url, options);
  }

  /** Writes an object under a lock. Rejects with {@link LockLostError} if a holder with a higher token has written. */
  async put(url: string, content: objects.Content, options: objects.PutOptions): Promise<void> {
    return objects.put((op, fields, options) => this.#call(op, fields, options), url, content, options);
  }

  /**
   * Changes an object that several programs write, without a lock. Calls `change` again if another program was faster.
   */
  async update(url: string, change: objects.Change, options: objects.UpdateOptions = {}): Promise<objects.Updated> {
    return objects.update((op, fields, options) => this.#call(op, fields, options), url, change, options);
  }

  // --- end --------------------------------------------------------------------------------------------------------

  /**
   * Ends the requests of this locker, releases its locks, and ends the agent if no other locker uses it. Resolves when
   * this is done.
   */
  async close(): Promise<void> {
    this.#closed = true;
    await this.#pool.current?.abandon(this, closed());
  }

  /** Calls {@link close} at the end of an `await using` block. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Sends a request about this store. */
  #ask(op: string, fields: Message, options?: CallOptions): Promise<Answer> {
    return this.#call(op, { store: this.#store, ...fields }, options);
  }

  async #call(op: string, fields: Message, options: CallOptions = {}): Promise<Answer> {
    options.signal?.throwIfAborted();
    if (this.#closed) throw closed();
    let agent: Agent;
    // Another locker may have just closed the agent.
    do agent = await unless(options.signal, this.#pool.agent());
    while (agent.isClosing);
    if (this.#closed) throw closed();
    return agent.call(op, fields, { ...options, owner: this });
  }
}

/**
 * Makes the path of a `sqlite:` URL absolute. A relative path is relative to this process, and the agent's folder may
 * differ.
 */
function absolute(store: string | undefined): string | undefined {
  const path = /^sqlite:([^/?:].*)$/is.exec(store ?? "")?.[1];
  if (path === undefined) return store;
  const folder = process.cwd().replaceAll("%", "%25").replaceAll("?", "%3F");
  return `sqlite:${folder === "/" ? "" : folder}/${path}`;
}

/** Waits for a promise until a signal aborts. Does not cancel the promise. */
function unless<T>(signal: AbortSignal | undefined, promise: Promise<T>): Promise<T> {
  if (signal === undefined) return promise;
  return new Promise((resolve, reject) => {
    const aborted = () => reject(signal.reason as Error);
    signal.addEventListener("abort", aborted, { once: true });
    promise.then(resolve, reject).finally(() => signal.removeEventListener("abort", aborted));
  });
}

function closed(): Error {
  return new LeaseholdError("invalid", "the locker was closed");
}
