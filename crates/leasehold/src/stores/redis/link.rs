//! An open connection to a server.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::server::ServerInfo;
use crate::clock::{Moment, RATE_ERROR, micros};

/// An open connection. It is closed when this is dropped.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
    /// The address of the server, for messages.
    pub(super) host: String,
    pub(super) server: ServerInfo,
    /// A reading of the server's clock, and the moment at which the response arrived.
    clock: Mutex<(u64, Moment)>,
    /// When the first abandoned request since the latest response was sent.
    unanswered: Mutex<Option<Moment>>,
    /// Whether the connection has a subscription, or was refused one.
    pub(super) listens: AtomicBool,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Link {
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: AbortHandle,
        host: String,
        now: Moment,
    ) -> Self {
        Self {
            connection,
            driver,
            host,
            server: ServerInfo::default(),
            clock: Mutex::new((0, now)),
            unanswered: Mutex::default(),
            listens: AtomicBool::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.driver.is_finished()
    }

    fn clock(&self) -> MutexGuard<'_, (u64, Moment)> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a lower bound of the server's clock at `now`.
    pub(super) fn clock_us(&self, now: Moment) -> u64 {
        let (read_us, at) = *self.clock();
        let passed = now.shortest_since(at).mul_f64(1.0 - RATE_ERROR);
        read_us.saturating_add(micros(passed))
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    pub(super) fn note_clock(&self, clock_us: u64, now: Moment) {
        *self.clock() = (clock_us, now);
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
