//! Counts the requests to the store that viewers cause, and measures how long they take.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::env::Env;
use leasehold::observe::{Event, Observer, Outcome};

/// How many requests are remembered, which covers more than a minute at full speed.
const MAX_REQUESTS: usize = 4_000;
const MINUTE: Duration = Duration::from_secs(60);

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// When it ended.
    pub(crate) at: Moment,
    pub(crate) took: Duration,
    pub(crate) failed: bool,
}

/// The requests to the store for viewers. Observes the locker of the feed.
#[derive(Debug)]
pub(crate) struct Meter {
    env: Env,
    /// The total number of requests, and the latest ones.
    requests: Mutex<(u64, VecDeque<Measured>)>,
}

impl Observer for Meter {
    fn observe(&self, event: &Event<'_>) {
        let Event::Request { took, outcome, .. } = event else { return };
        let failed = matches!(outcome, Outcome::Failed(_));
        let measured = Measured { at: self.env.now(), took: *took, failed };
        let mut inner = self.inner();
        inner.0 += 1;
        inner.1.push_back(measured);
        if inner.1.len() > MAX_REQUESTS {
            inner.1.pop_front();
        }
    }
}

impl Meter {
    pub(super) fn new(env: Env) -> Self {
        Self { env, requests: Mutex::default() }
    }

    fn inner(&self) -> MutexGuard<'_, (u64, VecDeque<Measured>)> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of requests since the server started.
    pub(crate) fn total(&self) -> u64 {
        self.inner().0
    }

    /// Returns the requests of the last minute before `now`, oldest first.
    pub(crate) fn last_minute(&self, now: Moment) -> Vec<Measured> {
        let recent = |measured: &&Measured| now.longest_since(measured.at) <= MINUTE;
        self.inner().1.iter().filter(recent).copied().collect()
    }

    /// Returns the latest requests, oldest first.
    pub(crate) fn latest(&self) -> Vec<Measured> {
        self.inner().1.iter().copied().collect()
    }
}
