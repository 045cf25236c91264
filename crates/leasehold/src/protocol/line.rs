//! The line of a lock: the processes that wait for it, in the order of their arrival.
//!
//! The line is kept in a record beside the lock's. It only delays grants: every grant remains a conditional write over
//! the lock's record, by the [rules](super::rules) alone. So an error here, or a line that another client damages, costs
//! time and never exclusion.
//!
//! A waiter's number is its place in the order of arrival. The lock's record says up to which number waiters were
//! [`served`](super::record::Record::served), so a grant does not have to write the line. Whoever writes the line next
//! removes the served waiters.

use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::record::{FORMAT, Record};
use crate::error::{ErrorKind, Fault};
use crate::lease::{Before, Holder, Id, Token};

/// The maximum number of waiters in a line. Those beyond it join when there is room.
pub(super) const MOST: usize = 64;

/// The longest pause between two polls of a waiter in the line.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
    /// It polls at least this often.
    pub(crate) polls_ms: u64,
}

impl Waiter {
    /// How long a free lock is kept for this waiter: two of its pauses, and a second for slow requests.
    fn grace(&self) -> Duration {
        2 * Duration::from_millis(self.polls_ms).min(LONGEST_PAUSE) + Duration::from_secs(1)
    }
}

impl Line {
    /// Reads a line.
    ///
    /// # Errors
    /// The bytes are not a line of a known format.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Fault> {
        let corrupt =
            |why: &str| Fault::new(ErrorKind::Corrupt, format!("the line of waiters is damaged: {why}"));
        let mut line: Self = serde_json::from_slice(bytes).map_err(|error| corrupt(&error.to_string()))?;
        if line.leasehold != FORMAT {
            return Err(corrupt("its format is not known"));
        }
        if line.last >= Token::LIMIT {
            return Err(corrupt("no line was that long")); // And counting on would overflow.
        }
        line.waiters.truncate(MOST);
        Ok(line)
    }

    pub(crate) fn to_bytes(&self) -> Result<Bytes, Fault> {
        serde_json::to_vec(self).map(Bytes::from).map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("the line of waiters cannot be written: {error}"))
        })
    }

    /// The waiters that were not served yet, by the lock's `record`.
    pub(super) fn waiting(&self, record: &Record) -> impl Iterator<Item = &Waiter> {
        let (served, granted) = (record.served, record.grant);
        self.waiters.iter().filter(move |waiter| waiter.number > served && waiter.claim != granted)
    }

    /// The number of `claim`, if it is in the line, and the waiters before it. A claim that is not in the line stands
    /// behind all waiters.
    pub(super) fn standing(&self, claim: Id, record: &Record) -> (Option<u64>, Vec<Before>) {
        let mut before = Vec::new();
        for waiter in self.waiting(record) {
            if waiter.claim == claim {
                return (Some(waiter.number), before);
            }
            before.push(Before { number: waiter.number, grace: waiter.grace() });
        }
        (None, before)
    }

    /// The line without the waiters that were served, and with `waiter` at its end, on a store where the first waiter
    /// pauses for at most `longest`. `None` if the line is full.
    pub(super) fn joined(
        line: Option<Self>,
        waiter: Waiter,
        record: &Record,
        longest: Duration,
    ) -> Option<Self> {
        let mut waiters: Vec<Waiter> = line.iter().flat_map(|line| line.waiting(record)).cloned().collect();
        if waiters.len() >= MOST {
            return None;
        }
        // A line that was deleted by hand begins again, above the numbers that count as served.
        let last = line.map_or(0, |line| line.last).max(record.served) + 1;
        let polls_ms = u64::try_from(pause(longest, waiters.len()).as_millis()).unwrap_or(u64::MAX);
        waiters.push(Waiter { number: last, polls_ms, ..waiter });
        Some(Self { leasehold: FORMAT, last, waiters })
    }

    /// The line without `claim`, and without the waiters that were served. `None` if `claim` is not in it.
    pub(super) fn left(&self, claim: Id, served: u64) -> Option<Self> {
        self.waiters.iter().find(|waiter| waiter.claim == claim)?;
        let stays = |waiter: &&Waiter| waiter.claim != claim && waiter.number > served;
        Some(Self { waiters: self.waiters.iter().filter(stays).cloned().collect(), ..self.clone() })
    }
}

/// The pause of a waiter with `ahead` waiters before it, if the first waiter pauses for `pause`. Together, a line of n
/// waiters polls about ln(n) times as often as its first waiter.
pub(super) fn pause(pause: Duration, ahead: usize) -> Duration {
    let factor = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
    pause.saturating_mul(factor).min(LONGEST_PAUSE.max(pause))
}
