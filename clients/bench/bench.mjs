// Measures locks from Node, and prints a line of JSON. `./bench-clients` runs it.
//
//     bench.mjs CONTENDER SECONDS [STORE]

import { writeFileSync } from "node:fs";
import { Agent } from "node:http";
import { performance } from "node:perf_hooks";
import { promisify } from "node:util";

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
  async "dynamodb-lock-client"() {
    process.env.AWS_SDK_JS_SUPPRESS_MAINTENANCE_MODE_MESSAGE = "1";
    const { default: AWS } = await import("aws-sdk");
    const { default: DynamoDBLockClient } = await import("dynamodb-lock-client");
    const options = {
      region: "us-east-1",
      endpoint: new URL(store).searchParams.get("endpoint"),
      httpOptions: { agent: new Agent({ keepAlive: true }) }, // the default of newer versions of Node
    };
    const lockTable = "bench-dynamodb-lock-client";
    await createTable(new AWS.DynamoDB(options), lockTable);
    // The options in its README.
    const locks = new DynamoDBLockClient.FailOpen({
      dynamodb: new AWS.DynamoDB.DocumentClient(options),
      lockTable,
      partitionKey: "id",
      heartbeatPeriodMs: 3_000,
      leaseDurationMs: 10_000,
    });
    const acquire = promisify(locks.acquireLock.bind(locks));
    return async () => {
      const lock = await acquire("bench");
      lock.on("error", (error) => {
        throw error;
      });
      await promisify(lock.release.bind(lock))();
    };
  },
};

async function createTable(dynamodb, name) {
  const table = {
    TableName: name,
    AttributeDefinitions: [{ AttributeName: "id", AttributeType: "S" }],
    KeySchema: [{ AttributeName: "id", KeyType: "HASH" }],
    BillingMode: "PAY_PER_REQUEST",
  };
  try {
    await dynamodb.createTable(table).promise();
  } catch (error) {
    if (error.code !== "ResourceInUseException") throw error; // An earlier round created the table.
  }
}

const once = await contenders[contender]();
for (let warm = 0; warm < 20; warm += 1) await once();
const times = [];
const end = performance.now() + Number(seconds) * 1_000;
for (let start = performance.now(); start < end; start = performance.now()) {
  await once();
  times.push((performance.now() - start) / 1_000);
}
// Exits once all output is in the pipe, because Node writes to it in the background.
process.stdout.write(`${JSON.stringify(times)}\n`, () => process.exit(0));
