// Tests waiting, cancelling, and running work under a lock, with a fake agent.

import assert from "node:assert/strict";
import { once } from "node:events";
import { AgentError, InvalidError, LockLostError, StoreError, type Guard, type HeldBy } from "leasehold";
import { Fake, guarded, held, test, type Agent } from "./fake.js";

/** Grants the next acquisition. */
async function grant(agent: Agent, milliseconds = 60_000): Promise<void> {
  const { id } = await agent.next("acquire");
  agent.send(held(id, milliseconds));
}

test("options become fields", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const lock = locker.semaphore("s", 3, { ttl: "1m", owner: "you" });
  const acquiring = lock.acquire({
    wait: "1h 30m",
    ttl: undefined,
    owner: "me",
    note: "why",
    barge: true,
    lockDelay: 5,
    maxHold: "2h",
    storeTimeout: "0.5s",
    forTicket: true,
  });
  const { id, ...request } = await agent.next("acquire");
  assert.deepEqual(request, {
    ...{ op: "acquire", store: "mem:", lock: "s", mode: "permit", permits: 3, ttl_ms: 60_000, wait_ms: 5_400_000 },
    ...{ owner: "me", note: "why", lock_delay_ms: 5, max_hold_ms: 7_200_000, store_timeout_ms: 500, barge: true, for_ticket: true },
  });
  agent.send(held(id));
  await acquiring;
});

test("a hold whose deadline is its limit ends for that reason", async (t) => {
  const ends = async (at_limit: true | undefined, reason: string) => {
    const { guard } = await guarded(Fake.in(t), 2_000, { at_limit });
    assert.equal((await guard.lost).reason, reason);
  };
  await Promise.all([ends(true, "limit"), ends(undefined, "expired")]);
});

test("a bad duration or option is named, and nothing is sent", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  await assert.rejects(
    locker.acquire("x", { ttl: "5" }),
    (error) => error instanceof InvalidError && /^ttl "5"/.test(error.message),
  );
  const misspelt = { timeout: 5 } as object;
  await assert.rejects(locker.acquire("x", misspelt), /no option "timeout"/);
  assert.equal(agent.unread, 0);
});

test("the holder is reported to those who wait", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const seen: (HeldBy | null)[] = [];
  const acquiring = locker.acquire("x", { onWaiting: (heldBy) => seen.push(heldBy) });
  const { id, report_waiting } = await agent.next("acquire");
  assert.equal(report_waiting, true);
  agent.send({ id, ev: "waiting", held_by: { token: 7, ahead: 2, waiter_ahead: { name: "bob" } } }, held(id));
  await acquiring;
  assert.deepEqual([seen.length, seen[0]?.token, seen[0]?.ahead, seen[0]?.waiterAhead?.name], [1, 7n, 2, "bob"]);
});

test("tryAcquire resolves to null if the lock is held", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const trying = locker.tryAcquire("x");
  await agent.answer("try", { ev: "error", kind: "held", message: "held", held_by: null });
  assert.equal(await trying, null);
});

test("a signal cancels a waiting request; a grant that arrives later is released", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const stop = new AbortController();
  const waiting = locker.acquire("x", { signal: stop.signal });
  const { id } = await agent.next("acquire");
  const reason = new Error("enough");
  stop.abort(reason);
  await assert.rejects(waiting, reason);
  const cancel = await agent.next("cancel");
  assert.equal(cancel["request"], id);
  agent.send(held(id, 60_000, { hold: 4 }), { id: cancel["id"], ev: "done" });
  assert.equal((await agent.next("release"))["hold"], 4);
});

test("a signal that has aborted sends nothing", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  await assert.rejects(locker.acquire("x", { signal: AbortSignal.abort(new Error("before")) }), /before/);
  assert.equal(agent.unread, 0);
});

test("using runs work and releases the lock", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = locker.using("x", { ttl: "2s" }, (signal, guard) => [signal.aborted, guard.token]);
  await grant(agent);
  await agent.answer("release", { ev: "released", was_held: true });
  assert.deepEqual(await running, [false, 1_763_654_400_000_041n]);
});

test("using releases the lock when the work fails, and rejects with its error", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = assert.rejects(
    locker.using("x", () => Promise.reject(new Error("of the work"))),
    /of the work/,
  );
  await grant(agent);
  await agent.answer("release", { ev: "released", was_held: true });
  await running;
});

test("using rejects at the deadline, also if the work continues", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  let aborted: Promise<unknown> | undefined;
  const running = locker.using("x", (signal) => {
    aborted = once(signal, "abort");
    return new Promise<void>(() => {});
  });
  await grant(agent, 300);
  await assert.rejects(running, LockLostError);
  await aborted;
});

test("an error of the work after a loss is the loss", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = locker.using("x", async (signal) => {
    await once(signal, "abort");
    throw new Error("because of the signal");
  });
  await grant(agent, 300);
  await assert.rejects(running, LockLostError);
});

test("work that ends after the deadline is not protected", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = locker.using("x", () => {
    for (let end = performance.now() + 400; performance.now() < end;);
  });
  const failed = assert.rejects(running, LockLostError);
  await grant(agent, 300);
  await failed;
  await agent.next("release");
});

test("a release that finds the lock lost is a loss", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const failed = assert.rejects(
    locker.using("x", () => 1),
    LockLostError,
  );
  await grant(agent);
  await agent.answer("release", { ev: "released", was_held: false });
  await failed;
});

test("a store that fails while releasing does not fail the work", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = locker.using("x", () => 5);
  await grant(agent);
  await agent.answer("release", { ev: "error", kind: "unavailable", message: "no network" });
  assert.equal(await running, 5);
});

test("the caller's signal reaches the work, and the lock is held until the work ends", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const stop = new AbortController();
  const reason = new Error("shut down");
  let check = () => {};
  const running = locker.using("x", { signal: stop.signal }, async (signal, guard) => {
    stop.abort(reason);
    assert.equal(signal.reason, reason);
    check = () => guard.check();
    guard.check();
    throw signal.reason;
  });
  const failed = assert.rejects(running, reason);
  await grant(agent);
  await agent.answer("release", { ev: "released", was_held: true });
  await failed;
  assert.throws(check, InvalidError);
});

async function disposed(guard: Guard): Promise<void> {
  await using _ = guard;
}

test("await using releases the lock", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  const end = disposed(guard);
  await agent.answer("release", { ev: "released", was_held: true });
  await end;
});

test("await using throws a loss that was not reported", async (t) => {
  const fake = Fake.in(t);
  const one = await guarded(fake, 3_000);
  await one.guard.lost;
  await assert.rejects(disposed(one.guard), LockLostError);
  await one.locker.close();
  const two = await guarded(fake, 3_000);
  await two.guard.lost;
  assert.throws(() => two.guard.check(), LockLostError);
  await disposed(two.guard);
});

test("await using throws a loss that its release finds", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  const failed = assert.rejects(disposed(guard), (error) => error instanceof LockLostError && error.reason === "ended");
  await agent.answer("release", { ev: "released", was_held: false });
  await failed;
});

test("await using throws nothing if the block has ended the hold", async (t) => {
  const fake = Fake.in(t);
  const one = await guarded(fake);
  const releasing = one.guard.release();
  await one.agent.answer("release", { ev: "released", was_held: false });
  assert.equal(await releasing, false);
  await disposed(one.guard);
  await one.locker.close();
  const two = await guarded(fake);
  const passing = two.guard.ticket();
  await two.agent.answer("ticket", { ev: "ticket", ticket: "secret", token: 1763654400000041 });
  await passing;
  await disposed(two.guard);
  await two.locker.close();
  const three = await guarded(fake);
  const closing = three.locker.close();
  await disposed(three.guard);
  await closing;
});

test("await using throws nothing if the store fails while releasing", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  const end = disposed(guard);
  await agent.answer("release", { ev: "error", kind: "unavailable", message: "no network" });
  await end;
});

test("once runs the job and records it", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = locker.once("nightly", { per: "23h", noWait: true }, () => "done");
  const { id, period_ms, nowait } = await agent.next("once");
  assert.deepEqual([period_ms, nowait], [82_800_000, true]);
  agent.send(held(id));
  const release = await agent.answer("release", { ev: "released", was_held: true });
  assert.equal(release["cooldown_ms"], 82_800_000);
  assert.deepEqual(await running, { ran: true, value: "done" });
});

test("once names the holder that ran the job", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const running = locker.once("nightly", { per: "23h" }, () => assert.fail("it ran twice"));
  const holder = { name: "ci-7", host: null, pid: null, note: null, value: null, maxHoldMs: null };
  await agent.answer("once", { ev: "already_ran", holder, token: 12, ago_ms: 1_000, again_within_ms: null });
  assert.deepEqual(await running, { ran: false, holder, token: 12n, agoMs: 1_000, againWithinMs: null });
});

test("a job that fails is not recorded", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const failed = assert.rejects(
    locker.once("nightly", { per: "23h" }, () => Promise.reject(new Error("bad"))),
    /bad/,
  );
  const { id } = await agent.next("once");
  agent.send(held(id));
  const release = await agent.answer("release", { ev: "released", was_held: true });
  assert.equal(release["cooldown_ms"], undefined);
  await failed;
});

test("a run that cannot be recorded is an error", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const failed = assert.rejects(
    locker.once("nightly", { per: "23h" }, () => 1),
    (error) =>
      error instanceof StoreError && /succeeded, but its run could not be recorded: no network/.test(error.message),
  );
  const { id } = await agent.next("once");
  agent.send(held(id));
  await agent.answer("release", { ev: "error", kind: "unavailable", message: "no network" });
  await failed;
});

test("observing gives the latest leader, and ends the request when the loop is left", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const leaders = locker.election("web").observe();
  const first = leaders.next();
  const { id } = await agent.next("observe");
  const leader = (value: string) => ({ id, ev: "leader", leader: { value, term: 5, holder: null } });
  agent.send(leader("a"));
  assert.deepEqual((await first).value, { value: "a", term: 5n, holder: null });
  agent.send(leader("b"), leader("c"), { id, ev: "leader", leader: null }, leader("d"));
  assert.equal((await leaders.next()).value?.value, "d");
  await leaders.return();
  assert.equal((await agent.next("cancel"))["request"], id);
});

test("an observer's signal ends the loop with its reason", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const stop = new AbortController();
  const next = locker.election("web").observe({ signal: stop.signal }).next();
  await agent.next("observe");
  stop.abort(new Error("enough"));
  await assert.rejects(next, /enough/);
  await agent.next("cancel");
});

test("an update asks for each content until one is written", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const updating = locker.update("s3://b/n", (content) => `${Number(content === null ? 0 : Buffer.from(content)) + 1}`);
  const { id } = await agent.next("update");
  agent.send({ id, ev: "content", content: null });
  const first = await agent.answer("answer", { ev: "done" });
  assert.deepEqual([first["request"], first["content"]], [id, Buffer.from("1").toString("base64")]);
  agent.send({ id, ev: "content", content: Buffer.from("41").toString("base64") });
  const second = await agent.answer("answer", { ev: "done" });
  assert.equal(Buffer.from(String(second["content"]), "base64").toString(), "42");
  agent.send({ id, ev: "updated", written: true, attempts: 2 });
  assert.deepEqual(await updating, { written: true, attempts: 2 });
});

test("an error of the change ends the update, also an invalid argument", async (t) => {
  for (const [error, message] of [
    [new Error("cannot parse it"), /cannot parse it/],
    [new InvalidError("a bad name"), /a bad name/],
  ] as const) {
    const [locker, agent] = await Fake.in(t).open();
    const failed = assert.rejects(
      locker.update("s3://b/n", () => {
        throw error;
      }),
      message,
    );
    const { id } = await agent.next("update");
    agent.send({ id, ev: "content", content: null });
    assert.equal((await agent.next("cancel"))["request"], id);
    await failed;
  }
});

test("a change that outlives its agent answers no request of the next one", async (t) => {
  const fake = Fake.in(t);
  const [locker, agent] = await fake.open();
  let finish = (_: string) => {};
  let begun = () => {};
  const started = new Promise<void>((resolve) => (begun = resolve));
  const failed = assert.rejects(
    locker.update("s3://b/one", () => {
      begun();
      return new Promise<string>((resolve) => (finish = resolve));
    }),
    (error) => error instanceof AgentError && error.maybeApplied,
  );
  const { id } = await agent.next("update");
  agent.send({ id, ev: "content", content: null });
  await started;
  agent.exit(1);
  await failed;

  const reading = assert.rejects(locker.get("s3://b/two"), (error) => error instanceof AgentError && !error.maybeApplied);
  const next = await fake.greeted();
  await next.next("get");
  finish("for one");
  await new Promise((resolve) => setImmediate(resolve));
  const again = assert.rejects(locker.get("s3://b/three"), AgentError);
  assert.equal((await next.next("get"))["object"], "s3://b/three");
  next.exit(1);
  await Promise.all([reading, again]);
});

test("text that is not Unicode is refused here", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  for (const name of ["a\ud83d", "\udd12a", "\\\ud83d"]) {
    await assert.rejects(locker.acquire(name), InvalidError);
  }
  assert.equal(agent.unread, 0);
  const acquiring = locker.acquire("\u{1f512}\\ud83d");
  const { id, lock } = await agent.next("acquire");
  assert.equal(lock, "\u{1f512}\\ud83d");
  agent.send(held(id));
  await acquiring;
});

test("a write that a higher token refuses is a loss", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  const failed = assert.rejects(
    locker.put("s3://b/o", "text", { fence: 7n }),
    (error) => error instanceof LockLostError && error.reason === "refused" && error.refusedBy === 9n,
  );
  const { fence, content } = await agent.answer("put", {
    ev: "error",
    kind: "lost",
    message: "refused",
    refused_by: 9,
  });
  assert.deepEqual([fence, content], [7, Buffer.from("text").toString("base64")]);
  await failed;
});

test("a request that is too long for the agent is refused here", async (t) => {
  const [locker, agent] = await Fake.in(t).open();
  await assert.rejects(locker.put("s3://b/o", "x".repeat(5_000), { fence: 7n }), /longer than 4096 bytes/);
  assert.equal(agent.unread, 0);
});
