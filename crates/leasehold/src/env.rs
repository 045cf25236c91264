//! Access to time and randomness. Tests can replace both.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::{Clock, Moment, SystemClock};
use crate::random::Random;

/// The clock and the source of randomness that a store and its locks share. Cheap to clone. To replace one of them,
/// assign the field.
///
/// ```
/// # use std::{sync::Arc, time::Duration};
/// use leasehold::{Locker, clock::TestClock, env::Env, lease::StoreOptions};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let mut options = StoreOptions::default(); // with Env::system()
/// options.env = Env::seeded(Arc::new(TestClock::default()), 7);
/// let locker = Locker::open_with("mem:", options).await?;
///
/// let env = locker.store().env();
/// let start = env.now();
/// env.sleep(Duration::from_secs(3_600)).await; // at once, if tokio's clock is paused
/// assert_eq!(env.now().longest_since(start), Duration::from_secs(3_600));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Env {
    /// The clock.
    pub clock: Arc<dyn Clock>,
    /// The source of nonces, ids and jitter.
    pub random: Random,
}

impl Env {
    /// Returns the machine's own clocks and randomness.
    pub fn system() -> Self {
        Self { clock: Arc::new(SystemClock), random: Random::from_os() }
    }

    /// Returns `clock` with randomness that depends only on `seed`. For tests.
    pub fn seeded(clock: Arc<dyn Clock>, seed: u64) -> Self {
        Self { clock, random: Random::seeded(seed) }
    }

    /// Returns the current time on the clock.
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
