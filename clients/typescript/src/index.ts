/**
 * Distributed locks on storage you already have. See docs/typescript.md in the project.
 *
 * @packageDocumentation
 */

/// <reference lib="esnext.disposable" preserve="true" />

export type { Duration } from "./duration.js";
export { type Election, type CampaignOptions, type Leader } from "./election.js";
export {
  AgentError,
  DeadlockError,
  InvalidError,
  LeaseholdError,
  LockHeldError,
  LockLostError,
  SizeError,
  StoreError,
  UnsupportedError,
  type ErrorKind,
  type LossReason,
} from "./errors.js";
export type { Guard } from "./guard.js";
export type { HeldBy, Holder, LockStatus, PastGrant } from "./holder.js";
export type { Lock, OnceOptions, OnceResult, Work } from "./lock.js";
export { Locker, type Capabilities, type LockerOptions, type Report } from "./locker.js";
export type { Change, Content, PutOptions, Updated, UpdateOptions } from "./objects.js";
export type { AcquireOptions, LockOptions } from "./options.js";
