//! An open connection to a server.

use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};

use redis::aio::MultiplexedConnection;
use tokio::task::AbortHandle;

use super::server::ServerInfo;
use crate::clock::Moment;
use crate::stores::hosts::Host;
use crate::stores::on_demand::Connection;

/// An open connection. It is closed when this is dropped.
pub(super) struct Link {
    pub(super) connection: MultiplexedConnection,
    driver: AbortHandle,
    pub(super) host: Host,
    pub(super) server: ServerInfo,
    /// The server's time when the connection was opened, and when it was asked for.
    pub(super) time: (u64, Moment),
    /// Whether the connection has a subscription, or was refused one.
    pub(super) listens: AtomicBool,
    vouched: Mutex<Option<Vouched>>,
}

/// What a server of a cluster says about its latest restart or promotion.
#[derive(Clone, Debug)]
pub(super) struct Vouched {
    /// Which server, and since which promotion.
    pub(super) epoch: String,
    /// The time on its clock at which its grace is over, in microseconds.
    pub(super) over_us: u64,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("host", &self.host.to_string()).finish_non_exhaustive()
    }
}

impl Connection for Link {
    fn is_open(&self) -> bool {
        !self.driver.is_finished()
    }
}

impl Link {
    pub(super) fn new(
        connection: MultiplexedConnection,
        driver: AbortHandle,
        host: Host,
        now: Moment,
    ) -> Self {
        Self {
            connection,
            driver,
            host,
            server: ServerInfo::default(),
            time: (0, now),
            listens: AtomicBool::default(),
            vouched: Mutex::default(),
        }
    }

    pub(super) fn vouched(&self) -> MutexGuard<'_, Option<Vouched>> {
        self.vouched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
