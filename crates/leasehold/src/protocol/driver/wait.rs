//! How a waiter polls a record.

use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;

use super::super::record::RecordState;
use super::super::record_cache::Observation;
use super::{Reading, RegisterLeases, STORE_TIMEOUT};
use crate::clock::Deadline;
use crate::error::{Error, Fault, StoreError};
use crate::lease::pacing::{Pacing, expected, held_for};
use crate::lease::{self, Claim, HolderInfo, Id, PermitQueue, Ttl, Watch};
use crate::runtime::task;
use crate::types::LockName;

/// How long a waiter sleeps at most while the store grants nothing. The grace may be shortened, or a clock set.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

#[async_trait]
impl Watch for RegisterLeases {
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        if let Some(left) = withheld(seen) {
            self.records.env().sleep(left).await;
            return Ok(());
        }
        let joins = self.joins(claim);
        let leads = claim.permit_queue.as_ref().is_some_and(PermitQueue::is_first);
        if !joins && !leads && !seen.reserved {
            return self.changed_within(claim.poll_timeout(), &claim.name, seen).await;
        }
        let (env, poll_interval) = (self.records.env(), self.records.capabilities().poll_interval);
        let mut pacing = Pacing::new(poll_interval, self.now());
        let mut observation = self.cache.recall(&claim.name);
        let mut held = seen.clone();
        let mut is_first = true;
        let mut freed = Some(self.records.freed(&claim.name, Some(claim.id)));
        loop {
            let served = observation.as_ref().map_or(0, |observation| observation.record.served);
            let (ahead, reservation) = claim.place.before(claim.id, served);
            // After a conflict with another process that joined the line, this one tries again soon.
            let ahead = if claim.place.conflicts(claim.id) > 0 { 0 } else { ahead };
            // When this claim may take the lock if the waiters before it do not.
            let due = match seen.reserved {
                true => held.lapses_within,
                false => held.lapses_within.map(|lapse| lapse.saturating_add(reservation)),
            };
            let has_place = leads || claim.place.is_taken(claim.id, served);
            pacing.set_place(has_place.then_some(ahead));
            let history = observation.as_ref().map_or(&[][..], |seen| &seen.record.history);
            let age = expected(self.held_for(observation.as_ref()), ahead, history);
            let pause = match seen.reserved {
                true => poll_interval.shortest(&env.random),
                false => pacing.pause(self.now(), held.token, age, None, &env.random),
            };
            // Waiters join the line in the order of their arrival, so the first poll comes soon.
            let in_turn = self.claims_in_turn();
            let has_no_place =
                joins && (!seen.reserved || in_turn) && !claim.place.is_taken(claim.id, served);
            let joins_next = is_first && has_no_place;
            let pause = if joins_next { env.random.jittered(poll_interval.min, 0.1) } else { pause };
            is_first = false;
            let pause = pacing.until(lease::pause(pause, ahead, claim.ttl), due, &env.random);
            if joins_next && in_turn {
                // The response says whether the lock has become free.
            } else if self.records.calls_the_first() || ahead == 0 && !seen.reserved {
                let is_free = self.pause(&claim.name, Some(claim.id), pause, &mut freed).await;
                if is_free && in_turn {
                    return Ok(());
                }
            } else {
                // Other waiters come first, so this one need not notice a release.
                env.sleep(pause).await;
            }
            let waiter = (joins || leads).then_some(claim);
            let (reading, had_trouble, has_joined) =
                self.poll(&claim.name, waiter, in_turn && has_no_place, claim.poll_timeout()).await?;
            match self.state_of(&reading) {
                lease::State::Held(still) if !seen.reserved && still.in_cooldown == seen.in_cooldown => {
                    held = still;
                }
                _ => {
                    claim.place.polled(claim.id);
                    return Ok(());
                }
            }
            pacing.polled(had_trouble);
            let has_next_holder = joins && has_place && held.token != seen.token;
            let has_moved = reading.observation.as_ref().is_some_and(|now| {
                self.note_place(claim, now);
                let ahead = claim.place.before(claim.id, now.record.served).0;
                now.line.is_some() && has_place && seen.ahead != Some(ahead)
            });
            if has_joined || has_next_holder || has_moved {
                // Returns so that the caller learns who has the lock and who is before it.
                claim.place.polled(claim.id);
                return Ok(());
            }
            observation = reading.observation;
        }
    }

    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        if let Some(left) = withheld(seen) {
            self.records.env().sleep(left).await;
            return Ok(());
        }
        self.changed_within(STORE_TIMEOUT, name, seen).await
    }
}

impl RegisterLeases {
    /// Waits until the lock has changed since `seen` was read. Each poll keeps trying for `limit`.
    async fn changed_within(
        &self,
        limit: Duration,
        name: &LockName,
        seen: &HolderInfo,
    ) -> Result<(), StoreError> {
        let env = self.records.env();
        let mut pacing = Pacing::new(self.records.capabilities().poll_interval, self.now());
        let mut age = self.held_for(self.cache.recall(name).as_ref());
        let mut held = seen.clone();
        let mut freed = Some(self.records.freed(name, None));
        loop {
            let pause = pacing.pause(self.now(), held.token, age, held.lapses_within, &env.random);
            self.pause(name, None, pause, &mut freed).await;
            // Polls with a read even if the lease should have lapsed by now. It may have been renewed since the last
            // read, and only one of the waiters can be granted the lock.
            let (reading, had_trouble, _) = self.poll(name, None, false, limit).await?;
            match self.state_of(&reading) {
                lease::State::Held(still) if still.in_cooldown == seen.in_cooldown => held = still,
                _ => return Ok(()),
            }
            pacing.polled(had_trouble);
            age = self.held_for(reading.observation.as_ref());
        }
    }
}

/// Returns how long to sleep if the store refused a claim because it grants nothing.
fn withheld(seen: &HolderInfo) -> Option<Duration> {
    seen.lapses_within.filter(|_| seen.withheld).map(|left| left.min(LONGEST_SLEEP))
}

/// Completes when the store reports that a lock is free.
type Freed<'a> = BoxFuture<'a, ()>;

impl RegisterLeases {
    /// Waits for `pause`, or until `freed` completes, and returns whether it has. After that, `freed` is started again
    /// only after a full pause. Otherwise an outdated report of the store would cause polls without any pause.
    async fn pause<'a>(
        &'a self,
        name: &'a LockName,
        claim: Option<Id>,
        pause: Duration,
        freed: &mut Option<Freed<'a>>,
    ) -> bool {
        let env = self.records.env();
        let Some(waiting) = freed.as_mut() else {
            env.sleep(pause).await;
            *freed = Some(self.records.freed(name, claim));
            return false;
        };
        let is_free = tokio::select! {
            biased;
            () = waiting => true,
            () = env.sleep(pause) => false,
        };
        if is_free {
            // A store that calls a claim does so once for each time that the lock becomes free.
            *freed = self.records.calls_the_first().then(|| self.records.freed(name, claim));
        }
        is_free
    }

    /// Reads the record for a waiter, and makes sure that `claim` has a place in the line. Also returns whether the
    /// store failed, and whether the claim has just joined. If it `joins`, the request that adds it to the line also
    /// reads. Runs in a task, because a caller that stops polling the future must not keep its permit.
    async fn poll(
        &self,
        name: &LockName,
        claim: Option<&Claim>,
        joins: bool,
        limit: Duration,
    ) -> Result<(Reading, bool, bool), StoreError> {
        let (leases, name, claim) = (self.clone(), name.clone(), claim.cloned());
        let look = task::output_of(async move {
            let permit = leases.polls.permit(Deadline::new(leases.now(), Duration::ZERO)).await;
            let mut budget = leases.budget(limit, Ttl::DEFAULT);
            let look = async {
                if let Some(claim) = claim.as_ref().filter(|_| joins) {
                    let reading = leases.join_in_turn(claim, &budget).await?;
                    let served = reading.observation.as_ref().map_or(0, |seen| seen.record.served);
                    return Ok((reading, false, claim.place.is_taken(claim.id, served)));
                }
                let reading = leases.read(&name, &mut budget).await?;
                let has_joined = match &claim {
                    Some(claim) => leases.keep_place(claim, &reading).await,
                    None => false,
                };
                Ok((reading, budget.had_trouble(), has_joined))
            };
            permit.lent_to(leases.records.env(), look).await
        });
        let unanswered = |error: Error| Fault::new(error.kind(), error.to_string()).not_applied();
        look.await.map_err(unanswered).flatten()
    }

    /// Returns how long the lock has certainly been held.
    pub(super) fn held_for(&self, observation: Option<&Observation>) -> Duration {
        match observation.map(|observation| &observation.record) {
            Some(record) if record.state == RecordState::Held => {
                held_for(record.granted_at_us, self.store_time())
            }
            _ => Duration::ZERO,
        }
    }
}
