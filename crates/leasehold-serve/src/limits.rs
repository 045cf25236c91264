//! Limits on the rate of new requests. `capacity` limits how many stay open.

use std::time::Duration;

use leasehold::clock::Moment;

use crate::problem::{Problem, ProblemType};
use crate::rates::Rates;

/// How many new requests a principal may send per second.
const RATE: f64 = 50.0;
/// How many requests of a principal may name a hold or a claim that the server does not know and the store does not
/// have, per second and at once. Such a request costs the store up to two requests.
const FAILURE_RATE: f64 = 10.0;
const FAILURE_BURST: f64 = 200.0;

/// The recent request rate of each principal.
#[derive(Debug)]
pub(crate) struct Limits {
    rates: Rates<String>,
    failures: Rates<String>,
}

impl Limits {
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
        Self { rates: Rates::new(RATE, RATE), failures: Rates::new(FAILURE_RATE, FAILURE_BURST) }
    }
}

fn too_many_requests(detail: String) -> Problem {
    Problem::new(ProblemType::TooManyRequests, detail).retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

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
