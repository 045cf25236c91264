// On S3: MinIO, which ./test starts.

import assert from "node:assert/strict";
import { Locker, LockLostError } from "leasehold";
import { test as real } from "./real.js";

const minio = process.env["LEASEHOLD_TEST_S3_MINIO"];
const [place, options] = (minio ?? "?").split("?");

/** The bucket of the tests, with another prefix in each run. */
function url(name: string): string {
  return `${place?.replace(/\/$/, "")}-typescript-${process.pid}/${name}?${options}`;
}

function test(name: string, body: (locker: Locker) => Promise<void>): void {
  real(
    name,
    async (t) => {
      const locker = await Locker.open(url("locks"));
      t.after(() => locker.close());
      await body(locker);
    },
    minio === undefined && "there is no MinIO: ./test --with-servers",
  );
}

test("a lock on S3", async (locker) => {
  const first = await locker.using("deploy/prod", { ttl: "30s", wait: "60s" }, async (signal, guard) => {
    signal.throwIfAborted();
    assert.equal(await locker.tryAcquire("deploy/prod"), null);
    return guard.token;
  });
  const guard = await locker.acquire("deploy/prod", { wait: "60s" });
  assert.ok(guard.token > first);
  await guard.renew();
  assert.equal(await guard.release(), true);
  assert.deepEqual(await locker.list(), ["deploy/prod"]);
});

test("objects on S3", async (locker) => {
  const state = url("state.json");
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
    (error) => error instanceof LockLostError && error.reason === "fenced" && error.refusedBy === 8n,
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
