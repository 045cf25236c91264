//! Renews and ends grants, and hands them to other processes.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::errors::{Effect, EtcdError};
use super::leases::EtcdLeases;
use super::requests;
use super::rules::{self, Place};
use super::session::{Kept, Session, limited};
use super::value::{self, Owner, Standing, Value, whole_seconds};
use super::watch::Watch;
use super::wire::{KeyValue, TxnRequest};
use crate::clock::{Deadline, Moment};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Grant, LossReason, Token, Ttl};
use crate::native::{self, Ask, Ended, Lease, Outcome, Renewed};
use crate::types::LockName;

/// The memo of a grant.
#[derive(Clone, Debug)]
pub(super) struct Memo {
    pub(super) session: Arc<Session>,
    /// The moment before the keep-alive was sent from which the grant's deadline counts. `None` if it is unknown.
    known: Option<Moment>,
    /// The value of the grant's key.
    value: Arc<Value>,
    /// The watch for the deletion of the key. It lasts from the grant to its end, so that not every pause between two
    /// renewals needs a new watch.
    pub(super) watch: Arc<Mutex<Option<Watch>>>,
}

impl Memo {
    pub(super) fn new(session: Arc<Session>, kept: Kept, value: Value) -> Self {
        Self::of(session, Some(kept.sent), value)
    }

    fn of(session: Arc<Session>, known: Option<Moment>, value: Value) -> Self {
        Self { session, known, value: Arc::new(value), watch: Arc::default() }
    }
}

pub(super) fn memo(grant: &Grant) -> Option<&Memo> {
    native::memo(grant)
}

impl EtcdLeases {
    /// Confirms that the key of a grant exists, by a heartbeat of its lease.
    pub(super) async fn confirm(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Renewed> {
        let memo = match memo(grant).cloned() {
            Some(memo) => memo,
            None => match self.look_up(grant, ask).await? {
                Some(memo) => memo,
                None => return Ok(Renewed::Gone),
            },
        };
        let key = self.keys.of_claim(&grant.name, grant.id);
        if !memo.session.prolongs(grant.id, &key, self.env.now()) {
            return Ok(Renewed::Lost(LossReason::EXPIRED));
        }
        let most = grant.ttl.get() / 6;
        if let Ok(kept) = memo.session.keep(&self.client, &self.env, memo.known, most, ask).await? {
            if memo.session.stands(grant.id, self.env.now()) {
                let memo = Memo { known: Some(kept.sent), ..memo };
                return Ok(Renewed::Until(Lease {
                    until: Some(deadline(grant.ttl, kept)),
                    memo: Some(Arc::new(memo)),
                }));
            }
            // The key may have been deleted or moved to another lease, or the session may not know its current state.
            if let Some(found) = self.look_up(grant, ask).await? {
                let is_same = found.session.lease == memo.session.lease;
                return Ok(Renewed::Again(Arc::new(if is_same { memo } else { found })));
            }
        }
        self.forget(&memo.session, grant);
        Ok(Renewed::Gone)
    }

    /// Reads the key of a grant, and finds the lease that it is on. Returns `None` if the key does not exist or no
    /// longer belongs to the grant.
    async fn look_up(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Option<Memo>> {
        let Some((kv, value)) = self.own_key(grant, ask).await? else { return Ok(None) };
        let ours = memo(grant).map(|memo| memo.session.clone()).filter(|session| session.lease == kv.lease);
        let ours = ours.or_else(|| self.sessions().iter().find(|session| session.lease == kv.lease).cloned());
        let session =
            ours.unwrap_or_else(|| Arc::new(Session::found(kv.lease, value.lease_seconds(), grant.ttl)));
        session.prolongs(grant.id, &kv.key, self.env.now());
        session.put(grant.id, Place { create: kv.create_revision, revision: kv.mod_revision, before: None });
        Ok(Some(Memo::of(session, None, value)))
    }

    /// Reads the key of a grant or of a waiting claim, which has no token. Returns `None` if the key does not exist, is
    /// in a cooldown, or no longer belongs to the grant.
    async fn own_key(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Option<(KeyValue, Value)>> {
        let key = self.keys.of_claim(&grant.name, grant.id);
        let (Some(kv), _) = self.key(&key, ask).await? else { return Ok(None) };
        let value = rules::own_value(grant.id, &kv)?;
        let is_own = grant.token == Token::default() || value::token(&kv, &value) == Some(grant.token);
        Ok(Some((kv, value)).filter(|(_, value)| is_own && value.state != Standing::Cooldown))
    }

    fn forget(&self, session: &Session, grant: &Grant) {
        session.forget(grant.id);
        self.claims().remove(&grant.id);
    }

    /// Ends a grant, or withdraws the waiting claim with its id. With a cooldown, its key stays, on a lease that lasts
    /// as long as the cooldown. Other clients see the lock as held.
    pub(super) async fn finish(
        &self,
        grant: &Grant,
        cooldown: Option<Duration>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Ended> {
        let memo = memo(grant);
        let session = memo.map(|memo| memo.session.clone());
        let session = session.or_else(|| self.claims().get(&grant.id).cloned());
        let known = session.as_ref().and_then(|session| session.place(grant.id));
        let mut mark = None;
        let found = match known.filter(|_| !ask.again && (cooldown.is_none() || memo.is_some())) {
            Some(place) => Some((place.revision, memo.map(|memo| Value::clone(&memo.value)))),
            None => self.own_key(grant, ask).await?.map(|(kv, value)| {
                // The process that holds this grant, or waits for it, learns only from the mark that it was ended.
                mark = Some(kv.lease).filter(|lease| memo.is_none() && *lease != 0);
                (kv.mod_revision, Some(value))
            }),
        };
        let ended = match found {
            None => Ended::Gone,
            Some((revision, value)) => {
                let (key, mark_key) = (self.keys.of_claim(&grant.name, grant.id), self.keys.mark(grant.id));
                let request = match cooldown.zip(value) {
                    None => requests::end(&key, revision, mark.map(|lease| (&*mark_key, lease))),
                    Some((cooldown, value)) => {
                        let (lease, _) = self.grant_lease(whole_seconds(cooldown), ask).await?;
                        let value = value.in_cooldown(grant.token, cooldown).to_bytes()?;
                        requests::rewrite(&key, revision, &value, lease)
                    }
                };
                if self.write_key(&request, ask).await?.is_some() { Ended::Now } else { Ended::Again }
            }
        };
        if let Some(session) = session {
            match ended {
                // The key has changed, so the next step reads it.
                Ended::Again => session.forget_place(grant.id),
                _ => self.forget(&session, grant),
            }
        }
        Ok(ended)
    }

    /// Moves a grant to a separate lease, which another process can keep alive.
    pub(super) async fn set_apart(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Option<Renewed>> {
        let Some(memo) = memo(grant).filter(|memo| memo.session.shared) else {
            // Another process may end the grant, so this one would remember it for ever.
            self.claims().remove(&grant.id);
            return Ok(None);
        };
        let known = memo.session.place(grant.id).map(|place| (place.revision, Value::clone(&memo.value)));
        let known = match known {
            Some(known) => Some(known),
            None => self.own_key(grant, ask).await?.map(|(kv, value)| (kv.mod_revision, value)),
        };
        let Some((known, value)) = known else {
            self.forget(&memo.session, grant);
            return Ok(Some(Renewed::Gone));
        };
        let (seconds, value) = (memo.session.seconds, value.with_token(grant.token));
        let (lease, kept) = self.grant_lease(seconds, ask).await?;
        let key = self.keys.of_claim(&grant.name, grant.id);
        let request = requests::rewrite(&key, known, &value.to_bytes()?, lease);
        // The next step reads the key, which this request may have moved.
        memo.session.forget_place(grant.id);
        let Some(revision) = self.write_key(&request, ask).await? else {
            return Ok(Some(Renewed::Again(Arc::new(memo.clone()))));
        };
        let session = Arc::new(Session::granted(lease, seconds, grant.ttl, kept));
        session.expect(grant.id, &key, self.env.now());
        session.put(grant.id, Place { create: revision, revision, before: None });
        self.forget(&memo.session, grant);
        let until = Some(deadline(grant.ttl, kept));
        Ok(Some(Renewed::Until(Lease { until, memo: Some(Arc::new(Memo::new(session, kept, value))) })))
    }

    /// Ends the first claim of the queue, if it has the grant with `token`.
    pub(super) async fn end_grant(&self, name: &LockName, token: Token, ask: &mut Ask<'_>) -> Outcome<Ended> {
        let Some(first) = self.first(name, ask).await?.0 else { return Ok(Ended::Gone) };
        let value = match value::read(&first) {
            Owner::Ours(value) if value::token(&first, &value) == Some(token) => value,
            Owner::Foreign(_) if !ask.again => return Err(not_ours_to_evict(name)),
            Owner::Ours(_) | Owner::Foreign(_) => return Ok(Ended::Gone),
        };
        let mark = self.keys.mark(value.claim);
        let mark = Some((mark.as_slice(), first.lease)).filter(|_| first.lease != 0);
        let request = requests::end(&first.key, first.mod_revision, mark);
        Ok(if self.write_key(&request, ask).await?.is_some() { Ended::Now } else { Ended::Again })
    }

    /// Sends one write of one key. Returns the revision of the write, or `None` if the key has changed or the lease has
    /// ended.
    async fn write_key(&self, request: &TxnRequest, ask: &Ask<'_>) -> Outcome<Option<i64>> {
        match limited(ask, Effect::Writes, self.client.txn(Effect::Writes, request)).await {
            Ok(answer) => Ok(Some(answer.header.unwrap_or_default().revision).filter(|_| answer.succeeded)),
            Err(EtcdError::NoLease) => Ok(None),
            Err(error) => Err(error.into_store_error()),
        }
    }
}

fn not_ours_to_evict(name: &LockName) -> StoreError {
    Fault::new(ErrorKind::Unsupported, format!("lock `{name}` is held by a key that leasehold did not write"))
        .with_help(
            "find out which client wrote it; if it is certainly abandoned, delete it with etcdctl del, or \
            revoke its lease",
        )
        .not_applied()
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
        leases.claims().insert(claim.id, session);
        let grant = Grant {
            name: claim.name,
            token: Token::default(),
            after: None,
            id: claim.id,
            ttl: claim.ttl,
            deadline: deadline(claim.ttl, kept),
            at_limit: false,
            size: None,
            memo: None,
        };
        let mut ask = Ask::new(&env);
        assert!(leases.set_apart(&grant, &mut ask).await.unwrap().is_none());
        assert!(leases.claims().is_empty());
    }
}
