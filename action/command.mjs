// Runs a command.

import { spawn } from "node:child_process";
import { constants } from "node:os";

/**
 * Runs the command. Resolves with its exit code (128 + signal, as in a shell) and, if its stdout is a pipe, with its
 * output. If the runner cancels the step, with SIGINT and later SIGTERM, the command gets SIGTERM, because bash may
 * ignore SIGINT while it runs a program.
 */
export async function execute(command, args, { env = {}, stdout = "inherit" } = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["ignore", stdout, "inherit"] });
  const pass = () => child.kill("SIGTERM");
  const signals = ["SIGINT", "SIGTERM"];
  signals.forEach((signal) => process.on(signal, pass));
  try {
    const [output, code] = await Promise.all([
      child.stdout === null ? "" : child.stdout.setEncoding("utf8").toArray(),
      new Promise((resolve, reject) => {
        child.once("error", (error) => reject(new Error(`cannot start ${command}: ${error.message}`)));
        child.once("exit", (code, signal) => resolve(code ?? 128 + constants.signals[signal]));
      }),
    ]);
    return { code, output: [...output].join("") };
  } finally {
    signals.forEach((signal) => process.off(signal, pass));
  }
}
