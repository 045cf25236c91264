// Runs a command.

import { spawn } from "node:child_process";

/**
 * Runs the command; resolves with its exit code and, if its stdout is a pipe, with what it wrote there. A signal to this
 * process, by which the runner cancels a step, is passed on; the command ends the step.
 */
export async function execute(command, args, { env = {}, stdout = "inherit" } = {}) {
  const child = spawn(command, args, { env: { ...process.env, ...env }, stdio: ["ignore", stdout, "inherit"] });
  const pass = (signal) => child.kill(signal);
  const signals = ["SIGINT", "SIGTERM"];
  signals.forEach((signal) => process.on(signal, pass));
  try {
    const [output, code] = await Promise.all([
      child.stdout === null ? "" : child.stdout.setEncoding("utf8").toArray(),
      new Promise((resolve, reject) => {
        child.once("error", (error) => reject(new Error(`cannot start ${command}: ${error.message}`)));
        child.once("exit", (code, signal) => resolve(code ?? `by ${signal}`));
      }),
    ]);
    return { code, output: [...output].join("") };
  } finally {
    signals.forEach((signal) => process.off(signal, pass));
  }
}
