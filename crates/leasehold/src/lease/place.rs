//! [`Place`]: where a claim stands in the line of its lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Id;

/// The place of a [`Claim`](super::Claim) in the line of its lock, as far as its store knows. The store writes and reads
/// it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// Whose place this is. An acquisition that begins anew has another claim.
    claim: Option<Id>,
    /// The claim's number in the line, if it has one.
    number: Option<u64>,
    /// Whether it has tried to join.
    tried: bool,
    /// The waiters before it.
    before: Vec<Before>,
    /// How often in a row it could not join, because others wrote the line at the same time.
    conflicts: u32,
    /// Whether the lock's record was read since the claim asked for the lock.
    polled: bool,
}

/// A waiter before a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// Its number.
    pub(crate) number: u64,
    /// It polls at least this often.
    pub(crate) polls: Duration,
}

/// For how long a free lock is kept for the waiters `before` a claim: twice the longest of their pauses, so that each of
/// them finds the lock free even if a poll fails, and half a second for the request of each. All of them wait at the same
/// time, so their pauses do not add up.
pub(crate) fn grace<'a>(before: impl IntoIterator<Item = &'a Before>) -> Duration {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    for before in before {
        (longest, count) = (longest.max(before.polls), count + 1);
    }
    2 * longest + Duration::from_millis(500) * count
}

impl Place {
    fn of(&self, claim: Id) -> MutexGuard<'_, Known> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.claim != Some(claim) {
            *known = Known { claim: Some(claim), ..Known::default() };
        }
        known
    }

    /// Records what the line says of `claim`.
    pub(crate) fn found(&self, claim: Id, number: Option<u64>, before: Vec<Before>) {
        let mut known = self.of(claim);
        (known.number, known.before) = (number, before);
        if number.is_some() {
            known.conflicts = 0;
        }
    }

    /// Records that the line changed while `claim` wrote itself into it. Returns how often this happened in a row.
    pub(crate) fn conflicted(&self, claim: Id) -> u32 {
        let mut known = self.of(claim);
        known.conflicts += 1;
        known.conflicts
    }

    /// Records that a request to join is about to be sent. Its answer may be lost.
    pub(crate) fn tries_to_join(&self, claim: Id) {
        self.of(claim).tried = true;
    }

    /// Whether `claim` may be in the line.
    pub(crate) fn may_be_taken(&self, claim: Id) -> bool {
        self.of(claim).tried
    }

    pub(crate) fn conflicts(&self, claim: Id) -> u32 {
        self.of(claim).conflicts
    }

    /// Whether `claim` has a place, if all waiters up to number `served` were served.
    pub(crate) fn is_taken(&self, claim: Id, served: u64) -> bool {
        self.of(claim).number.is_some_and(|number| number > served)
    }

    /// Records that the lock's record was read just now.
    pub(crate) fn polled(&self, claim: Id) {
        self.of(claim).polled = true;
    }

    /// Whether the lock's record was read since this was called last.
    pub(crate) fn has_polled(&self, claim: Id) -> bool {
        std::mem::take(&mut self.of(claim).polled)
    }

    /// How many waiters are before `claim`, and for how long the lock is kept for them once it is free.
    pub(crate) fn before(&self, claim: Id, served: u64) -> (usize, Duration) {
        let known = self.of(claim);
        let waiting = || known.before.iter().filter(|before| before.number > served);
        (waiting().count(), grace(waiting()))
    }
}
