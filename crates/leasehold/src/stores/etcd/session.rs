//! An etcd lease. One keep-alive serves all claims that use the lease.
//!
//! A grant is valid because of one *heartbeat*: a keep-alive, followed by a linearizable read of the claims' keys. The
//! deadline counts from before the keep-alive was sent. The read shows that the keys still exist. It must be executed
//! in the same raft term as the keep-alive. This shows that the leader that confirmed the keep-alive was still the
//! leader. A leader that was replaced and does not know it yet continues to extend leases, while its successor lets
//! them expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::watch;

use super::client::Client;
use super::errors::{Effect, EtcdError};
use super::requests::{self, MAX_COMPARISONS};
use super::rules::{Place, next_key};
use super::wire::TxnResponse;
use crate::clock::Moment;
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::{Id, Ttl, attempt_limit};
use crate::retry::RetryBudget;

/// The maximum number of unused keys that are deleted after one heartbeat.
const MAX_SWEPT: usize = 16;

/// The minimum time for which the key of an abandoned request is looked for, even if the lease is shorter. A frozen
/// member executes the request when it resumes.
const LATEST: Duration = Duration::from_secs(120);

/// The number of batches of keys that are read at the same time.
const MAX_CONCURRENT_CHECKS: usize = 8;

/// One lease.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: i64,
    /// The time to live that was requested, in seconds.
    pub(super) seconds: i64,
    /// Whether several claims may use it.
    pub(super) shared: bool,
    /// The ttl of its claims. It determines how long one request may take.
    pub(super) ttl: Ttl,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether the lease must still be requested from etcd.
    is_new: bool,
    /// The last confirmed heartbeat, and its number.
    kept: Option<(u64, Kept)>,
    gone: bool,
    places: HashMap<Id, Entry>,
    /// The number of heartbeats that were begun.
    begun: u64,
    /// The latest heartbeat that failed, and its error.
    failed: Option<(u64, StoreError)>,
    /// The heartbeat that is under way. The channel is closed when it ends.
    running: Option<watch::Receiver<()>>,
}

/// A confirmed heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// The moment before the keep-alive was sent.
    pub(super) sent: Moment,
    /// The time to live that etcd granted.
    pub(super) ttl: Duration,
}

#[derive(Debug)]
struct Entry {
    key: Vec<u8>,
    /// `None` while the key is not known to exist. A late request may still write it.
    place: Option<Place>,
    /// Whether the effect of a request is unknown. etcd may still execute the request at any time when the queue is
    /// empty.
    doubtful: bool,
    /// When the claim was last used. This is never before the keep-alive from which its deadline counts.
    touched: Moment,
    /// Whether the key is being deleted because the claim was not used. The claim is no longer valid.
    swept: bool,
}

/// The lease has ended, and its keys are deleted.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Session {
    /// Creates the session of a lease that the first heartbeat requests from etcd.
    pub(super) fn new_lease(lease: i64, seconds: i64, ttl: Ttl, shared: bool) -> Self {
        Self::new(lease, seconds, ttl, shared, State { is_new: true, ..State::default() })
    }

    /// Creates the session of a lease that etcd has granted for a single claim.
    pub(super) fn granted(lease: i64, seconds: i64, ttl: Ttl, kept: Kept) -> Self {
        Self::new(lease, seconds, ttl, false, State { kept: Some((0, kept)), ..State::default() })
    }

    /// Creates the session of a lease that was granted to another process. Nothing is known about the lease yet.
    pub(super) fn found(lease: i64, seconds: i64, ttl: Ttl) -> Self {
        Self::new(lease, seconds, ttl, false, State::default())
    }

    fn new(lease: i64, seconds: i64, ttl: Ttl, shared: bool, state: State) -> Self {
        Self { lease, seconds, shared, ttl, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the last confirmed heartbeat.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.state().kept.map(|(_, kept)| kept)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state().gone
    }

    pub(super) fn end(&self) {
        self.state().gone = true;
    }

    /// Adds the claim `id` before its first request is sent, so that a key that is written late is found and deleted.
    ///
    /// For claims whose every step compares the content of their key, and for keys that were just written.
    pub(super) fn expect(&self, id: Id, key: &[u8], now: Moment) {
        self.asked(id, key, now, |entry| entry.swept = false);
    }

    /// Like [`expect`](Self::expect), for a grant that is renewed without a write. Returns `false` if its key is being
    /// deleted.
    pub(super) fn prolongs(&self, id: Id, key: &[u8], now: Moment) -> bool {
        self.asked(id, key, now, |entry| !entry.swept)
    }

    fn asked<T>(&self, id: Id, key: &[u8], now: Moment, then: impl FnOnce(&mut Entry) -> T) -> T {
        let mut state = self.state();
        let entry = state.places.entry(id).or_insert_with(|| Entry {
            key: key.to_vec(),
            place: None,
            doubtful: false,
            touched: now,
            swept: false,
        });
        entry.touched = now;
        then(entry)
    }

    pub(super) fn put(&self, id: Id, place: Place) {
        if let Some(entry) = self.state().places.get_mut(&id) {
            entry.place = Some(place);
        }
    }

    /// Returns whether the key of a grant that is renewed exists. If so, marks the key as used, so that it is not swept
    /// while the grant is valid.
    pub(super) fn stands(&self, id: Id, now: Moment) -> bool {
        let mut state = self.state();
        let Some(entry) = state.places.get_mut(&id).filter(|entry| entry.place.is_some() && !entry.swept)
        else {
            return false;
        };
        entry.touched = now;
        true
    }

    /// Records that the place of `id` is lost or unknown.
    pub(super) fn forget_place(&self, id: Id) {
        if let Some(entry) = self.state().places.get_mut(&id) {
            entry.place = None;
        }
    }

    pub(super) fn place(&self, id: Id) -> Option<Place> {
        self.state().places.get(&id)?.place.clone()
    }

    /// Records whether the effect of a request is unknown. Returns what was recorded before.
    pub(super) fn doubt(&self, id: Id, doubtful: bool) -> bool {
        let mut state = self.state();
        state.places.get_mut(&id).is_some_and(|entry| std::mem::replace(&mut entry.doubtful, doubtful))
    }

    /// Removes a claim. If one of its requests may still be executed, the heartbeats still look for its key for a
    /// while, and this returns `false`.
    pub(super) fn forget(&self, id: Id) -> bool {
        let mut state = self.state();
        match state.places.get_mut(&id) {
            Some(entry) if entry.doubtful => {
                entry.place = None;
                return false;
            }
            _ => drop(state.places.remove(&id)),
        }
        true
    }

    /// Returns whether the claim is in use, or one of its requests may still be executed.
    pub(super) fn expects(&self, id: Id) -> bool {
        self.state().places.contains_key(&id)
    }

    /// Returns whether no claim uses the lease. Ignores claims that only a late request may still create.
    pub(super) fn is_empty(&self) -> bool {
        self.state().places.values().all(|entry| entry.doubtful && entry.place.is_none())
    }

    /// Returns a confirmed heartbeat that was sent after `known` and is no older than `most`, or that began after this
    /// call. Concurrent callers share one heartbeat, including its failure. Waits for at most the time that is left in
    /// `budget`.
    ///
    /// Cancel safe: the heartbeat runs in a separate task.
    pub(super) async fn keep(
        self: &Arc<Self>,
        client: &Arc<Client>,
        env: &Env,
        known: Option<Moment>,
        most: Duration,
        budget: &RetryBudget<'_>,
    ) -> Result<Result<Kept, Gone>, StoreError> {
        let asked = self.state().begun;
        loop {
            let mut running = {
                let mut state = self.state();
                if let Some((_, error)) = state.failed.as_ref().filter(|(number, _)| *number > asked) {
                    return Err(again(error));
                }
                if state.gone {
                    return Ok(Err(Gone));
                }
                if let Some((number, kept)) = state.kept
                    && (number > asked
                        || known.is_none_or(|known| kept.sent.since_boot() > known.since_boot())
                            && env.now().longest_since(kept.sent) <= most)
                {
                    return Ok(Ok(kept));
                }
                match state.running.as_ref().filter(|running| running.has_changed().is_ok()) {
                    Some(running) => running.clone(),
                    None => self.begin(&mut state, client, env),
                }
            };
            let ended = async {
                // Nothing is ever sent on the channel. It is closed when the heartbeat ends.
                let _ = running.changed().await;
                Ok(())
            };
            budget.request_within(budget.left(), ended).await.map_err(StoreError::of_read)?;
        }
    }

    /// Starts a heartbeat in a separate task, which does not depend on any caller.
    fn begin(self: &Arc<Self>, state: &mut State, client: &Arc<Client>, env: &Env) -> watch::Receiver<()> {
        let (ends, running) = watch::channel(());
        state.begun += 1;
        state.running = Some(running.clone());
        let (number, is_new) = (state.begun, state.is_new);
        let (session, client, env) = (self.clone(), client.clone(), env.clone());
        tokio::spawn(async move {
            let beaten = if is_new {
                session.create_lease(&client, &env).await
            } else {
                session.heartbeat(&client, &env).await
            };
            session.note(number, beaten);
            drop(ends);
            if !is_new {
                session.sweep(&client, &env).await;
            }
        });
        running
    }

    fn note(&self, number: u64, beaten: Result<Kept, EtcdError>) {
        let mut state = self.state();
        match beaten {
            Ok(kept) => {
                state.is_new = false;
                state.kept = Some((number, kept));
            }
            Err(EtcdError::NoLease) => state.gone = true,
            Err(error) => {
                // The lease may exist in etcd, but it has no keys. The next session has another lease id.
                state.gone |= state.is_new;
                state.failed = Some((number, error.into_store_error().of_read()));
            }
        }
    }

    /// Returns the budget of a heartbeat. Its time limit is the duration of the lease, which has expired after that
    /// anyway.
    fn budget<'a>(&self, env: &'a Env) -> RetryBudget<'a> {
        RetryBudget::new(env, self.lasts(), attempt_limit(self.ttl))
    }

    /// Returns how long the lease lasts without a heartbeat.
    pub(super) fn lasts(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.seconds).unwrap_or(0))
    }

    async fn create_lease(&self, client: &Client, env: &Env) -> Result<Kept, EtcdError> {
        let sent = env.now();
        let request = client.grant(self.lease, self.seconds);
        let answer = limited(&self.budget(env), Effect::Writes, request).await?;
        Ok(Kept { sent, ttl: Duration::from_secs(u64::try_from(answer.ttl).unwrap_or(0)) })
    }

    async fn heartbeat(&self, client: &Client, env: &Env) -> Result<Kept, EtcdError> {
        let (budget, sent) = (&self.budget(env), env.now());
        let answer = limited(budget, Effect::None, client.keep_alive(self.lease)).await?;
        let seconds = u64::try_from(answer.ttl).unwrap_or(0);
        if seconds == 0 {
            return Err(EtcdError::NoLease);
        }
        let term = answer.header.unwrap_or_default().raft_term;
        let checks = stream::iter(self.batches()).map(|batch| self.check_batch(client, budget, term, batch));
        checks.buffer_unordered(MAX_CONCURRENT_CHECKS).try_collect::<Vec<()>>().await?;
        Ok(Kept { sent, ttl: Duration::from_secs(seconds) })
    }

    /// Returns the keys of the claims and their expected revisions, in batches. There is at least one batch, because
    /// the read also returns the term.
    fn batches(&self) -> Vec<Vec<ExpectedKey>> {
        let state = self.state();
        let seen = |(id, entry): (&Id, &Entry)| ExpectedKey {
            id: *id,
            key: entry.key.clone(),
            revision: entry.place.as_ref().map_or(0, |place| place.revision),
        };
        let all: Vec<ExpectedKey> = state.places.iter().map(seen).collect();
        if all.is_empty() {
            return vec![Vec::new()];
        }
        all.chunks(MAX_COMPARISONS).map(<[ExpectedKey]>::to_vec).collect()
    }

    async fn check_batch(
        &self,
        client: &Client,
        budget: &RetryBudget<'_>,
        term: u64,
        batch: Vec<ExpectedKey>,
    ) -> Result<(), EtcdError> {
        let request = if batch.is_empty() {
            // Any linearizable read returns the term.
            let nothing: [(&[u8], i64); 1] = [(b"\0", 0)];
            requests::check(nothing.into_iter())
        } else {
            requests::check(batch.iter().map(|seen| (seen.key.as_slice(), seen.revision)))
        };
        let answer = limited(budget, Effect::None, client.txn(Effect::None, &request)).await?;
        in_term(&answer, term)?;
        if !answer.succeeded && !batch.is_empty() {
            self.take_in(batch, answer);
        }
        Ok(())
    }

    /// Updates the places after a read in which some key was not as expected.
    fn take_in(&self, batch: Vec<ExpectedKey>, answer: TxnResponse) {
        let mut answers = answer.responses.into_iter();
        let mut state = self.state();
        for seen in batch {
            let found = next_key(&mut answers);
            let Some(entry) = state.places.get_mut(&seen.id) else { continue };
            // This process wrote the key again after the read was built, so this response is outdated.
            if entry.place.as_ref().map_or(0, |place| place.revision) != seen.revision {
                continue;
            }
            entry.place = found.filter(|found| found.lease == self.lease).map(|found| Place {
                create: found.create_revision,
                revision: found.mod_revision,
                before: entry.place.take().and_then(|place| place.before),
            });
        }
    }

    /// Deletes the keys of claims that were not used for the duration of a lease. Otherwise the other claims on the
    /// lease would keep these keys alive forever.
    async fn sweep(&self, client: &Client, env: &Env) {
        let budget = &self.budget(env);
        for (id, key, revision) in self.stale(env.now()) {
            tracing::debug!("withdrawing a claim that is no longer used");
            let request = requests::end(&key, revision, None);
            let answer = limited(budget, Effect::Writes, client.txn(Effect::Writes, &request)).await;
            if answer.is_ok_and(|answer| answer.succeeded) {
                self.forget_place(id);
            }
        }
    }

    fn stale(&self, now: Moment) -> Vec<(Id, Vec<u8>, i64)> {
        let lasts = self.lasts();
        let mut state = self.state();
        let late = (lasts * 2).max(LATEST);
        state.places.retain(|_, entry| entry.place.is_some() || now.shortest_since(entry.touched) <= late);
        let stale = |entry: &Entry| entry.swept || now.shortest_since(entry.touched) > lasts;
        let stale = state.places.iter_mut().filter(|(_, entry)| stale(entry));
        let keyed = stale.filter_map(|(id, entry)| {
            let revision = entry.place.as_ref()?.revision;
            entry.swept = true;
            Some((*id, entry.key.clone(), revision))
        });
        keyed.take(MAX_SWEPT).collect()
    }
}

/// Checks the term of a read. A read in another term than the keep-alive confirms nothing, because the leader that
/// confirmed the keep-alive may have been replaced by then.
fn in_term(answer: &TxnResponse, term: u64) -> Result<(), EtcdError> {
    if answer.header.unwrap_or_default().raft_term == term {
        return Ok(());
    }
    let fault = Fault::unavailable("etcd's leader changed while the lease was kept alive");
    Err(EtcdError::Failed(fault.not_applied()))
}

/// A key on the lease, with its expected revision.
#[derive(Clone, Debug)]
struct ExpectedKey {
    id: Id,
    key: Vec<u8>,
    revision: i64,
}

/// Awaits one request within the time limit of a request. A request that writes nothing counts as not applied when it
/// times out.
pub(super) async fn limited<T>(
    budget: &RetryBudget<'_>,
    effect: Effect,
    request: impl Future<Output = Result<T, EtcdError>>,
) -> Result<T, EtcdError> {
    match budget.request(async { Ok(request.await) }).await {
        Ok(answer) => answer,
        Err(StoreError::MaybeApplied(fault)) if effect == Effect::None => {
            Err(EtcdError::Failed(fault.not_applied()))
        }
        Err(error) => Err(EtcdError::Failed(error)),
    }
}

/// Copies the error for a task that waited for the same heartbeat.
fn again(error: &StoreError) -> StoreError {
    let fault = error.fault();
    let mut copy = Fault::new(fault.kind, fault.message.clone());
    copy.help.clone_from(&fault.help);
    copy.retry_after = fault.retry_after;
    match error {
        StoreError::NotApplied(_) => copy.not_applied(),
        StoreError::MaybeApplied(_) => copy.maybe_applied(),
    }
}

#[cfg(test)]
mod tests;
