// A worker of `./chaos` that uses the client for Node. It does what chaos/worker.rs does.
//
//     worker.mjs worker WHO KIND STORE LOCK TTL_MS FOLDER RESOURCE SEED
//
// LEASEHOLD_NODE_CLIENT is the path of the client's module.

import { once } from "node:events";
import { openSync, readFileSync, writeSync } from "node:fs";
import { connect } from "node:net";
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const { Locker, LeaseholdError, LockHeldError, LockLostError } = await import(process.env.LEASEHOLD_NODE_CLIENT);

const CRASHED = 77;
const [who, , store, lock, ttl, folder, resource, seed] = process.argv.slice(3);
const ttlMs = Number(ttl);

process.stdin.resume().on("end", () => process.exit(0));

/** Returns true time. See chaos/true_time.rs. */
function uptimeMs() {
  const [seconds, hundredths] = readFileSync("/proc/uptime", "latin1").split(" ")[0].split(".");
  return Number(seconds) * 1_000 + Number(hundredths) * 10;
}

// A linear congruential generator, because Math.random has no seed.
let state = Number(BigInt(seed) % 2_147_483_647n) || 1;
const random = () => (state = (state * 48_271) % 2_147_483_647) / 2_147_483_647;
const between = (least, most) => least + Math.floor(random() * (most - least + 1));
const pause = (least, most) => sleep(between(least, most));

/** See chaos/history.rs. */
const file = openSync(`${folder}/${who}.jsonl`, "ax");
function tell(what, from, more) {
  writeSync(file, `${JSON.stringify({ ...more, what, who, from, until: uptimeMs() + 10 })}\n`);
}

/** See chaos/resource.rs. */
const [host, port] = resource.split(":");
const connection = connect(Number(port), host);
await once(connection, "connect");
const answers = createInterface({ input: connection })[Symbol.asyncIterator]();
let asksToStay = false;
async function ask(verb, token, ...more) {
  connection.write(`${[verb, lock, token, who, ...more].join(" ")}\n`);
  const [verdict, value, stay] = (await answers.next()).value.split(" ");
  asksToStay = stay === "stay";
  return verdict === "accepted" ? Number(value) : null;
}

/** A grant, with its name in histories. */
class Grant {
  constructor(guard, number) {
    this.guard = guard;
    this.token = Number(guard.token);   // below 2^53
    this.fields = { lock, grant: `${who}#${number}`, token: this.token };
  }

  isHeld() {
    try {
      this.guard.check();
      return true;
    } catch (error) {
      if (error instanceof LockLostError) return false;
      throw error;
    }
  }

  checked() {
    const from = uptimeMs();
    const held = this.isHeld();
    if (held) tell("checked", from, this.fields);
    return held;
  }

  /** Uses the lock for a while. Returns false if it was lost. */
  async use() {
    const choice = random();
    const rounds = choice < 0.8 ? between(1, 3) : choice < 0.94 ? between(4, 14) : 30;
    for (let round = 0; round < 500 && (round < rounds || asksToStay); round += 1) {
      if (!this.checked() || !(await this.addOne()) || !(await this.pauseUnlessLost())) {
        await this.writeLate();
        return false;
      }
    }
    return true;
  }

  async addOne() {
    const value = await ask("read", this.token);
    if (value === null) return false;
    if (random() < 0.5 && !(await this.pauseUnlessLost())) return false;
    // A process can be stopped between this check and the write.
    if (!this.checked()) return false;
    await pause(0, 20);
    return (await ask("write", this.token, value + 1)) !== null;
  }

  /** Writes although the lock is lost. A lock cannot prevent that. */
  async writeLate() {
    if (!this.isHeld()) tell("lost", uptimeMs(), this.fields);
    await pause(0, 40);
    const value = await ask("read", this.token);
    if (value !== null) await ask("write", this.token, value + 1);
  }

  async end(finished) {
    await ask("over", this.token);
    const from = uptimeMs();
    let how = "not awaited";
    const released = this.guard.release().then(
      (held) => (held ? "released" : "lost before"),
      (error) => `release failed: ${error}`,
    );
    if (finished && random() >= 0.15) how = await released;
    tell("over", from, { ...this.fields, how });
  }

  async pauseUnlessLost() {
    const pausing = pause(5, 60).then(() => true);
    return Promise.race([pausing, this.guard.lost.then(() => false)]);
  }
}

const contended = new Locker(store).lock(lock, { ttl: ttlMs, owner: who });

async function acquire() {
  const choice = random();
  if (choice < 0.2) return contended.tryAcquire();
  const abandoned = choice < 0.35 ? AbortSignal.timeout(Math.floor(random() * 800)) : undefined;
  try {
    return await contended.acquire(abandoned ? { signal: abandoned } : { wait: ttlMs * 4 });
  } catch (error) {
    if (error instanceof LockHeldError || abandoned?.aborted) return null;
    throw error;
  }
}

/** Returns the ids of this process's children. The agent is the only one. */
const agents = () => readFileSync(`/proc/self/task/${process.pid}/children`, "latin1").split(" ").filter(Boolean);

for (let grants = 0; ; ) {
  const from = uptimeMs();
  let guard;
  try {
    guard = await acquire();
  } catch (error) {
    if (!(error instanceof LeaseholdError)) throw error;
    tell("failed", from, { error: String(error) });
    await pause(50, 300);
    continue;
  }
  if (guard === null) {
    await pause(5, 60);
    continue;
  }
  const grant = new Grant(guard, (grants += 1));
  tell("granted", from, grant.fields);
  let finished = await grant.use();
  if (finished && random() < 0.04) process.exit(CRASHED);
  if (finished && random() < 0.04) {
    // When its agent dies, this process loses what it holds, and `check` fails.
    for (const agent of agents()) process.kill(Number(agent), "SIGKILL");
    await guard.lost;
    finished = false;
  }
  await grant.end(finished);
  await pause(0, 40);
}
