//! The locks of the `leasehold run`s in which this process runs. They are held until it ends, so a wait for a lock may
//! be part of a cycle of waiters.

use std::env;

use leasehold::lease::Nested;
use leasehold::{Guard, LockName, Locker, Token};
use serde::{Deserialize, Serialize};

/// The variable that names the locks, as JSON.
pub(crate) const VARIABLE: &str = "LEASEHOLD_HOLDS";

/// A lock that is held until this process ends.
#[derive(Debug, Serialize, Deserialize)]
struct Outer {
    /// The identity of its store.
    store: String,
    lock: LockName,
    token: Token,
}

/// Returns the locks that the variable names. It is for leasehold itself, so a value that it cannot read counts as none.
fn all() -> Vec<Outer> {
    env::var(VARIABLE).ok().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default()
}

/// Returns the locks in the store of `locker` that are held until this process ends.
pub(crate) fn outer(locker: &Locker) -> impl Iterator<Item = (LockName, Token)> {
    let store = locker.store_id().map(str::to_owned);
    let outer = all().into_iter().filter(move |outer| store.as_ref() == Some(&outer.store));
    outer.map(|outer| (outer.lock, outer.token))
}

/// Returns the variable for a command, which runs under `guard` until it ends.
pub(crate) fn inside(locker: &Locker, guard: Option<&Guard>) -> (&'static str, Option<String>) {
    let mut locks = all();
    // The innermost one first, because only the first eight count.
    if let Some((store, guard)) = locker.store_id().zip(guard)
        && let Ok(tokens) = guard.tokens()
    {
        let held = tokens.into_iter().map(|(lock, token)| Outer { store: store.to_owned(), lock, token });
        locks.splice(0..0, held);
        locks.truncate(Nested::MAX);
    }
    (VARIABLE, (!locks.is_empty()).then(|| serde_json::to_string(&locks).unwrap_or_default()))
}
