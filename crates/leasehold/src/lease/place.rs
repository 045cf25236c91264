//! [`Place`]: where a claim stands in the line of its lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::pauses::{MAX_WAITERS, reservation};
use super::{Holder, Id};

/// The place of a [`Claim`](super::Claim) in the line of its lock, as far as its store knows. The store writes and
/// reads it. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Place(Arc<Mutex<Known>>);

#[derive(Debug, Default)]
struct Known {
    /// The claim that has this place. An acquisition that starts over has another claim.
    claim: Option<Id>,
    standing: Standing,
    /// Whether it has tried to join.
    tried: bool,
    /// How often in a row it could not join, because other waiters wrote the line at the same time.
    conflicts: u32,
    /// Whether the lock's record was read since the claim asked for the lock.
    polled: bool,
    kept: Kept,
}

/// How long a claim has seen the lock available and kept for the first waiter.
///
/// Clients that ignore the line can take the lock again and again before the reservation of a dead waiter is over. So the
/// reservation counts over all periods in which the lock was available, not only over the latest one.
#[derive(Debug, Default)]
struct Kept {
    /// The claim of the first waiter.
    first: Option<Id>,
    /// Identifies the latest period.
    period: u128,
    /// The time in the latest period.
    latest: Duration,
    /// The time in the periods before it.
    earlier: Duration,
}

/// The state of a claim in a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The claim's number, if it is in the line.
    pub(crate) number: Option<u64>,
    /// The waiters before it.
    pub(crate) before: Vec<Before>,
    /// The last of these waiters.
    pub(crate) waiter_ahead: Option<Holder>,
}

/// A waiter before a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// Its number.
    pub(crate) number: u64,
    pub(crate) claim: Id,
    /// The longest pause between two of its polls.
    pub(crate) polls: Duration,
}

impl Kept {
    /// Returns the time for which the lock was kept for the waiter `first`.
    fn of(&self, first: Id) -> Duration {
        if self.first == Some(first) { self.earlier + self.latest } else { Duration::ZERO }
    }
}

impl Place {
    fn of(&self, claim: Id) -> MutexGuard<'_, Known> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.claim != Some(claim) {
            *known = Known { claim: Some(claim), ..Known::default() };
        }
        known
    }

    /// Records the state of `claim` in the line.
    pub(crate) fn found(&self, claim: Id, standing: Standing) {
        let mut known = self.of(claim);
        // If there is no room, it does not help to try again soon.
        if standing.number.is_some() || standing.before.len() >= MAX_WAITERS {
            known.conflicts = 0;
        }
        known.standing = standing;
    }

    /// Records that the line changed while `claim` wrote itself into it. Returns how often this happened in a row.
    pub(crate) fn conflicted(&self, claim: Id) -> u32 {
        let mut known = self.of(claim);
        known.conflicts += 1;
        known.conflicts
    }

    /// Records that a request to join is about to be sent. Its response may be lost.
    pub(crate) fn tries_to_join(&self, claim: Id) {
        self.of(claim).tried = true;
    }

    /// Returns whether `claim` may be in the line.
    pub(crate) fn may_be_taken(&self, claim: Id) -> bool {
        self.of(claim).tried
    }

    pub(crate) fn conflicts(&self, claim: Id) -> u32 {
        self.of(claim).conflicts
    }

    /// Returns whether `claim` has a place if all waiters up to number `served` were served.
    pub(crate) fn is_taken(&self, claim: Id, served: u64) -> bool {
        self.of(claim).standing.number.is_some_and(|number| number > served)
    }

    /// Records that the lock's record was read just now.
    pub(crate) fn polled(&self, claim: Id) {
        self.of(claim).polled = true;
    }

    /// Returns whether the lock's record was read since the previous call.
    pub(crate) fn has_polled(&self, claim: Id) -> bool {
        std::mem::take(&mut self.of(claim).polled)
    }

    /// Returns how many waiters are before `claim`, and for how long the lock is kept for them once it is free.
    pub(crate) fn before(&self, claim: Id, served: u64) -> (usize, Duration) {
        let known = self.of(claim);
        let waiting = || known.standing.before.iter().filter(|before| before.number > served);
        let reservation = reservation(waiting().map(|before| before.polls));
        let kept = waiting().next().map_or(Duration::ZERO, |first| known.kept.of(first.claim));
        (waiting().count(), reservation.saturating_sub(kept))
    }

    /// Records that the lock has been available for `available` in `period`, and is kept for the waiter `first`. `period`
    /// is a number that no other period has. Returns for how long the lock was kept for this waiter in all periods that
    /// `claim` has seen.
    pub(crate) fn kept(&self, claim: Id, first: Id, period: u128, available: Duration) -> Duration {
        let mut known = self.of(claim);
        if known.kept.first != Some(first) {
            known.kept = Kept { first: Some(first), ..Kept::default() };
        }
        let kept = &mut known.kept;
        if kept.period != period {
            kept.earlier += std::mem::take(&mut kept.latest);
            kept.period = period;
        }
        kept.latest = kept.latest.max(available);
        kept.earlier + kept.latest
    }

    /// Returns the waiter directly before `claim`.
    pub(crate) fn waiter_ahead(&self, claim: Id, served: u64) -> Option<Holder> {
        let Standing { before, waiter_ahead, .. } = &self.of(claim).standing;
        before.last().filter(|last| last.number > served).and(waiter_ahead.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(1);

    #[test]
    fn a_claim_that_finds_no_room_does_not_try_soon_again() {
        let (place, claim) = (Place::default(), Id::random(&crate::random::Random::seeded(1)));
        let before = |count| (1..=count).map(|number| Before { number, claim, polls: POLL }).collect();
        let standing = |count| Standing { before: before(count), ..Standing::default() };
        for (count, conflicts) in [(63, 1), (64, 0)] {
            place.conflicted(claim);
            place.found(claim, standing(count));
            assert_eq!(place.conflicts(claim), conflicts);
        }
    }
}
