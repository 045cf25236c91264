// What the runner gives to an action and takes from it: variables, files and lines on stdout.

import { randomUUID } from "node:crypto";
import { appendFileSync } from "node:fs";

/** The input, or "" if it was not given. */
export function input(name) {
  return (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();
}

export const setOutput = (name, value) => append("GITHUB_OUTPUT", name, value);
/** For the steps that follow. */
export const setVariable = (name, value) => append("GITHUB_ENV", name, value);
/** For the end of the job. */
export const saveState = (name, value) => append("GITHUB_STATE", name, value);
export const savedState = (name) => process.env[`STATE_${name}`] ?? "";
/** Puts a folder on the PATH of the steps that follow. */
export const addPath = (folder) => appendFileSync(process.env["GITHUB_PATH"], `${folder}\n`);

/** Hides a text in the log. */
export function mask(secret) {
  console.log(`::add-mask::${secret}`);
}

/** Ends the step with an error, which the runner shows. */
export function fail(error) {
  const escaped = error.message.replaceAll("%", "%25").replaceAll("\r", "%0D").replaceAll("\n", "%0A");
  console.log(`::error::${escaped}`);
  process.exitCode ||= 1;
}

// A delimiter that no value can contain: a value cannot set another variable.
function append(file, name, value) {
  const end = `end-${randomUUID()}`;
  appendFileSync(process.env[file], `${name}<<${end}\n${value}\n${end}\n`);
}
