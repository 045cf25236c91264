// The step. Installs the command, and holds the lock while a script runs, or acquires it for the steps that follow.

import { delimiter, dirname } from "node:path";
import { execute } from "./command.mjs";
import { install } from "./install.mjs";
import { addPath, fail, input, mask, saveState, setOutput, setVariable } from "./runner.mjs";

try {
  const [lock, script] = [input("lock"), input("run")];
  if (lock === "" && script !== "") throw new Error("the input run needs the input lock, the name of a lock");
  // The command would take it for an option, and with `--help` it would succeed without running the script.
  if (lock.startsWith("-")) {
    throw new Error(`the input lock ${JSON.stringify(lock)} begins with "-": choose another name`);
  }
  const folder = input("command") === "" ? await install() : dirname(input("command"));
  const command = input("command") || `${folder}/leasehold`;
  addPath(folder);
  const store = input("store");
  const env = { PATH: `${folder}${delimiter}${process.env["PATH"] ?? ""}` };
  if (store !== "") {
    setVariable("LEASEHOLD_STORE", store);
    env.LEASEHOLD_STORE = store;
  }
  const note = `${process.env["GITHUB_REPOSITORY"] ?? ""} run ${process.env["GITHUB_RUN_ID"] ?? ""}`.trim();
  const options = [`--wait=${input("wait") || "30m"}`, `--note=${note}`];
  if (script !== "") await hold(command, [...options, `--ttl=${input("ttl") || "30s"}`, lock], script, env);
  else if (lock !== "") await acquire(command, [...options, `--ttl=${input("ttl") || "15m"}`, "--", lock], env);
} catch (error) {
  fail(error);
}

/** Runs the script under the lock, in the same way as the runner runs the script of a step. */
async function hold(command, args, script, env) {
  const shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script];
  const { code } = await execute(command, ["run", ...args, "--", ...shell], { env });
  if (code === 0) return;
  process.exitCode = code;
  throw new Error(`the script, or the lock, failed with exit code ${code}: see leasehold help exit-codes`);
}

async function acquire(command, args, env) {
  const { code, output } = await execute(command, ["acquire", ...args], { env, stdout: "pipe" });
  if (code !== 0) throw new Error(`the lock was not acquired: exit code ${code}`);
  const ticket = output.trim();
  mask(ticket);
  saveState("ticket", ticket);
  saveState("command", command);
  saveState("store", env.LEASEHOLD_STORE ?? "");
  setVariable("LEASEHOLD_TICKET", ticket);
  setOutput("token", await tokenOf(command, { ...env, LEASEHOLD_TICKET: ticket }));
  console.log("acquired; leasehold run --ticket renews the lock while a command runs");
}

async function tokenOf(command, env) {
  const { code, output } = await execute(command, ["renew", "--json"], { env, stdout: "pipe" });
  // Reads the token as text, because it may have more digits than a JavaScript number.
  const [, token] = /"token":([0-9]+)/.exec(output) ?? [];
  if (code !== 0 || token === undefined) throw new Error(`the lock could not be renewed: exit code ${code}`);
  return token;
}
