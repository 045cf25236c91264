//! Tracks how long a waiter has had no response from the store, and when it gives up.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Claim, LastError};
use crate::runtime::open_store::OpenStore;
use crate::types::LockName;

/// The first and the longest pause before a waiter sends another request.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a waiter keeps trying if the store has responded before.
const OUTAGE: Duration = Duration::from_secs(5 * 60);

/// For how long an acquisition may wait for other processes. An attempt that is under way when this time is over is
/// finished, as if the acquisition did not wait.
#[derive(Clone, Debug)]
pub(crate) struct WaitLimit {
    pub(crate) env: Env,
    pub(crate) began: Moment,
    /// `None` if it may wait for as long as it takes.
    pub(crate) limit: Option<Duration>,
}

impl WaitLimit {
    /// Completes when the time is over. Cancel safe.
    pub(crate) async fn passed(&self) {
        match self.limit {
            Some(limit) => self.until(limit).await,
            None => std::future::pending().await,
        }
    }

    /// Completes when an attempt whose time is over is given up because the store fails, or because it has not responded
    /// at all. Cancel safe.
    pub(crate) async fn given_up(&self, last_error: &LastError) {
        self.passed().await;
        let silent = async {
            self.until(Claim::FIRST_RESPONSE).await;
            if last_error.has_answer() {
                std::future::pending().await
            }
        };
        tokio::select! {
            () = last_error.until_failing() => {}
            () = silent => {}
        }
    }

    /// Returns how much of the time is left.
    pub(crate) fn left(&self) -> Duration {
        self.limit.unwrap_or(Duration::MAX).saturating_sub(self.env.now().longest_since(self.began))
    }

    /// Completes when `time` has passed since the acquisition began.
    async fn until(&self, time: Duration) {
        self.env.sleep(time.saturating_sub(self.env.now().longest_since(self.began))).await;
    }

    /// Returns the error for an acquisition of `name` that got no response from the store `shown` in time.
    pub(crate) fn unanswered(&self, name: &LockName, shown: &str, cause: Option<String>) -> Error {
        let within = self.limit.unwrap_or_default();
        let mut message = format!("lock `{name}`: no response from {shown} within {within:.1?}");
        if let Some(cause) = cause {
            message.push_str(&format!(": {cause}"));
        }
        Error::new(ErrorKind::Unavailable, message)
    }
}

/// Returns how long to keep trying if the store does not respond: `configured`, or a default that depends on whether
/// the store has responded before.
pub(crate) fn store_timeout(configured: Option<Duration>, has_answered: bool) -> Duration {
    configured.unwrap_or(if has_answered { OUTAGE } else { Claim::DEFAULT_STORE_TIMEOUT })
}

/// The time since the store last responded to a waiter.
pub(crate) struct Outage {
    opened: Arc<OpenStore>,
    /// The name of the lock.
    name: String,
    configured: Option<Duration>,
    since: Moment,
    has_answered: bool,
    pause: Duration,
}

impl Outage {
    /// Starts to count now, for the lock `name`. `configured` is the time to keep trying a store that does not respond.
    pub(crate) fn new(opened: &Arc<OpenStore>, name: &str, configured: Option<Duration>) -> Self {
        Self {
            since: opened.store.env().now(),
            opened: opened.clone(),
            name: name.to_owned(),
            configured,
            has_answered: false,
            pause: FIRST_PAUSE,
        }
    }

    /// Records that the store has responded.
    pub(crate) fn end(&mut self) {
        (self.since, self.has_answered, self.pause) = (self.now(), true, FIRST_PAUSE);
    }

    fn now(&self) -> Moment {
        self.opened.store.env().now()
    }

    /// Returns how much longer to keep trying.
    pub(crate) fn left(&self) -> Duration {
        let limit = store_timeout(self.configured, self.has_answered);
        limit.saturating_sub(self.now().longest_since(self.since))
    }

    /// Waits before the next request, after one that failed with `error`.
    ///
    /// # Errors
    /// Returns `error` itself if it is not transient. If the time is over, returns `error` with the time and the store.
    pub(crate) async fn pause_after(&mut self, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        if error.is_contended() {
            self.end();
        }
        self.has_answered |= error.is_full();
        let env = self.opened.store.env();
        let pause = env.random.jittered(self.pause, 0.5);
        if pause >= self.left() {
            return Err(self.gave_up(error));
        }
        tracing::debug!(lock = self.name, %error, "no response from the store; trying again");
        env.sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// Returns `error` with the total time and the store in its message.
    pub(crate) fn gave_up(&self, error: Error) -> Error {
        let tried_for = self.now().longest_since(self.since);
        let (name, store) = (&self.name, self.opened.shown());
        error.about(&format!("lock `{name}`: gave up on {store} after {tried_for:.1?}"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::RegisterLeases;
    use crate::clock::TestClock;
    use crate::env::Env;
    use crate::error::Fault;
    use crate::lease::StoreOptions;
    use crate::stores::memory::MemoryRegister;

    fn opened() -> (Arc<OpenStore>, Env) {
        let env = Env::seeded(Arc::new(TestClock::default()), 1);
        let register = Arc::new(MemoryRegister::new(env.clone()));
        let options = StoreOptions { env: env.clone(), ..StoreOptions::default() };
        (Arc::new(OpenStore::new(Arc::new(RegisterLeases::new(register, options)), None, None)), env)
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_without_room_for_a_client_is_asked_for_5_minutes() {
        let (opened, env) = opened();
        for (configured, limit) in [(None, OUTAGE), (Some(Duration::from_secs(20)), Duration::from_secs(20))]
        {
            let began = env.now();
            let mut outage = Outage::new(&opened, "x", configured);
            while outage.pause_after(Fault::full("too many connections").not_applied().into()).await.is_ok() {
            }
            let tried_for = env.now().longest_since(began);
            assert!(tried_for <= limit && tried_for + 2 * LONGEST_PAUSE > limit, "{tried_for:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn losing_to_other_clients_is_not_an_outage() {
        let (opened, env) = opened();
        for (fault, ends) in
            [(Fault::unavailable("no answer"), true), (Fault::contended("it changed"), false)]
        {
            let mut outage = Outage::new(&opened, "x", None);
            env.sleep(Claim::DEFAULT_STORE_TIMEOUT).await;
            let outcome = outage.pause_after(fault.not_applied().into()).await;
            assert_eq!(outcome.is_err(), ends, "{outcome:?}");
        }
    }
}
