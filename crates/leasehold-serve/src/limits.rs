//! Limits on the rate of new requests. `capacity` limits how many stay open.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::StatusCode;
use leasehold::clock::Moment;

use crate::problem::Problem;

/// How many new requests a principal may send per second.
const RATE: f64 = 50.0;
/// How many principals are remembered before idle ones are forgotten.
const MAX_PRINCIPALS: usize = 10_000;

/// The recent request rate of each principal.
#[derive(Debug, Default)]
pub(crate) struct Limits {
    rates: Mutex<HashMap<String, Bucket>>,
}

/// How many more requests a principal may send at once.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Moment,
}

impl Limits {
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

#[cfg(test)]
mod tests {
    use super::*;

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
