// Tests how an agent is found, started and refused.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { AgentError, InvalidError, Locker } from "leasehold";
import { Fake, hello, now, script, test } from "./fake.js";

async function refused(opening: Promise<unknown>, message: RegExp, help?: RegExp): Promise<void> {
  const error = await opening.then(
    () => assert.fail("it was opened"),
    (error: unknown) => error,
  );
  assert.ok(error instanceof AgentError, String(error));
  assert.match(error.message, message);
  if (help !== undefined) assert.match(error.help.join("\n"), help);
  assert.equal(error.kind, "agent");
}

test("a command that is not there is named, with what to do", async (t) => {
  const fake = Fake.in(t);
  const command = join(fake.folder, "missing");
  await refused(Locker.open("mem:", { command }), /missing" was not found/, /LEASEHOLD_COMMAND/);
});

test("LEASEHOLD_COMMAND names the command", async (t) => {
  const before = process.env["LEASEHOLD_COMMAND"];
  t.after(() => {
    if (before === undefined) delete process.env["LEASEHOLD_COMMAND"];
    else process.env["LEASEHOLD_COMMAND"] = before;
  });
  process.env["LEASEHOLD_COMMAND"] = "/nonexistent/command";
  await refused(Locker.open("mem:"), /"\/nonexistent\/command" was not found/);
});

test("a file that cannot be executed is an error", async (t) => {
  const fake = Fake.in(t);
  await refused(Locker.open("mem:", { command: fake.folder }), /could not be started/);
});

test("a command that is not a path is an error", async () => {
  await refused(Locker.open("mem:", { command: "a\0b" }), /"a\\u0000b" could not be started/);
});

test("too many open files are an error", async () => {
  const program = `
    import { openSync } from "node:fs";
    import { Locker } from "leasehold";
    for (;;) try { openSync("/dev/null"); } catch { break; }
    await Locker.open("mem:", { command: "/bin/true" }).catch(({ name, message }) => console.log(name, message));`;
  const cwd = fileURLToPath(new URL("..", import.meta.url));
  const node = ["-c", 'ulimit -n 100; exec "$0" "$@"', process.execPath, "--input-type=module", "--eval", program];
  const { stdout } = await promisify(execFile)("/bin/sh", node, { cwd });
  assert.equal(stdout, 'AgentError the command "/bin/true" could not be started: too many files are open\n');
});

test("a signal ends the wait for the start of the agent", async (t) => {
  const fake = Fake.in(t);
  const stop = new AbortController();
  const waiting = new Locker("mem:", { command: fake.command }).acquire("x", { signal: stop.signal });
  const failed = assert.rejects(waiting, /enough/);
  const agent = await fake.agent();
  await agent.next("hello");
  stop.abort(new Error("enough"));
  await failed;
});

test("a request that meets the end of the agent by another locker starts a new one", async (t) => {
  const fake = Fake.in(t);
  const [first, agent] = await fake.open();
  const listing = new Locker("mem:", { command: fake.command }).list();
  // Closes the locker before the request is sent.
  const closing = first.close();
  await agent.ended;
  await (await fake.greeted()).answer("list", { ev: "done" });
  await Promise.all([closing, listing]);
});

test("a command without an agent is too old", async (t) => {
  const fake = Fake.in(t);
  const command = join(fake.folder, "old");
  script(command, "echo \"error: unrecognized subcommand 'agent'\" >&2; exit 2");
  await refused(Locker.open("mem:", { command }), /too old/, /same version/);
});

test("the error has the output of a command that fails at its start", async (t) => {
  const fake = Fake.in(t);
  const command = join(fake.folder, "failing");
  script(command, "echo 'config.toml: line 3 is wrong' >&2; exit 1");
  await refused(Locker.open("mem:", { command }), /config.toml: line 3 is wrong/);
});

test("a command that is not an agent is refused", async (t) => {
  const fake = Fake.in(t);
  const command = join(fake.folder, "other");
  script(command, "exec yes");
  await refused(Locker.open("mem:", { command }), /not JSON/);
});

test("an agent with another protocol is refused", async (t) => {
  const fake = Fake.in(t);
  const opening = Locker.open("mem:", { command: fake.command });
  const agent = await fake.agent();
  const request = await agent.answer("hello", hello({ protocol: 2 }));
  assert.deepEqual([request["protocol"], request["pid"]], [1, process.pid]);
  await refused(opening, /does not support protocol 1/);
  await agent.ended;
});

for (const clock of ["boot_us", "wall_us"] as const) {
  for (const [word, by] of [
    ["behind", -3_600_000_000],
    ["ahead", 3_600_000_000],
  ] as const) {
    test(`an agent whose ${clock} is ${word} is refused`, async (t) => {
      const fake = Fake.in(t);
      const opening = Locker.open("mem:", { command: fake.command });
      const agent = await fake.agent();
      const { id } = await agent.next("hello");
      const clocks = now();
      agent.send({ id, ...hello({ ...clocks, [clock]: clocks[clock] + by }) });
      await refused(opening, new RegExp(`clock of the agent is \\d+ ms ${word}`), /same container/);
      await agent.ended;
    });
  }
}

test("an agent that dies before its hello is an error, and the next one is started", async (t) => {
  const fake = Fake.in(t);
  const opening = Locker.open("mem:", { command: fake.command });
  const agent = await fake.agent();
  await agent.next("hello");
  agent.exit(7);
  await refused(opening, /the agent of .* ended/);
  const [locker] = await fake.open();
  await locker.close();
});

test("all lockers of a command share one agent, which ends with the last", async (t) => {
  const fake = Fake.in(t);
  const opening = [1, 2].map(() => Locker.open("mem:", { command: fake.command }));
  const agent = await fake.greeted();
  for (const _ of opening) await agent.answer("capabilities", { ev: "capabilities", store: "memory" });
  for (const locker of await Promise.all(opening)) await locker.close();
  await agent.ended;
});

test("an agent without work ends, and the next request starts another", async (t) => {
  const fake = Fake.in(t);
  const [locker, agent] = await fake.open("20ms");
  await agent.ended;
  const listing = locker.list("a");
  const next = await fake.greeted();
  const { id, prefix } = await next.next("list");
  assert.equal(prefix, "a");
  next.send({ id, ev: "names", names: ["a1"] }, { id, ev: "names", names: ["a2"] }, { id, ev: "done" });
  assert.deepEqual(await listing, ["a1", "a2"]);
  await locker.close();
});

test("a closed locker refuses requests", async (t) => {
  const fake = Fake.in(t);
  const [locker] = await fake.open();
  await locker.close();
  await assert.rejects(locker.acquire("x"), /the locker was closed/);
  await locker.close();
});

test("closing a locker cancels what waits and releases what is held", async (t) => {
  const fake = Fake.in(t);
  const [locker, agent] = await fake.open();
  const acquiring = locker.acquire("x");
  const { id } = await agent.next("acquire");
  agent.send({ id, ev: "held", hold: 3, lock: "x", token: 5, ...now(), span_us: 60_000_000 });
  const guard = await acquiring;
  const waiting = locker.acquire("y");
  const failed = assert.rejects(waiting, /the locker was closed/);
  const pending = await agent.next("acquire");
  const closing = locker.close();
  assert.equal((await agent.next("cancel"))["request"], pending["id"]);
  assert.equal((await agent.next("release"))["hold"], 3);
  await Promise.all([closing, failed, agent.ended]);
  assert.equal(guard.held, false);
  assert.throws(() => guard.check(), InvalidError);
});
