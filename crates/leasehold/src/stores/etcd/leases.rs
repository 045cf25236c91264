//! The leases of one cluster, and the reads. All of this runs on the thread of the store
//! ([`worker`](crate::worker)).

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;

use super::client::Client;
use super::errors::Effect;
use super::keys::{self, Keys, Keyspace, Names};
use super::requests;
use super::session::{Session, limited};
use super::value;
use super::watch::Watcher;
use super::wire::{KeyValue, RangeRequest, RangeResponse, TxnRequest, TxnResponse};
use crate::env::Env;
use crate::error::StoreError;
use crate::lease::{HolderInfo, Id, MAX_WAITERS, State, Status, Ttl, attempt_limit};
use crate::retry::RetryBudget;
use crate::types::LockName;

/// The number of keys in a page.
const PAGE: i64 = 1_000;

/// The start of a page, and the names of the pages before it that may recur.
pub(super) type Position = (Vec<u8>, Names);

/// The leases of one cluster.
#[derive(Debug)]
pub(super) struct EtcdLeases {
    pub(super) client: Arc<Client>,
    pub(super) keys: Keys,
    pub(super) env: Env,
    /// The runtime of the store's thread.
    pub(super) home: Handle,
    pub(super) watcher: Watcher,
    /// The leases that claims share, one for each ttl and lease duration.
    sessions: Mutex<Vec<Arc<Session>>>,
    /// The lease of each claim that is in the queue or was granted.
    claims: Mutex<HashMap<Id, Arc<Session>>>,
}

impl EtcdLeases {
    /// Must be called on the store's thread or on a blocking thread of its runtime.
    pub(super) fn new(client: Arc<Client>, prefix: String, env: Env) -> Self {
        let watcher = Watcher::new(client.clone(), env.clone());
        let (sessions, claims) = (Mutex::default(), Mutex::default());
        Self { client, keys: Keys::new(prefix), env, home: Handle::current(), watcher, sessions, claims }
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
    pub(super) async fn page(
        &self,
        prefix: &str,
        from: Option<Position>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(Vec<LockName>, Option<Position>), StoreError> {
        let Keyspace { key, end } = self.keys.of_locks(prefix);
        let (from, mut known) = from.unwrap_or((key, Names::default()));
        let answer = self.range(requests::page(from, end, PAGE, 0), budget).await?;
        let names = answer.kvs.iter().filter_map(|kv| self.keys.lock_of(&kv.key));
        let names = names.filter(|name| name.as_str().starts_with(prefix));
        let names = names.filter_map(|name| known.fresh(name)).collect();
        let next = answer.kvs.last().filter(|_| answer.more).map(|kv| keys::after(&kv.key));
        Ok((names, next.map(|next| (next, known))))
    }

    pub(super) async fn read_status(
        &self,
        name: &LockName,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Status, StoreError> {
        let line = self.keys.line(name);
        let answer = self.range(requests::oldest(&line, 1 + MAX_WAITERS), budget).await?;
        let (oldest, is_cut_off) = (answer.kvs.len(), answer.more);
        let mut queue: Vec<_> =
            answer.kvs.into_iter().filter(|kv| self.keys.is_in_line(name, &kv.key)).collect();
        if is_cut_off && queue.len() < oldest {
            // Keys of other locks are among the oldest.
            queue.clear();
            for kv in self.line_until(name, 0, budget).await?.into_iter().take(1 + MAX_WAITERS) {
                queue.extend(self.key(&kv.key, budget).await?.0);
            }
        }
        let mut queue = queue.into_iter();
        let Some(first) = queue.next() else { return Ok(Status::new(name.clone(), State::Free)) };
        let held = self.shown(&first, budget).await;
        let mut status = Status::new(name.clone(), State::Held(held));
        status.waiters = queue.filter_map(|kv| value::waiter(&kv)).collect();
        Ok(status)
    }
}
