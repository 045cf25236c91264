//! The claims under which requests wait at this server. A withdrawal ends these requests: their client may be gone, and a
//! proxy or a network that does not report this keeps their connections open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold::lease::Id;
use tokio_util::sync::CancellationToken;

#[derive(Debug, Default)]
pub(crate) struct Claims(Mutex<HashMap<Id, Waiting>>);

/// The requests that wait under one claim.
#[derive(Debug, Default)]
struct Waiting {
    requests: usize,
    withdrawn: CancellationToken,
}

/// A request that waits under a claim, until it is dropped.
#[derive(Debug)]
pub(crate) struct Waiter {
    claims: Arc<Claims>,
    id: Id,
    withdrawn: CancellationToken,
}

impl Claims {
    fn all(&self) -> MutexGuard<'_, HashMap<Id, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn wait(self: &Arc<Self>, id: Id) -> Waiter {
        let mut all = self.all();
        let waiting = all.entry(id).or_default();
        waiting.requests += 1;
        Waiter { claims: self.clone(), id, withdrawn: waiting.withdrawn.clone() }
    }

    /// Ends the requests that wait under `id`.
    pub(crate) fn withdraw(&self, id: Id) {
        if let Some(waiting) = self.all().get(&id) {
            waiting.withdrawn.cancel();
        }
    }
}

impl Waiter {
    /// Completes when the claim is withdrawn. Cancel safe.
    pub(crate) async fn withdrawn(&self) {
        self.withdrawn.cancelled().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut all = self.claims.all();
        if let Some(waiting) = all.get_mut(&self.id) {
            waiting.requests -= 1;
            if waiting.requests == 0 {
                all.remove(&self.id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_withdrawal_ends_all_requests_of_its_claim_alone() {
        let claims = Arc::new(Claims::default());
        let id = |digit: &str| digit.repeat(32).parse::<Id>().unwrap();
        let waiters = [claims.wait(id("a")), claims.wait(id("a")), claims.wait(id("b"))];
        claims.withdraw(id("a"));
        waiters[0].withdrawn().await;
        waiters[1].withdrawn().await;
        assert!(!waiters[2].withdrawn.is_cancelled());
        drop(waiters);
        assert!(claims.all().is_empty());
        assert!(!claims.wait(id("a")).withdrawn.is_cancelled(), "the next acquisition is another one");
    }
}
