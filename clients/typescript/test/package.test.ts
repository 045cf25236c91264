// Tests the npm package: installs it in a new folder, compiles a strict program with it, and runs the program.

import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";
import { folder, test } from "./real.js";

const run = promisify(execFile);
const root = fileURLToPath(new URL("../", import.meta.url));

const PROGRAM = `
import { Locker, LockHeldError, type Guard } from "leasehold";

const locker: Locker = await Locker.open("mem:");
const guard: Guard = await locker.acquire("x", { ttl: "30s", wait: undefined as undefined });
const error: unknown = await locker.acquire("x", { wait: 10 }).catch((error: unknown) => error);
if (!(error instanceof LockHeldError)) throw error;
await guard.release();
const token: bigint = await locker.using("x", (signal: AbortSignal, guard: Guard) => guard.token);
console.log(token > 0n);
await locker.close();
`;

test("the package can be installed, compiled against, and run", async (t) => {
  const place = folder(t);
  // Packs the files that were tested. Without its scripts, npm does not build them again.
  const { stdout } = await run("npm", ["pack", "--json", "--ignore-scripts", "--pack-destination", place], {
    cwd: root,
  });
  const described = JSON.parse(stdout) as Record<string, unknown>;
  const [packed] = Object.values(described) as [{ filename: string; files: { path: string }[] }];
  assert.ok(
    packed.files.every(({ path }) => /^(dist\/[a-z]+\.(js|d\.ts)|package\.json|README\.md|LICENSE-[A-Z]+)$/.test(path)),
    stdout,
  );
  writeFileSync(join(place, "package.json"), '{"name":"user","private":true,"type":"module"}');
  await run("npm", ["install", "--offline", "--no-audit", "--no-fund", `./${packed.filename}`], { cwd: place });
  writeFileSync(join(place, "program.ts"), PROGRAM);
  const typescript = join(root, "node_modules/typescript/bin/tsc");
  const options =
    "--strict --exactOptionalPropertyTypes --skipLibCheck false --module nodenext --target es2022 --lib es2022,dom";
  const compiled = await run(process.execPath, [typescript, ...options.split(" "), "program.ts"], { cwd: place }).catch(
    (error: { stdout: string }) => error,
  );
  assert.equal(compiled.stdout, "");
  assert.equal((await run(process.execPath, ["program.js"], { cwd: place })).stdout, "true\n");
  assert.equal(JSON.parse(readFileSync(join(root, "package.json"), "utf8")).dependencies, undefined);
});
