//! The caller that an acquisition answers.

use tokio::sync::oneshot;

use crate::error::{Error, Result};
use crate::lease::Grant;
use crate::runtime::renewer::Hold;

/// The receiver of the outcome of an acquisition. `None` once it has an outcome.
pub(super) enum Reply {
    /// A caller for which this process keeps the lock.
    Hold(Option<oneshot::Sender<Result<Hold>>>),
    /// A caller that hands the grant on. This process then neither renews nor releases it.
    Grant(Option<oneshot::Sender<Result<Grant>>>),
}

impl Reply {
    /// Completes when the caller is gone.
    pub(super) async fn closed(&mut self) {
        match self {
            Self::Hold(Some(reply)) => reply.closed().await,
            Self::Grant(Some(reply)) => reply.closed().await,
            Self::Hold(None) | Self::Grant(None) => {}
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Hold(reply) => reply.as_ref().is_none_or(oneshot::Sender::is_closed),
            Self::Grant(reply) => reply.as_ref().is_none_or(oneshot::Sender::is_closed),
        }
    }

    pub(super) fn fail(&mut self, error: Error) {
        match self {
            Self::Hold(reply) => send(reply, Err(error)),
            Self::Grant(reply) => send(reply, Err(error)),
        }
    }
}

/// Sends `outcome`, unless the caller is gone or has one.
pub(super) fn send<T>(reply: &mut Option<oneshot::Sender<Result<T>>>, outcome: Result<T>) {
    if let Some(reply) = reply.take() {
        let _ = reply.send(outcome);
    }
}
