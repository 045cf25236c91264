//! Waits for a turn in the queue, for a lock that another client holds, and for the end of a grant.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;

use super::errors::Effect;
use super::hold::memo;
use super::leases::EtcdLeases;
use super::rules::Place;
use super::session::{Session, limited};
use super::value;
use super::watch::{self, Fired};
use super::wire::KeyValue;
use super::{POLL_INTERVAL, requests};
use crate::error::StoreError;
use crate::lease::{Claim, Grant, HolderInfo, State, Status, Watch, attempt_limit};
use crate::native::Ask;
use crate::retry::RetryBudget;
use crate::types::LockName;

/// The pause after a watch breaks. It spreads the reads of many waiters.
const AFTER_TROUBLE: Duration = Duration::from_secs(1);

/// A lock is watched only after it was held for this long.
const SHORT_HOLD: Duration = Duration::from_secs(1);

#[async_trait]
impl Watch for EtcdLeases {
    /// Waits until the key just before the claim's own key is deleted. Keeps the claim's place in the queue while it
    /// waits.
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let session = self.claims().get(&claim.id).cloned();
        let Some((session, place)) = session.and_then(|session| {
            let place = session.place(claim.id)?;
            Some((session, place))
        }) else {
            return self.changed(&claim.name, seen).await;
        };
        tokio::select! {
            fired = self.until_before(&place) => self.calm(fired).await,
            fired = self.until_own_gone(claim, &place) => {
                session.forget_place(claim.id);
                self.calm(fired).await;
            }
            kept = self.stay(claim, &session) => return kept,
            () = self.env.sleep(self.env.random.jittered(POLL_INTERVAL.max, 0.25)) => {}
        }
        Ok(())
    }

    /// Waits until the lock is free, has a holder other than `seen`, or begins or ends a cooldown.
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        loop {
            let mut ask = Ask::new(&self.env);
            let (Some(first), revision) = self.first(name, &mut ask).await? else { return Ok(()) };
            let held = value::held(&first);
            if held.token != seen.token || held.in_cooldown != seen.in_cooldown {
                return Ok(());
            }
            tokio::select! {
                // The holder writes its key when the cooldown begins, and rarely otherwise.
                fired = self.watcher.touched(&first.key, revision + 1) => self.calm(fired).await,
                () = self.env.sleep(self.env.random.jittered(POLL_INTERVAL.max, 0.25)) => {}
            }
        }
    }

    /// Waits until the first claim of the queue differs from the one in `seen`, or has been granted the lock.
    async fn holder_changed(&self, name: &LockName, seen: &Status) {
        loop {
            let mut ask = Ask::new(&self.env);
            let revision = match self.first(name, &mut ask).await {
                Ok((first, _)) if !is_still(first.as_ref(), &seen.state) => return,
                Ok((_, revision)) => revision,
                Err(error) => {
                    tracing::debug!(lock = %name, %error, "a lock was not watched for a while");
                    return self.calm(Fired::Lost).await;
                }
            };
            // Also watches the keys of locks whose names begin with this name and `/`. A change of these keys only
            // costs an extra read.
            let fired = self.watcher.touched_in(self.keys.line(name), revision + 1).await;
            self.calm(fired).await;
        }
    }

    /// Waits until the key of `grant` is deleted. The next renewal then looks up the key.
    async fn ended(&self, grant: &Grant) {
        let Some(memo) = memo(grant) else { return std::future::pending().await };
        let Some(place) = memo.session.place(grant.id) else { return };
        let key = self.keys.of_claim(&grant.name, grant.id);
        let mut from = place.revision + 1;
        let mut lent = Lent::from(&memo.watch);
        if lent.watch.is_none() {
            // A lock that is released during this pause costs no watch. No event is missed, because the watch begins at
            // the grant's revision.
            self.env.sleep(SHORT_HOLD.min(grant.ttl.get() / 6)).await;
        }
        loop {
            let watch = lent.watch.get_or_insert_with(|| self.watcher.watch_deletion(&key, from));
            let fired = watch.fired().await;
            lent.watch = None;
            if fired == Fired::Happened {
                break;
            }
            self.calm(Fired::Lost).await;
            // etcd may have compacted the revisions from `from` on, so the key must be read. The read is a task of the
            // store's thread, because the caller may stop polling this future.
            let (client, env, request) = (self.client.clone(), self.env.clone(), requests::exactly(&key));
            let limit = attempt_limit(grant.ttl);
            let look = self.home.spawn(async move {
                limited(&RetryBudget::new(&env, limit, limit), Effect::None, client.range(request)).await
            });
            match look.await {
                Ok(Ok(found)) if found.kvs.is_empty() => break,
                Ok(Ok(found)) => from = found.header.unwrap_or_default().revision + 1,
                Ok(Err(error)) => {
                    let error = error.into_store_error();
                    tracing::debug!(%error, "the key of a lock was not watched for a while");
                }
                Err(_) => return std::future::pending().await,
            }
        }
        memo.session.forget_place(grant.id);
    }
}

impl EtcdLeases {
    async fn until_before(&self, place: &Place) -> Fired {
        match &place.before {
            Some((key, revision)) => self.watcher.deleted(key, revision + 1).await,
            // The key is unknown. The next attempt finds it.
            None => Fired::Lost,
        }
    }

    async fn until_own_gone(&self, claim: &Claim, place: &Place) -> Fired {
        let key = self.keys.of_claim(&claim.name, claim.id);
        let fired = self.watcher.deleted(&key, place.revision + 1).await;
        if fired == Fired::Lost { std::future::pending().await } else { fired }
    }

    /// Keeps the lease of a waiting claim alive. Completes when its place in the queue is lost.
    async fn stay(&self, claim: &Claim, session: &Arc<Session>) -> Result<(), StoreError> {
        let (ttl, key) = (claim.ttl.get(), self.keys.of_claim(&claim.name, claim.id));
        loop {
            session.expect(claim.id, &key, self.env.now());
            self.env.sleep(self.env.random.jittered(ttl / 3, 0.1)).await;
            let budget = self.budget(2 * attempt_limit(claim.ttl), claim.ttl);
            match session.keep(&self.client, &self.env, None, ttl / 6, &budget).await {
                Ok(Ok(_)) if session.place(claim.id).is_some() => {}
                Ok(_) => return Ok(()),
                Err(error) if error.is_transient() => {}
                Err(error) => return Err(error),
            }
        }
    }

    async fn calm(&self, fired: Fired) {
        if fired == Fired::Lost {
            self.env.sleep(self.env.random.jittered(AFTER_TROUBLE, 0.5)).await;
        }
    }
}

/// The watch of a grant while a future waits for it. The future is dropped at each renewal. The watch then returns to
/// the memo of the grant.
struct Lent<'a> {
    home: &'a Mutex<Option<watch::Watch>>,
    watch: Option<watch::Watch>,
}

impl<'a> Lent<'a> {
    fn from(home: &'a Mutex<Option<watch::Watch>>) -> Self {
        let watch = home.lock().unwrap_or_else(PoisonError::into_inner).take();
        Self { home, watch }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.watch.take() {
            *self.home.lock().unwrap_or_else(PoisonError::into_inner) = Some(watch);
        }
    }
}

/// Returns whether the first claim of the queue is the one that was seen. Does not compare how much of a cooldown is
/// left, because the key does not show this, only its lease.
fn is_still(first: Option<&KeyValue>, seen: &State) -> bool {
    match (first.map(value::held), seen) {
        (None, State::Free) => true,
        (Some(held), State::Held(seen)) => {
            HolderInfo { held_for: seen.held_for, lapses_within: seen.lapses_within, ..held } == *seen
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::{Holder, Token, Ttl};
    use crate::stores::etcd::value::Value;

    /// An inspection shows how much of a cooldown is left, but the key does not. If this counted as a change, an
    /// observer would read again at once, forever.
    #[test]
    fn a_continuing_cooldown_is_not_a_change() {
        let env = crate::env::Env::seeded(std::sync::Arc::new(crate::clock::SystemClock), 1);
        let claim = Claim::new(&env, LockName::new("a").unwrap(), Ttl::DEFAULT, Holder::this_process());
        let granted = Value::of(&claim, value::Standing::Granted);
        let key = |value: Value, mod_revision| KeyValue {
            key: b"a/1".to_vec(),
            create_revision: 5,
            mod_revision,
            value: value.to_bytes().unwrap(),
            lease: 7,
        };
        let rest = granted.clone().in_cooldown(Token::new(5).unwrap(), Duration::from_secs(60));
        let (first, in_cooldown) = (key(granted, 5), key(rest, 9));
        let mut left = value::held(&in_cooldown);
        left.held_for = Some(Duration::from_secs(40));
        left.lapses_within = Some(Duration::from_secs(20));
        let seen = State::Held(left);
        assert!(is_still(Some(&in_cooldown), &seen));
        assert!(!is_still(Some(&first), &seen) && !is_still(None, &seen));
        assert!(is_still(Some(&first), &State::Held(value::held(&first))));
        assert!(!is_still(
            Some(&key(Value::of(&claim, value::Standing::Granted), 6)),
            &State::Held(value::held(&first))
        ));
    }
}
