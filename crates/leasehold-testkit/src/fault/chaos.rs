//! Random outcomes, replayable from a seed.

use std::time::Duration;

use super::Outcome;

/// The probability of each fault. The faults are tried in the order of the fields. If none occurs, the outcome is
/// [`Outcome::Fine`].
///
/// ```
/// # use leasehold_testkit::fault::Chaos;
/// let mut chaos = Chaos::seeded(7);
/// (chaos.applied_lost, chaos.dropped) = (0.1, 0.1);
/// ```
#[derive(Clone, Debug)]
pub struct Chaos {
    /// Applied; the response is lost.
    pub applied_lost: f64,
    /// Never applied, reported as unknown.
    pub dropped: f64,
    /// Reported as unknown at once, applied when the test calls [`deliver`](super::FaultyRegister::deliver).
    pub held_back: f64,
    /// Applied twice.
    pub twice: f64,
    /// Applied twice, and the second response reported.
    pub twice_second_answer: f64,
    /// Applied, and the response arrives; a copy of the request arrives when the test calls
    /// [`deliver`](super::FaultyRegister::deliver).
    pub twice_late: f64,
    /// Refused for now.
    pub not_applied: f64,
    /// Refused for now, with a request to wait for up to [`delay_most`](Self::delay_most).
    pub throttled: f64,
    /// Arrives late, by up to [`delay_most`](Self::delay_most).
    pub delayed: f64,
    /// The response is late by up to [`delay_most`](Self::delay_most).
    pub answer_delayed: f64,
    /// The longest delay.
    pub delay_most: Duration,
    random: fastrand::Rng,
}

impl Chaos {
    /// Creates a generator without faults. The same `seed` gives the same sequence of outcomes.
    pub fn seeded(seed: u64) -> Self {
        Self {
            applied_lost: 0.0,
            dropped: 0.0,
            held_back: 0.0,
            twice: 0.0,
            twice_second_answer: 0.0,
            twice_late: 0.0,
            not_applied: 0.0,
            throttled: 0.0,
            delayed: 0.0,
            answer_delayed: 0.0,
            delay_most: Duration::from_secs(2),
            random: fastrand::Rng::with_seed(seed),
        }
    }

    /// Creates a generator that draws every fault with probability `each`, which must be at most 1/10.
    pub fn all(seed: u64, each: f64) -> Self {
        Self {
            applied_lost: each,
            dropped: each,
            held_back: each,
            twice: each,
            twice_second_answer: each,
            twice_late: each,
            not_applied: each,
            throttled: each,
            delayed: each,
            answer_delayed: each,
            ..Self::seeded(seed)
        }
    }

    pub(crate) fn draw(&mut self) -> Outcome {
        let mut left = self.random.f64();
        let delay = self.delay_most.mul_f64(self.random.f64());
        let table = [
            (self.applied_lost, Outcome::AppliedLost),
            (self.dropped, Outcome::Dropped),
            (self.held_back, Outcome::HeldBack),
            (self.twice, Outcome::Twice),
            (self.twice_second_answer, Outcome::TwiceSecondAnswer),
            (self.twice_late, Outcome::TwiceLate),
            (self.not_applied, Outcome::NotApplied),
            (self.throttled, Outcome::Throttled(delay)),
            (self.delayed, Outcome::Delayed(delay)),
            (self.answer_delayed, Outcome::AnswerDelayed(delay)),
        ];
        for (probability, outcome) in table {
            if left < probability {
                return outcome;
            }
            left -= probability;
        }
        Outcome::Fine
    }
}
