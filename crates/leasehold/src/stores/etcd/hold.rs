//! Renews and releases grants, and hands them to other processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::errors::{Effect, EtcdError};
use super::leases::EtcdLeases;
use super::requests;
use super::rules::{self, Place, next_key};
use super::session::{Kept, Session, limited};
use super::value::{self, Standing, Value, whole_seconds};
use super::watch::Watch;
use super::wire::{KeyValue, TxnRequest};
use crate::clock::{Deadline, Moment};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Grant, Id, Loss, LossReason, Released, Renewal, Token, Ttl, attempt_limit};
use crate::retry::RetryBudget;

/// The memo of a grant.
#[derive(Clone, Debug)]
pub(super) struct Memo {
    session: Arc<Session>,
    /// The moment before the keep-alive was sent from which the grant's deadline counts. `None` if it is unknown.
    known: Option<Moment>,
    /// The value of the grant's key.
    value: Arc<Value>,
    /// The result of the release, once there is one.
    over: Option<Released>,
    /// Whether a release was sent whose effect is unknown.
    unsure: bool,
    /// The watch for the deletion of the key. It lasts from the grant to its end, so that not every pause between two
    /// renewals needs a new watch.
    pub(super) watch: Arc<Mutex<Option<Watch>>>,
}

impl Memo {
    pub(super) fn new(session: Arc<Session>, kept: Kept, value: Value) -> Self {
        Self::of(session, Some(kept.sent), value)
    }

    fn of(session: Arc<Session>, known: Option<Moment>, value: Value) -> Self {
        Self { session, known, value: Arc::new(value), over: None, unsure: false, watch: Arc::default() }
    }
}

/// The result of writing a key.
enum Written {
    /// Written in this revision.
    Done(i64),
    /// The key no longer existed.
    Absent,
    /// The key has changed. Its content decides whether to write again.
    Found(Box<KeyValue>),
    /// The lease for the write has ended.
    NoLease,
}

impl EtcdLeases {
    /// Copies a grant for a job on the store's thread, which outlives the borrow of the grant.
    pub(super) fn copy(grant: &Grant) -> Grant {
        Grant {
            name: grant.name.clone(),
            token: grant.token,
            after: grant.after,
            id: grant.id,
            ttl: grant.ttl,
            deadline: grant.deadline,
            memo: Self::memo(grant).map(|memo| Box::new(memo.clone()) as Box<_>),
        }
    }

    pub(super) fn memo(grant: &Grant) -> Option<&Memo> {
        grant.memo.as_ref()?.downcast_ref()
    }

    pub(super) fn session_of(grant: &Grant) -> Option<Arc<Session>> {
        Some(Self::memo(grant)?.session.clone())
    }

    pub(super) async fn prolong(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let left = grant.deadline.remaining(self.env.now());
        if left.is_zero() {
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        // Does not retry until the deadline, because the renewal task must get errors before that, and retries at its
        // own pace.
        let mut budget = self.budget(left.min(2 * attempt_limit(grant.ttl)), grant.ttl);
        let mut memo = match Self::memo(grant).cloned() {
            Some(memo) => memo,
            None => match self.look_up(grant, &mut budget).await? {
                Some(memo) => memo,
                None => return Ok(Renewal::Lost(self.loss_of(grant, &mut budget).await)),
            },
        };
        let key = self.keys.of_claim(&grant.name, grant.id);
        loop {
            if !memo.session.prolongs(grant.id, &key, self.env.now()) {
                return Ok(grant.lost(LossReason::EXPIRED));
            }
            let most = grant.ttl.get() / 6;
            let kept = match memo.session.keep(&self.client, &self.env, memo.known, most, &budget).await {
                Ok(Ok(kept)) => kept,
                Ok(Err(_)) => return Ok(self.lose(grant, &memo, &mut budget).await),
                Err(error) => {
                    budget.pause_after(error).await?;
                    continue;
                }
            };
            if memo.session.stands(grant.id, self.env.now()) {
                memo.known = Some(kept.sent);
                return Ok(prolonged(grant, kept, memo, self.env.now()));
            }
            // The key may have been deleted or moved to another lease, or the session may not know its current state.
            match self.look_up(grant, &mut budget).await? {
                None => return Ok(self.lose(grant, &memo, &mut budget).await),
                Some(found) if found.session.lease == memo.session.lease => {}
                Some(found) => memo = found,
            }
            budget.pause_after_conflict().await?;
        }
    }

    /// Reads the key of a grant, and finds the lease that it is on. Returns `None` if the key does not exist or no
    /// longer belongs to the grant.
    async fn look_up(&self, grant: &Grant, budget: &mut RetryBudget<'_>) -> Result<Option<Memo>, StoreError> {
        let key = self.keys.of_claim(&grant.name, grant.id);
        let (Some(kv), _) = self.key(&key, budget).await? else { return Ok(None) };
        let value = rules::own_value(grant.id, &kv)?;
        if value.state != Standing::Granted || value::token(&kv, &value) != Some(grant.token) {
            return Ok(None);
        }
        let ours = Self::session_of(grant).filter(|session| session.lease == kv.lease);
        let ours = ours.or_else(|| self.sessions().iter().find(|session| session.lease == kv.lease).cloned());
        let session =
            ours.unwrap_or_else(|| Arc::new(Session::found(kv.lease, value.lease_seconds(), grant.ttl)));
        session.prolongs(grant.id, &key, self.env.now());
        session.put(grant.id, Place { create: kv.create_revision, revision: kv.mod_revision, before: None });
        Ok(Some(Memo::of(session, None, value)))
    }

    async fn lose(&self, grant: &Grant, memo: &Memo, budget: &mut RetryBudget<'_>) -> Renewal {
        self.forget(memo, grant.id);
        Renewal::Lost(self.loss_of(grant, budget).await)
    }

    /// Returns how a grant was lost. The caller knows that it was lost.
    async fn loss_of(&self, grant: &Grant, budget: &mut RetryBudget<'_>) -> Loss {
        let line = self.keys.line(&grant.name);
        match self.read(requests::end_of_claim(&self.keys.mark(grant.id), &line), budget).await {
            Ok(answer) => rules::loss(&self.keys, &grant.name, grant.token, answer),
            Err(error) => {
                let reason = LossReason::Expired { last_error: Some(error.to_string()) };
                Loss::new(grant.name.clone(), grant.token, reason)
            }
        }
    }

    fn forget(&self, memo: &Memo, id: Id) {
        memo.session.forget(id);
        self.claims().remove(&id);
    }

    /// Ends a grant, or withdraws the waiting claim with its id.
    pub(super) async fn give_up(
        &self,
        grant: &mut Grant,
        cooldown: Option<Duration>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Released, StoreError> {
        let mut memo = Self::memo(grant).cloned();
        if let Some(over) = memo.as_ref().and_then(|memo| memo.over) {
            return Ok(over);
        }
        let outcome = match cooldown {
            None => self.remove(grant, &mut memo, budget).await,
            Some(cooldown) => self.start_cooldown(grant, &mut memo, cooldown, budget).await,
        };
        if let Ok(released) = outcome {
            let standing = memo.as_ref().map(|memo| memo.session.clone());
            if let Some(session) = standing.or_else(|| self.claims().get(&grant.id).cloned()) {
                session.forget(grant.id);
            }
            self.claims().remove(&grant.id);
            if let Some(memo) = &mut memo {
                memo.over = Some(released);
            }
        }
        if let Some(memo) = memo {
            grant.memo = Some(Box::new(memo));
        }
        outcome
    }

    async fn remove(
        &self,
        grant: &Grant,
        memo: &mut Option<Memo>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Released, StoreError> {
        let key = self.keys.of_claim(&grant.name, grant.id);
        let session = memo.as_ref().map(|memo| memo.session.clone());
        let session = session.or_else(|| self.claims().get(&grant.id).cloned());
        let place = session.as_ref().and_then(|session| session.place(grant.id));
        // The revision that this process knows. It knows none for a ticket.
        let mut revision = place.map(|place| place.revision);
        let mut mark = None;
        let mut unsure = memo.as_ref().is_some_and(|memo| memo.unsure);
        loop {
            let Some(known) = revision else {
                let (Some(kv), _) = self.key(&key, budget).await? else { return Ok(gone(unsure)) };
                let value = rules::own_value(grant.id, &kv)?;
                // The token of a ticket is compared. A withdrawn claim has none.
                let is_other = memo.is_none()
                    && grant.token != Token::default()
                    && value::token(&kv, &value) != Some(grant.token);
                if value.state == Standing::Cooldown || is_other {
                    return Ok(gone(unsure));
                }
                // The process that holds this grant, or waits for it, learns only from the mark that it was ended.
                mark = Some((self.keys.mark(grant.id), kv.lease)).filter(|_| memo.is_none() && kv.lease != 0);
                revision = Some(kv.mod_revision);
                continue;
            };
            let marked = mark.as_ref().map(|(key, lease)| (key.as_slice(), *lease));
            let request = requests::end(&key, known, marked);
            match self.write_once(&request, &mut unsure, budget).await {
                Ok(Some(Written::Done(_))) => return Ok(Released::Released),
                Ok(Some(Written::Absent)) => return Ok(gone(unsure)),
                Ok(Some(Written::Found(_) | Written::NoLease)) => {
                    budget.pause_after_conflict().await?;
                    revision = None;
                }
                Ok(None) => revision = None,
                Err(error) => {
                    if let Some(memo) = memo {
                        memo.unsure = unsure;
                    }
                    return Err(error);
                }
            }
        }
    }

    /// Ends a grant, but keeps its key on a lease that lasts as long as the cooldown. Other clients see the lock as
    /// held.
    async fn start_cooldown(
        &self,
        grant: &Grant,
        memo: &mut Option<Memo>,
        cooldown: Duration,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Released, StoreError> {
        if memo.is_none() {
            *memo = self.look_up(grant, budget).await?;
        }
        let Some(memo) = memo else { return Ok(Released::AlreadyLost) };
        let (lease, _) = self.grant_lease(whole_seconds(cooldown), budget).await?;
        let value = Value::clone(&memo.value).in_cooldown(grant.token, cooldown);
        Ok(match self.move_to(grant, memo, &value, lease, budget).await? {
            Some(_) => Released::Released,
            None => gone(memo.unsure),
        })
    }

    /// Writes a grant's key again, with another value and on another lease. Returns the revision of the key, or `None`
    /// if the key was deleted.
    async fn move_to(
        &self,
        grant: &Grant,
        memo: &mut Memo,
        value: &Value,
        lease: i64,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<i64>, StoreError> {
        let key = self.keys.of_claim(&grant.name, grant.id);
        let value = value.to_bytes()?;
        let mut revision = memo.session.place(grant.id).map(|place| place.revision);
        loop {
            let Some(known) = revision else {
                match self.key(&key, budget).await?.0 {
                    None => return Ok(None),
                    Some(kv) if kv.lease == lease => return Ok(Some(kv.mod_revision)),
                    Some(kv) => {
                        rules::own_value(grant.id, &kv)?;
                        revision = Some(kv.mod_revision);
                        continue;
                    }
                }
            };
            let request = requests::rewrite(&key, known, &value, lease);
            match self.write_once(&request, &mut memo.unsure, budget).await? {
                Some(Written::Done(revision)) => return Ok(Some(revision)),
                Some(Written::Absent) => return Ok(None),
                Some(Written::Found(kv)) if kv.lease == lease => return Ok(Some(kv.mod_revision)),
                Some(Written::Found(_)) => {
                    budget.pause_after_conflict().await?;
                    revision = None;
                }
                None => revision = None,
                Some(Written::NoLease) => {
                    return Err(Fault::unavailable("etcd ended a lease before it was used").not_applied());
                }
            }
        }
    }

    /// Moves a grant to a separate lease, which another process can keep alive.
    pub(super) async fn set_apart(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let Some(mut memo) = Self::memo(grant).cloned().filter(|memo| memo.session.shared) else {
            // Another process may end the grant, so this one would remember it for ever.
            self.claims().remove(&grant.id);
            return Ok(());
        };
        let mut budget = self.budget(super::STORE_TIMEOUT, grant.ttl);
        let seconds = memo.session.seconds;
        let (lease, kept) = self.grant_lease(seconds, &mut budget).await?;
        let value = Value::clone(&memo.value).with_token(grant.token);
        let Some(revision) = self.move_to(grant, &mut memo, &value, lease, &mut budget).await? else {
            self.forget(&memo, grant.id);
            let loss = self.loss_of(grant, &mut budget).await;
            return Err(Fault::new(ErrorKind::Lost, loss.to_string()).not_applied());
        };
        let session = Arc::new(Session::granted(lease, seconds, grant.ttl, kept));
        session.expect(grant.id, &self.keys.of_claim(&grant.name, grant.id), self.env.now());
        session.put(grant.id, Place { create: revision, revision, before: None });
        self.forget(&memo, grant.id);
        grant.deadline = deadline(grant.ttl, kept);
        grant.memo = Some(Box::new(Memo::new(session, kept, value)));
        Ok(())
    }

    /// Deletes the key of a claim that does not wait.
    pub(super) async fn withdraw(
        &self,
        session: &Session,
        id: Id,
        key: &[u8],
        budget: &mut RetryBudget<'_>,
    ) -> Result<(), StoreError> {
        let mut unsure = false;
        while let Some(place) = session.place(id) {
            let request = requests::end(key, place.revision, None);
            match self.write_once(&request, &mut unsure, budget).await? {
                Some(Written::Found(kv)) => {
                    session.put(id, Place { revision: kv.mod_revision, ..place });
                    budget.pause_after_conflict().await?;
                }
                Some(Written::Done(_) | Written::Absent | Written::NoLease) => session.forget_place(id),
                None => {}
            }
        }
        Ok(())
    }

    /// Sends one write of one key. Returns `None` if the write failed and must be tried again. A caller that does not
    /// repeat the same conditional request must read the key first.
    async fn write_once(
        &self,
        request: &TxnRequest,
        unsure: &mut bool,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<Written>, StoreError> {
        match limited(budget, Effect::Writes, self.client.txn(Effect::Writes, request)).await {
            Ok(answer) if answer.succeeded => {
                Ok(Some(Written::Done(answer.header.unwrap_or_default().revision)))
            }
            Ok(answer) => Ok(Some(match next_key(&mut answer.responses.into_iter()) {
                None => Written::Absent,
                Some(kv) => Written::Found(Box::new(kv)),
            })),
            Err(EtcdError::NoLease) => Ok(Some(Written::NoLease)),
            Err(error) => {
                let error = error.into_store_error();
                *unsure |= matches!(error, StoreError::MaybeApplied(_));
                budget.pause_after(error).await?;
                Ok(None)
            }
        }
    }
}

/// Returns the result of a release whose key does not exist. If this process sent a release (a delete, or the
/// rewrite for a cooldown) whose effect is unknown, that release was applied.
fn gone(unsure: bool) -> Released {
    if unsure { Released::Released } else { Released::AlreadyLost }
}

/// Extends the deadline of `grant`. A response that arrives after the end of the lease does not extend it.
fn prolonged(grant: &mut Grant, kept: Kept, memo: Memo, now: Moment) -> Renewal {
    let prolonged = deadline(grant.ttl, kept);
    if grant.deadline.passed(now) || prolonged.passed(now) {
        return grant.lost(LossReason::EXPIRED);
    }
    grant.deadline = prolonged;
    grant.memo = Some(Box::new(memo));
    Renewal::Renewed
}

/// Returns the deadline of a grant. It counts from before the keep-alive was sent. If etcd granted less time than
/// `ttl`, that shorter time counts.
pub(super) fn deadline(ttl: Ttl, kept: Kept) -> Deadline {
    let promised = Ttl::new(kept.ttl.clamp(Ttl::MIN, Ttl::MAX)).unwrap_or(ttl);
    Deadline::new(kept.sent, ttl.min(promised).holder_span())
}

#[cfg(test)]
mod tests {
    use super::super::client::Client;
    use super::super::config::Location;
    use super::*;
    use crate::clock::SystemClock;
    use crate::env::Env;
    use crate::lease::{Claim, Holder, StoreOptions};
    use crate::types::LockName;
    use crate::url::StoreUrl;

    /// Another process may end the grant, so this one would remember it for ever.
    #[tokio::test]
    async fn a_grant_for_another_process_is_not_remembered() {
        let url = StoreUrl::parse("etcd://127.0.0.1:1").unwrap();
        let location = Location::from_url(url, &mut StoreOptions::default()).unwrap();
        let env = Env::seeded(Arc::new(SystemClock), 1);
        let client = Arc::new(Client::new(&location).unwrap());
        let leases = EtcdLeases::new(client, location.prefix, env.clone());
        let claim = Claim::new(&env, LockName::new("a").unwrap(), Ttl::DEFAULT, Holder::this_process());
        let kept = Kept { sent: env.now(), ttl: claim.ttl.get() };
        let session = Arc::new(Session::granted(7, whole_seconds(kept.ttl), claim.ttl, kept));
        leases.claims().insert(claim.id, session.clone());
        let value = Value::of(&claim, Standing::Granted);
        let mut grant = Grant {
            name: claim.name,
            token: Token::default(),
            after: None,
            id: claim.id,
            ttl: claim.ttl,
            deadline: deadline(claim.ttl, kept),
            memo: Some(Box::new(Memo::new(session, kept, value))),
        };
        leases.set_apart(&mut grant).await.unwrap();
        assert!(leases.claims().is_empty());
    }
}
