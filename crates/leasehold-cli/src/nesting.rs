//! The locks of the `leasehold run`s in which this process runs. They are held until it ends, so a wait for a lock may
//! be part of a cycle of waiters.

use std::env;

use leasehold::{Guard, LockName, Locker, Token};
use serde::{Deserialize, Serialize};

/// The variable that names the locks, as JSON.
pub(crate) const VARIABLE: &str = "LEASEHOLD_HOLDS";

/// A lock of a run around this process. It is held until this process ends, unless it is by a ticket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outer {
    /// The identity of its store.
    store: String,
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    /// Whether a ticket holds it. Others can then release it, so this process is in no cycle of waiters.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) by_ticket: bool,
}

/// Returns the locks that the variable names. It is for leasehold itself, so a value that it cannot read counts as
/// none.
fn all() -> Vec<Outer> {
    env::var(VARIABLE).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Returns the locks of the runs around this process, in the store of `locker`.
pub(crate) fn outer(locker: &Locker) -> Vec<Outer> {
    let store = locker.store_id();
    all().into_iter().filter(|outer| store == Some(&outer.store)).collect()
}

/// Returns the variable for a command, which runs under `guard` until it ends.
pub(crate) fn inside(locker: &Locker, guard: &Guard, by_ticket: bool) -> (&'static str, Option<String>) {
    let mut locks = all();
    if let (Some(store), Ok(tokens)) = (locker.store_id(), guard.tokens()) {
        let store = store.to_owned();
        let held =
            tokens.into_iter().map(|(lock, token)| Outer { store: store.clone(), lock, token, by_ticket });
        // The innermost one first, because only the first eight count in a cycle.
        locks.splice(0..0, held);
    }
    (VARIABLE, (!locks.is_empty()).then(|| serde_json::to_string(&locks).unwrap_or_default()))
}
