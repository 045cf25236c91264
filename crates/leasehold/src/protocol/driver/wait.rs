//! How a waiter polls a record.

use std::time::Duration;

use async_trait::async_trait;

use super::super::record::{Record, RecordState};
use super::super::record_cache::Observation;
use super::super::rules;
use super::{RegisterLeases, STORE_TIMEOUT, Sight};
use crate::clock::Deadline;
use crate::error::{Fault, StoreError};
use crate::lease::{HolderInfo, Ttl, Watch};
use crate::runtime::pacing::{Pacing, Turns};
use crate::runtime::task;
use crate::types::LockName;

#[async_trait]
impl Watch for RegisterLeases {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let env = self.records.env();
        let mut pacing = Pacing::new(self.records.capabilities().poll_interval, self.now());
        let mut turns = self.turns(self.known.recall(name).as_ref());
        let mut held = seen.clone();
        loop {
            env.sleep(pacing.pause(self.now(), held.token, turns, held.lapses_within, &env.random)).await;
            // Poll with a read, even if the lease has lapsed by now: it may have been renewed since the last read, and
            // only one of the waiters can be granted the lock.
            let (sight, had_trouble) = self.poll(name).await?;
            let unchanged_for = sight.unchanged_for(sight.at);
            match rules::state(sight.found.as_ref(), unchanged_for, self.store_time(), self.rules) {
                crate::lease::State::Held(still) if still.in_cooldown == seen.in_cooldown => held = still,
                _ => return Ok(()),
            }
            pacing.looked(had_trouble);
            turns = self.turns(sight.observation.as_ref());
        }
    }
}

impl RegisterLeases {
    /// Reads the record for a waiter. Also returns whether the store failed. Runs in a task: a caller that stops
    /// polling must not keep its place in the limiter.
    async fn poll(&self, name: &LockName) -> Result<(Sight, bool), StoreError> {
        let (leases, name) = (self.clone(), name.clone());
        let look = task::output_of(async move {
            let place = leases.polls.place(Deadline::new(leases.now(), Duration::ZERO)).await;
            let mut budget = leases.budget(STORE_TIMEOUT, Ttl::DEFAULT);
            let sight = place.lent_to(leases.records.env(), leases.look(&name, &mut budget)).await;
            sight.map(|sight| (sight, budget.had_trouble()))
        });
        look.await.unwrap_or_else(|| Err(Fault::unavailable("the tokio runtime has shut down").not_applied()))
    }

    /// What a record tells waiters about the length of the hold.
    pub(super) fn turns(&self, observation: Option<&Observation>) -> Turns {
        match observation.map(|observation| &observation.record) {
            Some(record) if record.state == RecordState::Held => {
                let poll_interval = self.records.capabilities().poll_interval;
                let Record { holder, granted_at_us, history, .. } = record;
                Turns::of(holder, *granted_at_us, history, self.store_time(), poll_interval)
            }
            _ => Turns::default(),
        }
    }
}
