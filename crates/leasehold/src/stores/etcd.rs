//! The etcd store. It uses etcd's leases and transactions, and the key layout of etcd's own lock recipes.
//!
//! A claim enters the queue by creating a key on a lease. Only the oldest key can own the lock. `docs/stores/etcd.md`
//! describes the layout, the permissions, the limits, and why the protocol is safe.

mod acquire;
mod client;
mod config;
mod connect;
mod errors;
mod examine;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod hold;
mod keys;
mod leases;
mod requests;
mod rules;
mod session;
mod value;
mod wait;
mod watch;
mod wire;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::stream::{self, BoxStream, StreamExt};

use self::client::Client;
use self::config::Location;
use self::keys::Names;
use self::leases::EtcdLeases;
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, LeaseStore, PollInterval,
    Released, Renewal, State, Status, StoreOptions, Swept, Token, Watch,
};
use crate::stores::worker::OnWorker;
use crate::types::LockName;
use crate::url::StoreUrl;

/// etcd notifies waiters. They also poll, in case a watch stalls without an error.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_secs(15), max: Duration::from_secs(15) };

/// The time limit of operations whose caller sets none.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens the leases below the prefix and on the cluster that `url` names:
/// `etcd://user:password@host:2379,host2:2379/prefix/?tls=on|off&ca=FILE&cert=FILE&key=FILE`. `docs/stores/etcd.md`
/// describes all options.
///
/// Sends no request. The common options `store_clock` and `margin` have no effect here, because etcd itself ends
/// leases.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::etcd, url::StoreUrl};
///
/// let url = StoreUrl::parse("etcd://etcd-1:2379,etcd-2:2379,etcd-3:2379/locks/?ca=/etc/etcd/ca.pem")?;
/// let store = etcd::open(url, StoreOptions::default()).await?;
/// assert!(store.capabilities().fifo());
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad URL and for files that cannot be read;
/// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the store's thread cannot be started.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let connect = move || {
        let client = Client::new(&location)?;
        Ok(EtcdLeases::new(Arc::new(client), location.prefix, options.env))
    };
    Ok(Arc::new(EtcdStore(OnWorker::open("etcd", connect).await?)))
}

/// The leases of one cluster. Each call runs as a job on the thread of the store.
#[derive(Debug)]
struct EtcdStore(OnWorker<EtcdLeases>);

#[async_trait]
impl LeaseStore for EtcdStore {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let claim = claim.clone();
        self.0.run(|leases| async move { leases.acquire(&claim).await }).await?
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.0
            .run_on(grant, EtcdLeases::copy(grant), |leases, mut grant| async move {
                let renewal = leases.prolong(&mut grant).await;
                (grant, renewal)
            })
            .await?
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        let cooldown = cooldown.filter(|cooldown| !cooldown.is_zero());
        self.0
            .run_on(grant, EtcdLeases::copy(grant), move |leases, mut grant| async move {
                let mut budget = leases.budget(STORE_TIMEOUT, grant.ttl);
                let released = leases.give_up(&mut grant, cooldown, &mut budget).await;
                (grant, released)
            })
            .await?
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        self.0
            .run_on(grant, EtcdLeases::copy(grant), |leases, mut grant| async move {
                let detached = leases.set_apart(&mut grant).await;
                (grant, detached)
            })
            .await?
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        _: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        let name = name.clone();
        self.0.run(|leases| async move { leases.end_grant(&name, token).await }).await?
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let name = name.clone();
        self.0.run(|leases| async move { leases.status(&name).await }).await?
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let space = self.0.leases.keys.of_locks(prefix);
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
                    let (prefix, end) = (prefix.clone(), end.clone());
                    let page =
                        self.0.run(|leases| async move { leases.names(&prefix, begin, end).await }).await??;
                    (read, from) = (page.0.into(), page.1);
                }
            }
        });
        names.boxed()
    }

    /// Deletes nothing, because a free lock has no key, and a cooldown ends with its lease.
    async fn sweep(&self, _: &LockName, _: Duration, _: bool) -> Result<Swept, StoreError> {
        Ok(Swept::Kept)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("etcd", POLL_INTERVAL);
        capabilities.line = Some("the keys of a lock");
        capabilities.permits_in_order = true;
        capabilities.watches = true;
        capabilities.history = false;
        capabilities
    }

    fn env(&self) -> &Env {
        &self.0.leases.env
    }
}

#[async_trait]
impl Watch for EtcdStore {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let (name, seen) = (name.clone(), seen.clone());
        self.0.run(|leases| async move { leases.until_changed(&name, &seen).await }).await?
    }

    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let (claim, seen) = (claim.clone(), seen.clone());
        self.0.run(|leases| async move { leases.until_turn(&claim, &seen).await }).await?
    }

    async fn holder_changed(&self, name: &LockName, seen: &Status) {
        let (name, seen) = (name.clone(), seen.clone());
        // If etcd does not respond, the observer inspects the lock again.
        let _ = self.0.run(|leases| async move { leases.until_holder_changed(&name, &seen).await }).await;
    }

    async fn ended(&self, grant: &Grant) {
        self.until_ended(grant).await;
    }
}

#[async_trait]
impl Diagnose for EtcdStore {
    /// Deletes nothing, because a free lock has no key.
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let status = self.inspect(name).await?;
        Ok(matches!(status.state, State::Free))
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.0.run(|leases| async move { leases.examined().await }).await.unwrap_or_default()
    }
}

impl Drop for EtcdStore {
    /// Revokes the leases that no claim uses. Otherwise they would exist until they expire.
    fn drop(&mut self) {
        let unused: Vec<_> =
            self.0.leases.sessions().drain(..).filter(|session| session.is_empty()).collect();
        let client = self.0.leases.client.clone();
        self.0.finish(async move {
            join_all(unused.iter().map(|session| client.revoke(session.lease))).await;
        });
    }
}

/// The start of the next page, the names that were read but not returned yet, and the names that were returned.
type Listing = (Option<Vec<u8>>, VecDeque<LockName>, Names);

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::process::Command;
    use std::sync::mpsc;
    use std::time::Duration;

    use futures_util::FutureExt;

    use super::*;

    /// The file is a pipe, because opening a pipe for reading blocks until it has a writer.
    #[test]
    fn a_tls_file_on_a_disk_that_hangs_blocks_no_task() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        assert!(Command::new("mkfifo").arg(&file).status().unwrap().success());
        let url = format!("etcd://127.0.0.1:1/?tls=on&ca={}", file.display());
        let (told, polled) = mpsc::channel();
        let opening = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let mut opening = pin!(open(StoreUrl::parse(&url).unwrap(), StoreOptions::default()));
                told.send(opening.as_mut().now_or_never().is_none()).unwrap();
                opening.await.map(drop)
            })
        });
        let pending = polled.recv_timeout(Duration::from_secs(10));
        std::fs::write(&file, "").unwrap();
        assert_eq!(pending, Ok(true), "the thread of the caller was blocked");
        opening.join().unwrap().unwrap();
    }
}
