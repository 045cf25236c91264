// Objects in a bucket: fenced writes, and updates without locks.

import type { Ask } from "./lock.js";
import { Garbage, number, optional, string, type Message } from "./message.js";
import { span } from "./options.js";
import type { Duration } from "./duration.js";
import { LeaseholdError } from "./errors.js";

/** The content of an object. */
export type Content = string | Uint8Array;

/** The options for writing an object under a lock. */
export interface PutOptions {
  /** The guard's token. The write is refused if a higher token has written ({@link LockLostError}, reason `refused`). */
  readonly fence: bigint;
  readonly contentType?: string | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** The options for updating an object. */
export interface UpdateOptions {
  /** The token of a guard, if one is held. The update is refused if a higher token has written. */
  readonly fence?: bigint | undefined;
  readonly contentType?: string | undefined;
  /** How many attempts to make while other writers are faster. */
  readonly attempts?: number | undefined;
  /** How long to keep trying. */
  readonly within?: Duration | undefined;
  readonly signal?: AbortSignal | undefined;
}

/** Whether an update wrote the object, and at which attempt. */
export interface Updated {
  readonly written: boolean;
  readonly attempts: number | null;
}

/**
 * Returns the new content of an object for the current one, which is `null` if there is no object. Returns `null` to
 * change nothing.
 */
export type Change = (content: Uint8Array | null) => Content | null | PromiseLike<Content | null>;

/** @internal */
export async function get(
  ask: Ask,
  object: string,
  options: { readonly fence?: bigint | undefined; readonly signal?: AbortSignal | undefined },
): Promise<Uint8Array | null> {
  const { message } = await ask("get", { object, fence: options.fence === undefined ? undefined : Number(options.fence) }, { signal: options.signal });
  return content(message);
}

/** @internal */
export async function put(ask: Ask, object: string, bytes: Content, options: PutOptions): Promise<void> {
  const { fence, contentType, signal } = options;
  const fields = { object, fence: Number(fence), content: base64(bytes), content_type: contentType };
  await ask("put", fields, { signal });
}

/** @internal */
export async function update(ask: Ask, object: string, change: Change, options: UpdateOptions): Promise<Updated> {
  const { fence, contentType, attempts, within, signal } = options;
  const stop = new AbortController();
  const cancelled = () => stop.abort(signal?.reason);
  if (signal?.aborted) cancelled();
  signal?.addEventListener("abort", cancelled, { once: true });
  const answer = async (present: Uint8Array | null, request: number) => {
    let next: string | null;
    try {
      const changed = await change(present);
      next = changed === null ? null : base64(changed);
    } catch (error) {
      // Ends the update without a change.
      stop.abort(error);
      return;
    }
    try {
      await ask("answer", { request, content: next }, { signal: stop.signal });
    } catch (error) {
      // If the update is over for the agent, it ends with a better error than this response.
      if (!(error instanceof LeaseholdError && error.kind === "invalid")) stop.abort(error);
    }
  };
  const fields = {
    ...{ object, fence: fence === undefined ? undefined : Number(fence), content_type: contentType, attempts },
    within_ms: span("within", within),
  };
  try {
    const { message } = await ask("update", fields, {
      signal: stop.signal,
      progress: (message) => void answer(content(message), number(message["id"])),
    });
    return { written: message["written"] === true, attempts: optional(message, "attempts", number) };
  } finally {
    signal?.removeEventListener("abort", cancelled);
    // A `change` that is still running must not answer a request of another agent.
    stop.abort();
  }
}

function content(message: Message): Uint8Array | null {
  return optional(message, "content", (value) => {
    const text = string(value);
    const bytes = Buffer.from(text, "base64");
    if (bytes.toString("base64") !== text) throw new Garbage("a content that is not base64");
    return new Uint8Array(bytes);
  });
}

function base64(bytes: Content): string {
  return (
    typeof bytes === "string" ? Buffer.from(bytes) : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  ).toString("base64");
}
