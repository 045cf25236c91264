//! What the code needs from the machine: time and randomness, both replaceable in tests.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::random::Random;

/// The clock and the randomness that a store and the locks on it share. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Env {
    /// Where time comes from.
    pub clock: Arc<dyn Clock>,
    /// Where nonces, ids and jitter come from.
    pub random: Random,
}

impl Env {
    /// The machine's own clocks and randomness.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), random: Random::from_os() }
    }

    /// `clock`, with randomness that replays for the same `seed`: for tests.
    pub fn seeded(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self { clock, random: Random::seeded(seed) }
    }

    /// Now, on the clock.
    pub fn now(&self) -> Moment {
        self.clock.now()
    }

    /// Sleeps on the clock. Cancel safe.
    pub async fn sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }
}

impl Default for Env {
    fn default() -> Self {
        Self::system()
    }
}
