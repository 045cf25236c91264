//! The leases of one cluster, and the reads. All of this runs on the thread of the store
//! ([`worker`](crate::stores::worker)).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::client::Client;
use super::errors::{Effect, EtcdError};
use super::keys::{self, Keys};
use super::session::{Session, limited};
use super::value::{self, Owner};
use super::watch::Watcher;
use super::wire::{KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use super::{STORE_TIMEOUT, requests};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Evicted, HolderInfo, Id, MAX_WAITERS, State, Status, Token, Ttl, attempt_limit};
use crate::retry::RetryBudget;
use crate::types::LockName;

/// The number of keys in a page.
const PAGE: i64 = 1_000;

/// The leases of one cluster.
#[derive(Debug)]
pub(super) struct EtcdLeases {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    pub(super) env: Env,
    pub(super) watcher: Watcher,
    /// The leases that claims share, one for each ttl and lease duration.
    sessions: Mutex<Vec<Arc<Session>>>,
    /// The lease of each claim that is in the queue or was granted.
    claims: Mutex<HashMap<Id, Arc<Session>>>,
}

impl EtcdLeases {
    pub(super) fn new(client: Arc<Client>, prefix: String, env: Env) -> Self {
        let watcher = Watcher::new(client.clone(), env.clone());
        let (sessions, claims) = (Mutex::default(), Mutex::default());
        Self { client, keys: Keys::new(prefix), env, watcher, sessions, claims }
    }

    pub(super) fn budget(&self, limit: Duration, ttl: Ttl) -> RetryBudget<'_> {
        RetryBudget::new(&self.env, limit, attempt_limit(ttl))
    }

    pub(super) fn sessions(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn claims(&self) -> MutexGuard<'_, HashMap<Id, Arc<Session>>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a transaction that only reads. Retries transient errors.
    pub(super) async fn read(
        &self,
        request: TxnRequest,
        budget: &mut RetryBudget<'_>,
    ) -> Result<TxnResponse, StoreError> {
        loop {
            match limited(budget, Effect::None, self.client.txn(Effect::None, &request)).await {
                Ok(answer) => return Ok(answer),
                Err(error) => budget.pause_after(error.into_store_error()).await?,
            }
        }
    }

    /// Returns the content of one key, and the revision of the read.
    pub(super) async fn key(
        &self,
        key: &[u8],
        budget: &mut RetryBudget<'_>,
    ) -> Result<(Option<KeyValue>, i64), StoreError> {
        let answer = self.range(requests::exactly(key), budget).await?;
        let revision = answer.header.unwrap_or_default().revision;
        Ok((answer.kvs.into_iter().next(), revision))
    }

    /// Reads keys. Retries transient errors.
    async fn range(
        &self,
        request: RangeRequest,
        budget: &mut RetryBudget<'_>,
    ) -> Result<RangeResponse, StoreError> {
        loop {
            match limited(budget, Effect::None, self.client.range(request.clone())).await {
                Ok(answer) => return Ok(answer),
                Err(error) => budget.pause_after(error.into_store_error()).await?,
            }
        }
    }

    /// Returns the first key of the queue of `name`, and the revision of the read.
    pub(super) async fn first(
        &self,
        name: &LockName,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(Option<KeyValue>, i64), StoreError> {
        let line = self.keys.line(name);
        loop {
            let answer = self.range(requests::first(&line), budget).await?;
            let revision = answer.header.unwrap_or_default().revision;
            match answer.kvs.into_iter().next() {
                None => return Ok((None, revision)),
                Some(first) if self.keys.is_in_line(name, &first.key) => return Ok((Some(first), revision)),
                // Keys of other locks are older.
                Some(_) => match self.line_until(name, 0, budget).await?.into_iter().next() {
                    None => return Ok((None, revision)),
                    Some(first) => {
                        // If the key has been deleted by now, another key is the first.
                        if let (Some(first), revision) = self.key(&first.key, budget).await? {
                            return Ok((Some(first), revision));
                        }
                    }
                },
            }
        }
    }

    /// Describes the first claim of the queue. For a cooldown, also reports how much of it is left, unless that cannot
    /// be read.
    pub(super) async fn shown(&self, first: &KeyValue, budget: &RetryBudget<'_>) -> HolderInfo {
        let mut held = value::held(first);
        if held.in_cooldown
            && let Ok(answer) = limited(budget, Effect::None, self.client.time_to_live(first.lease)).await
            && let Ok(seconds) = u64::try_from(answer.ttl)
        {
            let left = Duration::from_secs(seconds + 1);
            held.held_for = held.lapses_within.map(|rest| rest.saturating_sub(left));
            held.lapses_within = Some(left);
        }
        held
    }

    /// Returns the keys in the queue of `name` that were created up to the revision `create` (0: all), in order. Reads
    /// all keys below the name, including those of other locks.
    pub(super) async fn line_until(
        &self,
        name: &LockName,
        create: i64,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Vec<KeyValue>, StoreError> {
        let line = self.keys.line(name);
        let (mut from, mut found) = (line.key, Vec::new());
        loop {
            let request = requests::page(from.clone(), line.end.clone(), PAGE, create);
            let answer = self.range(request, budget).await?;
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

    /// Returns one page of the names that begin with `prefix`, and the start of the next page.
    pub(super) async fn names(
        &self,
        prefix: &str,
        from: Vec<u8>,
        end: Vec<u8>,
    ) -> Result<(Vec<LockName>, Option<Vec<u8>>), StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        loop {
            let request = requests::page(from.clone(), end.clone(), PAGE, 0);
            match limited(&budget, Effect::None, self.client.range(request)).await {
                Ok(answer) => {
                    let next = answer.kvs.last().filter(|_| answer.more).map(|kv| keys::after(&kv.key));
                    let names = answer.kvs.iter().filter_map(|kv| self.keys.lock_of(&kv.key));
                    return Ok((names.filter(|name| name.as_str().starts_with(prefix)).collect(), next));
                }
                Err(error) => budget.pause_after(error.into_store_error()).await?,
            }
        }
    }

    pub(super) async fn end_grant(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        // The key of a delete whose effect is unknown. If the key no longer exists, the delete was applied.
        let mut asked: Option<Vec<u8>> = None;
        loop {
            let first = self.first(name, &mut budget).await?.0;
            let gone = |first: &KeyValue| asked.as_ref().is_some_and(|asked| *asked != first.key);
            let Some(first) = first.filter(|first| !gone(first)) else {
                return Ok(if asked.is_some() { Evicted::Evicted } else { Evicted::Changed });
            };
            let Owner::Ours(value) = value::read(&first) else { return Err(not_ours_to_evict(name)) };
            if value::token(&first, &value) != Some(token) {
                return Ok(Evicted::Changed);
            }
            let mark = self.keys.mark(value.claim);
            let mark = Some((mark.as_slice(), first.lease)).filter(|_| first.lease != 0);
            let request = requests::end(&first.key, first.mod_revision, mark);
            match limited(&budget, Effect::Writes, self.client.txn(Effect::Writes, &request)).await {
                Ok(answer) if answer.succeeded => return Ok(Evicted::Evicted),
                // The key was written or deleted in the meantime, or its lease has ended.
                Ok(_) | Err(EtcdError::NoLease) => budget.pause_after_conflict().await?,
                Err(error) => {
                    let error = error.into_store_error();
                    if matches!(error, StoreError::MaybeApplied(_)) {
                        asked = Some(first.key);
                    }
                    budget.pause_after(error).await?;
                }
            }
        }
    }

    pub(super) async fn status(&self, name: &LockName) -> Result<Status, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let line = self.keys.line(name);
        let answer = self.range(requests::oldest(&line, 1 + MAX_WAITERS), &mut budget).await?;
        let (oldest, is_cut_off) = (answer.kvs.len(), answer.more);
        let mut queue: Vec<_> =
            answer.kvs.into_iter().filter(|kv| self.keys.is_in_line(name, &kv.key)).collect();
        if is_cut_off && queue.len() < oldest {
            // Keys of other locks are among the oldest.
            queue.clear();
            for kv in self.line_until(name, 0, &mut budget).await?.into_iter().take(1 + MAX_WAITERS) {
                queue.extend(self.key(&kv.key, &mut budget).await?.0);
            }
        }
        let mut queue = queue.into_iter();
        let Some(first) = queue.next() else { return Ok(Status::new(name.clone(), State::Free)) };
        let held = self.shown(&first, &budget).await;
        let token = held.token;
        let mut status = Status::new(name.clone(), State::Held(held));
        status.token = token;
        status.waiters = queue.filter_map(|kv| value::waiter(&kv)).collect();
        Ok(status)
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
