//! Waiting: a waiter joins the waiters in the lock's record, and polls. A release calls the first waiter.

use std::time::Duration;

use super::{Changed, STORE_TIMEOUT, ServerLeases, budget, rules};
use crate::clock::timeout;
use crate::error::StoreError;
use crate::lease::pacing::{Pacing, expected};
use crate::lease::{self, Claim, HolderInfo, Id, Ttl};
use crate::retry::repeated;
use crate::types::LockName;

/// Waits until the lock has changed since `seen` was read.
pub(super) async fn until_changed<L: ServerLeases>(
    leases: &L,
    name: &LockName,
    seen: &HolderInfo,
) -> Result<(), StoreError> {
    let env = leases.env();
    if let Some(left) = rules::withheld(seen) {
        env.sleep(left).await;
        return Ok(());
    }
    let mut pacing = Pacing::new(leases.capabilities().poll_interval, env.now());
    loop {
        let mut budget = budget(leases, STORE_TIMEOUT, Ttl::DEFAULT);
        let record = repeated(&mut budget, || leases.read(name)).await?;
        pacing.polled(budget.had_trouble());
        let Some(record) = record.filter(|record| rules::is_still(record, seen)) else { return Ok(()) };
        let (now, age) = (env.now(), rules::held_for(&record));
        let pause = pacing.pause(now, seen.token, age, Some(record.left()), &env.random);
        env.sleep(pause).await;
    }
}

/// Waits until the lock has changed since `seen` was read, or `claim` has a new place among the waiters.
pub(super) async fn until_turn<L: ServerLeases>(
    leases: &L,
    claim: &Claim,
    seen: &HolderInfo,
) -> Result<(), StoreError> {
    let (env, poll_interval) = (leases.env(), leases.capabilities().poll_interval);
    if rules::withheld(seen).is_some() {
        return until_changed(leases, &claim.name, seen).await;
    }
    let joins = claim.waits && !claim.barges;
    let mut pacing = Pacing::new(poll_interval, env.now());
    let mut has_place = seen.ahead.is_some();
    // Registers before the first read, so that no call is missed.
    let call = joins.then(|| leases.calls().expect(claim.id));
    loop {
        let mut budget = budget(leases, claim.poll_timeout(), claim.ttl);
        let record = match joins && !has_place {
            false => repeated(&mut budget, || leases.read(&claim.name)).await?,
            true => match repeated(&mut budget, || leases.join(claim)).await? {
                // The caller reports its place.
                Changed::Done => return Ok(()),
                Changed::Found(record) => record,
            },
        };
        pacing.polled(budget.had_trouble());
        let Some(record) = record else { return Ok(()) };
        let place = rules::ahead(claim, &record);
        has_place = place.is_some();
        let ahead = if joins || seen.reserved { place.unwrap_or(record.waiters.len()) } else { 0 };
        pacing.set_place(place);
        let (pause, due) = match rules::reserved(claim, &record) {
            Some(kept) if seen.reserved => (poll_interval.shortest(&env.random), kept.lapses_within),
            // If a waiter before it gave up, the caller reports its new place.
            None if rules::is_still(&record, seen) && place == seen.ahead => {
                let (now, age) = (env.now(), expected(rules::held_for(&record), ahead, &record.past));
                let grace = if joins { rules::grace_before(claim, &record) } else { Duration::ZERO };
                let pause = pacing.pause(now, seen.token, age, None, &env.random);
                (pause, Some(record.left().saturating_add(grace)))
            }
            Some(_) | None => return Ok(()),
        };
        let pause = pacing.until(lease::pause(pause, ahead, claim.ttl), due, &env.random);
        match call.as_ref().filter(|_| has_place) {
            None => env.sleep(pause).await,
            Some(call) => {
                leases.listen();
                let _ = timeout(&*env.clock, pause, call.called()).await;
            }
        }
    }
}

/// Removes `claim` from the waiters for `name`. If this fails, the claim delays the other waiters once.
pub(super) async fn leave<L: ServerLeases>(leases: &L, name: &LockName, claim: Id) {
    let mut budget = budget(leases, STORE_TIMEOUT, Ttl::DEFAULT);
    if let Err(error) = repeated(&mut budget, || leases.leave(name, claim)).await {
        tracing::debug!(lock = %name, %error, "the place in the line could not be given up; other waiters will pass it over");
    }
}
