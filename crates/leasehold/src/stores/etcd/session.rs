//! A lease of etcd's, kept alive once for all the claims that stand on it.
//!
//! What a holder may believe follows from one *beat*: a keep-alive, and after it a linearizable look at the claims' keys.
//! The deadline counts from before the keep-alive was sent. The look says that the keys are still there; and that it is
//! answered in the same raft term says that the leader who took the keep-alive was the leader indeed: one that has been
//! replaced without knowing goes on to prolong leases on its own, while its successor lets them expire.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt, TryStreamExt};
use tokio::sync::watch;

use super::client::Client;
use super::errors::{Effect, Trouble};
use super::requests::{self, MOST_COMPARISONS};
use super::rules::{Place, next_key};
use super::wire::TxnResponse;
use crate::clock::Moment;
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::{Id, Ttl, attempt_limit};
use crate::register::retry::RetryBudget;

/// How many keys that nobody wants any more are deleted after one beat.
const MOST_SWEPT: usize = 16;

/// For how long a request that was given up is looked for at least: a member that was frozen carries it out when it goes
/// on, however short the lease.
const LATEST: Duration = Duration::from_secs(120);

/// How many batches of keys are looked at at once.
const LOOKS_AT_ONCE: usize = 8;

/// One lease.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) lease: i64,
    /// The time to live that was asked for, in seconds.
    pub(super) seconds: i64,
    /// Whether several claims may stand on it.
    pub(super) shared: bool,
    /// Of those who stand on it: how long one request may take follows from it.
    pub(super) ttl: Ttl,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Whether etcd has to be asked for the lease first.
    wanted: bool,
    /// The last confirmed beat, and its number.
    kept: Option<(u64, Kept)>,
    gone: bool,
    places: HashMap<Id, Entry>,
    /// How many beats were begun.
    begun: u64,
    /// The latest beat that failed, and how.
    failed: Option<(u64, StoreError)>,
    /// The beat that is on its way: closed when it has ended.
    running: Option<watch::Receiver<()>>,
}

/// A beat that was confirmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kept {
    /// Before its keep-alive was sent.
    pub(super) sent: Moment,
    /// What etcd granted then.
    pub(super) ttl: Duration,
}

#[derive(Debug)]
struct Entry {
    key: Vec<u8>,
    /// `None` while the key is not known to be there: it should not be, but a late request may still write it.
    place: Option<Place>,
    /// Whether a request was sent that was not answered, and may be carried out whenever nobody stands in line.
    doubtful: bool,
    /// When anybody last asked about it: never before the keep-alive that its deadline counts from was sent.
    touched: Moment,
    /// Whether its key is being deleted because nobody asked: nobody may believe in it any more.
    swept: bool,
}

/// The lease is no more, and neither are the keys on it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Gone;

impl Session {
    /// A lease that etcd is asked for by the first beat.
    pub(super) fn wanted(lease: i64, seconds: i64, ttl: Ttl, shared: bool) -> Self {
        Self::new(lease, seconds, ttl, shared, State { wanted: true, ..State::default() })
    }

    /// A lease of its own that etcd has granted.
    pub(super) fn granted(lease: i64, seconds: i64, ttl: Ttl, kept: Kept) -> Self {
        Self::new(lease, seconds, ttl, false, State { kept: Some((0, kept)), ..State::default() })
    }

    /// A lease that another process was granted, of which nothing is known yet.
    pub(super) fn found(lease: i64, seconds: i64, ttl: Ttl) -> Self {
        Self::new(lease, seconds, ttl, false, State::default())
    }

    fn new(lease: i64, seconds: i64, ttl: Ttl, shared: bool, state: State) -> Self {
        Self { lease, seconds, shared, ttl, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last confirmed beat.
    pub(super) fn kept(&self) -> Option<Kept> {
        self.state().kept.map(|(_, kept)| kept)
    }

    pub(super) fn is_gone(&self) -> bool {
        self.state().gone
    }

    pub(super) fn end(&self) {
        self.state().gone = true;
    }

    /// Counts `id` among those that stand here, before anything is sent: what lands late is then found, and deleted.
    ///
    /// For claims, whose every step is compared with what lies under their key, and for keys just written.
    pub(super) fn expect(&self, id: Id, key: &[u8], now: Moment) {
        self.asked(id, key, now, |entry| entry.swept = false);
    }

    /// The same for a grant that is to be prolonged, which writes nothing. `false` when its key is being deleted.
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

    /// Whether the key is there that a grant is to be prolonged for, and will not be swept while that is believed.
    pub(super) fn stands(&self, id: Id, now: Moment) -> bool {
        let mut state = self.state();
        let Some(entry) = state.places.get_mut(&id).filter(|entry| entry.place.is_some() && !entry.swept)
        else {
            return false;
        };
        entry.touched = now;
        true
    }

    /// Its place is gone, or not known.
    pub(super) fn unput(&self, id: Id) {
        if let Some(entry) = self.state().places.get_mut(&id) {
            entry.place = None;
        }
    }

    pub(super) fn place(&self, id: Id) -> Option<Place> {
        self.state().places.get(&id)?.place.clone()
    }

    pub(super) fn doubt(&self, id: Id) {
        if let Some(entry) = self.state().places.get_mut(&id) {
            entry.doubtful = true;
        }
    }

    /// The claim does not stand here any more. One that may yet do so is looked for a while longer.
    pub(super) fn forget(&self, id: Id) {
        let mut state = self.state();
        match state.places.get_mut(&id) {
            Some(entry) if entry.doubtful => entry.place = None,
            _ => drop(state.places.remove(&id)),
        }
    }

    /// Whether no claim stands here, but for one that a late request may bring.
    pub(super) fn is_empty(&self) -> bool {
        self.state().places.values().all(|entry| entry.doubtful && entry.place.is_none())
    }

    /// A confirmed beat that was sent after `known` and is no older than `most`, or that began after this was asked. Tasks
    /// that ask at once share one beat, and its failure. Waits for as long as `effort` has left.
    ///
    /// Cancel safe: the beat is a task of its own.
    pub(super) async fn keep(
        self: &Arc<Self>,
        client: &Arc<Client>,
        env: &Env,
        known: Option<Moment>,
        most: Duration,
        effort: &RetryBudget<'_>,
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
                // Nothing is ever sent: it is closed.
                let _ = running.changed().await;
                Ok(())
            };
            effort.request_within(effort.left(), ended).await.map_err(|error| match error {
                StoreError::MaybeApplied(fault) | StoreError::NotApplied(fault) => fault.not_applied(),
            })?;
        }
    }

    /// Begins a beat, in a task that waits for nobody.
    fn begin(self: &Arc<Self>, state: &mut State, client: &Arc<Client>, env: &Env) -> watch::Receiver<()> {
        let (ends, running) = watch::channel(());
        state.begun += 1;
        state.running = Some(running.clone());
        let (number, wanted) = (state.begun, state.wanted);
        let (session, client, env) = (self.clone(), client.clone(), env.clone());
        tokio::spawn(async move {
            let beaten = if wanted {
                session.ask_for_it(&client, &env).await
            } else {
                session.beat(&client, &env).await
            };
            session.note(number, beaten);
            drop(ends);
            if !wanted {
                session.sweep(&client, &env).await;
            }
        });
        running
    }

    fn note(&self, number: u64, beaten: Result<Kept, Trouble>) {
        let mut state = self.state();
        match beaten {
            Ok(kept) => {
                state.wanted = false;
                state.kept = Some((number, kept));
            }
            Err(Trouble::NoLease) => state.gone = true,
            Err(trouble) => {
                // A lease without keys is nothing that anybody has to know of: the next one has another number.
                state.gone |= state.wanted;
                let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = trouble.into_error();
                state.failed = Some((number, fault.not_applied()));
            }
        }
    }

    /// What a beat may take in all: after that its lease is over anyway.
    fn effort<'a>(&self, env: &'a Env) -> RetryBudget<'a> {
        RetryBudget::new(env, self.lasts(), attempt_limit(self.ttl))
    }

    /// How long the lease lasts without a beat.
    pub(super) fn lasts(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.seconds).unwrap_or(0))
    }

    async fn ask_for_it(&self, client: &Client, env: &Env) -> Result<Kept, Trouble> {
        let sent = env.now();
        let request = client.grant(self.lease, self.seconds);
        let answer = limited(&self.effort(env), Effect::Writes, request).await?;
        Ok(Kept { sent, ttl: Duration::from_secs(u64::try_from(answer.ttl).unwrap_or(0)) })
    }

    async fn beat(&self, client: &Client, env: &Env) -> Result<Kept, Trouble> {
        let (effort, sent) = (&self.effort(env), env.now());
        let answer = limited(effort, Effect::None, client.keep_alive(self.lease)).await?;
        let seconds = u64::try_from(answer.ttl).unwrap_or(0);
        if seconds == 0 {
            return Err(Trouble::NoLease);
        }
        let term = answer.header.unwrap_or_default().raft_term;
        let looks = stream::iter(self.batches()).map(|batch| self.look(client, effort, term, batch));
        looks.buffer_unordered(LOOKS_AT_ONCE).try_collect::<Vec<()>>().await?;
        Ok(Kept { sent, ttl: Duration::from_secs(seconds) })
    }

    /// The keys that stand here, and how each should be; at least one batch, for the term is to be asked for.
    fn batches(&self) -> Vec<Vec<Seen>> {
        let state = self.state();
        let seen = |(id, entry): (&Id, &Entry)| Seen {
            id: *id,
            key: entry.key.clone(),
            revision: entry.place.as_ref().map_or(0, |place| place.revision),
        };
        let all: Vec<Seen> = state.places.iter().map(seen).collect();
        if all.is_empty() {
            return vec![Vec::new()];
        }
        all.chunks(MOST_COMPARISONS).map(<[Seen]>::to_vec).collect()
    }

    async fn look(
        &self,
        client: &Client,
        effort: &RetryBudget<'_>,
        term: u64,
        batch: Vec<Seen>,
    ) -> Result<(), Trouble> {
        let request = if batch.is_empty() {
            // Any linearizable read will do.
            let nothing: [(&[u8], i64); 1] = [(b"\0", 0)];
            requests::check(nothing.into_iter())
        } else {
            requests::check(batch.iter().map(|seen| (seen.key.as_slice(), seen.revision)))
        };
        let answer = limited(effort, Effect::None, client.txn(Effect::None, &request)).await?;
        in_term(&answer, term)?;
        if !answer.succeeded && !batch.is_empty() {
            self.take_in(batch, answer);
        }
        Ok(())
    }

    /// Some key is not as it should be.
    fn take_in(&self, batch: Vec<Seen>, answer: TxnResponse) {
        let mut answers = answer.responses.into_iter();
        let mut state = self.state();
        for seen in batch {
            let found = next_key(&mut answers);
            let Some(entry) = state.places.get_mut(&seen.id) else { continue };
            // Written again since the question was put together: by us, who know more than this answer.
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

    /// Deletes the keys of those who have not asked about them for as long as a lease lasts: others would keep them
    /// alive for ever.
    async fn sweep(&self, client: &Client, env: &Env) {
        let effort = &self.effort(env);
        for (id, key, revision) in self.stale(env.now()) {
            tracing::debug!("a claim that nobody asks about any more is withdrawn");
            let request = requests::end(&key, revision, None);
            let answer = limited(effort, Effect::Writes, client.txn(Effect::Writes, &request)).await;
            if answer.is_ok_and(|answer| answer.succeeded) {
                self.unput(id);
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
        keyed.take(MOST_SWEPT).collect()
    }
}

/// A look that is answered in another term than the keep-alive confirms nothing: the leader that took the keep-alive may
/// have been replaced by then.
fn in_term(answer: &TxnResponse, term: u64) -> Result<(), Trouble> {
    if answer.header.unwrap_or_default().raft_term == term {
        return Ok(());
    }
    let fault = Fault::unavailable("etcd's leader changed while the lease was kept alive");
    Err(Trouble::Failed(fault.not_applied()))
}

/// A key that stands on a lease, as it should be.
#[derive(Clone, Debug)]
struct Seen {
    id: Id,
    key: Vec<u8>,
    revision: i64,
}

/// Awaits one request for as long as one may take.
pub(super) async fn limited<T>(
    effort: &RetryBudget<'_>,
    effect: Effect,
    request: impl Future<Output = Result<T, Trouble>>,
) -> Result<T, Trouble> {
    match effort.request(async { Ok(request.await) }).await {
        Ok(answer) => answer,
        Err(StoreError::MaybeApplied(fault)) if effect == Effect::None => {
            Err(Trouble::Failed(fault.not_applied()))
        }
        Err(error) => Err(Trouble::Failed(error)),
    }
}

/// The same error, for a task that waited for the same request.
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
