// Acquires locks in Redis with node-redlock, on one server. ../go/peers.go describes its commands and output.
//
//     --address HOST:PORT --lock KEY --ttl SECONDS
//
// This program does not renew the lock.

import { readFileSync, writeFileSync } from "node:fs";
import { parseArgs } from "node:util";
import { Redis } from "ioredis";
import Redlock, { ExecutionError, ResourceLockedError } from "redlock";

const text = { type: "string" };
const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: { address: text, lock: text, ttl: text, file: text, times: text },
});
const client = new Redis(`redis://${options.address}`);
const locks = new Redlock([client], { retryDelay: 50, retryJitter: 20 });

const acquire = (retryCount) => locks.acquire([options.lock], options.ttl * 1000, { retryCount });
const WITHOUT_LIMIT = -1;

const verbs = {
    async hold() {
        const lock = await acquire(WITHOUT_LIMIT);
        console.log("granted");
        for await (const _ of process.stdin) {
            // Only the end of the input has a meaning.
        }
        await lock.release();
        console.log("released");
    },

    async try() {
        let lock;
        try {
            lock = await acquire(0);
        } catch (error) {
            if (!(await isHeld(error))) throw error;
            console.log("held");
            process.exitCode = 1;
            return;
        }
        console.log("granted");
        await lock.release();
    },

    async increment() {
        for (let left = Number(options.times); left > 0; left--) {
            const lock = await acquire(WITHOUT_LIMIT);
            const from = sinceBoot();
            const number = Number(readFileSync(options.file, "utf8"));
            // This is neither atomic nor locked. Two processes at once would lose an addition or read half a number.
            writeFileSync(options.file, String(number + 1));
            const until = sinceBoot();
            await lock.release();
            console.log(`${from} ${until}`);
        }
    },
};

async function isHeld(error) {
    if (!(error instanceof ExecutionError)) return false;
    const attempts = await Promise.all(error.attempts);
    return attempts.every(({ votesAgainst }) =>
        [...votesAgainst.values()].every((reason) => reason instanceof ResourceLockedError));
}

// Returns nanoseconds since boot, or 0 if the machine was ever suspended. On Linux, hrtime counts from boot, but not
// while the machine is suspended. After that, it cannot be compared with the clocks of other programs.
function sinceBoot() {
    const before = process.hrtime.bigint();
    const uptime = Number(readFileSync("/proc/uptime", "utf8").split(" ")[0]) * 1e9;
    const now = process.hrtime.bigint();
    // The uptime is exact to 10 ms.
    return Number(before) - uptime < 5e7 && uptime - Number(now) < 5e7 ? now : 0n;
}

try {
    const verb = verbs[positionals[0]];
    if (verb === undefined) throw new Error(`there is no verb ${positionals[0]}`);
    await verb();
} catch (error) {
    console.error("peer:", error);
    process.exitCode = 2;
}
client.disconnect();
