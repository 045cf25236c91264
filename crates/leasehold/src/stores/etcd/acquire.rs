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
use crate::lease::{Claim, HolderInfo};
use crate::native::{Ask, Claimed, Lease, Outcome};

/// The parameters of the requests for one claim.
struct Contender<'a> {
    claim: &'a Claim,
    session: &'a Arc<Session>,
    /// The heartbeat that was known before the claim's key is written. A later one may not have read the key.
    kept: Kept,
    line: Keyspace,
    key: Vec<u8>,
    granted: Vec<u8>,
    waiting: Vec<u8>,
}

impl Contender<'_> {
    fn own(&self) -> Own<'_> {
        Own { key: &self.key, lease: self.session.lease, granted: &self.granted, waiting: &self.waiting }
    }

    fn confirm(&self, place: &Place) -> TxnRequest {
        requests::confirm(&self.line, self.own(), place.create, place.revision)
    }

    fn granted_in(&self, revision: i64) -> Outcome<Claimed> {
        let Self { claim, session, kept, .. } = self;
        let create = session.place(claim.id).map_or(revision, |place| place.create);
        session.put(claim.id, Place { create, revision, before: None });
        let memo = Memo::new((*session).clone(), *kept, Value::of(claim, Standing::Granted));
        let lease = Lease { until: Some(deadline(claim.ttl, *kept)), memo: Some(Arc::new(memo)) };
        Ok(Claimed::Granted(rules::token_of(revision)?, lease))
    }
}

impl EtcdLeases {
    /// Sends one request for the lock.
    pub(super) async fn contend(&self, claim: &Claim, ask: &mut Ask<'_>) -> Outcome<Claimed> {
        let key = self.keys.of_claim(&claim.name, claim.id);
        let (session, kept) = self.session_for(claim, &key, ask).await?;
        session.expect(claim.id, &key, self.env.now());
        let contender = Contender {
            claim,
            session: &session,
            kept,
            line: self.keys.line(&claim.name),
            key,
            granted: Value::of(claim, Standing::Granted).to_bytes()?,
            waiting: Value::of(claim, Standing::Waiting).to_bytes()?,
        };
        let request = match session.place(claim.id) {
            None => requests::ask(&contender.line, contender.own(), claim.waits),
            Some(place) => contender.confirm(&place),
        };
        let answer = self.write(&request, &contender, ask).await?;
        let claimed = match rules::step(&self.keys, claim, answer)? {
            Step::Granted(revision) => contender.granted_in(revision),
            Step::Held(held, place) => self.refused(&contender, held, place, ask).await,
            Step::Confirm(place) => {
                session.put(claim.id, place);
                Ok(Claimed::Again)
            }
            Step::Again => {
                session.forget_place(claim.id);
                Ok(Claimed::Again)
            }
            Step::Crowded(place) => self.contend_in_crowd(&contender, place, ask).await,
        }?;
        if matches!(claimed, Claimed::Held(_)) {
            self.leave_unless_in_line(claim);
        }
        Ok(claimed)
    }

    /// Contends for a lock whose keys are mixed with the keys of other locks. A condition on the whole range cannot
    /// show that no claim is before this one. But once the claim's own key exists, no earlier key can be created. So
    /// when the last earlier key is gone, the claim is first and stays first.
    async fn contend_in_crowd(
        &self,
        contender: &Contender<'_>,
        place: Option<Place>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Claimed> {
        let (claim, session) = (contender.claim, contender.session);
        let place = match place {
            Some(place) => place,
            None => {
                let answer = self.write(&requests::enter_queue(contender.own()), contender, ask).await?;
                if !answer.succeeded {
                    return Ok(Claimed::Again);
                }
                let revision = answer.header.unwrap_or_default().revision;
                Place { create: revision, revision, before: None }
            }
        };
        session.put(claim.id, place.clone());
        let before = self.line_until(&claim.name, place.create - 1, ask).await?;
        let (Some(first), Some(last)) = (before.first(), before.last()) else {
            let request =
                requests::confirm_alone(&contender.line, contender.own(), place.create, place.revision);
            let answer = self.write(&request, contender, ask).await?;
            return match answer.succeeded {
                true => contender.granted_in(answer.header.unwrap_or_default().revision),
                false => Ok(Claimed::Again),
            };
        };
        let (Some(first), revision) = self.key(&first.key, ask).await? else { return Ok(Claimed::Again) };
        let place = Place { before: Some((last.key.clone(), place.revision.min(revision))), ..place };
        self.refused(contender, value::held(&first), Some(place), ask).await
    }

    /// Keeps the place in the queue of a claim that waits. Deletes the key of a claim that does not wait.
    async fn refused(
        &self,
        contender: &Contender<'_>,
        held: HolderInfo,
        place: Option<Place>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Claimed> {
        let (claim, session) = (contender.claim, contender.session);
        match place {
            None => session.forget_place(claim.id),
            Some(place) => {
                session.put(claim.id, place.clone());
                if !claim.waits {
                    let request = requests::end(&contender.key, place.revision, None);
                    if !self.write(&request, contender, ask).await?.succeeded {
                        // The key was written again or is gone. The next request finds out.
                        session.forget_place(claim.id);
                        return Ok(Claimed::Again);
                    }
                    session.forget_place(claim.id);
                }
            }
        }
        if !held.in_cooldown {
            return Ok(Claimed::Held(held));
        }
        // Reads the first key again to report how much of the cooldown is left. If another claim is first by now, reports
        // that one.
        let first = self.first(&claim.name, ask).await.ok().and_then(|(first, _)| first);
        Ok(Claimed::Held(match first {
            Some(first) => self.shown(&first, ask).await,
            None => held,
        }))
    }

    /// Removes a claim that has no place in the queue. Returns whether it has one.
    pub(super) fn leave_unless_in_line(&self, claim: &Claim) -> bool {
        let Some(session) = self.claims().get(&claim.id).cloned() else { return false };
        if session.place(claim.id).is_some() {
            return true;
        }
        self.claims().remove(&claim.id);
        if session.forget(claim.id) && claim.detached {
            // No other claim uses the lease, and no request can still write a key on it.
            let (client, lease) = (self.client.clone(), session.lease);
            tokio::spawn(async move { client.revoke(lease).await });
        }
        false
    }

    /// Sends one request. The response to the next request shows whether a request without a response had an effect.
    async fn write(
        &self,
        request: &TxnRequest,
        contender: &Contender<'_>,
        ask: &Ask<'_>,
    ) -> Outcome<TxnResponse> {
        let (session, id) = (contender.session, contender.claim.id);
        // Noted before the request, because the caller may drop this future.
        let before = session.doubt(id, true);
        let answer = limited(ask, Effect::Writes, self.client.txn(Effect::Writes, request)).await;
        if !matches!(answer, Err(EtcdError::Failed(StoreError::MaybeApplied(_)))) {
            session.doubt(id, before);
        }
        if matches!(answer, Err(EtcdError::NoLease)) {
            session.end();
            return Err(ended_early());
        }
        answer.map_err(EtcdError::into_store_error)
    }

    /// Returns a lease that does not expire soon, and the heartbeat that confirms it.
    async fn session_for(&self, claim: &Claim, key: &[u8], ask: &Ask<'_>) -> Outcome<(Arc<Session>, Kept)> {
        let known = self.claims().get(&claim.id).cloned().filter(|session| !session.is_gone());
        let session = known.unwrap_or_else(|| self.session_like(claim));
        self.claims().insert(claim.id, session.clone());
        // Adds the claim before the heartbeat, so that the heartbeat reads this claim's key. Every user with access to
        // the lock may read that key.
        session.expect(claim.id, key, self.env.now());
        match session.keep(&self.client, &self.env, None, claim.ttl.get() / 3, ask).await? {
            Ok(kept) => Ok((session, kept)),
            Err(_) => {
                self.claims().remove(&claim.id);
                Err(ended_early())
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
        self.claims().retain(|id, session| session.expects(*id));
        session
    }

    /// Returns a random id for a new lease. It has 63 bits and is never 0, because etcd chooses the id itself if it is
    /// 0.
    fn fresh_lease(&self) -> i64 {
        i64::try_from(self.env.random.bits() >> 65).unwrap_or(i64::MAX).max(1)
    }

    /// Requests a lease with an id that leasehold chooses. If the response is lost, the response to the repeated
    /// request shows whether the lease exists.
    pub(super) async fn grant_lease(&self, seconds: i64, ask: &mut Ask<'_>) -> Outcome<(i64, Kept)> {
        let (lease, sent) = (self.fresh_lease(), self.env.now());
        loop {
            let granted = match limited(ask, Effect::Writes, self.client.grant(lease, seconds)).await {
                Ok(answer) => answer.ttl,
                Err(EtcdError::LeaseExists) => seconds,
                Err(error) => {
                    ask.pause_after(error.into_store_error()).await?;
                    continue;
                }
            };
            let ttl = Duration::from_secs(u64::try_from(granted).unwrap_or(0));
            return Ok((lease, Kept { sent, ttl }));
        }
    }
}

fn ended_early() -> StoreError {
    Fault::unavailable("etcd ended a lease before it was used").not_applied()
}
