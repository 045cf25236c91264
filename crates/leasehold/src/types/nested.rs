//! What a waiter tells about the locks that it holds.

use serde::{Deserialize, Serialize};

use super::id::Id;
use super::name::LockName;
use super::token::Token;

/// A lock that a waiter holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "_schema",
    derive(utoipa::ToSchema),
    schema(description = "A lock that a waiter holds.")
)]
pub struct HeldLock {
    /// The name of the lock.
    #[cfg_attr(feature = "_schema", schema(value_type = String))]
    pub name: LockName,
    /// The token of the grant, as the store records it.
    pub token: Token,
}

/// What a waiter tells about the locks that it holds until it gets the one that it waits for. Only a waiter without a
/// limit does. See [`Lock::while_holding`](crate::Lock::while_holding).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "_schema",
    derive(utoipa::ToSchema),
    schema(
        description = "What a waiter tells about the locks that it holds until it gets the one that it waits for."
    )
)]
pub struct Nested {
    /// The locks, at most eight.
    #[cfg_attr(feature = "_schema", schema(max_items = 8))]
    pub holds: Vec<HeldLock>,
    /// Identifies the acquisition, even if it starts over with another claim.
    #[cfg_attr(feature = "_schema", schema(value_type = String))]
    pub id: Id,
    /// The cycles that this waiter has seen before it took its present place in the line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "_schema", schema(value_type = Vec<String>, max_items = 8))]
    pub seen: Vec<Id>,
    /// Whether it waits even in a cycle.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stays: bool,
}

impl Nested {
    /// How many locks a waiter tells that it holds, and how many cycles it says that it has seen.
    pub const MAX: usize = 8;
}

/// What an acquisition does that is in a cycle of waiters.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let guard = locker.lock("a").acquire().await?;
/// // The shortest cycle: a task that holds the lock waits for it.
/// let error = locker.lock("a").while_holding(&guard).acquire().await.unwrap_err();
/// assert_eq!(error.kind(), leasehold::ErrorKind::Deadlock);
/// # Ok::<_, leasehold::Error>(()) }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnDeadlock {
    /// One of the waiters fails with [`ErrorKind::Deadlock`](crate::ErrorKind::Deadlock): the one whose hold has the
    /// highest token. On most stores, this is the latest hold.
    #[default]
    Fail,
    /// Waits. The cycle is only logged.
    Wait,
}
