//! Limits on waiting requests and on the rate of new requests.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::LockName;
use leasehold::clock::Moment;

use crate::problem::Problem;

/// How many requests may wait for locks at the same time.
const MAX_WAITERS: usize = 10_000;
/// How many of them may wait for one lock.
const MAX_WAITERS_PER_LOCK: usize = 1_000;
/// How many new requests a principal may send per second.
const RATE: f64 = 50.0;
/// How many principals are remembered before idle ones are forgotten.
const MAX_PRINCIPALS: usize = 10_000;

/// The waiting requests, and the recent request rate of each principal.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    waiting: Mutex<HashMap<LockName, usize>>,
    rates: Mutex<HashMap<String, Bucket>>,
}

/// How many more requests a principal may send at once.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Moment,
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
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if rates.len() >= MAX_PRINCIPALS {
            rates.retain(|_, bucket| bucket.at(now).left < RATE);
        }
        let bucket = rates.entry(principal.to_owned()).or_insert(Bucket { left: RATE, at: now });
        *bucket = bucket.at(now);
        if bucket.left < 1.0 {
            let detail = format!("more than {RATE} new requests per second");
            return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too-many-requests", detail)
                .with_help(
                    "renewals and releases are not limited; send one request that waits instead of polling",
                )
                .retry_after(Duration::from_secs(1)));
        }
        bucket.left -= 1.0;
        Ok(())
    }
}

impl Bucket {
    /// Returns the bucket at `now`, the arrival of a request. Requests may be counted out of order, so `now` may be
    /// earlier than the time of the bucket.
    fn at(self, now: Moment) -> Self {
        let passed = now.shortest_since(self.at);
        if passed.is_zero() {
            return self;
        }
        Self { left: (self.left + passed.as_secs_f64() * RATE).min(RATE), at: now }
    }
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
    fn each_principal_has_its_own_rate() {
        let (limits, second) = (Limits::default(), 1_000_000_000);
        let at = |seconds: u64| Moment::from_raw(seconds * second, (seconds * second).cast_signed());
        for _ in 0..50 {
            limits.admit("a", at(1)).unwrap();
        }
        assert_eq!(limits.admit("a", at(1)).unwrap_err().word(), "too-many-requests");
        limits.admit("b", at(1)).unwrap();
        limits.admit("a", at(2)).unwrap();
    }

    #[test]
    fn a_request_that_arrived_earlier_refills_nothing() {
        let (limits, second) = (Limits::default(), 1_000_000_000);
        let at = |seconds: u64| Moment::from_raw(seconds * second, (seconds * second).cast_signed());
        for _ in 0..50 {
            limits.admit("a", at(9)).unwrap();
        }
        limits.admit("a", at(1)).unwrap_err();
        limits.admit("a", at(9)).unwrap_err();
    }
}
