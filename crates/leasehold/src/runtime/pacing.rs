//! When a waiter that is not told of a release asks again. Pure: what was seen in, a pause out.
//!
//! The next look comes when this hold has lasted half as long again as it has by now: a short hold is noticed soon, and a
//! long one costs few reads, until the pauses are as long as the store allows. Holders that take turns tell by the history
//! how long a turn is: nobody looks much more often than that. And who has waited for fewer turns than there are others
//! leaves the looking to those who came before.

use std::time::Duration;

use crate::clock::{Moment, StoreTime, micros};
use crate::lease::{Holder, PastGrant, PollInterval, Token};
use crate::random::Random;

/// A pause is this part of the time that a hold has lasted, or is expected to.
const PART: f64 = 0.5;

/// How much of a pause that does not grow is certain. One that grows is drawn from all between the one before and itself:
/// waiters who all saw the same would go on in step.
const STEADY: f64 = 0.9;

/// Who has waited for longer than all others should have taken looks this many times as often as a newcomer, and no more:
/// there may be others who have.
const HASTE: f64 = 4.0;

/// After troubled looks pauses are up to this power of two longer.
const MOST_STRAIN: i32 = 6;

/// What a look tells of who has the lock, and of the turns before.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Turns {
    /// For how long it has certainly been held.
    age: Duration,
    /// How long a turn took lately, from grant to grant; zero where nothing tells.
    typical: Duration,
    /// How many took turns, with the one whose turn it is.
    contenders: u32,
}

impl Turns {
    /// By a record that `holder` was granted at `granted_us` on the store's clock. Readings of that clock may be off by as
    /// much as its bounds are apart; what is not certain counts as short.
    pub(crate) fn of(
        holder: &Holder,
        granted_us: Option<u64>,
        history: &[PastGrant],
        now: Option<StoreTime>,
        pace: PollInterval,
    ) -> Self {
        let (Some(granted_us), Some(now)) = (granted_us, now) else { return Self::default() };
        let doubt_us = now.hi_us.saturating_sub(now.lo_us);
        let longest_gap_us = micros(2 * pace.max).saturating_add(doubt_us);
        let (mut from_us, mut turns, mut contenders) = (granted_us, 0, vec![holder]);
        for past in history {
            // Once nobody waited, those before are not waiting now.
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
}

/// The pauses of one wait.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    pace: PollInterval,
    began: Moment,
    /// The grant that is waited for, and since when. Renewals change neither.
    hold: (Option<Token>, Moment),
    /// The pause before, without its jitter.
    before: Duration,
    strain: i32,
}

impl Pacing {
    /// A wait that begins now.
    pub(crate) fn new(pace: PollInterval, now: Moment) -> Self {
        Self { pace, began: now, hold: (None, now), before: Duration::ZERO, strain: 0 }
    }

    /// The store answered, if only after it had refused, or not answered at all: then it is asked less often for a while.
    pub(crate) fn looked(&mut self, with_trouble: bool) {
        self.strain = (self.strain + if with_trouble { 1 } else { -1 }).clamp(0, MOST_STRAIN);
    }

    /// For how long to wait before the next look, when the lock is held with `token` and its lease can lapse within
    /// `lapse`. Never longer than the pace allows, but for the small spread after a lapse, when everybody looks.
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
        let PollInterval { min, max } = self.pace;
        let next = self.next(now, turns).min(max);
        let least = self.before.min(next).mul_f64(STEADY).max(min).min(max);
        let longest = next.max(min.mul_f64(1.25)).min(max);
        self.before = next;
        let pause = least + longest.saturating_sub(least).mul_f64(random.fraction());
        match lapse {
            // That instant, and not all in the same.
            Some(lapse) if lapse <= pause => lapse + (min / 2).mul_f64(random.fraction()),
            _ => pause,
        }
    }

    fn next(&self, now: Moment, turns: Turns) -> Duration {
        let age = turns.age.max(now.longest_since(self.hold.1)).as_secs_f64();
        let turn = turns.typical.max(self.pace.min).as_secs_f64();
        let contenders = f64::from(turns.contenders);
        let waited = now.longest_since(self.began).as_secs_f64();
        let turns_left = if turn > 0.0 { contenders - waited / turn } else { 0.0 };
        let expected = turn * turns_left.max(contenders / HASTE).max(1.0);
        let pause = PART * age.max(expected) * 2_f64.powi(self.strain);
        Duration::try_from_secs_f64(pause).unwrap_or(self.pace.max).max(self.pace.min)
    }
}

#[cfg(test)]
mod tests;
