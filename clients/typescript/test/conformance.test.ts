// Runs the scenarios of clients/conformance, in which the agent misbehaves.

import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { AgentError, LeaseholdError, Locker, LockHeldError, LockLostError, type Guard } from "leasehold";
import { Pool } from "#dist/pool.js";
import { test } from "./fake.js";

interface Scenario {
  readonly name: string;
  readonly greets?: boolean;
  readonly actions: readonly (readonly [string, string])[];
}

const kit = fileURLToPath(new URL("../../conformance/", import.meta.url));
const command = join(kit, "agent.py");
const scenarios = JSON.parse(readFileSync(join(kit, "scenarios.json"), "utf8")) as readonly Scenario[];
assert.ok(scenarios.length > 0);

function outcome(error: unknown): string {
  if (error instanceof LockLostError) return "lost";
  if (error instanceof LockHeldError) return "refused";
  if (error instanceof AgentError) return "agent";
  assert.ok(error instanceof LeaseholdError, String(error));
  return "error";
}

for (const scenario of scenarios) {
  test(`conformance: ${scenario.name}`, async (t) => {
    const folder = mkdtempSync(join(tmpdir(), "leasehold-ts-"));
    t.after(() => rmSync(folder, { recursive: true, force: true }));
    const log = join(folder, "log");
    process.env["LEASEHOLD_SCENARIO"] = scenario.name;
    process.env["LEASEHOLD_SCENARIO_LOG"] = log;
    const locker = new Locker(undefined, { command });
    let guard: Guard | undefined;
    let lost: unknown;
    const carryOut: { readonly [action: string]: (expected: string) => Promise<string> } = {
      async acquire(expected) {
        if (expected === "cancelled") {
          await Pool.of(command).agent();
          const stop = new AbortController();
          const acquiring = locker.acquire("x", { signal: stop.signal });
          await new Promise((resolve) => setImmediate(resolve));
          stop.abort(new Error("cancelled"));
          return acquiring.then(
            () => "held",
            (error: Error) => error.message,
          );
        }
        // This client checks a grant before the caller gets it, so a loss that the kit expects at `check` appears here.
        guard = await locker.acquire("x").catch((error: unknown) => {
          if (!(error instanceof LockLostError) || error.reason === "agent") throw error;
          lost = error;
          return undefined;
        });
        return "held";
      },
      async status() {
        await locker.status("x");
        return "ok";
      },
      async check() {
        if (guard === undefined) throw lost;
        guard.check();
        return "held";
      },
      async release() {
        return (await guard?.release()) === true ? "held" : "lost";
      },
    };
    for (const [action, expected] of scenario.actions) {
      assert.ok(carryOut[action] !== undefined, `an action that this test does not know: ${action}`);
      const found = await carryOut[action](expected).catch(outcome);
      assert.deepEqual([action, found], [action, expected]);
    }
    await locker.close();
    const mayBeKilled = scenario.greets === false || scenario.actions.some(([, result]) => result === "agent");
    if (!mayBeKilled || existsSync(log)) assert.equal(readFileSync(log, "utf8"), "done");
  });
}
