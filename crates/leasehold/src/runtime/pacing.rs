//! When a waiter polls next, on a store without notifications. Pure: it takes what was seen and returns a pause.
//!
//! A pause is half as long as the current hold has lasted so far, up to a limit. So the release of a short hold is
//! noticed soon, and a long hold costs few reads. If holders take turns, the history shows the length of a turn, and no
//! waiter polls much more often than turns end. A waiter that has waited for fewer turns than there are other processes
//! polls less often, because the earlier waiters come first.

use std::time::Duration;

use crate::clock::{Moment, StoreTime, micros};
use crate::lease::{Holder, PastGrant, PollInterval, Token};
use crate::random::Random;

/// A pause is this fraction of the time that a hold has lasted, or is expected to last.
const PART: f64 = 0.5;

/// The fixed fraction of a pause that does not grow. A pause that grows is drawn from the whole range between the
/// previous pause and itself. Otherwise waiters that saw the same state would stay in step.
const STEADY: f64 = 0.9;

/// A waiter that has waited for longer than the turns of all others should take polls this many times as often as a new
/// waiter, and not more often: there may be several such waiters.
const HASTE: f64 = 4.0;

/// After polls with errors, pauses are longer by up to two to this power.
const MOST_STRAIN: i32 = 6;

/// What a poll shows of the current hold and of the turns before it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Turns {
    /// How long the lock has certainly been held.
    age: Duration,
    /// How long a turn took lately, from grant to grant. Zero if this is not known.
    typical: Duration,
    /// How many processes took turns, including the current holder.
    contenders: u32,
}

impl Turns {
    /// Evaluates a record that was granted to `holder` at `granted_us` on the store's clock. Readings of that clock may
    /// be off by the distance between its bounds. A time that is uncertain counts as short.
    pub(crate) fn of(
        holder: &Holder,
        granted_us: Option<u64>,
        history: &[PastGrant],
        now: Option<StoreTime>,
        poll_interval: PollInterval,
    ) -> Self {
        let (Some(granted_us), Some(now)) = (granted_us, now) else { return Self::default() };
        let doubt_us = now.hi_us.saturating_sub(now.lo_us);
        let longest_gap_us = micros(2 * poll_interval.max).saturating_add(doubt_us);
        let (mut from_us, mut turns, mut contenders) = (granted_us, 0, vec![holder]);
        for past in history {
            // After a gap without waiters, earlier holders do not count as waiting.
            let (Some(began_us), Some(ended_us)) = (past.from_us, past.until_us) else { break };
            if from_us.saturating_sub(ended_us) > longest_gap_us {
                break;
            }
            if !contenders.iter().any(|known| known.is_same_process(&past.holder)) {
                contenders.push(&past.holder);
            }
            (from_us, turns) = (began_us, turns + 1);
        }
        let all_us = granted_us.saturating_sub(from_us).saturating_sub(doubt_us);
        Self {
            age: Duration::from_micros(now.lo_us.saturating_sub(granted_us)),
            typical: Duration::from_micros(all_us.checked_div(turns).unwrap_or(0)),
            contenders: u32::try_from(contenders.len()).unwrap_or(u32::MAX),
        }
    }

    /// For a waiter that knows that the next turn is its own.
    pub(crate) fn of_the_next(self) -> Self {
        Self { contenders: 1, ..self }
    }
}

/// The pauses of one wait.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    poll_interval: PollInterval,
    began: Moment,
    /// The grant that holds the lock, and since when this waiter has seen it. Renewals change neither.
    hold: (Option<Token>, Moment),
    /// The previous pause, without its jitter.
    before: Duration,
    strain: i32,
}

impl Pacing {
    /// Starts a wait at `now`.
    pub(crate) fn new(poll_interval: PollInterval, now: Moment) -> Self {
        Self { poll_interval, began: now, hold: (None, now), before: Duration::ZERO, strain: 0 }
    }

    /// Records an answer of the store. `with_trouble` says that the store had refused requests before, or had not
    /// answered them. It is then polled less often for a while.
    pub(crate) fn looked(&mut self, with_trouble: bool) {
        self.strain = (self.strain + if with_trouble { 1 } else { -1 }).clamp(0, MOST_STRAIN);
    }

    /// The pause before the next poll, if the lock is held with `token` and its lease can lapse within `lapse`. Never
    /// longer than the poll interval allows, except for the small spread after a lapse, when all waiters poll.
    pub(crate) fn pause(
        &mut self,
        now: Moment,
        token: Option<Token>,
        turns: Turns,
        lapse: Option<Duration>,
        random: &Random,
    ) -> Duration {
        if self.hold.0 != token {
            self.hold = (token, now);
        }
        let PollInterval { min, max } = self.poll_interval;
        let next = self.next(now, turns).min(max);
        let least = self.before.min(next).mul_f64(STEADY).max(min).min(max);
        let longest = next.max(min.mul_f64(1.25)).min(max);
        self.before = next;
        let pause = least + longest.saturating_sub(least).mul_f64(random.fraction());
        self.until(pause, lapse, random)
    }

    /// `pause`, but not beyond the instant at which the lock is `due`.
    pub(crate) fn until(&self, pause: Duration, due: Option<Duration>, random: &Random) -> Duration {
        match due {
            // At that instant, but not all waiters at the same one.
            Some(due) if due <= pause => due + (self.poll_interval.min / 2).mul_f64(random.fraction()),
            _ => pause,
        }
    }

    fn next(&self, now: Moment, turns: Turns) -> Duration {
        let age = turns.age.max(now.longest_since(self.hold.1)).as_secs_f64();
        let turn = turns.typical.max(self.poll_interval.min).as_secs_f64();
        let contenders = f64::from(turns.contenders);
        let waited = now.longest_since(self.began).as_secs_f64();
        let turns_left = if turn > 0.0 { contenders - waited / turn } else { 0.0 };
        let expected = turn * turns_left.max(contenders / HASTE).max(1.0);
        let pause = PART * age.max(expected) * 2_f64.powi(self.strain);
        Duration::try_from_secs_f64(pause).unwrap_or(self.poll_interval.max).max(self.poll_interval.min)
    }
}

#[cfg(test)]
mod tests;
