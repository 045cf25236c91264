//! Randomness for ids that must never repeat, and for jitter. Simulations use a seed. Everything else uses the
//! operating system's generator.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A source of randomness. Cheap to clone. Clones share one source.
///
/// ```
/// use leasehold::random::Random;
///
/// assert_eq!(Random::seeded(7).bits(), Random::seeded(7).bits());
/// ```
#[derive(Clone, Debug)]
pub struct Random(Source);

#[derive(Clone, Debug)]
enum Source {
    Os,
    Seeded(Arc<Mutex<fastrand::Rng>>),
}

impl Random {
    /// Creates a source that uses the operating system's generator.
    pub const fn from_os() -> Self {
        Self(Source::Os)
    }

    /// Creates a generator that returns the same sequence for the same seed. For simulations only: two processes with
    /// the same seed would write equal nonces.
    pub fn seeded(seed: u64) -> Self {
        Self(Source::Seeded(Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)))))
    }

    /// Returns 128 random bits.
    ///
    /// If the operating system's generator is not available (early boot, a broken sandbox), this falls back to a
    /// generator that is seeded by address layout and time. Its values are unique enough among the processes of one
    /// machine. Never panics.
    pub fn bits(&self) -> u128 {
        match &self.0 {
            Source::Os => {
                let mut bytes = [0; 16];
                match getrandom::fill(&mut bytes) {
                    Ok(()) => u128::from_ne_bytes(bytes),
                    Err(_) => fastrand::u128(..),
                }
            }
            Source::Seeded(rng) => rng.lock().unwrap_or_else(PoisonError::into_inner).u128(..),
        }
    }

    /// Returns a uniform fraction in `[0, 1)`.
    pub fn fraction(&self) -> f64 {
        match &self.0 {
            Source::Os => fastrand::f64(),
            Source::Seeded(rng) => rng.lock().unwrap_or_else(PoisonError::into_inner).f64(),
        }
    }

    /// Returns `duration` times a uniform factor in `[1 - spread, 1 + spread)`.
    pub fn jittered(&self, duration: Duration, spread: f64) -> Duration {
        duration.mul_f64((1.0 + spread * (2.0 * self.fraction() - 1.0)).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_the_system_does_not() {
        assert_eq!(Random::seeded(7).bits(), Random::seeded(7).bits());
        assert_ne!(Random::from_os().bits(), Random::from_os().bits());
    }

    #[test]
    fn jitter_stays_within_its_spread() {
        let random = Random::seeded(1);
        for _ in 0..1_000 {
            let jittered = random.jittered(Duration::from_secs(10), 0.2);
            assert!((8.0..12.0).contains(&jittered.as_secs_f64()), "{jittered:?}");
        }
    }
}
