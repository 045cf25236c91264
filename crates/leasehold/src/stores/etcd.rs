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

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use self::client::Client;
use self::config::Location;
use self::leases::{EtcdLeases, Position};
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::{
    Capabilities, Claim, Eviction, Grant, LeaseStore, LossReason, PollInterval, State, Status, StoreOptions,
    Token,
};
use crate::native::{Ask, Claimed, Ended, NativeLeases, NativeStore, Outcome, Renewed};
use crate::types::LockName;
use crate::url::StoreUrl;

/// etcd notifies waiters. They also poll, in case a watch stalls without an error.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_secs(15), max: Duration::from_secs(15) };

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
    Ok(Arc::new(NativeStore::on_worker("etcd", connect).await?))
}

#[async_trait]
impl NativeLeases for EtcdLeases {
    type Position = Position;

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("etcd", POLL_INTERVAL);
        capabilities.line = Some("the keys of a lock");
        capabilities.permits_in_order = true;
        capabilities.watches = true;
        capabilities.history = false;
        capabilities
    }

    async fn claim(&self, claim: &Claim, ask: &mut Ask<'_>) -> Outcome<Claimed> {
        self.contend(claim, ask).await
    }

    fn gave_up(&self, claim: &Claim) -> bool {
        self.leave_unless_in_line(claim)
    }

    async fn renew(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Renewed> {
        self.confirm(grant, ask).await
    }

    async fn detach(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<Option<Renewed>> {
        self.set_apart(grant, ask).await
    }

    async fn loss(&self, grant: &Grant, ask: &mut Ask<'_>) -> Outcome<LossReason> {
        let request = requests::end_of_claim(&self.keys.mark(grant.id), &self.keys.line(&grant.name));
        Ok(rules::loss(&self.keys, &grant.name, self.read(request, ask).await?))
    }

    async fn end(&self, grant: &Grant, cooldown: Option<Duration>, ask: &mut Ask<'_>) -> Outcome<Ended> {
        self.finish(grant, cooldown, ask).await
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        _: Option<&Eviction>,
        ask: &mut Ask<'_>,
    ) -> Outcome<Ended> {
        self.end_grant(name, token, ask).await
    }

    async fn status(&self, name: &LockName, ask: &mut Ask<'_>) -> Outcome<Status> {
        self.read_status(name, ask).await
    }

    async fn names(
        &self,
        prefix: &str,
        from: Option<Position>,
        ask: &mut Ask<'_>,
    ) -> Outcome<(Vec<LockName>, Option<Position>)> {
        self.page(prefix, from, ask).await
    }

    /// A free lock has no key, and a cooldown ends with its lease.
    fn is_swept(&self) -> bool {
        true
    }

    /// Revokes the leases that no claim uses. Otherwise they would exist until they expire.
    async fn close(&self) {
        let unused: Vec<_> = self.sessions().drain(..).filter(|session| session.is_empty()).collect();
        join_all(unused.iter().map(|session| self.client.revoke(session.lease))).await;
    }
}

#[async_trait]
impl Diagnose for EtcdLeases {
    /// Deletes nothing, because a free lock has no key.
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let status = self.read_status(name, &mut Ask::new(&self.env)).await?;
        Ok(matches!(status.state, State::Free))
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.examined().await
    }
}

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
