// Tests the action as the runner starts it, with a tarball that ./package has built:
//
//   DIST=FOLDER node --test action/action.test.mjs
//
// A server on this machine replaces the releases on GitHub.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, watch, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, beforeEach, afterEach, test } from "node:test";
import { promisify } from "node:util";

const run = promisify(execFile);
const dist = process.env.DIST;
const { version } = JSON.parse(readFileSync(new URL("../clients/typescript/package.json", import.meta.url), "utf8"));
let server, downloads, place, store, asked, tamper;

before(async () => {
  server = createServer((request, response) => {
    asked.push(request.url);
    const file = join(dist, request.url.replace(`/v${version}/`, ""));
    if (!existsSync(file)) return response.writeHead(404).end();
    const content = readFileSync(file);
    response.end(tamper && file.endsWith(".gz") ? Buffer.concat([content, Buffer.from("x")]) : content);
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  downloads = `http://127.0.0.1:${server.address().port}`;
});
after(() => server.close());
beforeEach(() => {
  [asked, tamper] = [[], false];
  place = mkdtempSync(join(tmpdir(), "leasehold-action."));
  store = `sqlite:${place}/locks.db`;
});
afterEach(() => rmSync(place, { recursive: true }));

/** Runs a step. Resolves with its exit code, and with its output on stdout and in the runner's files. */
async function step(entry, inputs, env = {}, started = () => {}) {
  const files = Object.fromEntries(
    ["OUTPUT", "ENV", "STATE", "PATH"].map((name) => [`GITHUB_${name}`, join(place, `file-${name}`)]),
  );
  for (const file of Object.values(files)) writeFileSync(file, "");
  const given = Object.entries({ downloads, ...inputs }).map(([name, value]) => [`INPUT_${name.toUpperCase()}`, value]);
  const child = spawn(process.execPath, [new URL(`${entry}.mjs`, import.meta.url).pathname], {
    env: {
      PATH: "/usr/bin:/bin",
      HOME: place,
      RUNNER_TEMP: join(place, "temp"),
      GITHUB_REPOSITORY: "o/r",
      GITHUB_RUN_ID: "7",
      ...files,
      ...Object.fromEntries(given),
      ...env,
    },
    stdio: ["ignore", "pipe", "inherit"],
  });
  started(child);
  const [log, [code]] = await Promise.all([child.stdout.setEncoding("utf8").toArray(), once(child, "exit")]);
  const read = (name) => parsed(readFileSync(files[`GITHUB_${name}`], "utf8"));
  const path = readFileSync(files.GITHUB_PATH, "utf8").trim();
  return { code, log: log.join(""), path, outputs: read("OUTPUT"), variables: read("ENV"), state: read("STATE") };
}

/** Parses NAME<<END, lines, END as the runner does. */
function parsed(text) {
  return Object.fromEntries([...text.matchAll(/^(.+)<<(.+)\n([\s\S]*?)\n\2\n/gm)].map(([, name, , value]) => [name, value]));
}

const installed = async () => (await step("main", {})).path;
const leasehold = (folder, ...args) => run(join(folder, "leasehold"), ["-s", store, ...args]);
const held = (folder, lock) => leasehold(folder, "run", "--try", lock, "--", "true").then(() => false, (error) => error.code === 123);

test("without a lock, it installs the command", async () => {
  const { code, path, variables } = await step("main", { store });
  assert.equal(code, 0);
  assert.equal((await run(join(path, "leasehold"), ["--version"])).stdout, `leasehold ${version}\n`);
  assert.deepEqual(variables, { LEASEHOLD_STORE: store });
  assert.ok(asked.includes(`/v${version}/SHA256SUMS`));
});

test("a script holds the lock, and its exit code fails the step", async () => {
  const script = `leasehold run --try x -- true || echo "refused: $?"; echo "token $LEASEHOLD_TOKEN"; false; echo on`;
  const { code, log, path } = await step("main", { store, lock: "x", run: script });
  assert.equal(code, 1);
  assert.match(log, /refused: 123\ntoken [0-9]+\n/);
  assert.doesNotMatch(log, /^on$/m);
  assert.match(log, /::error::the script, or the lock, failed with exit code 1/);
  assert.equal(await held(path, "x"), false);
});

test("a step that is cancelled stops its script and releases the lock", async () => {
  const ready = join(place, "ready");
  const script = `touch ${ready}; sleep 60`;
  const { code, path } = await step("main", { store, lock: "x", run: script }, {}, (child) => {
    const watcher = watch(place, () => {
      if (!existsSync(ready)) return;
      watcher.close();
      child.kill("SIGINT");
    });
  });
  assert.equal(code, 128 + 15);
  assert.equal(await held(path, "x"), false);
});

test("without a script, it holds the lock until the end of the job", async () => {
  const { code, log, path, outputs, variables, state } = await step("main", { store, lock: "x", ttl: "10m" });
  assert.equal(code, 0);
  assert.match(outputs.token, /^[0-9]+$/);
  assert.match(log, new RegExp(`^::add-mask::${variables.LEASEHOLD_TICKET}$`, "m"));
  assert.equal(log.split(variables.LEASEHOLD_TICKET).length, 2, "only the mask has the ticket");
  assert.equal(await held(path, "x"), true);
  // A later step uses the ticket.
  const env = { ...process.env, ...variables };
  const later = await run(join(path, "leasehold"), ["run", "--ticket", "--", "sh", "-c", "echo $LEASEHOLD_TOKEN"], { env });
  assert.equal(later.stdout, `${outputs.token}\n`);
  const saved = Object.fromEntries(Object.entries(state).map(([name, value]) => [`STATE_${name}`, value]));
  assert.equal((await step("post", {}, saved)).code, 0);
  assert.equal(await held(path, "x"), false);
  // The lock was released, so a second release reports a loss.
  const again = await step("post", {}, saved);
  assert.equal(again.code, 1);
  assert.match(again.log, /::error::the lock was not held until the end of the job/);
});

test("a lock that is held fails the step after the wait", async () => {
  const path = await installed();
  await leasehold(path, "acquire", "x", "--ttl", "10m");
  const command = join(path, "leasehold");
  const acquire = await step("main", { store, command, lock: "x", wait: "10s" });
  assert.equal(acquire.code, 1);
  assert.match(acquire.log, /::error::the lock was not acquired: exit code 124/);
  assert.deepEqual(acquire.state, {});
  assert.equal((await step("main", { store, command, lock: "x", wait: "10s", run: "true" })).code, 124);
  // At the end of a job whose step acquired nothing, nothing is released.
  assert.equal((await step("post", {})).code, 0);
});

test("the input command is used, and nothing is downloaded", async () => {
  const path = await installed();
  asked = [];
  const { code } = await step("main", { store, command: join(path, "leasehold"), lock: "x", run: "true" });
  assert.equal(code, 0);
  assert.deepEqual(asked, []);
});

test("a tarball with another digest is not unpacked", async () => {
  tamper = true;
  const { code, log, path } = await step("main", {});
  assert.equal(code, 1);
  assert.match(log, /::error::leasehold-.*\.tar\.gz has the SHA-256 digest [0-9a-f]{64}, which SHA256SUMS .* does not have/);
  assert.equal(path, "");
  assert.ok(!existsSync(join(place, "temp")) || readdirSync(join(place, "temp")).length === 0);
});

test("bad input is refused with what to do", async () => {
  for (const [inputs, message] of [
    [{ run: "true" }, /the input run needs the input lock/],
    [{ lock: "--help", run: "true", store }, /the input lock "--help" begins with "-": choose another name/],
    [{ lock: "-x", store }, /the input lock "-x" begins with "-"/],
    [{ lock: "x", wait: "--help", store }, /the lock was not acquired: exit code 2/],
    [{ version: "../../x" }, /the version "..\/..\/x" is not one like 0.1.0/],
    [{ version: "9.9.9" }, /cannot download http:.*\/v9.9.9\/leasehold-9.9.9-.*: HTTP status 404/],
    [{ downloads: "http://127.0.0.1:1" }, /cannot download http:\/\/127.0.0.1:1\/.*: /],
    [{ command: "/nonexistent/leasehold", lock: "x", store }, /cannot start \/nonexistent\/leasehold: .*ENOENT/],
    [{ store: "nonsense:", lock: "x", command: join(await installed(), "leasehold") }, /the lock was not acquired: exit code 125/],
  ]) {
    const { code, log } = await step("main", inputs);
    assert.equal(code, 1, log);
    assert.match(log, message);
  }
});

test("an input cannot set another variable", async () => {
  const { variables } = await step("main", { store: "mem:\nNODE_OPTIONS=x" });
  assert.deepEqual(variables, { LEASEHOLD_STORE: "mem:\nNODE_OPTIONS=x" });
});

