// Tests held locks with a fake agent: deadlines, news and losses.

import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { AgentError, InvalidError, LockHeldError, LockLostError, StoreError, type Guard } from "leasehold";
import { block, Fake, guarded, held, now, test, until } from "./fake.js";

const MINUTE = 60_000;

function assertLost(guard: Guard, reason: string): void {
  assert.throws(
    () => guard.check(),
    (error: unknown) => error instanceof LockLostError && error.reason === reason,
  );
  assert.equal(guard.held, false);
  assert.equal(guard.remaining, 0);
  assert.ok(guard.signal.aborted);
}

test("a guard has its token, its name and the time that remains", async (t) => {
  const { locker, agent, guard } = await guarded(Fake.in(t));
  assert.equal(guard.token, 1_763_654_400_000_041n);
  assert.equal(guard.lock, "x");
  assert.ok(guard.remaining > 50_000 && guard.remaining < MINUTE, String(guard.remaining));
  guard.check();
  const releasing = guard.release();
  assert.deepEqual((await agent.answer("release", { ev: "released", was_held: true }))["hold"], 1);
  assert.equal(await releasing, true);
  assert.equal(await guard.release(), true);
  assert.throws(() => guard.check(), InvalidError);
  await locker.close();
});

test("reading the token of a lock without tokens is an error", async (t) => {
  const { guard } = await guarded(Fake.in(t), MINUTE, { token: null });
  assert.throws(() => guard.token, /no fencing tokens/);
});

test("the lock is lost at its deadline, without the agent", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t), 3_000);
  const aborted = new Promise((resolve) => guard.signal.addEventListener("abort", resolve));
  const loss = await guard.lost;
  await aborted;
  assert.equal(guard.signal.reason, loss);
  assertLost(guard, "expired");
  assert.equal((await agent.next("release"))["hold"], 1);
  assert.equal(await guard.release(), false);
});

test("a renewal after a local loss is ignored", async (t) => {
  const fake = Fake.in(t);
  const { locker, agent, guard } = await guarded(fake, 3_000);
  const renewing = assert.rejects(guard.renew(), LockLostError);
  const { id } = await agent.next("renew");
  // The deadline passes while the agent does not respond.
  await Promise.all([guard.lost, renewing]);
  const { id: release } = await agent.next("release");
  agent.send({ hold: 1, ev: "renewed", ...until(MINUTE) });
  agent.send({ id, ev: "renewed", hold: 1, ...until(MINUTE) }, { id: release, ev: "released", was_held: true });
  // When this response is read, everything before it has been read.
  const listing = locker.list();
  await agent.answer("list", { ev: "done" });
  await listing;
  assertLost(guard, "expired");
});

for (const clock of ["boot_us", "wall_us"] as const) {
  test(`a deadline that has passed on ${clock} alone is a loss`, async (t) => {
    const { locker, agent, guard } = await guarded(Fake.in(t));
    const clocks = now();
    agent.send({ hold: 1, ev: "renewed", ...clocks, [clock]: clocks[clock] - 120_000_000, span_us: 120_000_000 });
    if (clock === "boot_us") {
      // A deadline before the known one is stale.
      const listing = locker.list();
      await agent.answer("list", { ev: "done" });
      await listing;
      guard.check();
      const acquiring = assert.rejects(locker.acquire("y"), LockLostError);
      const { id } = await agent.next("acquire");
      agent.send(held(id, 1_000, { hold: 2, boot_us: clocks.boot_us - 1_000_000 }));
      await acquiring;
      assert.equal((await agent.next("release"))["hold"], 2);
      return;
    }
    await guard.lost;
    assertLost(guard, "expired");
  });
}

test("a renewal moves the deadline forwards, and a stale one does not move it back", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t), 10_000);
  const stale = { ...until(5_000), boot_us: now().boot_us - 1_000_000 };
  agent.send({ hold: 1, ev: "renewed", ...until(2 * MINUTE) }, { hold: 1, ev: "renewed", ...stale });
  agent.blockUntilWritten();
  assert.ok(guard.remaining > MINUTE, String(guard.remaining));
});

test("a renewal that the blocked event loop has not read is not a loss", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t), 3_000);
  // Simulates an agent that renewed several times while the loop was blocked. The deadline of the first renewal has
  // passed too.
  const first = until(3_500);
  block(4_000);
  agent.send({ hold: 1, ev: "renewed", ...first }, { hold: 1, ev: "renewed", ...until(MINUTE) });
  agent.blockUntilWritten();
  guard.check();
  assert.ok(guard.remaining > 1_000);
});

test("the timer reads renewals before it judges", async (t) => {
  const { locker, agent, guard } = await guarded(Fake.in(t), 3_000);
  const renewal = { hold: 1, ev: "renewed", ...until(MINUTE) };
  agent.send(renewal);
  agent.blockUntilWritten();
  block(3_500);
  // The timer is due now and runs before the event loop reads.
  await new Promise((resolve) => setTimeout(resolve, 0));
  guard.check();
  const listing = locker.list();
  await agent.answer("list", { ev: "done" });
  await listing;
  guard.check();
});

test("a deadline that passed while the event loop was blocked is a loss", async (t) => {
  const { guard } = await guarded(Fake.in(t), 3_000);
  block(3_500);
  assertLost(guard, "expired");
});

test("a loss that the blocked event loop has not read is noticed", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  agent.send({ hold: 1, ev: "lost", reason: "taken_over", message: "it was taken over" });
  agent.blockUntilWritten();
  assertLost(guard, "taken_over");
  assert.equal(agent.unread, 0);
});

test("the death of the agent is noticed by a check of the blocked event loop", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  agent.send({ hold: 1, ev: "renewed", ...until(MINUTE) });
  agent.closeOutput();
  agent.blockUntilWritten();
  assertLost(guard, "agent");
});

test("events in the same chunk as the grant count", async (t) => {
  const fake = Fake.in(t);
  const [locker, agent] = await fake.open();
  const first = assert.rejects(
    locker.acquire("x"),
    (error) => error instanceof LockLostError && error.reason === "deleted",
  );
  const { id } = await agent.next("acquire");
  agent.send(held(id), { hold: 1, ev: "lost", reason: "deleted", message: "its record was deleted" });
  await first;
  const second = locker.acquire("x");
  const { id: next } = await agent.next("acquire");
  agent.send(held(next, 0, { hold: 2 }), { hold: 2, ev: "renewed", ...until(MINUTE) });
  (await second).check();
});

test("user code that checks while a message is taken sees the later messages, in order", async (t) => {
  const { agent, guard, locker } = await guarded(Fake.in(t));
  const acquiring = locker.acquire("y");
  const { id } = await agent.next("acquire");
  agent.send(held(id, MINUTE, { hold: 2 }));
  const other = await acquiring;
  let seen: unknown;
  guard.signal.addEventListener("abort", () => (seen = [other.held, other.signal.reason.reason]));
  const lost = (hold: number, reason: string) => ({ hold, ev: "lost", reason, message: reason });
  agent.send(lost(1, "taken_over"), lost(2, "ended"));
  await other.lost;
  assert.deepEqual(seen, [false, "ended"]);
});

for (const [what, bytes] of [
  ["text that is not JSON", "hello\n"],
  ["a JSON array", "[1]\n"],
  ["a line that is not UTF-8", Uint8Array.of(0x22, 0xff, 0x22, 10)],
  ["a line that is too long", `${" ".repeat(5_000)}\n`],
  ["a line that is too long and not ended", " ".repeat(5_000)],
  ["a message without an event", '{"hold":1}\n'],
  ["a loss without a reason", '{"hold":1,"ev":"lost","message":"m"}\n'],
  ["an unknown answer", '{"id":3,"ev":"surprise"}\n'],
  ["a holder that is a text", '{"id":4,"ev":"error","kind":"held","message":"m","held_by":"x"}\n'],
  ["a holder with an infinite age", '{"id":4,"ev":"error","kind":"held","message":"m","held_by":{"held_ms":1e400}}\n'],
  ["a response to no request", '{"id":99,"ev":"done"}\n'],
  ["an error without a request", '{"id":null,"ev":"error","kind":"invalid","message":"the agent ends"}\n'],
  ["a deadline that is not a number", '{"hold":1,"ev":"renewed","boot_us":"1","wall_us":2,"span_us":3}\n'],
  ["a deadline in the future", `{"hold":1,"ev":"renewed","boot_us":9000000000000000,"wall_us":2,"span_us":3}\n`],
  ["a deadline that is not exact", '{"hold":1,"ev":"renewed","boot_us":1e300,"wall_us":2,"span_us":3}\n'],
] as const) {
  test(`${what} is the end of the agent`, async (t) => {
    const fake = Fake.in(t);
    const { locker, agent, guard } = await guarded(fake);
    const waiting = assert.rejects(locker.acquire("y"), AgentError);
    await agent.next("acquire");
    agent.send(bytes);
    assert.equal((await guard.lost).reason, "agent");
    assertLost(guard, "agent");
    await Promise.all([waiting, agent.ended]);
    // The next request starts another agent.
    const listing = locker.list();
    await (await fake.greeted()).answer("list", { ev: "done" });
    assert.deepEqual(await listing, []);
  });
}

test("lines may come in pieces, several at a time, and with unknown fields", async (t) => {
  const fake = Fake.in(t);
  const [locker, agent] = await fake.open();
  const acquiring = locker.acquire("x");
  const { id } = await agent.next("acquire");
  const line = JSON.stringify({ ...held(id), lock: "zürich", later: { is: ["ignored"] } });
  for (const byte of Buffer.from(line)) {
    agent.send(Uint8Array.of(byte));
    if (byte % 16 === 0) agent.blockUntilWritten();
  }
  agent.send('\n{"hold":1,"ev":"news of a later agent"}\n');
  agent.send(JSON.stringify({ hold: 9, ev: "lost", reason: "expired", message: "of another" }) + "\n");
  agent.blockUntilWritten();
  const guard = await acquiring;
  assert.equal(guard.lock, "zürich");
  guard.check();
});

test("an agent that dies while a lock is released or renewed fails the request", async (t) => {
  const fake = Fake.in(t);
  const one = await guarded(fake);
  const renewing = assert.rejects(one.guard.renew(), LockLostError);
  await one.agent.next("renew");
  one.agent.exit(1);
  await renewing;
  const two = await guarded(fake);
  const releasing = assert.rejects(two.guard.release(), AgentError);
  await two.agent.next("release");
  two.agent.exit(1);
  await releasing;
  assert.equal(two.guard.signal.aborted, false);
});

test("a renewal that the store refuses is a loss", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  const renewing = assert.rejects(guard.renew(), LockLostError);
  await agent.answer("renew", { ev: "error", kind: "lost", message: "another process has the lock" });
  await renewing;
  assert.equal(guard.held, false);
});

test("a renewal on demand moves the deadline", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t), 10_000);
  const renewing = guard.renew();
  await agent.answer("renew", { ev: "renewed", hold: 1, ...until(2 * MINUTE) });
  await renewing;
  assert.ok(guard.remaining > MINUTE);
});

test("a renewal on demand leaves nothing behind", async (t) => {
  const { agent, guard } = await guarded(Fake.in(t));
  const { lost } = guard;
  let reactions = 0;
  lost.then = (...arguments_) => {
    reactions += 1;
    return Promise.prototype.then.apply(lost, arguments_) as never;
  };
  for (let renewals = 0; renewals < 20; renewals += 1) {
    const renewing = guard.renew();
    assert.equal(getEventListeners(guard.signal, "abort").length, 1);
    await agent.answer("renew", { ev: "renewed", hold: 1, ...until(MINUTE) });
    await renewing;
  }
  const failing = assert.rejects(guard.renew(), StoreError);
  await agent.answer("renew", { ev: "error", kind: "unavailable", message: "no network" });
  await failing;
  assert.deepEqual([reactions, getEventListeners(guard.signal, "abort").length], [0, 0]);
});

test("errors of the agent become errors of their class, with help", async (t) => {
  const fake = Fake.in(t);
  const [locker, agent] = await fake.open();
  const failing = async (answer: object) => {
    const caught = locker.acquire("x").then(
      () => assert.fail(),
      (error: unknown) => error,
    );
    await agent.answer("acquire", { ev: "error", message: "no", help: ["do this"], ...answer });
    return (await caught) as Error & { kind: string; help: string[] };
  };
  const holder = { name: "ci-7", host: "a", pid: 4, note: null, value: null, maxHoldMs: null };
  const heldBy = await failing({ kind: "held", held_by: { holder, token: 9, held_ms: 5 } });
  assert.ok(heldBy instanceof LockHeldError);
  assert.deepEqual([heldBy.holder, heldBy.heldBy?.token], [holder, 9n]);
  const denied = await failing({ kind: "denied" });
  assert.ok(denied instanceof StoreError);
  assert.deepEqual([denied.kind, denied.help], ["denied", ["do this"]]);
  assert.equal((await failing({ kind: "of a later version" })).kind, "unavailable");
  assert.ok((await failing({ kind: "invalid" })) instanceof InvalidError);
  assert.equal((await failing({ kind: "unsupported" })).name, "UnsupportedError");
});
