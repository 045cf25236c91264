// Tests with the real agent and SQLite: processes and agents that are stopped, killed and blocked.

import assert from "node:assert/strict";
import { once } from "node:events";
import { readFileSync, symlinkSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { Worker } from "node:worker_threads";
import { AgentError, Locker, LockHeldError, LockLostError } from "leasehold";
import { block } from "./fake.js";
import { agentsOf, command, folder, Host, stop, store, test } from "./real.js";

test("processes exclude each other", async (t) => {
  const [url, file] = [store(t), join(folder(t), "number")];
  writeFileSync(file, "0");
  const hosts = [1, 2, 3, 4].map(() => new Host(t, "count", url, file, "10"));
  for (const host of await Promise.all(hosts.map((host) => host.exit()))) assert.deepEqual(host, [0, null]);
  assert.equal(readFileSync(file, "utf8"), "40");
});

/** Opens a locker with its own agent. Returns the locker and the agent's process id. */
async function separate(t: Parameters<typeof folder>[0], url: string): Promise<[Locker, number]> {
  const path = join(folder(t), "leasehold");
  symlinkSync(command as string, path);
  const before = agentsOf(process.pid);
  const locker = await Locker.open(url, { command: path });
  t.after(() => locker.close());
  const [agent] = agentsOf(process.pid).filter((pid) => !before.includes(pid));
  return [locker, agent as number];
}

test("a stopped agent: the lock is lost here before another gets it, and for good", async (t) => {
  const url = store(t);
  const [locker, agent] = await separate(t, url);
  const [other] = await separate(t, url);
  const guard = await locker.acquire("x", { ttl: "5s" });
  await stop(agent, other);
  const next = await other.acquire("x");
  // `check` reads the clocks. On a busy machine, the timer that aborts the signal may not have run yet.
  assert.throws(() => guard.check(), LockLostError);
  assert.ok(guard.signal.aborted);
  assert.equal((await guard.lost).reason, "expired");
  assert.ok(next.token > guard.token);
  process.kill(agent, "SIGCONT");
  // This response comes after everything else from the agent.
  await locker.status("x");
  assert.equal(guard.held, false);
  next.check();
  assert.equal(await next.release(), true);
});

test("a stopped agent that continues at once does not cost the lock", async (t) => {
  const [locker, agent] = await separate(t, store(t));
  const guard = await locker.acquire("x", { ttl: "30s" });
  process.kill(agent, "SIGSTOP");
  process.kill(agent, "SIGCONT");
  await guard.renew();
  assert.equal(await guard.release(), true);
});

test("a killed agent loses its locks at once, and the next request starts another", async (t) => {
  const [locker, agent] = await separate(t, store(t));
  const guard = await locker.acquire("x", { ttl: "5s" });
  const waiting = assert.rejects(locker.acquire("x"), AgentError);
  process.kill(agent, "SIGKILL");
  assert.equal((await guard.lost).reason, "agent");
  await waiting;
  const next = await locker.acquire("x");
  assert.ok(next.token > guard.token);
});

test("a host that was stopped with its agent detects the loss when it continues", async (t) => {
  const url = store(t);
  const host = new Host(t, "hold", url, "8s");
  const { token } = (await host.said()) as { token: string };
  const [agent] = agentsOf(host.pid) as [number];
  const locker = await Locker.open(url);
  t.after(() => locker.close());
  await stop(agent, locker);
  process.kill(host.pid, "SIGSTOP");
  const guard = await locker.acquire("x", { wait: "60s" });
  assert.ok(guard.token > BigInt(token));
  // Continues the host first, so that it has only its clocks.
  process.kill(host.pid, "SIGCONT");
  assert.deepEqual(await host.said(), { lost: "expired", held: false });
  process.kill(agent, "SIGCONT");
  guard.check();
});

test("a stopped host reads the renewals when it continues", async (t) => {
  const url = store(t);
  const host = new Host(t, "hold", url, "6s");
  await host.said();
  const locker = await Locker.open(url);
  t.after(() => locker.close());
  process.kill(host.pid, "SIGSTOP");
  await assert.rejects(locker.acquire("x", { wait: "8s" }), LockHeldError);
  host.child.send("held?");
  process.kill(host.pid, "SIGCONT");
  assert.deepEqual(await host.said(), { held: true });
});

test("an event loop that is blocked for longer than the ttl keeps its lock", async (t) => {
  const [locker] = await separate(t, store(t));
  const guard = await locker.acquire("x", { ttl: "6s" });
  block(7_000);
  guard.check();
  await new Promise((resolve) => setImmediate(resolve));
  guard.check();
  assert.equal(await guard.release(), true);
});

test("an event loop that is blocked while its agent is stopped loses its lock", async (t) => {
  const [locker, agent] = await separate(t, store(t));
  const guard = await locker.acquire("x", { ttl: "5s" });
  process.kill(agent, "SIGSTOP");
  block(5_100);
  assert.throws(() => guard.check(), LockLostError);
  process.kill(agent, "SIGCONT");
});

test("worker threads have their own agents, which end with them", async (t) => {
  const url = store(t);
  const [locker] = await separate(t, url);
  const worker = new Worker(new URL("worker.js", import.meta.url), { workerData: url });
  const [token] = (await once(worker, "message")) as [string];
  assert.equal(await locker.tryAcquire("x"), null);
  const waiting = locker.acquire("x", { wait: "30s" });
  await worker.terminate();
  assert.ok((await waiting).token > BigInt(token));
});

test("a process that exits while it holds a lock frees it", async (t) => {
  const url = store(t);
  const [locker] = await separate(t, url);
  const host = new Host(t, "exit", url, "10m");
  await host.said();
  await locker.acquire("x", { wait: "60s" });
});

test("kill -9 of a host frees its lock", async (t) => {
  const url = store(t);
  const [locker] = await separate(t, url);
  const host = new Host(t, "hold", url, "10m");
  await host.said();
  const waiting = locker.acquire("x", { wait: "60s" });
  host.child.kill("SIGKILL");
  await waiting;
});

test("a process that holds nothing ends without closing anything", async (t) => {
  const host = new Host(t, "end", store(t));
  assert.equal(await host.said(), "done");
  assert.deepEqual(await host.exit(), [0, null]);
});

test("closing a locker ends its agent", async (t) => {
  const [locker, agent] = await separate(t, store(t));
  assert.deepEqual(agentsOf(process.pid).includes(agent), true);
  await locker.close();
  assert.deepEqual(agentsOf(process.pid).includes(agent), false);
});
