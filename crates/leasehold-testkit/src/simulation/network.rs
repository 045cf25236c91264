//! The interface of the simulated networks between a process and its stores.

use async_trait::async_trait;
use std::time::Duration;

use crate::fault::{Chaos, FaultyRegister};

/// A network in which a test causes faults.
#[async_trait]
pub(super) trait Network: Send + Sync {
    fn disconnect(&self);
    fn stall(&self);
    fn heal(&self);
    fn chaos(&self, chaos: Chaos);
    fn throttle(&self, wait: Option<Duration>);
    /// Delivers the oldest request or response that is held back. Returns `false` if there is none.
    async fn deliver(&self) -> bool;
}

#[async_trait]
impl Network for FaultyRegister {
    fn disconnect(&self) {
        Self::disconnect(self);
    }

    fn stall(&self) {
        Self::stall(self);
    }

    fn heal(&self) {
        Self::heal(self);
    }

    fn chaos(&self, chaos: Chaos) {
        Self::chaos(self, chaos);
    }

    fn throttle(&self, wait: Option<Duration>) {
        Self::throttle(self, wait);
    }

    async fn deliver(&self) -> bool {
        let any = self.held() > 0;
        Self::deliver(self).await;
        any
    }
}
