// The interface between the runner and an action: variables, files and lines on stdout.

import { randomUUID } from "node:crypto";
import { appendFileSync } from "node:fs";

/** Returns an input, or "" if it is not set. */
export function input(name) {
  return (process.env[`INPUT_${name.toUpperCase()}`] ?? "").trim();
}

export const setOutput = (name, value) => append("GITHUB_OUTPUT", name, value);
/** Sets a variable for the steps that follow. */
export const setVariable = (name, value) => append("GITHUB_ENV", name, value);
/** Saves a value for the end of the job. */
export const saveState = (name, value) => append("GITHUB_STATE", name, value);
export const savedState = (name) => process.env[`STATE_${name}`] ?? "";
/** Adds a folder to the PATH of the steps that follow. */
export const addPath = (folder) => appendFileSync(process.env["GITHUB_PATH"], `${folder}\n`);

/** Hides a text in the log. */
export function mask(secret) {
  console.log(`::add-mask::${secret}`);
}

/** Reports an error, which the runner shows, and makes the step fail. */
export function fail(error) {
  const escaped = error.message.replaceAll("%", "%25").replaceAll("\r", "%0D").replaceAll("\n", "%0A");
  console.log(`::error::${escaped}`);
  process.exitCode ||= 1;
}

// Uses a delimiter that no value can contain, so that a value cannot set another variable.
function append(file, name, value) {
  const end = `end-${randomUUID()}`;
  appendFileSync(process.env[file], `${name}<<${end}\n${value}\n${end}\n`);
}
