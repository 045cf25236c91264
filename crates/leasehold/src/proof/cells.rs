//! What can be proven: keys with conditional writes. Registers, DynamoDB and Kubernetes have them.

use std::fmt::Write as _;

use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::StoreTime;
use crate::env::Env;
use crate::error::StoreError;
use crate::register::{Deleted, Precondition, Version, Write};

/// Keys with conditional writes, as the questions need them.
#[async_trait]
pub(crate) trait Cells: Send + Sync {
    async fn read(&self, key: &str) -> Result<Option<(Bytes, Version)>, StoreError>;

    async fn write(&self, key: &str, expect: Precondition<'_>, bytes: Bytes) -> Result<Write, StoreError>;

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError>;

    /// Lists keys with this prefix, to find out whether that is permitted.
    async fn list(&self, _prefix: &str) -> Result<(), StoreError> {
        Ok(())
    }

    /// Checks that metadata is kept with `key`. Returns `None` if the store does not claim to keep any.
    async fn keeps_metadata(&self, _key: &str) -> Option<Result<(), StoreError>> {
        None
    }

    /// Returns the same cells through all addresses of the store's name in turn, if it has several.
    async fn fronts(&self) -> Result<Option<Box<dyn Cells + '_>>, StoreError> {
        Ok(None)
    }

    fn env(&self) -> &Env;

    /// Returns the store's clock, for the marker.
    fn store_time(&self) -> Option<StoreTime> {
        None
    }

    /// Returns what a verdict applies to: the endpoint and the bucket or table.
    fn identity(&self) -> String {
        String::new()
    }

    fn profile(&self) -> Profile;
}

/// The properties of a store that the questions depend on, and its words for the findings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Profile {
    /// What is at a key.
    pub(crate) cell: &'static str,
    /// How requests say that nothing may be at the key, that its version must be current, and that of a delete.
    pub(crate) absent: &'static str,
    pub(crate) current: &'static str,
    pub(crate) delete: &'static str,
    /// What to use instead of an unsafe store.
    pub(crate) instead: &'static str,
    /// Whether it is known to be safe, so that it is neither raced nor marked.
    pub(crate) trusted: bool,
    /// Whether the questions include each permission. Otherwise, the store's own checks do.
    pub(crate) permissions: bool,
    /// Whether two writes of the same content have different versions.
    pub(crate) generations: bool,
    /// Whether deletes race with writes.
    pub(crate) races_deletes: bool,
    pub(crate) first_use: Races,
    pub(crate) doctor: Races,
    pub(crate) thorough: Races,
}

/// How many races of each kind to run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Races {
    pub(crate) races: usize,
    /// The number of requests in a race. The number of pairs that can collide grows with its square.
    pub(crate) racers: usize,
    /// To how many the racers are reduced for a server that does not respond to more of them in time.
    pub(crate) least_racers: usize,
    /// The number of rounds that run at the same time, on separate keys.
    pub(crate) lanes: usize,
}

/// The number of requests in a race of a register.
pub(crate) const RACERS: usize = 8;

/// The number of races of each kind before a process first uses a register. One that lets two requests win in one race
/// of ten passes once in a hundred times. One that does so in every third race passes once in fifty million times.
pub(crate) const RACES_FIRST_USE: usize = 44;

/// The number of races of each kind that the doctor runs. A register that lets two requests win in one race of ten
/// passes once in a thousand times.
pub(crate) const RACES_DOCTOR: usize = 66;

impl Races {
    #[allow(dead_code, reason = "used by stores that are cargo features")]
    pub(crate) const NONE: Self = Self { races: 0, racers: 0, least_racers: 0, lanes: 0 };

    const fn of_register(races: usize, racers: usize) -> Self {
        Self { races, racers, least_racers: racers, lanes: 4 }
    }
}

impl Profile {
    /// The profile of a register that is not known to be safe.
    pub(crate) const REGISTER: Self = Self {
        cell: "object",
        absent: "If-None-Match: *",
        current: "If-Match",
        delete: "If-Match on DeleteObject",
        instead: "use a store that honours conditional writes (Amazon S3 does; for others, see the store's page in the \
                  documentation), or a newer version of this one",
        trusted: false,
        permissions: true,
        generations: false,
        races_deletes: true,
        first_use: Races::of_register(RACES_FIRST_USE, RACERS),
        doctor: Races::of_register(RACES_DOCTOR, RACERS),
        thorough: Races::of_register(200, 2 * RACERS),
    };
}

/// Returns the probability that a store passes `races` if it lets two requests win in a race with probability
/// `doubles`.
fn passes(races: usize, doubles: f64) -> f64 {
    (1.0 - doubles).powf(races as f64)
}

/// Describes for people which stores `races` without two winners rule out.
pub(super) fn excluded(races: usize) -> String {
    let once_in = 1.0 / passes(races, 0.1);
    if once_in < 2.0 {
        return "too few races for a conclusion".to_owned();
    }
    format!("a store that lets two win in 1 race of 10 would pass once in {}", rounded_down(once_in))
}

/// Rounds down to one digit, with commas: `1,000` for 1,047.
fn rounded_down(number: f64) -> String {
    let zeros = number.log10().floor();
    let mut digits = format!("{}", (number / 10_f64.powf(zeros)).floor());
    for _ in 0..zeros as u32 {
        digits.push('0');
    }
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        let _ = write!(text, "{digit}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_races_bounds_the_failure_rate_as_stated() {
        assert!(passes(RACES_DOCTOR, 0.1) <= 0.001);
        assert!(passes(RACES_FIRST_USE, 0.1) <= 0.01);
        assert!(passes(RACES_FIRST_USE, 1.0 / 3.0) <= 1.0 / 50e6);
        for (races, said) in [(7, "2"), (22, "10"), (44, "100"), (66, "1,000"), (200, "1,000,000,000")] {
            assert!(excluded(races).ends_with(&format!("once in {said}")), "{races}: {}", excluded(races));
        }
        assert!(excluded(3).contains("too few"));
    }
}
