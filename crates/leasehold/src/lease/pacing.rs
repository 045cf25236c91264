//! Determines when a waiter polls next on a store without notifications. The functions are pure: they compute a pause
//! from what was seen.
//!
//! A pause is half as long as the current hold has lasted so far, up to a limit. For the next in line, it is an eighth.
//! So the release of a short hold is noticed soon, and a long hold costs few reads. Waiters behind the next one
//! multiply the pause by their place in the line ([`pause`](crate::lease::pause)). Another waiter gets the lock before
//! they do, so they do not begin with short pauses. They [expect](expected) a hold to last as long as the previous one.

use std::time::Duration;

use crate::clock::{Moment, StoreTime};
use crate::lease::{PastGrant, PollInterval, Token};
use crate::random::Random;

/// A pause is this fraction of the time that a hold has lasted.
const PART: f64 = 0.5;

/// The same for the next in line. Only this waiter can get the lock after a release, and it delays all others.
const PART_OF_NEXT: f64 = 0.125;

/// The fraction of a constant pause that is not random. A growing pause is drawn from the whole range between the
/// previous pause and the new one. Otherwise waiters that saw the same state would stay synchronized.
const STEADY: f64 = 0.9;

/// After polls with errors, pauses are longer by a factor of up to two to this power.
const MAX_STRAIN: i32 = 6;

/// Returns how long a lock has certainly been held if it was granted at `granted_us` on the store's clock. Returns zero
/// if a time is unknown.
pub(crate) fn held_for(granted_us: Option<u64>, now: Option<StoreTime>) -> Duration {
    let held = granted_us.zip(now).map(|(granted_us, now)| now.lo_us.saturating_sub(granted_us));
    Duration::from_micros(held.unwrap_or(0))
}

/// Returns how long a waiter behind `ahead` others expects a hold to last that has lasted for `age`. Waiters behind the
/// first expect at least the length of the latest hold in the lock's `history`, on the store's clock. An unknown length
/// counts as zero.
pub(crate) fn expected(age: Duration, ahead: usize, history: &[PastGrant]) -> Duration {
    let times = history.first().and_then(|past| past.from_us.zip(past.until_us)).filter(|_| ahead > 0);
    age.max(Duration::from_micros(times.map_or(0, |(from_us, until_us)| until_us.saturating_sub(from_us))))
}

impl PollInterval {
    /// Returns the pause of a waiter that finds the lock free but reserved for another waiter, which will take it soon.
    /// The pause does not depend on how long the lock has been free. If waiters paused for longer because the lock is
    /// idle, they would keep it idle for longer.
    pub(crate) fn shortest(&self, random: &Random) -> Duration {
        random.jittered(self.min, 0.2).min(self.max)
    }
}

/// The pauses of one wait.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    poll_interval: PollInterval,
    /// The grant that holds the lock, and since when this waiter has seen it. Renewals change neither.
    hold: (Option<Token>, Moment),
    /// The previous pause, without its jitter.
    before: Duration,
    strain: i32,
    part: f64,
    /// Whether growing pauses are drawn from a narrow range too.
    is_steady: bool,
}

impl Pacing {
    /// Starts a wait at `now`.
    pub(crate) fn new(poll_interval: PollInterval, now: Moment) -> Self {
        Self {
            poll_interval,
            hold: (None, now),
            before: Duration::ZERO,
            strain: 0,
            part: PART,
            is_steady: false,
        }
    }

    /// Records a response of the store. `with_trouble` says that earlier requests were refused or got no response. The
    /// store is then polled less often for a while.
    pub(crate) fn polled(&mut self, with_trouble: bool) {
        self.strain = (self.strain + if with_trouble { 1 } else { -1 }).clamp(0, MAX_STRAIN);
    }

    /// Sets how many waiters are before this one in the line of the lock, if it has a place there. Waiters behind the
    /// first are not synchronized, because each multiplies its pauses by a different number.
    pub(crate) fn set_place(&mut self, ahead: Option<usize>) {
        self.part = if ahead == Some(0) { PART_OF_NEXT } else { PART };
        self.is_steady = ahead > Some(0);
    }

    /// Returns the pause before the next poll if the lock is held with `token`, has certainly been held for `age`, and
    /// its lease can lapse within `lapse`. The pause is never longer than the poll interval allows, except for the
    /// small random spread after a lapse, when all waiters poll.
    pub(crate) fn pause(
        &mut self,
        now: Moment,
        token: Option<Token>,
        age: Duration,
        lapse: Option<Duration>,
        random: &Random,
    ) -> Duration {
        if self.hold.0 != token {
            self.hold = (token, now);
        }
        let PollInterval { min, max } = self.poll_interval;
        let next = self.next(now, age).min(max);
        let before = if self.is_steady { next } else { self.before.min(next) };
        let least = before.mul_f64(STEADY).max(min).min(max);
        let longest = next.max(min.mul_f64(1.25)).min(max);
        self.before = next;
        let pause = least + longest.saturating_sub(least).mul_f64(random.fraction());
        self.until(pause, lapse, random)
    }

    /// Returns `pause`, shortened so that it does not extend beyond the instant at which the lock is `due`.
    pub(crate) fn until(&self, pause: Duration, due: Option<Duration>, random: &Random) -> Duration {
        match due {
            // A random spread, so that not all waiters poll at that instant.
            Some(due) if due <= pause => due + (self.poll_interval.min / 2).mul_f64(random.fraction()),
            _ => pause,
        }
    }

    fn next(&self, now: Moment, age: Duration) -> Duration {
        let age = age.max(now.longest_since(self.hold.1)).as_secs_f64();
        let pause = self.part * age * 2_f64.powi(self.strain);
        let least = self.poll_interval.min.mul_f64(2_f64.powi(self.strain));
        Duration::try_from_secs_f64(pause).unwrap_or(self.poll_interval.max).max(least)
    }
}

#[cfg(test)]
mod tests;
