// A worker thread that holds a lock until it is terminated.

import { parentPort, workerData } from "node:worker_threads";
import { Locker } from "leasehold";

const locker = await Locker.open(workerData as string);
const guard = await locker.acquire("x", { ttl: "1m" });
parentPort?.postMessage(String(guard.token));
