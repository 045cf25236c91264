//! The line of a lock: the processes that wait for it, in the order of their arrival.
//!
//! The line is kept in a record beside the lock's. It only delays grants. Every grant is still a conditional write over
//! the lock's record, and only the [rules](super::rules) decide on it. So an error here, or a line that another client
//! damages, can delay a grant but never break mutual exclusion.
//!
//! A waiter's number is its place in the order of arrival. The lock's record contains the number up to which waiters
//! were [`served`](super::record::Record::served), so a grant does not have to write the line. The next client that
//! writes the line removes the served waiters.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::record::{FORMAT, Record};
use crate::error::{ErrorKind, Fault};
use crate::lease::{Before, Holder, Id, LONGEST_PAUSE, MAX_WAITERS, Standing, Token};

/// The largest line that is parsed, in bytes. Lines that leasehold writes are smaller.
const MAX_BYTES: usize = 512 * 1024;

/// The waiters for a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Line {
    /// The format.
    leasehold: u64,
    /// The highest number that was given to a waiter.
    last: u64,
    /// In the order of their numbers.
    waiters: Vec<Waiter>,
}

/// One waiter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiter {
    pub(crate) number: u64,
    /// The id of its claim.
    pub(crate) claim: Id,
    pub(crate) holder: Holder,
    /// When it joined, on the store's clock, in microseconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) since_us: Option<u64>,
    /// The longest pause between two of its polls, in milliseconds.
    pub(crate) polls_ms: u64,
}

impl Waiter {
    /// Returns the entry as JSON, for a store that has its own format of the line.
    #[allow(dead_code, reason = "only some stores use it")]
    pub(crate) fn to_json(&self) -> Result<String, Fault> {
        serde_json::to_string(self)
            .map_err(|error| Fault::new(ErrorKind::Invalid, format!("a waiter for the line: {error}")))
    }
}

impl Line {
    /// Parses a line.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a line of a known format.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let corrupt =
            |why: &str| Fault::new(ErrorKind::Corrupt, format!("the line of waiters is damaged: {why}"));
        if bytes.len() > MAX_BYTES {
            return Err(corrupt("it is too large"));
        }
        let mut line: Self = serde_json::from_slice(bytes).map_err(|error| corrupt(&error.to_string()))?;
        if line.leasehold != FORMAT {
            return Err(corrupt("its format is unknown"));
        }
        if line.last >= Token::LIMIT {
            return Err(corrupt("its last number is out of range")); // Otherwise an increment could overflow.
        }
        // A grant writes the number of its waiter into the lock's record.
        if line.waiters.iter().any(|waiter| waiter.number > line.last) {
            return Err(corrupt("a waiter has a number above the last one"));
        }
        line.waiters.truncate(MAX_WAITERS);
        Ok(line)
    }

    pub(crate) fn to_bytes(&self) -> Result<Bytes, Fault> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("the line of waiters cannot be written: {error}"))
        })
    }

    /// Creates the line of `waiters`, in the order of their numbers, for a store that has its own format.
    pub(crate) fn of(waiters: Vec<Waiter>) -> Self {
        Self { leasehold: FORMAT, last: waiters.last().map_or(0, |last| last.number), waiters }
    }

    /// Returns the number of the last entry, served or not, and 0 if there is none.
    #[allow(dead_code, reason = "only some stores use it")]
    pub(crate) fn back(&self) -> u64 {
        self.waiters.last().map_or(0, |last| last.number)
    }

    /// Returns whether there are no entries, served or not.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    /// Returns the waiters that have not been served yet, according to the lock's `record`.
    pub(crate) fn waiting(&self, record: &Record) -> impl Iterator<Item = &Waiter> {
        let (served, granted) = (record.served, record.grant);
        self.waiters.iter().filter(move |waiter| waiter.number > served && waiter.claim != granted)
    }

    /// Returns the state of `claim` in the line. A claim that is not in the line stands behind all waiters.
    pub(super) fn standing(&self, claim: Id, record: &Record) -> Standing {
        let mut standing = Standing::default();
        let mut last = None;
        for waiter in self.waiting(record) {
            if waiter.claim == claim {
                standing.number = Some(waiter.number);
                break;
            }
            let polls = Duration::from_millis(waiter.polls_ms).min(LONGEST_PAUSE);
            standing.before.push(Before { number: waiter.number, claim: waiter.claim, polls });
            last = Some(waiter);
        }
        standing.waiter_ahead = last.map(|last| last.holder.of_the_past());
        standing
    }

    /// Returns the line without the served waiters and with `waiter` at its end, or `None` if the line is full. Sets
    /// the `number` and `polls_ms` of `waiter`. `pause` returns the pause of a waiter with the given number of waiters
    /// before it.
    pub(super) fn joined(
        line: Option<Self>,
        waiter: Waiter,
        record: &Record,
        pause: impl FnOnce(usize) -> Duration,
    ) -> Option<Self> {
        let mut waiters: Vec<Waiter> = line.iter().flat_map(|line| line.waiting(record)).cloned().collect();
        if waiters.len() >= MAX_WAITERS {
            return None;
        }
        // If the line was deleted by hand, a new one begins above the numbers that count as served.
        let last = line.map_or(0, |line| line.last).max(record.served) + 1;
        let polls_ms = u64::try_from(pause(waiters.len()).as_millis()).unwrap_or(u64::MAX);
        waiters.push(Waiter { number: last, polls_ms, ..waiter });
        Some(Self { leasehold: FORMAT, last, waiters })
    }

    /// Returns the line without `claim` and without the served waiters, or `None` if `claim` is not in it.
    pub(super) fn left(&self, claim: Id, served: u64) -> Option<Self> {
        self.waiters.iter().find(|waiter| waiter.claim == claim)?;
        let stays = |waiter: &&Waiter| waiter.claim != claim && waiter.number > served;
        Some(Self { waiters: self.waiters.iter().filter(stays).cloned().collect(), ..self.clone() })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::golden::{assert_written, golden, golden_record};
    use crate::lease::{Ttl, pause, reservation};
    use crate::random::Random;

    fn waiter(seed: u64) -> Waiter {
        let holder = Holder {
            name: format!("bob-{seed}"),
            host: "ci-8".into(),
            pid: 7,
            note: Some("backup".into()),
            ..Holder::default()
        };
        let claim = Id::random(&Random::seeded(seed));
        Waiter { number: 0, claim, holder, since_us: Some(1_763_654_400_000_000), polls_ms: 0 }
    }

    fn joined(line: Option<Line>, seed: u64, record: &Record) -> Option<Line> {
        let pause = |ahead| pause(Duration::from_secs(1), ahead, Ttl::DEFAULT);
        Line::joined(line, waiter(seed), record, pause)
    }

    fn line(seeds: &[u64], record: &Record) -> Line {
        seeds.iter().fold(None, |line, seed| joined(line, *seed, record)).unwrap()
    }

    /// Returns the standing of the first in line.
    fn first(number: u64) -> Standing {
        Standing { number: Some(number), ..Standing::default() }
    }

    fn free() -> Record {
        golden_record("1-free.json")
    }

    #[test]
    fn the_golden_line_is_read_and_written() {
        let line = Line::parse(golden("1-line.json").as_bytes()).unwrap();
        assert_written("1-line.json", std::str::from_utf8(&line.to_bytes().unwrap()).unwrap());
        assert_eq!(line.waiting(&free()).count(), 2);
        let record = golden_record("1-awaited.json");
        assert!(record.awaited && record.served == 17);
        assert_written("1-awaited.json", std::str::from_utf8(&record.to_bytes().unwrap()).unwrap());
        assert_eq!(line.waiting(&record).map(|waiter| waiter.number).collect::<Vec<_>>(), [18]);
    }

    #[test]
    fn the_line_shows_the_locks_that_a_waiter_holds() {
        let line = Line::parse(golden("1-line-nested.json").as_bytes()).unwrap();
        assert_written("1-line-nested.json", std::str::from_utf8(&line.to_bytes().unwrap()).unwrap());
        let nested = line.waiters[0].holder.nested.as_deref().unwrap();
        assert_eq!((nested.holds[0].name.as_str(), nested.seen.len(), nested.stays), ("deploy/eu", 1, true));
    }

    #[test]
    fn a_claim_stands_behind_those_that_joined_before() {
        let record = free();
        let line = line(&[1, 2, 3], &record);
        assert_eq!((line.back(), line.is_empty()), (3, false));
        assert_eq!((Line::of(Vec::new()).back(), Line::of(Vec::new()).is_empty()), (0, true));
        let standing = |seed| line.standing(waiter(seed).claim, &record);
        assert_eq!(standing(1), first(1));
        let before = |n| Before { number: n, claim: waiter(n).claim, polls: Duration::from_secs(n) };
        let before: Vec<_> = (1..=3).map(before).collect();
        let waiter_ahead = Some(waiter(2).holder);
        assert_eq!(standing(3), Standing { number: Some(3), before: before[..2].to_vec(), waiter_ahead });
        assert_eq!(
            reservation(before.iter().map(|before| before.polls)),
            Duration::from_millis(2 * 3_000 + 3 * 500)
        );
        let waiter_ahead = Some(waiter(3).holder);
        assert_eq!(
            standing(4),
            Standing { number: None, before, waiter_ahead },
            "behind all, without a place"
        );
    }

    #[test]
    fn served_waiters_do_not_count_and_the_next_writer_removes_them() {
        let record = free();
        let line = line(&[1, 2, 3], &record);
        let served = Record { served: 2, ..record.clone() };
        assert_eq!(line.standing(waiter(3).claim, &served), first(3));
        let joined = joined(Some(line.clone()), 4, &served).unwrap();
        assert_eq!(joined.waiters.iter().map(|waiter| waiter.number).collect::<Vec<_>>(), [3, 4]);
        let left = line.left(waiter(3).claim, 2).unwrap();
        assert!(left.waiters.is_empty() && left.last == 3);
        assert_eq!(line.left(waiter(9).claim, 0), None);
        // The holder itself is not a waiter, even if its grant did not record it as served.
        let granted = Record { grant: waiter(1).claim, ..record };
        assert_eq!(line.standing(waiter(2).claim, &granted), first(2));
    }

    #[test]
    fn numbers_go_on_after_the_line_was_deleted() {
        let served = Record { served: 17, ..free() };
        let line = joined(None, 1, &served).unwrap();
        assert_eq!(line.standing(waiter(1).claim, &served), first(18));
    }

    #[test]
    fn a_full_line_takes_no_more_until_waiters_are_served() {
        let record = free();
        let full = line(&(0..MAX_WAITERS as u64).collect::<Vec<_>>(), &record);
        assert_eq!(joined(Some(full.clone()), 99, &record), None);
        let served = Record { served: 1, ..record };
        assert!(joined(Some(full), 99, &served).is_some());
    }

    #[test]
    fn a_line_with_ten_thousand_entries_counts_as_a_full_line() {
        let record = free();
        let all = |count: u64| {
            let waiters = (1..=count).map(|n| Waiter { number: n, polls_ms: 10_000, ..waiter(n) }).collect();
            Line { leasehold: FORMAT, last: count, waiters }.to_bytes().unwrap()
        };
        let line = Line::parse(&all(1_000)).unwrap();
        assert_eq!(line.standing(waiter(900).claim, &record).before.len(), MAX_WAITERS);
        assert_eq!(line.waiting(&record).count(), MAX_WAITERS);
        let parsed = Line::parse(&all(10_000));
        assert_eq!(parsed.unwrap_err().message, "the line of waiters is damaged: it is too large");
        // The largest line that leasehold writes.
        let longest = "\u{10ffff}".repeat(255);
        let note = Some(longest.clone());
        let holder = Holder { name: longest.clone(), host: longest, note, ..Holder::default() };
        let waiter = |n| Waiter { holder: holder.clone(), ..waiter(n) };
        let line = Line { leasehold: FORMAT, last: 64, waiters: (0..64).map(waiter).collect() };
        assert_eq!(Line::parse(&line.to_bytes().unwrap()).unwrap(), line);
    }

    /// A grant writes a number of the line into the lock's record, which must stay readable.
    #[test]
    fn a_damaged_line_is_not_read() {
        let golden = golden("1-line.json");
        for (from, to) in [
            ("\"leasehold\":1", "\"leasehold\":2"),
            ("\"last\":18", "\"last\":9007199254740992"),
            ("\"number\":18", "\"number\":19"),
            ("\"claim\":\"", "\"claim\":\"x"),
            ("\"waiters\"", "\"waiting\""),
        ] {
            let damaged = golden.replacen(from, to, 1);
            assert_ne!(damaged, golden, "{from}");
            assert_eq!(Line::parse(damaged.as_bytes()).unwrap_err().kind, ErrorKind::Corrupt, "{to}");
        }
    }

    proptest! {
        #[test]
        fn no_damage_to_a_line_makes_the_reader_panic(at in 0usize..600, byte in any::<u8>()) {
            let mut bytes = golden("1-line.json").into_bytes();
            let at = at % bytes.len();
            bytes[at] = byte;
            if let Ok(line) = Line::parse(&bytes) {
                let Standing { number, before, .. } = line.standing(waiter(1).claim, &free());
                prop_assert!(number.is_none() && before.len() <= MAX_WAITERS);
            }
        }
    }
}
