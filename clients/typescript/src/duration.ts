// Parses durations of callers.

import { InvalidError } from "./errors.js";

/** A duration: a number of milliseconds, or a text like `"30s"`, `"500ms"`, `"1h 30m"`, `"2d"`. */
export type Duration = number | string;

const UNITS: { readonly [unit: string]: number } = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Returns a duration in whole milliseconds. `what` names the duration in an error. */
export function milliseconds(what: string, duration: Duration): number {
  const total = typeof duration === "number" ? duration : parse(duration);
  if (!Number.isFinite(total) || total < 0 || total > Number.MAX_SAFE_INTEGER) {
    throw new InvalidError(`${what} ${JSON.stringify(duration)} is not a duration`, [
      'Write a number of milliseconds, or a text like "500ms", "30s", "10m", "1h 30m" or "2d".',
    ]);
  }
  return Math.round(total);
}

function parse(text: string): number {
  if (typeof text !== "string" || !/^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d)\s*)+$/.test(text)) return NaN;
  let total = 0;
  for (const [, amount, unit] of text.matchAll(/(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)/g)) {
    total += Number(amount) * (UNITS[unit ?? ""] ?? NaN);
  }
  return total;
}
