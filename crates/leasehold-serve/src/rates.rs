//! How often something may be done: for each key, so many times per second.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold::clock::Moment;

/// How many keys are remembered. A key that has all its permits need not be remembered.
const MAX_KEYS: usize = 10_000;

/// The permits of each key. They grow with time, up to `burst`.
#[derive(Debug)]
pub(crate) struct Rates<K> {
    per_second: f64,
    burst: f64,
    buckets: Mutex<HashMap<K, Bucket>>,
}

/// The permits of a key at a moment.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    left: f64,
    at: Moment,
}

impl<K: Eq + Hash> Rates<K> {
    pub(crate) fn new(per_second: f64, burst: f64) -> Self {
        Self { per_second, burst, buckets: Mutex::default() }
    }

    fn buckets(&self) -> MutexGuard<'_, HashMap<K, Bucket>> {
        self.buckets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a permit of `key` at `now`. Returns whether there was one.
    pub(crate) fn take(&self, key: K, now: Moment) -> bool {
        let mut buckets = self.buckets();
        if buckets.len() >= MAX_KEYS && !buckets.contains_key(&key) {
            buckets.retain(|_, bucket| self.at(*bucket, now).left < self.burst);
            if buckets.len() >= MAX_KEYS {
                return false;
            }
        }
        let bucket = buckets.entry(key).or_insert(Bucket { left: self.burst, at: now });
        *bucket = self.at(*bucket, now);
        let may = bucket.left >= 1.0;
        if may {
            bucket.left -= 1.0;
        }
        may
    }

    /// Gives back a permit that was taken.
    pub(crate) fn give_back(&self, key: &K) {
        if let Some(bucket) = self.buckets().get_mut(key) {
            bucket.left = (bucket.left + 1.0).min(self.burst);
        }
    }

    /// Returns the bucket at `now`, the arrival of a request. Requests may be counted out of order, so `now` may be
    /// earlier than the time of the bucket.
    fn at(&self, bucket: Bucket, now: Moment) -> Bucket {
        let passed = now.shortest_since(bucket.at);
        if passed.is_zero() {
            return bucket;
        }
        let left = (bucket.left + passed.as_secs_f64() * self.per_second).min(self.burst);
        Bucket { left, at: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Moment {
        const SECOND: u64 = 1_000_000_000;
        Moment::from_raw(seconds * SECOND, (seconds * SECOND).cast_signed())
    }

    fn taken(rates: &Rates<&'static str>, key: &'static str, now: Moment) -> usize {
        (0..100).filter(|_| rates.take(key, now)).count()
    }

    #[test]
    fn each_key_has_its_own_rate() {
        let rates = Rates::new(10.0, 30.0);
        assert_eq!((taken(&rates, "a", at(1)), taken(&rates, "b", at(1))), (30, 30));
        assert_eq!(taken(&rates, "a", at(3)), 20);
        assert_eq!(taken(&rates, "a", at(100)), 30);
    }

    #[test]
    fn a_request_that_arrived_earlier_refills_nothing() {
        let rates = Rates::new(10.0, 30.0);
        assert_eq!(taken(&rates, "a", at(9)), 30);
        assert_eq!((taken(&rates, "a", at(1)), taken(&rates, "a", at(9))), (0, 0));
    }

    #[test]
    fn a_permit_that_is_given_back_can_be_taken_again() {
        let rates = Rates::new(10.0, 30.0);
        assert_eq!(taken(&rates, "a", at(1)), 30);
        rates.give_back(&"a");
        assert_eq!(taken(&rates, "a", at(1)), 1);
        let full = Rates::new(10.0, 30.0);
        full.give_back(&"a");
        assert_eq!(taken(&full, "a", at(1)), 30);
    }

    #[test]
    fn keys_with_all_their_permits_are_forgotten() {
        let rates = Rates::new(10.0, 30.0);
        (0..MAX_KEYS).for_each(|key| assert!(rates.take(key, at(1))));
        assert!(!rates.take(MAX_KEYS, at(1)), "there is no room for another key");
        assert!(rates.take(0, at(1)) && rates.take(MAX_KEYS, at(100)));
        assert_eq!(rates.buckets().len(), 1);
    }
}
