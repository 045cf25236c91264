//! The cache of lock records: the last record that this process saw of each lock, and how long it has seen no renewal.
//!
//! The cache is never a reason to consider a lock held, and a conditional write over an outdated version only fails.
//! The cache saves the read before a write (the warm path). It also lets a contender that tries only now and then
//! detect a lapse by observation.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::line::Line;
use super::record::{Record, RecordState};
use crate::clock::Moment;
use crate::lease::{Id, Token};
use crate::register::Version;
use crate::types::LockName;

/// The maximum number of cached locks. The locks seen longest ago are evicted first. An eviction costs only one read.
const MOST: usize = 16_384;
/// How many locks one eviction removes. Evicting in batches makes full scans of the table rare.
const FORGOTTEN: usize = MOST / 8;

/// A record, the version at which it was read, and how long it has been unchanged.
#[derive(Clone, Debug)]
pub(super) struct Observation {
    pub(super) record: Record,
    pub(super) version: Version,
    /// The line of waiters as it was last read with the record.
    pub(super) line: Option<Line>,
    /// Whether the record was read since its last sign of life, not only written by this process.
    was_read: bool,
    unchanged_for: Duration,
    last: Moment,
}

impl Observation {
    /// Returns how long the signs of life have been seen unchanged, on this contender's clock.
    ///
    /// The time counts from after the first response (rule 1). It is the sum of the intervals between the reads. Each
    /// interval is the shorter of the readings of the two clocks. If the wall clock is set back by an hour, the sum
    /// loses one interval and not an hour.
    pub(super) fn unchanged_for(&self, now: Moment) -> Duration {
        self.unchanged_for + now.shortest_since(self.last)
    }

    /// Returns the fields that show whether a lease is alive. The version is not one of them: an edit by a third party
    /// must not prolong the lease (rule 8). The token distinguishes two grants of one claim when another grant came
    /// between them. The nonce distinguishes a renewal from one with the same heartbeat that the store lost.
    fn sign_of_life(&self) -> (RecordState, Id, Token, u64, Id) {
        let Record { state, grant, token, heartbeat, nonce, .. } = self.record;
        (state, grant, token, heartbeat, nonce)
    }
}

#[derive(Default)]
pub(super) struct RecordCache {
    /// Boxed, because the table allocates room for more entries than it has.
    locks: Mutex<HashMap<LockName, Box<Observation>>>,
}

impl RecordCache {
    /// Returns the cached observation of `name`, if there is one.
    pub(super) fn recall(&self, name: &LockName) -> Option<Observation> {
        let locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.get(name).map(|observation| Observation::clone(observation))
    }

    /// Stores `record`, which this process wrote. `now` must be taken after the response arrived.
    pub(super) fn wrote(&self, name: &LockName, record: Record, version: Version, now: Moment) {
        let (unchanged_for, was_read) = (Duration::ZERO, false);
        self.put(name, Observation { record, version, line: None, was_read, unchanged_for, last: now });
    }

    /// Stores `record`, which was read. `now` must be taken after the response arrived. Without a line of waiters, the
    /// one that was seen before stays.
    pub(super) fn see(
        &self,
        name: &LockName,
        record: Record,
        version: Version,
        line: Option<Line>,
        now: Moment,
    ) -> Observation {
        let (unchanged_for, was_read) = (Duration::ZERO, true);
        self.put(name, Observation { record, version, line, was_read, unchanged_for, last: now })
    }

    fn put(&self, name: &LockName, mut observation: Observation) -> Observation {
        let now = observation.last;
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        match locks.get(name) {
            Some(earlier) => {
                // Two responses may be stored in a different order than they arrived. No time must be counted twice.
                let late = now.since_boot() < earlier.last.since_boot();
                if late {
                    observation.last = earlier.last;
                }
                if observation.line.is_none() {
                    observation.line.clone_from(&earlier.line);
                }
                if earlier.sign_of_life() == observation.sign_of_life() {
                    // The mark of a waiter is no renewal, although NATS gives its time as that of the record. NATS also
                    // corrects the time in a record that this process wrote.
                    let times = (earlier.record.renewed_at_us, observation.record.renewed_at_us);
                    if let (true, (Some(earlier_us), Some(renewed_at_us))) = (earlier.was_read, times) {
                        observation.record.renewed_at_us = Some(renewed_at_us.min(earlier_us));
                    }
                    observation.was_read |= earlier.was_read;
                    observation.unchanged_for =
                        if late { earlier.unchanged_for } else { earlier.unchanged_for(now) };
                }
            }
            None if locks.len() >= MOST => forget_oldest(&mut locks, now),
            None => {}
        }
        locks.insert(name.clone(), Box::new(observation.clone()));
        observation
    }

    /// Removes `name`, which no longer has a record.
    pub(super) fn forget(&self, name: &LockName) {
        self.locks.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
}

impl fmt::Debug for RecordCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.locks.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("RecordCache").field("locks", &known).finish()
    }
}

fn forget_oldest(locks: &mut HashMap<LockName, Box<Observation>>, now: Moment) {
    let age = |observation: &Observation| now.longest_since(observation.last);
    let mut ages: Vec<Duration> = locks.values().map(|observation| age(observation)).collect();
    let index = ages.len().saturating_sub(FORGOTTEN);
    let limit = *ages.select_nth_unstable(index).1;
    let mut to_forget = ages.len() - index;
    locks.retain(|_, observation| {
        let forgotten = to_forget > 0 && age(observation) >= limit;
        to_forget -= usize::from(forgotten);
        !forgotten
    });
}

#[cfg(test)]
mod tests {
    use super::super::record::{Content, parse};
    use super::*;

    #[test]
    fn ties_in_age_do_not_change_how_many_records_are_forgotten() {
        let golden = include_bytes!("../../tests/records/1-held.json");
        let Content::Record(record) = parse(golden).unwrap() else { panic!("foreign") };
        let name = |n: usize| LockName::new(format!("x{n}")).unwrap();
        let known = RecordCache::default();
        for n in 0..=MOST {
            known.see(&name(n), (*record).clone(), Version::new("1"), None, Moment::from_raw(0, 0));
        }
        assert_eq!(known.locks.lock().unwrap().len(), MOST - FORGOTTEN + 1);
        let kept = (0..=MOST).map(name).find(|name| known.recall(name).is_some()).unwrap();
        known.forget(&kept);
        assert!(known.recall(&kept).is_none());
    }

    #[test]
    fn the_cache_is_bounded_and_forgets_the_oldest_records() {
        let golden = include_bytes!("../../tests/records/1-held.json");
        let Content::Record(record) = parse(golden).unwrap() else { panic!("foreign") };
        let name = |n: usize| LockName::new(format!("x{n}")).unwrap();
        let known = RecordCache::default();
        for n in 0..MOST + FORGOTTEN + 1 {
            let now = Moment::from_raw(n as u64, n as i64);
            known.see(&name(n), (*record).clone(), Version::new("1"), None, now);
            assert!(known.locks.lock().unwrap().len() <= MOST);
        }
        for n in 0..MOST + FORGOTTEN + 1 {
            assert_eq!(known.recall(&name(n)).is_some(), n >= 2 * FORGOTTEN, "{n}");
        }
    }

    /// A store that loses a renewal may have another one with the same heartbeat.
    #[test]
    fn another_renewal_with_the_same_heartbeat_is_a_sign_of_life() {
        let at = |s: u64| Moment::from_raw(s * 1_000_000_000, s as i64 * 1_000_000_000);
        let golden = include_bytes!("../../tests/records/1-held.json");
        let Content::Record(record) = parse(golden).unwrap() else { panic!("foreign") };
        let other = Record { nonce: Id::random(&crate::random::Random::seeded(1)), ..(*record).clone() };
        let marked = Record { awaited: true, ..other.clone() };
        let (known, name) = (RecordCache::default(), LockName::new("x").unwrap());
        for (seen_at, record) in [(0, *record), (18, other), (19, marked)] {
            known.see(&name, record, Version::new("1"), None, at(seen_at));
        }
        assert_eq!(known.recall(&name).unwrap().unchanged_for(at(20)), Duration::from_secs(2));
    }

    /// NATS gives the time at which a mark was stored as the time of the record.
    #[test]
    fn a_mark_on_a_record_is_no_renewal() {
        let golden = include_bytes!("../../tests/records/1-held.json");
        let Content::Record(record) = parse(golden).unwrap() else { panic!("foreign") };
        let (known, name) = (RecordCache::default(), LockName::new("x").unwrap());
        let (version, now) = (Version::new("1"), Moment::from_raw(0, 0));
        let record = |heartbeat, renewed_at_us| Record { heartbeat, renewed_at_us, ..(*record).clone() };
        let wrote = |record| known.wrote(&name, record, version.clone(), now);
        let see = |heartbeat, renewed_at_us| {
            let record = record(heartbeat, renewed_at_us);
            known.see(&name, record, version.clone(), None, now).record.renewed_at_us
        };
        assert_eq!(see(1, Some(5)), Some(5));
        wrote(record(1, Some(5)));
        assert_eq!(see(1, Some(7)), Some(5));
        assert_eq!(see(2, Some(9)), Some(9));
        // On some stores, a process adds the time later. A person may set it back.
        assert_eq!((see(3, None), see(3, Some(11)), see(3, Some(4))), (None, Some(11), Some(4)));
        // The process may have been paused together with its clocks before it wrote.
        wrote(record(4, Some(20)));
        assert_eq!((see(4, Some(80)), see(4, Some(90))), (Some(80), Some(80)));
    }

    #[test]
    fn overlapping_observations_are_counted_once() {
        let at = |s: u64| Moment::from_raw(s * 1_000_000_000, s as i64 * 1_000_000_000);
        let golden = include_bytes!("../../tests/records/1-held.json");
        let Content::Record(record) = parse(golden).unwrap() else { panic!("foreign") };
        let (known, name) = (RecordCache::default(), LockName::new("x").unwrap());
        for seen_at in [0, 18, 1] {
            // The response to the third read arrived before that to the second, but is stored after it.
            known.see(&name, (*record).clone(), Version::new("1"), None, at(seen_at));
        }
        assert_eq!(known.recall(&name).unwrap().unchanged_for(at(19)), Duration::from_secs(19));
    }
}
