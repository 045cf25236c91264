// Tests the features of a locker with the real agent and SQLite.

import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { inspect } from "node:util";
import { DeadlockError, InvalidError, Locker, LockHeldError, LockLostError, SizeError, UnsupportedError, type HeldBy, type Lock } from "leasehold";
import { folder, store, test } from "./real.js";

async function opened(t: TestContext): Promise<Locker> {
  const locker = await Locker.open(store(t));
  t.after(() => locker.close());
  return locker;
}

test("a held lock refuses others, and names its holder", async (t) => {
  const locker = await opened(t);
  const guard = await locker.acquire("x", { ttl: "30s", owner: "ci-7", note: "deploys" });
  assert.equal(await locker.tryAcquire("x"), null);
  const seen: HeldBy[] = [];
  const failed = await locker
    .acquire("x", { wait: 100, onWaiting: (heldBy) => seen.push(heldBy) })
    .catch((error: unknown) => error);
  assert.ok(failed instanceof LockHeldError, String(failed));
  assert.deepEqual([failed.holder?.name, failed.holder?.note, failed.heldBy?.token], ["ci-7", "deploys", guard.token]);
  assert.equal(seen[0]?.holder?.name, "ci-7");
  assert.equal(await guard.release(), true);
  const next = await locker.tryAcquire("x");
  assert.ok(next !== null && next.token > guard.token);
});

test("a call without work acquires nothing, and the options may be left out", async (t) => {
  const locker = await opened(t);
  const election = locker.election("e");
  const missing = undefined as unknown as () => void;
  for (const call of [
    () => locker.using("x", missing),
    () => locker.using("x", {}, missing),
    () => locker.lock("x").using(missing),
    () => locker.once("x", { per: "1h" }, missing),
    () => election.lead({}, missing),
    () => election.lead(missing),
  ]) {
    await assert.rejects(call(), (error: unknown) => error instanceof InvalidError && /not a function/.test(error.message));
  }
  assert.deepEqual(await locker.list(), []);
  assert.equal(await locker.using("x", undefined, () => "x"), "x");
  assert.equal(await election.lead(() => "leads"), "leads");
  assert.equal(await election.lead(undefined, () => "leads"), "leads");
});

test("a guard shows its lock, its token and its state", async (t) => {
  const guard = await (await opened(t)).acquire("x");
  assert.equal(inspect(guard), `Guard("x", token ${guard.token}, held)`);
  await guard.release();
  assert.match(inspect({ guard }), /over\) }$/);
});

test("of two works that wait for each other, one is refused", async (t) => {
  const locker = await opened(t);
  let both = 2;
  let begin = () => {};
  const begun = new Promise<void>((resolve) => (begin = resolve));
  const work = (outer: string, inner: string) =>
    locker.using(outer, async (_, holding) => {
      if (--both === 0) begin();
      await begun;
      return locker.using(inner, { holding }, () => "held").catch((error: unknown) => error);
    });
  const outcomes = await Promise.all([work("a", "b"), work("b", "a")]);
  assert.equal(outcomes.filter((outcome) => outcome === "held").length, 1, String(outcomes));
  assert.ok(outcomes.some((outcome) => outcome instanceof DeadlockError && /waits for `[ab]`/.test(outcome.message)));
});

test("work that names the guard under which it waits is refused at once", async (t) => {
  const locker = await opened(t);
  await locker.using("x", async (_, holding) => {
    await assert.rejects(
      locker.using("y", (_, y) => locker.using("x", { holding: [y, holding] }, () => {})),
      DeadlockError,
    );
    assert.equal(await locker.tryAcquire("x"), null);
    await assert.rejects(locker.acquire("x", { holding, wait: 0 }), LockHeldError);
  });
  await locker.lockAll(["a", "b"]).using(async (_, holding) => {
    await assert.rejects(locker.acquire("b", { holding }), DeadlockError);
    await assert.rejects(locker.lockAll(["b", "c"]).acquire({ holding }), DeadlockError);
  });
});

test("work that asks for the lock it runs under waits, with a warning", async (t) => {
  const locker = await opened(t);
  const warnings: string[] = [];
  t.mock.method(process, "emitWarning", (warning: string) => warnings.push(warning));
  // The call was started, and the work does not wait for it.
  const later = await locker.using("x", async () => ({ call: locker.using("x", () => "after") }));
  assert.equal(await later.call, "after");
  // Another function releases the guard.
  await locker
    .using("x", async (_, guard) => {
      const again = locker.using("x", () => {});
      await guard.release();
      await again;
      await locker.using("x", () => {});
    })
    .catch((error: unknown) => assert.ok(error instanceof InvalidError || error instanceof LockLostError));
  const { shared, exclusive } = locker.rwLock("rw");
  const two = locker.semaphore("two", 2);
  const [ab, b] = [locker.lockAll(["a", "b"]), locker.lock("b")];
  const started = (lock: Lock) => () => ({ call: lock.using(() => {}) });
  await (await shared.using(started(exclusive))).call;
  await (await two.using(() => two.using(started(two)))).call;
  await (await ab.using(started(b))).call;
  const named = warnings.map((warning) => /"([^"]*)"/.exec(warning)?.[1]);
  assert.deepEqual(named, ["x", "x", "rw", "two", "b"]);
  // These do not wait for the lock.
  await shared.using(() => locker.using("rw", () => {}));
  await two.using(() => locker.using("two", () => {}));
  await locker.using("x", () => locker.lock("x").once({ per: "1h", wait: 0 }, () => {})).catch(() => {});
  assert.equal(warnings.length, 5);
});

test("a waiting acquisition is cancelled by its signal, and leaves the line", async (t) => {
  const locker = await opened(t);
  const guard = await locker.acquire("x");
  const stop = new AbortController();
  const waiting = locker.acquire("x", { signal: stop.signal, onWaiting: () => stop.abort(new Error("enough")) });
  await assert.rejects(waiting, /enough/);
  await guard.release();
  await (await locker.acquire("x", { wait: "30s" })).release();
});

test("a semaphore has the given number of permits", async (t) => {
  const locker = await opened(t);
  const semaphore = locker.semaphore("render", 2, { ttl: "30s" });
  const guards = [await semaphore.acquire(), await semaphore.acquire()];
  assert.equal(await semaphore.tryAcquire(), null);
  await guards[0]?.release();
  assert.ok((await semaphore.tryAcquire()) !== null);
});

test("another number of permits is an error with both numbers", async (t) => {
  const locker = await opened(t);
  const guard = await locker.semaphore("render", 2).acquire();
  const refused = await locker.semaphore("render", 3).acquire().catch((error: unknown) => error);
  assert.ok(refused instanceof SizeError && refused instanceof InvalidError, String(refused));
  assert.deepEqual([refused.asked, refused.stored], [3, 2]);
  await assert.rejects(locker.resize("render", { permits: 3 }), LockHeldError);
  await guard.release();
  assert.equal(await locker.resize("render", { permits: 3 }, { ttl: "1m" }), 2);
  await (await locker.semaphore("render", 3).acquire()).release();
  await (await locker.rwLock("index", { readers: 12 }).shared.acquire()).release();
  await assert.rejects(locker.rwLock("index").exclusive.acquire(), SizeError);
  assert.equal(await locker.resize("index", { readers: 8 }), 12);
});

test("readers share, and exclude a writer", async (t) => {
  const locker = await opened(t);
  const { shared, exclusive } = locker.rwLock("index");
  const readers = [await shared.acquire(), await shared.acquire()];
  assert.equal(await exclusive.tryAcquire(), null);
  for (const reader of readers) await reader.release();
  const writer = await exclusive.acquire({ wait: "30s" });
  assert.equal(await shared.tryAcquire(), null);
  await writer.release();
});

test("a job runs once per period", async (t) => {
  const locker = await opened(t);
  await assert.rejects(
    locker.once("nightly", { per: "1h" }, () => Promise.reject(new Error("failed"))),
    /failed/,
  );
  assert.deepEqual(await locker.once("nightly", { per: "1h" }, () => 5), { ran: true, value: 5 });
  const again = await locker.once("nightly", { per: "1h" }, () => assert.fail("it ran twice"));
  assert.ok(!again.ran && again.againWithinMs !== null && again.againWithinMs > 3_000_000, JSON.stringify(again.ran));
});

test("observers see the leader and its end", async (t) => {
  const locker = await opened(t);
  const election = locker.election("web", { ttl: "30s" });
  const leaders = election.observe();
  assert.equal((await leaders.next()).value, null);
  const guard = await election.campaign({ value: "http://10.0.0.7" });
  const { value: leader } = await leaders.next();
  assert.deepEqual([leader?.value, leader?.term], ["http://10.0.0.7", guard.token]);
  assert.equal((await election.leader())?.value, "http://10.0.0.7");
  await guard.release();
  assert.equal((await leaders.next()).value, null);
  await leaders.return();
  assert.equal(await election.leader(), null);
  assert.equal(await election.lead({ value: "again" }, () => "led"), "led");
});

test("a ticket passes a lock on", async (t) => {
  const locker = await opened(t);
  const guard = await locker.acquire("x", { ttl: "1m", forTicket: true });
  const ticket = await guard.ticket();
  assert.throws(() => guard.check(), InvalidError);
  assert.equal(await locker.tryAcquire("x"), null);
  assert.ok((await locker.renewTicket(ticket)) > 30_000);
  const resumed = await locker.resume(ticket);
  assert.equal(resumed.token, guard.token);
  const second = await resumed.ticket();
  assert.equal(await locker.releaseTicket(second), true);
  assert.equal(await locker.releaseTicket(second), false);
  await (await locker.acquire("x", { wait: "30s" })).release();
});

test("work may hand its lock on as a ticket", async (t) => {
  const locker = await opened(t);
  const ticket = await locker.lock("x", { ttl: "1m" }).using((_, guard) => guard.ticket());
  assert.equal(await locker.releaseTicket(ticket), true);
});

test("locks are listed, shown, awaited, evicted and swept", async (t) => {
  const locker = await opened(t);
  assert.equal((await locker.status("builds/1")).state, "free");
  const guard = await locker.acquire("builds/1", { ttl: "10s", owner: "ci-7" });
  await (await locker.acquire("other")).release();
  assert.deepEqual(await locker.list("builds/"), ["builds/1"]);
  assert.deepEqual((await locker.list()).sort(), ["builds/1", "other"]);
  const status = await locker.status("builds/1");
  assert.deepEqual([status.state, status.token, status.heldBy?.holder?.name], ["held", guard.token, "ci-7"]);
  await assert.rejects(locker.waitFree("builds/1", { wait: "3s" }), LockHeldError);
  const free = locker.waitFree("builds/1", { wait: "30s" });
  assert.equal(await locker.evict("builds/1", guard.token, { reason: "it hangs" }), true);
  await free;
  const [past] = (await locker.status("builds/1")).history;
  assert.deepEqual([past?.end, past?.evicted?.reason], ["evicted", "it hangs"]);
  assert.match(past?.evicted?.by ?? "", /.@./);
  assert.equal((await guard.lost).reason, "ended");
  assert.throws(() => guard.check(), LockLostError);
  assert.equal(await locker.evict("builds/1", guard.token), false);
  assert.equal(await locker.sweep("other", { olderThan: "1h" }), false);
});

test("an evicted holder's work rejects, and its signal aborts", async (t) => {
  const locker = await opened(t);
  const work = locker.using("x", { ttl: "10s" }, async (signal, guard) => {
    await locker.evict("x", guard.token);
    await new Promise((resolve) => signal.addEventListener("abort", resolve));
  });
  await assert.rejects(work, (error) => error instanceof LockLostError && error.reason === "ended");
});

test("the doctor examines the store", async (t) => {
  const report = await (await opened(t)).doctor();
  assert.equal(report.safe, true);
  assert.ok(report.findings.length > 0);
  assert.ok(report.findings.every(({ check, verdict }) => check !== "" && verdict !== ""));
});

test("errors name the bad URL, name, number or store", async (t) => {
  await assert.rejects(Locker.open("s4://bucket/locks"), InvalidError);
  const locker = await opened(t);
  await assert.rejects(locker.acquire(""), InvalidError);
  await assert.rejects(
    locker.acquire("x", { ttl: 1 }),
    (error) => error instanceof InvalidError && error.message.startsWith("`ttl` is not from 500ms to "),
  );
  await assert.rejects(locker.semaphore("s", 0).acquire(), InvalidError);
  await assert.rejects(
    locker.get("ftp://example/x"),
    (error) => error instanceof InvalidError || error instanceof UnsupportedError,
  );
  // None of these errors ended the agent.
  await (await locker.acquire("x")).release();
});

test("a relative path is one of this process, not of the agent", async (t) => {
  const [first, before] = [folder(t), process.cwd()];
  t.after(() => process.chdir(before));
  process.chdir(first);
  const locker = new Locker("sqlite:locks.db");
  t.after(() => locker.close());
  const guard = await locker.acquire("x");
  process.chdir(folder(t));
  assert.ok((await new Locker("sqlite:locks.db").tryAcquire("x")) !== null);
  assert.equal(await new Locker(`sqlite:${first}/locks.db`).tryAcquire("x"), null);
  await guard.release();
});

test("a relative path in the environment is one of this process too", async (t) => {
  const [first, before] = [folder(t), process.cwd()];
  t.after(() => {
    delete process.env["LEASEHOLD_STORE"];
    process.chdir(before);
  });
  process.env["LEASEHOLD_STORE"] = "sqlite:locks.db";
  process.chdir(first);
  const locker = new Locker();
  t.after(() => locker.close());
  const guard = await locker.acquire("x");
  process.chdir(folder(t));
  assert.ok((await new Locker().tryAcquire("x")) !== null);
  assert.equal(await new Locker(`sqlite:${first}/locks.db`).tryAcquire("x"), null);
  await guard.release();
});

test("thousands of locks share one agent", async (t) => {
  const locker = new Locker("mem:");
  t.after(() => locker.close());
  const names = Array.from({ length: 2_000 }, (_, number) => `lock/${number}`);
  const guards = await Promise.all(names.map((name) => locker.acquire(name, { ttl: "1m" })));
  for (const guard of guards) guard.check();
  assert.ok((await Promise.all(guards.map((guard) => guard.release()))).every((held) => held));
});

test("several locks are held all or none", async (t) => {
  const locker = await opened(t);
  const locks = locker.lockAll(["b", "a"], { ttl: "30s" });
  const guard = await locks.acquire();
  assert.deepEqual([guard.lock, [...guard.tokens.keys()]], ["a, b", ["a", "b"]]);
  assert.throws(() => guard.token, UnsupportedError);
  assert.equal((await locker.status("b")).token, guard.tokens.get("b"));
  for (const other of [locker.lock("a"), locker.lock("b"), locker.lockAll(["c", "b"])])
    assert.equal(await other.tryAcquire(), null);
  assert.equal((await locker.status("c")).state, "free");
  const ticket = await guard.ticket();
  const resumed = await locker.resume(ticket);
  assert.deepEqual([...resumed.tokens.keys()], ["a", "b"]);
  assert.equal(await resumed.release(), true);
  const one = await locker.acquire("a");
  assert.deepEqual([...one.tokens], [["a", one.token]]);
  await one.release();
});

test("the loss of one of several locks is the loss of all", async (t) => {
  const locker = await opened(t);
  const guard = await locker.lockAll(["a", "b"], { ttl: "3s" }).acquire();
  assert.equal(await locker.evict("b", guard.tokens.get("b") ?? 0n), true);
  await guard.lost;
  assert.throws(() => guard.check(), LockLostError);
  await locker.waitFree("a", { wait: "20s" });
});

test("several locks that cannot be held together are errors", async (t) => {
  const locker = await opened(t);
  await assert.rejects(locker.lockAll(["a", "b", "a"]).acquire(), /`a` is named twice/);
});
