//! A simulated client machine: it accesses a shared register with its own clock and random numbers.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use leasehold::clock::{StoreClock, StoreTime};
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};

/// The resolution of a `Date` header.
const SECOND: Duration = Duration::from_secs(1);

/// A register as one machine sees it. The machine has its own clock, and it learns the store's time only in whole
/// seconds, from responses.
///
/// ```
/// # use std::sync::Arc;
/// # use leasehold::{clock::TestClock, env::Env, stores::memory::MemoryRegister};
/// # use leasehold_testkit::machine::Machine;
/// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
/// let shared = Arc::new(MemoryRegister::new(Env::seeded(Arc::new(TestClock::default()), 0)));
/// let fast = Machine::new(shared.clone(), Env::seeded(Arc::new(TestClock::with_rate(1.005)), 1));
/// let slow = Machine::new(shared, Env::seeded(Arc::new(TestClock::with_rate(0.995)), 2));
/// # });
/// ```
#[derive(Debug)]
pub struct Machine {
    register: Arc<dyn Register>,
    env: Env,
    store_clock: StoreClock,
    skew: Mutex<Skew>,
}

/// How far the clocks of the store's front ends are off.
#[derive(Clone, Copy, Debug)]
enum Skew {
    /// By this many microseconds.
    Fixed(i64),
    /// Each response comes from another front end, whose clock is off by up to this many microseconds.
    Within(u64),
}

impl Machine {
    /// Creates a machine that accesses `register` and runs on `env`.
    pub fn new(register: Arc<dyn Register>, env: Env) -> Self {
        Self { register, env, store_clock: StoreClock::default(), skew: Mutex::new(Skew::Fixed(0)) }
    }

    /// Uses a front end whose clock is off by `skew_us` microseconds.
    #[must_use]
    pub fn with_front_end_skew(self, skew_us: i64) -> Self {
        self.set_front_end_skew(skew_us);
        self
    }

    /// Switches to a front end whose clock is off by `skew_us` microseconds.
    pub fn set_front_end_skew(&self, skew_us: i64) {
        *self.skew.lock().unwrap_or_else(PoisonError::into_inner) = Skew::Fixed(skew_us);
    }

    /// Uses many front ends, each with a clock that is off by up to `skew_us` microseconds.
    #[must_use]
    pub fn with_front_ends_within(self, skew_us: u64) -> Self {
        *self.skew.lock().unwrap_or_else(PoisonError::into_inner) = Skew::Within(skew_us);
        self
    }

    /// Returns how far the clock of the front end that sends the next response is off.
    pub(crate) fn skew_us(&self) -> i64 {
        let skew = *self.skew.lock().unwrap_or_else(PoisonError::into_inner);
        match skew {
            Skew::Fixed(skew_us) => skew_us,
            Skew::Within(most_us) => {
                let most = Duration::from_micros(2 * most_us);
                most.mul_f64(self.env.random.fraction()).as_micros() as i64 - most_us as i64
            }
        }
    }

    /// Awaits a response and, if the request succeeded, reads the `Date` of the response.
    async fn dated<T>(&self, answer: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let sent = self.env.now();
        let answer = answer.await;
        // While the machine's clock is stopped, no sleep ends, not even this one. So a machine that stands still
        // receives no response.
        self.env.sleep(Duration::ZERO).await;
        if answer.is_ok()
            && let Some(time) = self.register.store_time()
        {
            let us = time.lo_us.saturating_add_signed(self.skew_us());
            self.store_clock.observe(us - us % 1_000_000, SECOND, sent, self.env.now());
        }
        answer
    }
}

#[async_trait]
impl Register for Machine {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.dated(self.register.read(key)).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        self.dated(self.register.head(key)).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.dated(self.register.write(key, expect, body)).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.dated(self.register.delete(key, version)).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.register.list(prefix)
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.register.version_of(bytes)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.store_clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        self.register.capabilities()
    }
}
