//! [`Place`]: where a claim stands in the line of its lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::{Holder, Id, Ttl};
use crate::clock::Moment;
use crate::types::{InvalidValue, LockName};

/// The maximum number of waiters in a line. Further waiters join when there is room.
pub(crate) const MOST_WAITERS: usize = 64;

/// The longest pause between two polls of a waiter in a line.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause of a waiter that is not in the line.
const OUTSIDE: Duration = Duration::from_secs(30);

/// Returns the longest pause between two polls of a waiter that asks for a lease of `ttl`. The waiter polls at least
/// about as often as it would renew that lease, so that a dead waiter delays the others for no longer than a dead
/// holder.
fn longest_pause(ttl: Ttl) -> Duration {
    LONGEST_PAUSE.min(ttl.get() / 3)
}

/// Returns the pause between two polls of a waiter with `ahead` waiters before it, if a single waiter would pause for
/// `pause`. As long as no pause reaches the limit, n waiters together poll about ln(n) times as often as one. A waiter
/// that does not fit into the line pauses for longer than any waiter in the line.
pub(crate) fn pause(pause: Duration, ahead: usize, ttl: Ttl) -> Duration {
    let factor = u32::try_from(ahead).unwrap_or(u32::MAX).saturating_add(1);
    let longest = if ahead < MOST_WAITERS { longest_pause(ttl) } else { OUTSIDE };
    pause.saturating_mul(factor).min(longest)
}

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
}

/// The queue for several permits. It is a lock: the process that gets the next permit holds it, and all other processes
/// wait in its line.
#[derive(Clone, Debug)]
pub(crate) struct PermitQueue {
    pub(crate) name: LockName,
    /// Since when the process of this claim has held the queue's lock, if it does.
    pub(crate) first_since: Option<Moment>,
}

impl PermitQueue {
    /// Creates the queue for the permits of a `kind` below `name`.
    pub(crate) fn new(name: &LockName, kind: &str) -> Result<Self, InvalidValue> {
        Ok(Self { name: LockName::new(format!("{name}/{kind}-queue"))?, first_since: None })
    }

    /// Returns whether the process of this claim gets the next permit.
    pub(crate) fn is_first(&self) -> bool {
        self.first_since.is_some()
    }
}

/// The state of a claim in a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Standing {
    /// The claim's number, if it is in the line.
    pub(crate) number: Option<u64>,
    /// The waiters before it.
    pub(crate) before: Vec<Before>,
    /// The last of these waiters.
    pub(crate) behind: Option<Holder>,
}

/// A waiter before a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Before {
    /// Its number.
    pub(crate) number: u64,
    /// The longest pause between two of its polls.
    pub(crate) polls: Duration,
}

/// Returns how long a free lock is kept for the waiters before a claim, which poll with these `pauses`. This is twice
/// the longest pause, so that each waiter finds the lock free even if a poll fails, plus half a second for the request
/// of each. They all wait at the same time, so their pauses do not add up.
pub(crate) fn grace(pauses: impl IntoIterator<Item = Duration>) -> Duration {
    let (mut longest, mut count) = (Duration::ZERO, 0);
    for pause in pauses {
        (longest, count) = (longest.max(pause), count + 1);
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

    /// Records the state of `claim` in the line.
    pub(crate) fn found(&self, claim: Id, standing: Standing) {
        let mut known = self.of(claim);
        // If there is no room, it does not help to try again soon.
        if standing.number.is_some() || standing.before.len() >= MOST_WAITERS {
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
        (waiting().count(), grace(waiting().map(|before| before.polls)))
    }

    /// Returns the waiter directly before `claim`.
    pub(crate) fn behind(&self, claim: Id, served: u64) -> Option<Holder> {
        let Standing { before, behind, .. } = &self.of(claim).standing;
        before.last().filter(|last| last.number > served).and(behind.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL: Duration = Duration::from_secs(1);

    #[test]
    fn a_line_of_n_polls_about_ln_n_times_as_often_as_one() {
        let pause = |ahead| pause(POLL, ahead, Ttl::DEFAULT);
        let polls: f64 = (0..9).map(|ahead| POLL.div_duration_f64(pause(ahead))).sum();
        assert!((polls - 9_f64.ln()).abs() < 1.0, "{polls}");
        assert_eq!([pause(MOST_WAITERS - 1), pause(MOST_WAITERS)], [LONGEST_PAUSE, OUTSIDE]);
    }

    #[test]
    fn a_claim_that_finds_no_room_does_not_try_soon_again() {
        let (place, claim) = (Place::default(), Id::random(&crate::random::Random::seeded(1)));
        let before = |count| (1..=count).map(|number| Before { number, polls: POLL }).collect();
        let standing = |count| Standing { before: before(count), ..Standing::default() };
        for (count, conflicts) in [(63, 1), (64, 0)] {
            place.conflicted(claim);
            place.found(claim, standing(count));
            assert_eq!(place.conflicts(claim), conflicts);
        }
    }

    #[test]
    fn a_waiter_polls_as_often_as_it_would_renew() {
        let ttl = Ttl::new(3 * POLL / 2).unwrap();
        assert_eq!(pause(POLL, 0, ttl), POLL / 2);
        assert_eq!(pause(POLL, 9, ttl), POLL / 2);
    }
}
