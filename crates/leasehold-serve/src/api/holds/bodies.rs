//! The bodies of requests about holds, and of their responses.

use std::collections::BTreeMap;

use leasehold::lease::{Nested, Token};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::problem::Problem;

/// What to acquire.
#[derive(Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AcquireRequest {
    /// The lock's name, such as `deploy/prod`. Required without `locks`.
    #[serde(default)]
    #[schema(min_length = 1, max_length = 256)]
    pub(super) lock: String,
    /// The names of several locks to acquire together, all or none, in place of `lock`. If one of them is lost, all are.
    /// They are acquired in the order of the bytes of their names. Not with `claim`, `permits` or `shared`.
    #[serde(default)]
    #[schema(min_items = 1, max_items = 64)]
    pub(super) locks: Vec<String>,
    /// How long the lease lasts without a renewal: 500ms to 24h. 30s if it is missing.
    #[schema(example = "30s")]
    pub(super) ttl: Option<String>,
    /// How long to wait for the lock, at most 60s. No wait if it is missing.
    #[schema(example = "10s")]
    pub(super) wait: Option<String>,
    /// What the lock is for. Everyone who sees the lock sees it.
    #[schema(max_length = 200)]
    pub(super) note: Option<String>,
    /// Acquire one of this many permits. The lock then has at most that many holders. The first acquisition records the
    /// number in the store; one with another number fails.
    #[schema(minimum = 1, maximum = 64)]
    pub(super) permits: Option<usize>,
    /// Acquire the lock as a reader: at most `readers` at a time.
    #[serde(default)]
    pub(super) shared: bool,
    /// With `shared`: how many readers there can be. 8 if it is missing.
    #[schema(minimum = 1, maximum = 64)]
    pub(super) readers: Option<usize>,
    /// The secret of this acquisition, in place of `Idempotency-Key`: 32 random hexadecimal digits. Anyone who knows it
    /// can end the hold. Any server of the store recognises it. Not with `permits`, `shared` or several `locks`.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    pub(super) claim: Option<String>,
    /// Who holds the lock, for others to see. The server itself if it is missing.
    pub(super) holder: Option<HolderRequest>,
    /// How much longer other processes wait after the lease has lapsed, at most 24h.
    pub(super) lock_delay: Option<String>,
    /// How long the lock may be held from the grant on, however often it is renewed. A renewal after that fails. No
    /// limit if it is missing. Needs a store that shows how long a lock has been held.
    pub(super) max_hold: Option<String>,
    /// Ignore the line of waiters.
    #[serde(default)]
    pub(super) barge: bool,
}

impl AcquireRequest {
    /// Creates a request for the plain lock `lock`, without waiting.
    pub(crate) fn new(lock: String, ttl: String, note: Option<String>) -> Self {
        Self { lock, ttl: Some(ttl), note, ..Self::default() }
    }
}

/// A process that wants a lock.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct HolderRequest {
    /// Its name. With an access file, the principal's name is used instead.
    #[schema(max_length = 200)]
    pub(super) name: String,
    /// The name of its host.
    #[schema(max_length = 200)]
    pub(super) host: String,
    /// Its process id.
    pub(super) pid: u32,
    /// What a leader advertises.
    #[schema(max_length = 1024)]
    pub(super) value: Option<String>,
    /// The limit that the holder itself puts on the hold, for others to see. The server does not enforce it.
    pub(super) max_hold_ms: Option<u64>,
    /// The locks that it holds while it waits. The caller needs the right to acquire each of them.
    pub(super) nested: Option<Box<Nested>>,
}

/// A hold. The client renews it.
#[derive(Serialize, ToSchema)]
pub(crate) struct Hold {
    /// The right to renew and release the lock. A secret.
    pub(crate) ticket: String,
    /// The lock's name; for a permit or a reader, with its number; of several locks, the first.
    pub(super) lock: String,
    /// The fencing token; null if the store has none, and for several locks.
    #[schema(required, value_type = Option<Token>)]
    pub(super) token: Option<u64>,
    /// The fencing token of each lock, by its name; null if the store has none.
    #[schema(required, value_type = Option<BTreeMap<String, Token>>)]
    pub(super) tokens: Option<BTreeMap<String, u64>>,
    /// How long the lock is held, counted from any moment before the client sent this request.
    pub(crate) valid_ms: u64,
    /// Renew when a third of this has passed.
    pub(super) ttl_ms: u64,
    /// How long this request waited.
    pub(super) waited_ms: u64,
}

/// A hold that was renewed.
#[derive(Serialize, ToSchema)]
pub(crate) struct RenewedHold {
    /// Of several locks, the first.
    pub(super) lock: String,
    /// Null if the store has none, and for several locks.
    #[schema(required, value_type = Option<Token>)]
    pub(super) token: Option<u64>,
    /// The fencing token of each lock, by its name; null if the store has none.
    #[schema(required, value_type = Option<BTreeMap<String, Token>>)]
    pub(super) tokens: Option<BTreeMap<String, u64>>,
    /// How long the lock is held, counted from any moment before the client sent this request.
    pub(crate) valid_ms: u64,
    /// Renew when a third of this has passed.
    pub(super) ttl_ms: u64,
}

/// Which hold to check.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CheckRequest {
    /// The ticket of the hold.
    pub(super) ticket: String,
}

/// What to release.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReleaseRequest {
    /// The ticket of the hold.
    pub(super) ticket: String,
    /// How long the lock is granted to no one.
    #[schema(example = "10m")]
    pub(super) cooldown: Option<String>,
    /// The holder releases the lock because the hold is at its limit, which the history then shows.
    #[serde(default)]
    pub(super) at_limit: bool,
}

/// Which acquisition to withdraw.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WithdrawRequest {
    /// The lock's name.
    #[schema(min_length = 1, max_length = 256)]
    pub(super) lock: String,
    /// The claim of the acquisition.
    #[schema(min_length = 32, max_length = 32, pattern = "^[0-9a-f]{32}$")]
    pub(super) claim: String,
}

/// What to renew.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewRequest {
    /// The ticket of the hold.
    pub(super) ticket: String,
}

/// What to renew: up to 100 holds.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RenewAllRequest {
    /// The tickets of the holds.
    #[schema(min_items = 1, max_items = 100)]
    pub(super) tickets: Vec<String>,
}

/// What became of several holds.
#[derive(Serialize, ToSchema)]
pub(crate) struct RenewAllResponse {
    /// One for each ticket, in their order.
    pub(super) results: Vec<Renewal>,
}

/// A renewed hold, or a problem, which has a `type`.
#[derive(Serialize, ToSchema)]
#[serde(untagged)]
pub(crate) enum Renewal {
    Renewed(RenewedHold),
    Failed(Problem),
}

/// The state of a hold.
#[derive(Serialize, ToSchema)]
pub(crate) struct CheckResponse {
    /// Of several locks, the first.
    pub(super) lock: String,
    /// Null if the store has none, and for several locks.
    #[schema(required, value_type = Option<Token>)]
    pub(super) token: Option<u64>,
    /// Upper bound of the time for which the store keeps the lock for this ticket, unless it is renewed. The holder's
    /// own time is shorter: see `valid_ms`.
    #[schema(required)]
    pub(super) lapses_within_ms: Option<u64>,
}

/// A release.
#[derive(Serialize, ToSchema)]
pub(crate) struct ReleaseResponse {
    /// Of several locks, the first.
    pub(super) lock: String,
    /// Always true.
    pub(super) released: bool,
    /// Whether an earlier request had already released it.
    pub(super) before: bool,
}

/// A withdrawal.
#[derive(Serialize, ToSchema)]
pub(crate) struct WithdrawResponse {
    /// The lock's name.
    pub(super) lock: String,
    /// Whether the acquisition held the lock until this request.
    pub(super) released: bool,
}
