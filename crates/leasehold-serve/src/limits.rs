//! Limits on waiting requests and on the rate of new requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::LockName;
use leasehold::clock::Moment;

use crate::problem::Problem;
use crate::rates::Rates;

/// How many requests may wait for locks at the same time.
const MAX_WAITERS: usize = 10_000;
/// How many of them may wait for one lock.
const MAX_WAITERS_PER_LOCK: usize = 1_000;
/// How many new requests a principal may send per second.
const RATE: f64 = 50.0;
/// How many requests of a principal may name a hold or a claim that the server does not know and the store does not
/// have, per second and at once. Such a request costs the store up to two requests.
const FAILURE_RATE: f64 = 10.0;
const FAILURE_BURST: f64 = 200.0;

/// The waiting requests, and the recent request rate of each principal.
#[derive(Debug)]
pub(crate) struct Limits {
    waiting: Mutex<HashMap<LockName, usize>>,
    rates: Rates<String>,
    failures: Rates<String>,
}

/// A request that waits for a lock. Dropping it makes room for another one.
#[derive(Debug)]
pub(crate) struct Waiting {
    limits: Arc<Limits>,
    name: LockName,
}

impl Limits {
    fn waiting(&self) -> MutexGuard<'_, HashMap<LockName, usize>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many requests wait.
    pub(crate) fn waiters(&self) -> usize {
        self.waiting().values().sum()
    }

    /// Counts a request that waits for `name`.
    pub(crate) fn wait(self: &Arc<Self>, name: &LockName) -> Result<Waiting, Problem> {
        let mut waiting = self.waiting();
        let (all, here) = (waiting.values().sum::<usize>(), waiting.get(name).copied().unwrap_or(0));
        if all >= MAX_WAITERS || here >= MAX_WAITERS_PER_LOCK {
            let detail = format!("too many requests are waiting: {here} for this lock, {all} in total");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-waiters", detail)
                .with_help(format!(
                    "at most {MAX_WAITERS_PER_LOCK} may wait for one lock, and {MAX_WAITERS} in total"
                ))
                .retry_after(Duration::from_secs(5)));
        }
        *waiting.entry(name.clone()).or_default() += 1;
        Ok(Waiting { limits: self.clone(), name: name.clone() })
    }

    /// Counts a new request of `principal` at `now`.
    pub(crate) fn admit(&self, principal: &str, now: Moment) -> Result<(), Problem> {
        if self.rates.take(principal.to_owned(), now) {
            return Ok(());
        }
        let detail = format!("more than {RATE} new requests per second");
        Err(too_many_requests(detail).with_help(
            "renewals and releases of valid tickets are not limited; send one request that waits instead of polling",
        ))
    }

    /// Counts a request of `principal` that will probably fail, because the server does not know the hold or the claim
    /// that it names. If it does not fail, call [`succeeded`](Self::succeeded).
    pub(crate) fn attempt(&self, principal: &str, now: Moment) -> Result<(), Problem> {
        if self.failures.take(principal.to_owned(), now) {
            return Ok(());
        }
        let detail = format!(
            "more than {FAILURE_RATE} requests per second name a hold or a claim that does not exist"
        );
        Err(too_many_requests(detail)
            .with_help("a hold that was lost stays lost: do not renew or release it again"))
    }

    /// Does not count an [`attempt`](Self::attempt) that has not failed.
    pub(crate) fn succeeded(&self, principal: &str) {
        self.failures.give_back(&principal.to_owned());
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            waiting: Mutex::default(),
            rates: Rates::new(RATE, RATE),
            failures: Rates::new(FAILURE_RATE, FAILURE_BURST),
        }
    }
}

fn too_many_requests(detail: String) -> Problem {
    Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail)
        .retry_after(Duration::from_secs(1))
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let mut waiting = self.limits.waiting();
        if let Some(count) = waiting.get_mut(&self.name) {
            *count -= 1;
            if *count == 0 {
                waiting.remove(&self.name);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiters_of_one_lock_are_limited_and_leave_room() {
        let (limits, name) = (Arc::new(Limits::default()), LockName::new("a").unwrap());
        let mut waiting: Vec<_> = (0..MAX_WAITERS_PER_LOCK).map(|_| limits.wait(&name).unwrap()).collect();
        assert_eq!(limits.wait(&name).unwrap_err().word(), "too-many-waiters");
        assert!(limits.wait(&LockName::new("b").unwrap()).is_ok());
        waiting.pop();
        assert!(limits.wait(&name).is_ok());
        drop(waiting);
        assert!(limits.waiting().is_empty());
    }

    #[test]
    fn waiters_of_all_locks_are_limited_together() {
        let limits = Arc::new(Limits::default());
        let lock = |number: usize| LockName::new(format!("lock-{number}")).unwrap();
        let waiting: Vec<_> =
            (0..MAX_WAITERS).map(|number| limits.wait(&lock(number % 10)).unwrap()).collect();
        assert_eq!(limits.wait(&lock(10)).unwrap_err().word(), "too-many-waiters");
        drop(waiting);
        assert!(limits.wait(&lock(10)).is_ok());
    }

    #[test]
    fn new_requests_and_failures_are_limited_separately() {
        let (limits, at) = (Limits::default(), Moment::from_raw(1_000_000_000, 1_000_000_000));
        let admitted = (0..1_000).filter(|_| limits.admit("a", at).is_ok()).count();
        let failed = (0..1_000).filter(|_| limits.attempt("a", at).is_ok()).count();
        assert_eq!((admitted, failed), (50, 200));
        assert_eq!(limits.admit("a", at).unwrap_err().word(), "too-many-requests");
        assert_eq!(limits.attempt("a", at).unwrap_err().word(), "too-many-requests");
        assert!(limits.admit("b", at).is_ok() && limits.attempt("b", at).is_ok());
        limits.succeeded("a");
        assert!(limits.attempt("a", at).is_ok() && limits.attempt("a", at).is_err());
    }
}
