// Tests locks on each store. `./test` starts the servers.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { Locker, LockLostError } from "leasehold";
import { command, store, test as real } from "./real.js";

const PREFIX = "LEASEHOLD_TEST_";

/** The URLs that ./test sets, except those of servers that leasehold must refuse. */
const SERVERS = new Map(
  Object.entries(process.env)
    .filter(([name, value]) => name.startsWith(PREFIX) && value?.includes("://") && !name.startsWith(`${PREFIX}BAD_`))
    .map(([name, value]) => [name.slice(PREFIX.length), value as string]),
);

function test(name: string, on: string, body: (locker: Locker, url: string) => Promise<void>): void {
  const server = SERVERS.get(on);
  real(
    name,
    async (t) => {
      const url = server ?? store(t);
      const locker = await Locker.open(url);
      t.after(() => locker.close());
      await body(locker, url);
    },
    on !== "SQLITE" && server === undefined && "there is no such server: ./test --with-servers",
  );
}

/** Returns whether another process gets the lock without waiting. */
function isGrantedToAnother(url: string, name: string): boolean {
  const { status } = spawnSync(command as string, ["run", "--try", "--store", url, name, "--", "true"]);
  assert.ok(status === 0 || status === 123, `exit code ${status}`);
  return status === 0;
}

for (const on of ["SQLITE", ...SERVERS.keys()]) {
  test(`a lock on ${on}`, on, async (locker, url) => {
    await locker.init();
    const lock = locker.lock(`clients/typescript-${process.pid}`, { ttl: "30s" });
    const first = await lock.using({ wait: "60s" }, async (signal, guard) => {
      signal.throwIfAborted();
      assert.equal(await lock.tryAcquire(), null);
      assert.equal(isGrantedToAnother(url, lock.name), false);
      await guard.renew();
      assert.equal((await locker.status(lock.name)).state, "held");
      return guard.token;
    });
    assert.equal(isGrantedToAnother(url, lock.name), true);
    const guard = await lock.tryAcquire();
    assert.ok(guard !== null && guard.token > first);
    assert.equal((await locker.list("clients/typescript-")).filter((name) => name === lock.name).length, 1);
    assert.equal(await guard.release(), true);
  });
}

test("objects on S3", "S3_MINIO", async (locker, url) => {
  // Each run uses another object.
  const state = url.replace("?", `/typescript-${process.pid}.json?`);
  const read = async () => Buffer.from((await locker.get(state)) ?? "").toString();
  const append = (more: string) => (content: Uint8Array | null) =>
    Buffer.concat([content ?? Buffer.of(), Buffer.from(more)]);
  assert.equal(await locker.get(state), null);
  assert.deepEqual(await locker.update(state, append("1"), { contentType: "application/json" }), {
    written: true,
    attempts: 1,
  });
  assert.equal((await locker.update(state, () => null)).written, false);
  await locker.put(state, "fenced 8", { fence: 8n });
  await assert.rejects(
    locker.put(state, "fenced 7", { fence: 7n }),
    (error) => error instanceof LockLostError && error.reason === "refused" && error.refusedBy === 8n,
  );
  let calls = 0;
  const updated = await locker.update(state, async (content) => {
    calls += 1;
    if (calls === 1) await locker.update(state, () => "faster");
    return append(" and later")(content);
  });
  assert.deepEqual([updated.written, await read(), calls], [true, "faster and later", 2]);
  await assert.rejects(
    locker.update(state, () => {
      throw new Error("of the change");
    }),
    /of the change/,
  );
  assert.equal(await read(), "faster and later");
});
