//! An open connection to a server.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::server::ServerInfo;
use crate::clock::Moment;

/// The resolution of the server's clock.
pub(super) const RESOLUTION: Duration = Duration::from_micros(1);

/// An open connection. It is closed when this is dropped.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
    /// The address of the server, for messages.
    pub(super) host: String,
    pub(super) server: ServerInfo,
    /// The server's time when the connection was opened, and when it was asked for.
    pub(super) time: (u64, Moment),
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
            time: (0, now),
            unanswered: Mutex::default(),
            listens: AtomicBool::default(),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        !self.driver.is_finished()
    }

    pub(super) fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
