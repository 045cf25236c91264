//! How many requests the viewers cost the store, and how long they take.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::Moment;

/// How many requests are remembered: more than two minutes of them at full speed.
const KEPT: usize = 1_000;
const MINUTE: Duration = Duration::from_secs(60);

/// One request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    pub(crate) at: Moment,
    pub(crate) took: Duration,
    pub(crate) failed: bool,
}

/// The requests to the store for viewers.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<(u64, VecDeque<Measured>)>);

impl Meter {
    fn inner(&self) -> MutexGuard<'_, (u64, VecDeque<Measured>)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn count(&self, measured: Measured) {
        let mut inner = self.inner();
        inner.0 += 1;
        inner.1.push_back(measured);
        if inner.1.len() > KEPT {
            inner.1.pop_front();
        }
    }

    /// All requests since the server started.
    pub(crate) fn total(&self) -> u64 {
        self.inner().0
    }

    /// The requests of the last minute before `now`, oldest first.
    pub(crate) fn last_minute(&self, now: Moment) -> Vec<Measured> {
        let recent = |measured: &&Measured| now.longest_since(measured.at) <= MINUTE;
        self.inner().1.iter().filter(recent).copied().collect()
    }

    /// The latest requests, oldest first.
    pub(crate) fn latest(&self) -> Vec<Measured> {
        self.inner().1.iter().copied().collect()
    }
}
