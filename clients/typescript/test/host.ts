// A process that holds locks, for tests that stop and kill it.

import { closeSync, openSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { Locker } from "leasehold";

const [job, store, ...more] = process.argv.slice(2) as [string, string, ...string[]];

function say(message: unknown): Promise<void> {
  return new Promise((resolve) => process.send?.(message, () => resolve()));
}

const jobs: { readonly [job: string]: () => Promise<void> } = {
  /** Holds a lock, and reports its loss. */
  async hold() {
    const locker = await Locker.open(store);
    const guard = await locker.acquire("x", { ttl: more[0] });
    await say({ token: String(guard.token) });
    process.on("message", () => void say({ held: guard.held }));
    await say({ lost: (await guard.lost).reason, held: guard.held });
  },

  /** Exits while it holds a lock. */
  async exit() {
    const locker = await Locker.open(store);
    await locker.acquire("x", { ttl: more[0] });
    await say("held");
    process.exit(0);
  },

  /** Has nothing more to do, but closes nothing. */
  async end() {
    const locker = await Locker.open(store);
    await locker.using("x", {}, () => {});
    await say("done");
    process.disconnect?.();
  },

  /** Adds to a number in a file, several times. */
  async count() {
    const [file, times] = more as [string, string];
    const locker = await Locker.open(store);
    for (let time = 0; time < Number(times); time += 1) {
      await locker.using("count", { ttl: "30s", wait: "90s" }, async (signal) => {
        closeSync(openSync(`${file}.busy`, "wx"));
        const number = Number(readFileSync(file, "utf8"));
        await new Promise((resolve) => setImmediate(resolve));
        writeFileSync(file, String(number + 1));
        rmSync(`${file}.busy`);
        signal.throwIfAborted();
      });
    }
    await locker.close();
    process.disconnect?.();
  },
};

await jobs[job]?.();
