//! etcd: its own leases and transactions, in the layout of its own lock recipes.
//!
//! A claim gets in line by creating a key on a lease; the key that was created first owns the lock. Layout, permissions,
//! limits and the argument why it is safe: `docs/stores/etcd.md`.

mod acquire;
mod client;
mod config;
mod connect;
mod errors;
mod examine;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hold;
mod keep_alive;
mod keys;
mod requests;
mod rules;
mod session;
mod value;
mod wait;
mod watch;
mod wire;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use self::client::Client;
use self::config::Location;
use self::errors::{Effect, Trouble};
use self::keys::{Keys, Names};
use self::session::{Session, limited};
use self::value::Who;
use self::watch::Watcher;
use self::wire::{KeyValue, TxnRequest, TxnResponse};
use crate::doctor::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{
    Capabilities, Claim, Evicted, Grant, Held, Id, LeaseStore, Pace, Released, Renewal, State, Status,
    StoreOptions, Swept, Token, Ttl, Verdict, attempt_limit,
};
use crate::name::LockName;
use crate::register::effort::Effort;
use crate::url::StoreUrl;

/// Waiters are told; this is for the case that a watch stalls without a word.
const PACE: Pace = Pace { first: Duration::from_secs(15), most: Duration::from_secs(15) };

/// How long the operations without a patience of their own put up with a cluster that does not answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many keys are read at a time.
const PAGE: i64 = 1_000;

/// Opens leases on the cluster and below the prefix that `url` names:
/// `etcd://user:password@host:2379,host2:2379/prefix/?tls=on|off&ca=FILE&cert=FILE&key=FILE`.
///
/// Sends no request. The common options `store_clock` and `margin` change nothing here: etcd itself ends leases.
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bad URL and for certificates that cannot be read.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    Ok(Arc::new(EtcdLeases {
        client: Arc::new(Client::new(&location)?),
        keys: Keys::new(location.prefix),
        watcher: Watcher::new(options.env.clone()),
        env: options.env,
        sessions: Mutex::default(),
        opening: tokio::sync::Mutex::default(),
        failed_openings: AtomicU64::new(0),
        claims: Mutex::default(),
    }))
}

/// Leases of one cluster.
#[derive(Debug)]
struct EtcdLeases {
    client: Arc<Client>,
    keys: Keys,
    env: Env,
    watcher: Watcher,
    /// The leases that claims share, one for each time to live.
    sessions: Mutex<Vec<Arc<Session>>>,
    /// Held while such a lease is granted.
    opening: tokio::sync::Mutex<()>,
    /// How often none was granted.
    failed_openings: AtomicU64,
    /// On which lease a claim stands that is in line or was granted.
    claims: Mutex<HashMap<Id, Arc<Session>>>,
}

impl EtcdLeases {
    fn effort(&self, limit: Duration, ttl: Ttl) -> Effort<'_> {
        Effort::new(&self.env, limit, attempt_limit(ttl))
    }

    fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn claims(&self) -> MutexGuard<'_, HashMap<Id, Arc<Session>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A read, as often as it takes.
    async fn read(&self, request: TxnRequest, effort: &mut Effort<'_>) -> Result<TxnResponse, StoreError> {
        loop {
            match limited(effort, Effect::None, self.client.txn(Effect::None, &request)).await {
                Ok(answer) => return Ok(answer),
                Err(trouble) => effort.pause_after(trouble.into_error()).await?,
            }
        }
    }

    /// What lies under one key, and the revision at which that was so.
    async fn key(&self, key: &[u8], effort: &mut Effort<'_>) -> Result<(Option<KeyValue>, i64), StoreError> {
        loop {
            match limited(effort, Effect::None, self.client.range(requests::exactly(key))).await {
                Ok(answer) => {
                    let revision = answer.header.unwrap_or_default().revision;
                    return Ok((answer.kvs.into_iter().next(), revision));
                }
                Err(trouble) => effort.pause_after(trouble.into_error()).await?,
            }
        }
    }

    /// Whoever owns `name`, and the revision at which that was so.
    async fn first(
        &self,
        name: &LockName,
        effort: &mut Effort<'_>,
    ) -> Result<(Option<KeyValue>, i64), StoreError> {
        let line = self.keys.line(name);
        loop {
            let answer = match limited(effort, Effect::None, self.client.range(requests::first(&line))).await
            {
                Ok(answer) => answer,
                Err(trouble) => {
                    effort.pause_after(trouble.into_error()).await?;
                    continue;
                }
            };
            let revision = answer.header.unwrap_or_default().revision;
            match answer.kvs.into_iter().next() {
                None => return Ok((None, revision)),
                Some(first) if self.keys.is_in_line(name, &first.key) => return Ok((Some(first), revision)),
                // Keys of other locks stand before it.
                Some(_) => match self.line_until(name, 0, effort).await?.into_iter().next() {
                    None => return Ok((None, revision)),
                    Some(first) => {
                        // It may be gone by now; then another is the first.
                        if let (Some(first), revision) = self.key(&first.key, effort).await? {
                            return Ok((Some(first), revision));
                        }
                    }
                },
            }
        }
    }

    /// What to show of whoever is first in line; of a rest, also how much of it is left. That is nice to know, and no reason
    /// to fail.
    async fn shown(&self, first: &KeyValue, effort: &Effort<'_>) -> Held {
        let mut held = value::held(first);
        if held.resting
            && let Ok(answer) = limited(effort, Effect::None, self.client.time_to_live(first.lease)).await
            && let Ok(seconds) = u64::try_from(answer.ttl)
        {
            let left = Duration::from_secs(seconds + 1);
            held.held_for = held.lapses_within.map(|rest| rest.saturating_sub(left));
            held.lapses_within = Some(left);
        }
        held
    }

    /// Who stands in line for `name`, in order, of those that were created until `create` (0: all). Reads all keys below
    /// the name, those of other locks too.
    async fn line_until(
        &self,
        name: &LockName,
        create: i64,
        effort: &mut Effort<'_>,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let line = self.keys.line(name);
        let (mut from, mut found) = (line.key, Vec::new());
        loop {
            let request = requests::page(from.clone(), line.end.clone(), PAGE, create);
            let answer = match limited(effort, Effect::None, self.client.range(request)).await {
                Ok(answer) => answer,
                Err(trouble) => {
                    effort.pause_after(trouble.into_error()).await?;
                    continue;
                }
            };
            let last = answer.kvs.last().map(|kv| keys::after(&kv.key));
            found.extend(answer.kvs.into_iter().filter(|kv| self.keys.is_in_line(name, &kv.key)));
            match last.filter(|_| answer.more) {
                Some(next) => from = next,
                None => break,
            }
        }
        found.sort_by_key(|kv| kv.create_revision);
        Ok(found)
    }

    /// One page of the names that begin with `prefix`, and where the next page begins.
    async fn names(
        &self,
        prefix: &str,
        from: Vec<u8>,
        end: Vec<u8>,
    ) -> Result<(Vec<LockName>, Option<Vec<u8>>), StoreError> {
        let mut effort = self.effort(PATIENCE, Ttl::DEFAULT);
        loop {
            let request = requests::page(from.clone(), end.clone(), PAGE, 0);
            match limited(&effort, Effect::None, self.client.range(request)).await {
                Ok(answer) => {
                    let next = answer.kvs.last().filter(|_| answer.more).map(|kv| keys::after(&kv.key));
                    let names = answer.kvs.iter().filter_map(|kv| self.keys.lock_of(&kv.key));
                    return Ok((names.filter(|name| name.as_str().starts_with(prefix)).collect(), next));
                }
                Err(trouble) => effort.pause_after(trouble.into_error()).await?,
            }
        }
    }
}

#[async_trait]
impl LeaseStore for EtcdLeases {
    async fn try_acquire(&self, claim: &Claim) -> Result<Verdict, StoreError> {
        self.acquire(claim).await
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.prolong(grant).await
    }

    async fn release(&self, grant: &mut Grant, rest: Option<Duration>) -> Result<Released, StoreError> {
        let mut effort = self.effort(PATIENCE, grant.ttl);
        self.give_up(grant, rest.filter(|rest| !rest.is_zero()), &mut effort).await
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        self.set_apart(grant).await
    }

    async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError> {
        let mut effort = self.effort(PATIENCE, Ttl::DEFAULT);
        // The key of a delete whose fate is unknown: when it is gone, that was it.
        let mut asked: Option<Vec<u8>> = None;
        loop {
            let first = self.first(name, &mut effort).await?.0;
            let gone = |first: &KeyValue| asked.as_ref().is_some_and(|asked| *asked != first.key);
            let Some(first) = first.filter(|first| !gone(first)) else {
                return Ok(if asked.is_some() { Evicted::Evicted } else { Evicted::Changed });
            };
            let Who::Ours(value) = value::read(&first) else { return Err(not_ours_to_evict(name)) };
            if value::token(&first, &value) != Some(token) {
                return Ok(Evicted::Changed);
            }
            let mark = self.keys.mark(value.claim);
            let mark = Some((mark.as_slice(), first.lease)).filter(|_| first.lease != 0);
            let request = requests::end(&first.key, first.mod_revision, mark);
            match limited(&effort, Effect::Writes, self.client.txn(Effect::Writes, &request)).await {
                Ok(answer) if answer.succeeded => return Ok(Evicted::Evicted),
                // Written again, or gone meanwhile; or its lease is.
                Ok(_) | Err(Trouble::NoLease) => effort.pause_after_conflict().await?,
                Err(trouble) => {
                    let error = trouble.into_error();
                    if matches!(error, StoreError::MaybeApplied(_)) {
                        asked = Some(first.key);
                    }
                    effort.pause_after(error).await?;
                }
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let mut effort = self.effort(PATIENCE, Ttl::DEFAULT);
        let Some(first) = self.first(name, &mut effort).await?.0 else {
            return Ok(Status::new(name.clone(), State::Free));
        };
        let held = self.shown(&first, &effort).await;
        let token = held.token;
        let mut status = Status::new(name.clone(), State::Held(held));
        status.token = token;
        Ok(status)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let space = self.keys.of_locks(prefix);
        let (prefix, end) = (prefix.to_owned(), space.end);
        let start = (Some(space.key), VecDeque::new(), Names::default());
        let names = stream::try_unfold(start, move |(mut from, mut read, mut names): Listing| {
            let (prefix, end) = (prefix.clone(), end.clone());
            async move {
                loop {
                    while let Some(name) = read.pop_front() {
                        if let Some(name) = names.fresh(name) {
                            return Ok(Some((name, (from, read, names))));
                        }
                    }
                    let Some(begin) = from else { return Ok(None) };
                    let (page, next) = self.names(&prefix, begin, end.clone()).await?;
                    (read, from) = (page.into(), next);
                }
            }
        });
        names.boxed()
    }

    async fn changed(&self, name: &LockName, seen: &Held) -> Result<(), StoreError> {
        self.until_changed(name, seen).await
    }

    async fn turn(&self, claim: &Claim, seen: &Held) -> Result<(), StoreError> {
        self.until_turn(claim, seen).await
    }

    async fn holder_changed(&self, name: &LockName, seen: &Status) {
        self.until_holder_changed(name, seen).await;
    }

    async fn ended(&self, grant: &Grant) {
        self.until_ended(grant).await;
    }

    /// A lock that is free has no key.
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let status = self.inspect(name).await?;
        Ok(matches!(status.state, State::Free))
    }

    /// A lock that is free has no key, and a rest ends with its lease: there is nothing to sweep.
    async fn sweep(&self, _: &LockName, _: Duration, _: bool) -> Result<Swept, StoreError> {
        Ok(Swept::Kept)
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.examined().await
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("etcd", PACE);
        capabilities.fifo = true;
        capabilities.watches = true;
        capabilities.history = false;
        capabilities
    }

    fn env(&self) -> &Env {
        &self.env
    }
}

impl Drop for EtcdLeases {
    /// Leases that nothing stands on run out by themselves; inside a runtime they are ended at once.
    fn drop(&mut self) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        for session in self.sessions().drain(..).filter(|session| session.is_empty()) {
            let client = self.client.clone();
            runtime.spawn(async move { client.revoke(session.lease).await });
        }
    }
}

/// Where the next page begins, the names that were read, and those that were given.
type Listing = (Option<Vec<u8>>, VecDeque<LockName>, Names);

fn not_ours_to_evict(name: &LockName) -> StoreError {
    Fault::new(ErrorKind::Unsupported, format!("lock `{name}` is held by a key that leasehold did not write"))
        .with_help("find out whose it is; when it is certainly abandoned, delete it with etcdctl del, or revoke its lease")
        .not_applied()
}
