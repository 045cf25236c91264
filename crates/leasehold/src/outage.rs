//! How long a waiter has gone without an answer from the store, and when it gives up.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::lock::Lock;

/// The pause before a waiter asks again: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The time since a waiter's store last answered.
pub(crate) struct Outage {
    lock: Lock,
    since: Moment,
    has_answered: bool,
    pause: Duration,
}

impl Outage {
    /// Counts from now.
    pub(crate) fn new(lock: &Lock) -> Self {
        Self { since: now(lock), lock: lock.clone(), has_answered: false, pause: FIRST_PAUSE }
    }

    /// The store has answered.
    pub(crate) fn end(&mut self) {
        (self.since, self.has_answered, self.pause) = (now(&self.lock), true, FIRST_PAUSE);
    }

    /// For how much longer the store may stay silent.
    pub(crate) fn patience(&self) -> Duration {
        let limit = self.lock.store_timeout(self.has_answered);
        limit.saturating_sub(now(&self.lock).longest_since(self.since))
    }

    /// After a request that failed: waits before the next one, or says for how long and why the store did not answer. Errors
    /// that do not pass are given back as they are.
    pub(crate) async fn pause_after(&mut self, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        let env = self.lock.locker().store().env();
        let pause = env.random.jittered(self.pause, 0.5);
        if pause >= self.patience() {
            return Err(self.gave_up(error));
        }
        tracing::debug!(lock = self.lock.name(), %error, "no answer from the store; trying again");
        env.sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// `error`, with the whole time and the store that it is about.
    pub(crate) fn gave_up(&self, error: Error) -> Error {
        let tried_for = now(&self.lock).longest_since(self.since);
        let (name, store) = (self.lock.name(), self.lock.locker().shown());
        error.about(&format!("lock `{name}`: gave up on {store} after {tried_for:.1?}"))
    }
}

fn now(lock: &Lock) -> Moment {
    lock.locker().store().env().now()
}
