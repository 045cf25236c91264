// Measures locks from Node: a line of JSON. `./bench-clients` runs it.
//
//     bench.mjs CONTENDER SECONDS [STORE]

import { writeFileSync } from "node:fs";
import { performance } from "node:perf_hooks";

const [contender, seconds, store] = process.argv.slice(2);

const contenders = {
  async leasehold() {
    const { Locker } = await import("leasehold");
    const lock = new Locker(store).lock("bench");
    return () => lock.using(async () => {});
  },
  async redlock() {
    const { Redis } = await import("ioredis");
    const { default: Redlock } = await import("redlock");
    const redlock = new Redlock([new Redis(store)]);
    return async () => (await redlock.acquire(["bench-redlock"], 30_000)).release();
  },
  async "proper-lockfile"() {
    const { default: lockfile } = await import("proper-lockfile");
    writeFileSync("bench.proper", "");
    return async () => (await lockfile.lock("bench.proper"))();
  },
};

const once = await contenders[contender]();
for (let warm = 0; warm < 20; warm += 1) await once();
const times = [];
const end = performance.now() + Number(seconds) * 1_000;
for (let start = performance.now(); start < end; start = performance.now()) {
  await once();
  times.push((performance.now() - start) / 1_000);
}
// Once all of it is in the pipe, which Node writes to in the background.
process.stdout.write(`${JSON.stringify(times)}\n`, () => process.exit(0));
