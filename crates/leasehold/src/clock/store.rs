//! Bounds on the time of the store's own clock, derived from the readings in its responses.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{Moment, RATE_ERROR, micros};

/// By how much this machine's clocks may disagree about the age of a reading: as much as a `Date` is inexact.
const DOUBT: Duration = Duration::from_secs(1);

/// Bounds on the time of the store's own clock, in microseconds since the Unix epoch.
///
/// ```
/// use leasehold::clock::StoreTime;
///
/// // The store's latest response had `Date: Thu, 01 Jan 1970 00:00:01 GMT`, which is accurate to a second.
/// let time = StoreTime::between(1_000_000, 2_000_000);
/// let has_certainly_passed = |us| us <= time.lo_us;
/// assert!(has_certainly_passed(1_000_000));
/// assert!(!has_certainly_passed(1_500_000)); // the store's clock may read less
/// assert!(time.apart.is_zero());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreTime {
    /// The clock reads at least this.
    pub lo_us: u64,
    /// The clock reads at most this.
    pub hi_us: u64,
    /// The largest contradiction between two responses of the store. Zero if it has one clock. A store with several
    /// front ends has several clocks.
    pub apart: Duration,
}

impl StoreTime {
    /// Returns the bounds of a store whose clock reads exactly `us`.
    pub const fn exactly(us: u64) -> Self {
        Self::between(us, us)
    }

    /// Returns the bounds of a store whose clock reads at least `lo_us` and at most `hi_us`.
    pub const fn between(lo_us: u64, hi_us: u64) -> Self {
        Self { lo_us, hi_us, apart: Duration::ZERO }
    }
}

/// Keeps the latest reading of a store's clock, and computes bounds for any later moment.
///
/// A reading `d` is accurate to `resolution` (one second for an HTTP `Date`). If it was requested at `s` and received
/// at `r`, the store's clock reads within `[d + (t - r), d + resolution + (t - s)]` at local time `t`. Both bounds are
/// stretched by [`RATE_ERROR`].
///
/// It also stores the largest contradiction between two readings, which shows that there are several clocks, or that
/// one was set.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::clock::{Moment, StoreClock, StoreTime};
///
/// let (clock, now) = (StoreClock::default(), Moment::from_raw(0, 0));
/// clock.observe(1_000_000, Duration::from_secs(1), now, now);
/// assert_eq!(clock.bounds(now), Some(StoreTime::between(1_000_000, 2_000_000)));
/// ```
#[derive(Debug, Default)]
pub struct StoreClock {
    readings: Mutex<Option<Readings>>,
}

#[derive(Clone, Copy, Debug)]
struct Readings {
    latest: Reading,
    /// The reading with the highest lower bound, and the one with the lowest upper bound.
    highest: Reading,
    lowest: Reading,
    apart_us: u64,
}

#[derive(Clone, Copy, Debug)]
struct Reading {
    at_us: u64,
    resolution: Duration,
    sent: Moment,
    received: Moment,
}

impl Reading {
    fn lo_us(&self, now: Moment) -> u64 {
        let at_least = now.shortest_since(self.received).mul_f64(1.0 - RATE_ERROR);
        self.at_us.saturating_add(micros(at_least))
    }

    fn hi_us(&self, now: Moment) -> u64 {
        let at_most = now.longest_since(self.sent).mul_f64(1.0 + RATE_ERROR) + self.resolution;
        self.at_us.saturating_add(micros(at_most))
    }
}

impl Readings {
    fn observe(&mut self, latest: Reading) {
        let now = latest.received;
        self.latest = latest;
        if latest.lo_us(now) >= self.highest.lo_us(now) {
            self.highest = latest;
        }
        if latest.hi_us(now) <= self.lowest.hi_us(now) {
            self.lowest = latest;
        }
        let apart_us = self.highest.lo_us(now).saturating_sub(self.lowest.hi_us(now));
        self.apart_us = self.apart_us.max(apart_us);
    }
}

impl StoreClock {
    /// Adds a reading: the store reported `at_us` (microseconds since the Unix epoch, rounded down to `resolution`) in
    /// a response that was received at `received`, to a request that was sent at `sent`.
    ///
    /// Call this only for a response that is certain to come from the store. An intermediary has its own clock.
    pub fn observe(&self, at_us: u64, resolution: Duration, sent: Moment, received: Moment) {
        let latest = Reading { at_us, resolution, sent, received };
        let mut readings = self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let readings =
            readings.get_or_insert(Readings { latest, highest: latest, lowest: latest, apart_us: 0 });
        readings.observe(latest);
    }

    /// Adds a reading that is accurate to a microsecond.
    #[allow(dead_code, reason = "only clients of servers with such clocks use it")]
    pub(crate) fn observe_us(&self, at_us: u64, sent: Moment, received: Moment) {
        self.observe(at_us, Duration::from_micros(1), sent, received);
    }

    /// Returns a lower bound of the store's clock at `now`. Zero before the first reading.
    #[allow(dead_code, reason = "only stores whose servers refuse late requests use it")]
    pub(crate) fn lowest_us(&self, now: Moment) -> u64 {
        self.bounds(now).map_or(0, |time| time.lo_us)
    }

    /// Returns whether this machine's clocks disagree about the age of the latest reading, because one of them was set, or
    /// because the machine was restored from a snapshot. The bounds are then far apart.
    #[allow(dead_code, reason = "only a store whose responses to writes have no time uses it")]
    pub(crate) fn is_age_in_doubt(&self, now: Moment) -> bool {
        let readings = *self.readings.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = readings.map_or(now, |readings| readings.latest.sent);
        now.longest_since(sent) - now.shortest_since(sent) > DOUBT
    }

    /// Returns the bounds on the time of the store's clock at `now`, or `None` before the first reading.
    pub fn bounds(&self, now: Moment) -> Option<StoreTime> {
        let Readings { latest, apart_us, .. } =
            (*self.readings.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(StoreTime {
            lo_us: latest.lo_us(now),
            hi_us: latest.hi_us(now),
            apart: Duration::from_micros(apart_us),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{SECOND, moment};
    use super::*;

    #[test]
    fn store_time_widens_from_both_ends_of_the_request() {
        let clock = StoreClock::default();
        assert_eq!(clock.bounds(moment(0, 0)), None);
        clock.observe(1_000_000_000, SECOND, moment(10, 10), moment(12, 12));
        let bounds = clock.bounds(moment(22, 22)).unwrap();
        assert_eq!(bounds.lo_us, 1_000_000_000 + 9_950_000, "10 s since the answer, less 0.5 %");
        assert_eq!(
            bounds.hi_us,
            1_000_000_000 + 1_000_000 + 12_060_000,
            "12 s since the question, plus 0.5 %"
        );
    }

    #[test]
    fn readings_of_one_clock_do_not_contradict_each_other() {
        let clock = StoreClock::default();
        // The `Date` of a clock that reads 1,000.5 s at local time 0.
        for (sent, took) in [(0, 3), (3, 0), (5, 1), (300, 2), (4_000, 1), (4_001, 9)] {
            let date_us = (1_000 + sent + took) * 1_000_000;
            clock.observe(
                date_us,
                SECOND,
                moment(sent, sent as i64),
                moment(sent + took, (sent + took) as i64),
            );
        }
        assert_eq!(clock.bounds(moment(4_010, 4_010)).unwrap().apart, Duration::ZERO);
    }

    #[test]
    fn a_jump_of_the_stores_clock_is_remembered_as_disagreement() {
        for (jump, others) in [(3_600_i64, [0, 0]), (-3_600, [0, 0]), (0, [1_800, -1_800])] {
            let clock = StoreClock::default();
            let read = |at: u64, off: i64| {
                let date_us = (100_000 + at).saturating_add_signed(off) * 1_000_000;
                clock.observe(date_us, SECOND, moment(at, at as i64), moment(at, at as i64));
            };
            let apart = |at: u64| clock.bounds(moment(at, at as i64)).unwrap().apart;
            read(10, 0);
            assert_eq!(apart(20), Duration::ZERO);
            // If two other readings contradict each other, each is off by less than the whole difference.
            for off in others {
                read(20, off);
            }
            read(20, jump);
            let found = apart(30);
            assert!(found > SECOND * 3_590 && found <= SECOND * 3_600, "{jump}: {found:?}");
            (40..100).for_each(|at| read(at, jump));
            assert_eq!(apart(100), found, "{jump}");
        }
    }
}
