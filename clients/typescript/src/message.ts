// Reads fields of messages. Throws `Garbage` for a field that violates the protocol.

/** A JSON object. */
export type Message = { readonly [field: string]: unknown };

/** The agent sent something that the protocol does not allow. It is then treated as dead. */
export class Garbage extends Error {}

export function parse(line: string): Message {
  let value: unknown;
  try {
    value = JSON.parse(line);
  } catch {
    throw new Garbage(`a line that is not JSON: ${excerpt(line)}`);
  }
  return object(value);
}

/** Returns the first characters of a text, without control characters. */
export function excerpt(text: string): string {
  return JSON.stringify(text.length > 80 ? `${text.slice(0, 80)}...` : text);
}

export function object(value: unknown): Message {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    throw new Garbage("a value that is not an object");
  return value as Message;
}

export function list(value: unknown): readonly unknown[] {
  if (!Array.isArray(value)) throw new Garbage("a value that is not an array");
  return value;
}

export function string(value: unknown): string {
  if (typeof value !== "string") throw new Garbage("a value that is not a string");
  return value;
}

/** Reads an exact integer. */
export function number(value: unknown): number {
  if (typeof value !== "number" || !Number.isSafeInteger(value)) throw new Garbage("a value that is not an integer");
  return value;
}

export function flag(value: unknown): boolean {
  if (typeof value !== "boolean") throw new Garbage("a value that is neither true nor false");
  return value;
}

/** Reads a token, an integer below 2^53. */
export function token(value: unknown): bigint {
  const read = number(value);
  if (read < 0) throw new Garbage("a token below zero");
  return BigInt(read);
}

/** Reads a field that may be absent or `null`. */
export function optional<T>(message: Message, field: string, read: (value: unknown) => T): T | null {
  const value = message[field];
  return value === undefined || value === null ? null : read(value);
}
