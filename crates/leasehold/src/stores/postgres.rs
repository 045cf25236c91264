//! PostgreSQL: one table, whose rows the server changes by its own clock. ShedLock uses the same rows.
//!
//! Each step of a lock is one statement, which decides and writes. `docs/stores/postgres.md` has the layout, the
//! permissions, the limits, and the argument why it is safe.

mod acquire;
mod config;
mod connect;
mod errors;
mod examine;
mod leases;
mod record;
mod rules;
mod schema;
mod server;
mod sessions;
mod statements;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use self::config::Location;
use self::connect::Way;
use self::leases::{PAGE, PostgresLeases, ReleaseAsked};
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Grant, HolderInfo, LeaseStore, PollInterval, Released,
    Renewal, Status, StoreOptions, Swept, Token, Ttl, Watch,
};
use crate::stores::worker::OnWorker;
use crate::types::LockName;
use crate::url::StoreUrl;

/// A poll is a read by primary key.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(20), max: Duration::from_millis(500) };

/// The time limit of operations that have no limit from their caller.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Opens leases in a table of the database that `url` names: `postgres://user@host,host2:5432/database?table=leasehold`.
/// All options: `docs/stores/postgres.md`.
///
/// Sends no request. The server's clock decides when a lease ends, so `store_clock=off` is refused. `margin` is how far
/// that clock may be set ahead without ending a lease early.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::postgres, url::StoreUrl};
///
/// let url = StoreUrl::parse("postgres://deploy@db.example.com/app?password_env=DB_PASSWORD")?;
/// let store = postgres::open(url, StoreOptions::default()).await?;
/// store.init().await?; // creates the table if there is none
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad URL and for files that cannot be read.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let connect = move || Ok(PostgresLeases::new(Way::to(location)?, options.env, options.margin));
    Ok(Arc::new(PostgresStore(OnWorker::open("PostgreSQL", connect).await?)))
}

/// The leases of one table, as callers see them. Each call is a job on the thread of the store, so that a future which
/// its caller no longer polls keeps no connection.
#[derive(Debug)]
struct PostgresStore(OnWorker<PostgresLeases>);

/// A copy of `grant` for the thread of the store.
fn copy(grant: &Grant) -> Grant {
    Grant {
        name: grant.name.clone(),
        memo: grant.memo.as_ref().map(|_| Box::new(ReleaseAsked) as Box<_>),
        ..*grant
    }
}

#[async_trait]
impl LeaseStore for PostgresStore {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let claim = claim.clone();
        self.0.run(|leases| async move { leases.acquire(&claim).await }).await?
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.0
            .run_on(grant, copy(grant), |leases, mut grant| async move {
                let renewal = leases.prolong(&mut grant).await;
                (grant, renewal)
            })
            .await?
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        self.0
            .run_on(grant, copy(grant), move |leases, mut grant| async move {
                let released = leases.end(&mut grant, cooldown).await;
                if grant.token.get() == 0 {
                    // The claim was withdrawn, and does not wait any more.
                    leases.leave(&grant.name, grant.id).await;
                }
                (grant, released)
            })
            .await?
    }

    fn may_have_place(&self, claim: &Claim) -> bool {
        claim.waits && !claim.barges
    }

    async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError> {
        let name = name.clone();
        self.0.run(|leases| async move { leases.end_by_token(&name, token).await }).await?
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let name = name.clone();
        self.0
            .run(|leases| async move {
                let record = leases.record(&name, &mut leases.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await?;
                Ok(rules::status(name, record))
            })
            .await?
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        // The last name of the previous page. `None` after the last page.
        let pages = stream::try_unfold(Some(None::<String>), move |after| {
            let prefix = prefix.clone();
            async move {
                let Some(after) = after else { return Ok(None) };
                let page = self.0.run(|leases| async move { leases.names(&prefix, after.as_deref()).await });
                let names = page.await??;
                let next = if names.len() == PAGE { Some(names.last().cloned()) } else { None };
                Ok(Some((names, next)))
            }
        });
        // leasehold did not write names that are not lock names.
        let names = pages.map_ok(|names| {
            stream::iter(names).map(LockName::new).filter_map(async |name| name.ok().map(Ok))
        });
        names.try_flatten().boxed()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.0.run(|leases| async move { leases.make_table().await }).await?
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        let name = name.clone();
        self.0.run(|leases| async move { leases.swept(&name, older_than, dry_run).await }).await?
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("PostgreSQL", POLL_INTERVAL);
        capabilities.line = Some("the column `waiters` of a lock's row");
        capabilities.permits_in_order = true;
        capabilities
    }

    fn env(&self) -> &Env {
        &self.0.leases.env
    }
}

#[async_trait]
impl Watch for PostgresStore {
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let (claim, seen) = (claim.clone(), seen.clone());
        self.0.run(|leases| async move { leases.until_turn(&claim, &seen).await }).await?
    }

    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let (name, seen) = (name.clone(), seen.clone());
        self.0.run(|leases| async move { leases.until_changed(&name, &seen).await }).await?
    }
}

#[async_trait]
impl Diagnose for PostgresStore {
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let name = name.clone();
        self.0.run(|leases| async move { leases.discarded(&name).await }).await?
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.0.run(|leases| async move { leases.examined().await }).await.unwrap_or_default()
    }
}

impl Drop for PostgresStore {
    fn drop(&mut self) {
        let sessions = self.0.leases.sessions.clone();
        self.0.finish(async move { sessions.close_idle() });
    }
}
