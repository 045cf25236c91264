// Parses durations of callers.

import { InvalidError } from "./errors.js";

/** A number of milliseconds, a text like `"30s"`, `"500ms"`, `"1h 30m"` or `"2d"`, or a `Temporal.Duration`. */
export type Duration = number | string | { total(unit: "milliseconds"): number };

const UNITS: { readonly [unit: string]: number } = { ms: 1, s: 1_000, m: 60_000, h: 3_600_000, d: 86_400_000 };
const LONGEST = 366 * 86_400_000;

/** Returns a duration in whole milliseconds, rounded up. `what` names the duration in an error. */
export function milliseconds(what: string, duration: Duration): number {
  const total = read(duration);
  if (!(total >= 0 && total <= LONGEST)) {
    const given = typeof duration === "string" ? JSON.stringify(duration) : String(duration);
    throw new InvalidError(`${what} ${given} is not a duration from 0 to 366 days`, [
      'Write a number of milliseconds, or a text like "500ms", "30s", "10m", "1h 30m" or "2d".',
    ]);
  }
  // Without the first rounding, 2.007 s would be 2007.0000000000002 ms, and so 2008.
  return Math.ceil(Number(total.toFixed(6)));
}

/** Returns the duration in milliseconds, or NaN if it is none. */
function read(duration: Duration): number {
  switch (typeof duration) {
    case "number":
      return duration;
    case "string":
      return parse(duration);
    default:
      try {
        return duration.total("milliseconds");
      } catch {
        return NaN; // Months, for example, have no fixed length.
      }
  }
}

function parse(text: string): number {
  if (!/^\s*(\d+(\.\d+)?\s*(ms|s|m|h|d)\s*)+$/.test(text)) return NaN;
  let total = 0;
  for (const [, amount, unit] of text.matchAll(/(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)/g)) {
    total += Number(amount) * (UNITS[unit ?? ""] ?? NaN);
  }
  return total;
}
