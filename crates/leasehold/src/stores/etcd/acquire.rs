//! Acquires locks. If the queue is empty, this takes one transaction. Otherwise the claim takes a place in the queue,
//! and another transaction confirms its turn.

use std::sync::Arc;
use std::time::Duration;

use super::errors::{Effect, EtcdError};
use super::hold::{Memo, deadline};
use super::keys::Keyspace;
use super::leases::EtcdLeases;
use super::requests::{self, Own};
use super::rules::{self, Place, Step};
use super::session::{Kept, Session, limited};
use super::value::{self, Standing, Value, whole_seconds};
use super::wire::{TxnRequest, TxnResponse};
use crate::error::{Fault, StoreError};
use crate::lease::{AcquireOutcome, Claim, Grant, HolderInfo};
use crate::retry::RetryBudget;

/// The parameters of the requests for one claim.
struct Contender<'a> {
    claim: &'a Claim,
    session: &'a Session,
    line: Keyspace,
    key: Vec<u8>,
    granted: Vec<u8>,
    waiting: Vec<u8>,
    /// Whether the effect of a request is unknown. The request may still be granted later, without this process
    /// learning of it.
    unknown: bool,
}

/// The result of one attempt.
#[allow(clippy::large_enum_variant, reason = "only one value exists at a time, and only briefly")]
enum Outcome {
    /// Granted in this revision.
    Granted(i64),
    Held(HolderInfo),
    /// The lease had ended.
    NoLease,
}

impl Contender<'_> {
    fn own(&self) -> Own<'_> {
        Own { key: &self.key, lease: self.session.lease, granted: &self.granted, waiting: &self.waiting }
    }
}

impl EtcdLeases {
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let mut budget = self.budget(claim.store_timeout, claim.ttl);
        loop {
            let key = self.keys.of_claim(&claim.name, claim.id);
            let (session, kept) = self.session_for(claim, &key, &mut budget).await?;
            let mut contender = Contender {
                claim,
                session: &session,
                line: self.keys.line(&claim.name),
                key,
                granted: Value::of(claim, Standing::Granted).to_bytes()?,
                waiting: Value::of(claim, Standing::Waiting).to_bytes()?,
                unknown: false,
            };
            session.expect(claim.id, &contender.key, self.env.now());
            let outcome = self.contend(&mut contender, &mut budget).await;
            let in_line = session.place(claim.id).is_some();
            if contender.unknown {
                session.doubt(claim.id);
            }
            if in_line {
                self.claims().insert(claim.id, session.clone());
            } else {
                session.forget(claim.id);
                self.claims().remove(&claim.id);
                if claim.detached && !contender.unknown {
                    // No other claim uses the lease.
                    let (client, lease) = (self.client.clone(), session.lease);
                    tokio::spawn(async move { client.revoke(lease).await });
                }
            }
            // Even if the latest request had no effect, an earlier one may still be granted, or its key is in the
            // queue.
            let outcome = outcome.map_err(|error| error.if_maybe(contender.unknown || in_line));
            match outcome? {
                Outcome::Granted(revision) => return self.granted(claim, &session, kept, revision).await,
                Outcome::Held(held) if held.in_cooldown => {
                    // Reads the first key again to report how much of the cooldown is left. If another claim is first
                    // by now, reports that one.
                    let first = self.first(&claim.name, &mut budget).await.ok().and_then(|(first, _)| first);
                    return Ok(AcquireOutcome::Held(match first {
                        Some(first) => self.shown(&first, &budget).await,
                        None => held,
                    }));
                }
                Outcome::Held(held) => return Ok(AcquireOutcome::Held(held)),
                Outcome::NoLease => {
                    session.end();
                    budget.pause_after(ended_early()).await?;
                }
            }
        }
    }

    /// Sends requests until the claim is granted or refused, or until its lease has ended.
    async fn contend(
        &self,
        contender: &mut Contender<'_>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Outcome, StoreError> {
        let (claim, session) = (contender.claim, contender.session);
        loop {
            let request = match session.place(claim.id) {
                None => requests::ask(&contender.line, contender.own(), claim.waits),
                Some(place) => {
                    requests::confirm(&contender.line, contender.own(), place.create, place.revision)
                }
            };
            let answer = match self.write(&request, contender, budget).await? {
                Some(Ok(answer)) => answer,
                Some(Err(())) => return Ok(Outcome::NoLease),
                None => continue,
            };
            match rules::step(&self.keys, claim, answer)? {
                Step::Granted(revision) => return Ok(granted_in(session, claim, revision)),
                Step::Held(held, place) => {
                    self.stay_or_leave(contender, place, budget).await?;
                    return Ok(Outcome::Held(held));
                }
                Step::Confirm(place) => session.put(claim.id, place),
                Step::Again => {
                    session.forget_place(claim.id);
                    budget.pause_after_conflict().await?;
                }
                Step::Crowded(place) => {
                    if let Some(outcome) = self.contend_in_crowd(contender, place, budget).await? {
                        return Ok(outcome);
                    }
                    budget.pause_after_conflict().await?;
                }
            }
        }
    }

    /// Contends for a lock whose keys are mixed with the keys of other locks. A condition on the whole range cannot
    /// show that no claim is before this one. But once the claim's own key exists, no earlier key can be created. So
    /// when the last earlier key is gone, the claim is first and stays first.
    async fn contend_in_crowd(
        &self,
        contender: &mut Contender<'_>,
        place: Option<Place>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<Outcome>, StoreError> {
        let (claim, session) = (contender.claim, contender.session);
        let place = match place {
            Some(place) => place,
            None => {
                let request = requests::enter_queue(contender.own());
                match self.write(&request, contender, budget).await? {
                    Some(Ok(answer)) if answer.succeeded => {
                        let revision = answer.header.unwrap_or_default().revision;
                        Place { create: revision, revision, before: None }
                    }
                    Some(Err(())) => return Ok(Some(Outcome::NoLease)),
                    Some(Ok(_)) | None => return Ok(None),
                }
            }
        };
        session.put(claim.id, place.clone());
        let before = self.line_until(&claim.name, place.create - 1, budget).await?;
        let (Some(first), Some(last)) = (before.first(), before.last()) else {
            let request =
                requests::confirm_alone(&contender.line, contender.own(), place.create, place.revision);
            return Ok(match self.write(&request, contender, budget).await? {
                Some(Ok(answer)) if answer.succeeded => {
                    Some(granted_in(session, claim, answer.header.unwrap_or_default().revision))
                }
                Some(Err(())) => Some(Outcome::NoLease),
                Some(Ok(_)) | None => None,
            });
        };
        let (Some(first), revision) = self.key(&first.key, budget).await? else { return Ok(None) };
        let place = Place { before: Some((last.key.clone(), place.revision.min(revision))), ..place };
        self.stay_or_leave(contender, Some(place), budget).await?;
        Ok(Some(Outcome::Held(value::held(&first))))
    }

    /// Keeps the place in the queue of a claim that waits. Deletes the key of a claim that does not wait.
    async fn stay_or_leave(
        &self,
        contender: &Contender<'_>,
        place: Option<Place>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(), StoreError> {
        let (claim, session) = (contender.claim, contender.session);
        match place {
            Some(place) if claim.waits => session.put(claim.id, place),
            Some(place) => {
                session.put(claim.id, place);
                self.withdraw(session, claim.id, &contender.key, budget).await?;
            }
            None => session.forget_place(claim.id),
        }
        Ok(())
    }

    /// Sends one request. Returns `None` if the request failed and must be built again. The response to the next
    /// request then shows whether this one had an effect.
    async fn write(
        &self,
        request: &TxnRequest,
        contender: &mut Contender<'_>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<Result<TxnResponse, ()>>, StoreError> {
        match limited(budget, Effect::Writes, self.client.txn(Effect::Writes, request)).await {
            Ok(answer) => Ok(Some(Ok(answer))),
            Err(EtcdError::NoLease) => Ok(Some(Err(()))),
            Err(error) => {
                let error = error.into_store_error();
                contender.unknown |= matches!(error, StoreError::MaybeApplied(_));
                budget.pause_after(error).await?;
                Ok(None)
            }
        }
    }

    /// Returns a lease that does not expire soon, and the heartbeat that confirms it.
    async fn session_for(
        &self,
        claim: &Claim,
        key: &[u8],
        budget: &mut RetryBudget<'_>,
    ) -> Result<(Arc<Session>, Kept), StoreError> {
        loop {
            let known = self.claims().get(&claim.id).cloned().filter(|session| !session.is_gone());
            let session = known.unwrap_or_else(|| self.session_like(claim));
            // Adds the claim before the heartbeat, so that the heartbeat reads this claim's key. Every user with access
            // to the lock may read that key.
            session.expect(claim.id, key, self.env.now());
            match session.keep(&self.client, &self.env, None, claim.ttl.get() / 3, budget).await {
                Ok(Ok(kept)) => return Ok((session, kept)),
                Ok(Err(_)) => {
                    self.claims().remove(&claim.id);
                    budget.pause_after(ended_early()).await?;
                }
                Err(error) => budget.pause_after(error).await.inspect_err(|_| {
                    if session.place(claim.id).is_none() {
                        session.forget(claim.id);
                    }
                })?,
            }
        }
    }

    /// Returns the lease for this claim. A detached claim has a separate lease. Other claims share a lease if they have
    /// the same ttl and lease duration.
    ///
    /// Lets a lease expire if it was not kept alive for two thirds of its duration. Near the end of a lease, etcd may
    /// still confirm a keep-alive after it has decided to end the lease.
    fn session_like(&self, claim: &Claim) -> Arc<Session> {
        let seconds = whole_seconds(claim.ttl.get() + claim.lock_delay);
        let create = |shared| Arc::new(Session::new_lease(self.fresh_lease(), seconds, claim.ttl, shared));
        if claim.detached {
            return create(false);
        }
        let now = self.env.now();
        let mut sessions = self.sessions();
        sessions.retain(|session| {
            let fresh = |kept: Kept| now.longest_since(kept.sent) < session.lasts() * 2 / 3;
            !session.is_gone() && session.kept().is_none_or(fresh)
        });
        let like = |session: &&Arc<Session>| session.seconds == seconds && session.ttl == claim.ttl;
        if let Some(session) = sessions.iter().find(like) {
            return session.clone();
        }
        let session = create(true);
        sessions.push(session.clone());
        drop(sessions);
        self.claims().retain(|id, session| session.place(*id).is_some());
        session
    }

    /// Returns a random id for a new lease. It has 63 bits and is never 0, because etcd chooses the id itself if it is
    /// 0.
    fn fresh_lease(&self) -> i64 {
        i64::try_from(self.env.random.bits() >> 65).unwrap_or(i64::MAX).max(1)
    }

    /// Requests a lease with an id that leasehold chooses. If the response is lost, the response to the repeated
    /// request shows whether the lease exists.
    pub(super) async fn grant_lease(
        &self,
        seconds: i64,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(i64, Kept), StoreError> {
        let (lease, sent) = (self.fresh_lease(), self.env.now());
        loop {
            let granted = match limited(budget, Effect::Writes, self.client.grant(lease, seconds)).await {
                Ok(answer) => answer.ttl,
                Err(EtcdError::LeaseExists) => seconds,
                Err(error) => {
                    budget.pause_after(error.into_store_error()).await?;
                    continue;
                }
            };
            let ttl = Duration::from_secs(u64::try_from(granted).unwrap_or(0));
            return Ok((lease, Kept { sent, ttl }));
        }
    }

    /// Returns the grant. If its deadline has already passed, releases it and returns a loss instead.
    async fn granted(
        &self,
        claim: &Claim,
        session: &Arc<Session>,
        kept: Kept,
        revision: i64,
    ) -> Result<AcquireOutcome, StoreError> {
        // The deadline counts from the heartbeat that was known when the key was written, because a later heartbeat may
        // not have read the key.
        let mut grant = Grant {
            // The queue covers all processes, so there is no local hand-off.
            after: None,
            name: claim.name.clone(),
            token: rules::token_of(revision)?,
            id: claim.id,
            ttl: claim.ttl,
            deadline: deadline(claim.ttl, kept),
            memo: Some(Box::new(Memo::new(session.clone(), kept, Value::of(claim, Standing::Granted)))),
        };
        if !grant.deadline.passed(self.env.now()) {
            return Ok(AcquireOutcome::Granted(grant));
        }
        let mut budget = self.budget(super::STORE_TIMEOUT, claim.ttl);
        match self.give_up(&mut grant, None, &mut budget).await {
            Ok(_) => Ok(AcquireOutcome::Lost(grant.came_too_late())),
            Err(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => {
                Err(fault.maybe_applied())
            }
        }
    }
}

fn ended_early() -> StoreError {
    Fault::unavailable("etcd ended a lease before it was used").not_applied()
}

fn granted_in(session: &Session, claim: &Claim, revision: i64) -> Outcome {
    let create = session.place(claim.id).map_or(revision, |place| place.create);
    session.put(claim.id, Place { create, revision, before: None });
    Outcome::Granted(revision)
}
