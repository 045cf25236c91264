//! How long a waiter has gone without an answer from the store, and when it gives up.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Claim;
use crate::runtime::renewer::Opened;

/// The pause before a waiter asks again: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// For how long a waiter keeps trying a store that has answered before and does not any more.
const OUTAGE: Duration = Duration::from_secs(5 * 60);

/// For how long a store that does not answer, or not any more, is tried, where `wanted` says nothing else.
pub(crate) fn store_timeout(wanted: Option<Duration>, has_answered: bool) -> Duration {
    wanted.unwrap_or(if has_answered { OUTAGE } else { Claim::DEFAULT_PATIENCE })
}

/// The time since a waiter's store last answered.
pub(crate) struct Outage {
    opened: Arc<Opened>,
    /// The lock's.
    name: String,
    wanted: Option<Duration>,
    since: Moment,
    has_answered: bool,
    pause: Duration,
}

impl Outage {
    /// Counts from now, for the lock `name`; `wanted` is for how long a silent store is to be tried.
    pub(crate) fn new(opened: &Arc<Opened>, name: &str, wanted: Option<Duration>) -> Self {
        Self {
            since: opened.store.env().now(),
            opened: opened.clone(),
            name: name.to_owned(),
            wanted,
            has_answered: false,
            pause: FIRST_PAUSE,
        }
    }

    /// The store has answered.
    pub(crate) fn end(&mut self) {
        (self.since, self.has_answered, self.pause) = (self.now(), true, FIRST_PAUSE);
    }

    fn now(&self) -> Moment {
        self.opened.store.env().now()
    }

    /// For how much longer the store may stay silent.
    pub(crate) fn left(&self) -> Duration {
        let limit = store_timeout(self.wanted, self.has_answered);
        limit.saturating_sub(self.now().longest_since(self.since))
    }

    /// After a request that failed: waits before the next one, or says for how long and why the store did not answer. Errors
    /// that do not pass are given back as they are.
    pub(crate) async fn pause_after(&mut self, error: Error) -> Result<()> {
        if error.kind() != ErrorKind::Unavailable {
            return Err(error);
        }
        let env = self.opened.store.env();
        let pause = env.random.jittered(self.pause, 0.5);
        if pause >= self.left() {
            return Err(self.gave_up(error));
        }
        tracing::debug!(lock = self.name, %error, "no answer from the store; trying again");
        env.sleep(pause).await;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Ok(())
    }

    /// `error`, with the whole time and the store that it is about.
    pub(crate) fn gave_up(&self, error: Error) -> Error {
        let tried_for = self.now().longest_since(self.since);
        let (name, store) = (&self.name, self.opened.shown());
        error.about(&format!("lock `{name}`: gave up on {store} after {tried_for:.1?}"))
    }
}
