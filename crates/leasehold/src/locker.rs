//! [`Locker`]: where locks come from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{BoxStream, StreamExt};

use crate::doctor::{self, Examination, Report};
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::{
    Capabilities, Evicted, Held, Holder, LeaseStore, Released, Renewal, State, Status, StoreOptions, Swept,
    Token,
};
use crate::runtime::queue::Queues;
use crate::runtime::renewer::{Hold, Opened};
use crate::stores;
use crate::ticket::Ticket;
use crate::types::LockName;
use crate::url::StoreUrl;

/// A store, and the locks on it. Cheap to clone; clones share their connections and their queues.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let guard = locker.lock("nightly").acquire().await?;
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locker(Arc<Shared>);

struct Shared {
    opened: Arc<Opened>,
    queues: Queues<Hold>,
    /// The queues in front of what is made of several locks.
    places: Queues<Hold>,
    /// What this process says of itself in records.
    holder: Holder,
}

impl Locker {
    /// Opens the store that `url` names: `sqlite:path.db`, `s3://bucket/prefix`, `dynamodb://table`, `mem:`. See
    /// [`stores::STORES`].
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad URL or an unknown option,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) for a store that was not built in; what the store says.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, StoreOptions::default()).await
    }

    /// [`open`](Self::open) with settings from code. What the URL says overrides them.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub async fn open_with(url: &str, options: StoreOptions) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        let shown = url.to_string();
        let store = stores::open(url, options).await?;
        Ok(Self::sharing(store, Some(shown)))
    }

    /// Locks on a store of your own.
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        Self::sharing(store, None)
    }

    fn sharing(store: Arc<dyn LeaseStore>, url: Option<String>) -> Self {
        Self(Arc::new(Shared {
            opened: Arc::new(Opened::new(store, url)),
            queues: Queues::default(),
            places: Queues::default(),
            holder: Holder::this_process(),
        }))
    }

    /// The state of one lock, now. Cancel safe.
    ///
    /// # Errors
    /// What the store says.
    pub async fn inspect(&self, name: &LockName) -> Result<Status> {
        Ok(self.store().inspect(name).await?)
    }

    /// The names of all locks that have a record and start with `prefix`.
    pub fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName>> {
        self.store().list(prefix).map(|name| name.map_err(Error::from)).boxed()
    }

    /// Ends the grant of `name` with `token`, whoever has it, if it still is the current one. Its holder hears of it at
    /// its next renewal, and not before: make sure first that it has stopped.
    ///
    /// Not cancel safe: a dropped call may or may not have had its effect.
    ///
    /// # Errors
    /// What the store says.
    pub async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted> {
        Ok(self.store().evict(name, token).await?)
    }

    /// Waits until nobody has the lock, without acquiring it; `on_wait` is told who has it each time that is learnt.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// What the store says.
    pub async fn wait_free(&self, name: &LockName, on_wait: &(dyn Fn(&Held) + Send + Sync)) -> Result<()> {
        loop {
            match self.store().inspect(name).await?.state {
                State::Free | State::Lapsed(_) => return Ok(()),
                State::Held(held) => {
                    on_wait(&held);
                    self.store().changed(name, &held).await?;
                }
            }
        }
    }

    /// Makes processes that this one has started part of the holder of `guard`: on a store that
    /// [sees dead processes](Capabilities::sees_dead_processes), the death of this process then ends the lock only when these
    /// have ended too. A release and the end of the lease end it as always.
    ///
    /// For a process whose children work under the lock and are not certain to die before it does. Ids of processes that
    /// have ended are left out. Other stores are not asked.
    ///
    /// # Errors
    /// What the store says.
    pub async fn add_processes(&self, guard: &Guard, pids: &[u32]) -> Result<()> {
        for name in guard.names().filter(|_| !pids.is_empty()) {
            self.store().add_processes(name, pids).await?;
        }
        Ok(())
    }

    /// A guard for the lock that `ticket` was made of: renews it, and then keeps it as any other guard does.
    ///
    /// The ticket stays valid, but a guard and another user of the ticket do not know of each other: whoever releases
    /// first ends it for both.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) when the lock was lost meanwhile;
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a ticket of another store ([`Ticket::check_store`]); what the
    /// store says.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        self.check(ticket)?;
        let mut grant = ticket.grant(self.store().env().now());
        match self.store().renew(&mut grant).await? {
            Renewal::Renewed => Ok(Guard::new(self.opened().clone(), grant)),
            Renewal::Lost(loss) => Err(Error::lost(loss)),
        }
    }

    /// Renews the lock that `ticket` was made of, once. Gives how long it is now certainly held.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub async fn renew(&self, ticket: &Ticket) -> Result<Duration> {
        self.check(ticket)?;
        let mut grant = ticket.grant(self.store().env().now());
        match self.store().renew(&mut grant).await? {
            Renewal::Renewed => Ok(grant.deadline.remaining(self.store().env().now())),
            Renewal::Lost(loss) => Err(Error::lost(loss)),
        }
    }

    /// Releases the lock that `ticket` was made of.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a ticket of another store ([`Ticket::check_store`]); what the
    /// store says.
    pub async fn release(&self, ticket: &Ticket) -> Result<Released> {
        self.check(ticket)?;
        let mut grant = ticket.grant(self.store().env().now());
        Ok(self.store().release(&mut grant, None).await?)
    }

    /// A ticket of another store would be answered here with a loss that did not happen.
    fn check(&self, ticket: &Ticket) -> Result<()> {
        self.url().map_or(Ok(()), |url| ticket.check_store(url))
    }

    /// Deletes the record of `name` if the lock has been free for `older_than` by the store's own clock; with `dry_run`, only
    /// finds out whether it would. Tokens go on rising, and who acquires the lock meanwhile has it. With
    /// [`list`](Self::list), for stores that many names were used in once.
    ///
    /// Not cancel safe: a dropped call may or may not have had its effect.
    ///
    /// # Errors
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where deletes are not conditional, or the store's clock is not
    /// to be used (`store_clock=off`); what the store says.
    pub async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept> {
        Ok(self.store().sweep(name, older_than, dry_run).await?)
    }

    /// Creates what the store needs: a file, a table. Harmless when all is there.
    ///
    /// # Errors
    /// What the store says.
    pub async fn init(&self) -> Result<()> {
        Ok(self.store().init().await?)
    }

    /// Examines whether this store is safe for locks: what it must refuse it is asked for, under names of its own that begin
    /// with [`doctor::RESERVED`]. Takes a few seconds and some hundred requests.
    ///
    /// Never fails: what cannot be asked is one of the findings. Not cancel safe: a dropped examination leaves what it has
    /// written, which is in nobody's way.
    ///
    /// ```
    /// # use leasehold::{Locker, doctor::Examination};
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let report = Locker::open("mem:").await?.examine(&Examination::default()).await;
    /// assert!(report.is_safe(), "{report:#?}");
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn examine(&self, examination: &Examination) -> Report {
        doctor::examine(&**self.store(), examination).await
    }

    /// What this store can and cannot do.
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    /// The store itself.
    pub fn store(&self) -> &Arc<dyn LeaseStore> {
        &self.0.opened.store
    }

    /// The URL that it was opened with, without passwords.
    pub fn url(&self) -> Option<&str> {
        self.0.opened.url.as_deref()
    }

    pub(crate) fn opened(&self) -> &Arc<Opened> {
        &self.0.opened
    }

    pub(crate) fn holder(&self) -> &Holder {
        &self.0.holder
    }

    pub(crate) fn queues(&self) -> &Queues<Hold> {
        &self.0.queues
    }

    pub(crate) fn places(&self) -> &Queues<Hold> {
        &self.0.places
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker").field("store", self.store()).field("url", &self.url()).finish()
    }
}
