// Converts error responses of the agent to errors.

import { DeadlockError,
  InvalidError,
  LeaseholdError,
  LockHeldError,
  LockLostError,
  SizeError,
  StoreError,
  UnsupportedError,
  type ErrorKind,
} from "./errors.js";
import { readHeldBy } from "./holder.js";
import { flag, list, number, object, optional, string, token, type Message } from "./message.js";

const STORE_KINDS: ReadonlySet<string> = new Set(["denied", "corrupt", "conflict", "limit"]);

export function refusal(answer: Message): LeaseholdError {
  const kind = string(answer["kind"]);
  const message = string(answer["message"]);
  const help = (optional(answer, "help", list) ?? []).map(string);
  switch (kind) {
    case "held":
      return new LockHeldError(
        message,
        help,
        optional(answer, "held_by", (held) => readHeldBy(object(held))),
      );
    case "lost": {
      const refusedBy = optional(answer, "refused_by", token);
      const reason = optional(answer, "reason", string) ?? ("refused_by" in answer ? "refused" : "expired");
      return new LockLostError(message, reason, help, refusedBy);
    }
    case "invalid": {
      const sizes = optional(answer, "sizes", object);
      if (sizes === null) return new InvalidError(message, help);
      return new SizeError(message, number(sizes["asked"]), number(sizes["stored"]), help);
    }
    case "deadlock":
      return new DeadlockError(message, help);
    case "unsupported":
      return new UnsupportedError(message, help);
    default: {
      // Treats an unknown kind, which a later agent may send, as `unavailable`.
      const known = STORE_KINDS.has(kind) ? (kind as ErrorKind) : "unavailable";
      return new StoreError(known, message, help, optional(answer, "maybe_applied", flag) ?? false);
    }
  }
}
