//! [`Locker`]: an open store and the locks in it.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{BoxStream, StreamExt};
use tracing::{Instrument, info_span};

use crate::clock::Deadline;
use crate::error::{Error, Result};
use crate::guard::{Guard, no_cooldown, release_all};
use crate::lease::{
    Capabilities, Evicted, Eviction, Grant, Holder, HolderInfo, LeaseStore, Released, Renewal, Secret, State,
    Status, StoreOptions, Swept, Token, Ttl,
};
use crate::observe::Observer;
use crate::proof::doctor::{self, Examination, Report};
use crate::runtime::limit::Limit;
use crate::runtime::open_store::OpenStore;
use crate::runtime::queue::Queues;
use crate::runtime::renewer::Hold;
use crate::stores;
use crate::ticket::{HeldTicket, Ticket};
use crate::types::LockName;
use crate::url::StoreUrl;

/// An open store and the locks in it.
///
/// Cheap to clone. Clones share their connections and their queues.
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
    opened: Arc<OpenStore>,
    queues: Queues<Hold>,
    /// The queues of semaphores and readers-writer locks, each of which consists of several locks.
    permit_queues: Queues<Hold>,
    /// How records describe this process.
    holder: Holder,
}

impl Locker {
    /// Opens the store that `url` names, such as `sqlite:path.db`, `s3://bucket/prefix`, `dynamodb://table` or `mem:`.
    /// [`stores::STORES`] lists all stores.
    ///
    /// Cancel safe, except that the file of SQLite, or the table of DynamoDB with `create=true`, may already have been
    /// created.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the URL is malformed or has an unknown option.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): this build does not include the store.
    /// - Any error from the store.
    pub async fn open(url: &str) -> Result<Self> {
        Self::open_with(url, StoreOptions::default()).await
    }

    /// Opens a store like [`open`](Self::open), with the given settings. Options in the URL override them.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub async fn open_with(url: &str, options: StoreOptions) -> Result<Self> {
        let url = StoreUrl::parse(url)?;
        let (shown, store_id) = (url.to_string(), url.identity().to_string());
        let store = stores::open(url, options).await?;
        Ok(Self::sharing(OpenStore::new(store, Some(shown), Some(store_id))))
    }

    /// Creates a locker for a store that you opened or implemented yourself. It has no URL, so a ticket of another store is
    /// not refused, but counts as lost.
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        Self::sharing(OpenStore::new(store, None, None))
    }

    /// Returns a locker for the same store that reports to `observer` in addition to the observers of this locker.
    ///
    /// The new locker does not share its queues with this one, so call this right after opening the store.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use leasehold::observe::{Event, Observer};
    ///
    /// struct Log;
    ///
    /// impl Observer for Log {
    ///     fn observe(&self, event: &Event<'_>) {
    ///         println!("{event:?}"); // requests, waits, acquired, renewed, lost, released, evicted
    ///     }
    /// }
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?.observed_by(Arc::new(Log));
    /// locker.lock("deploy").acquire().await?.release().await?;
    /// # Ok::<_, leasehold::Error>(()) }).unwrap();
    /// ```
    #[must_use]
    pub fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        Self::sharing(self.0.opened.observed_by(observer))
    }

    /// Returns the part of the URL that identifies the store, without passwords. Returns `None` for a store that was not
    /// opened with a URL.
    pub fn store_id(&self) -> Option<&str> {
        self.0.opened.store_id.as_deref()
    }

    fn sharing(opened: OpenStore) -> Self {
        Self(Arc::new(Shared {
            opened: Arc::new(opened),
            queues: Queues::default(),
            permit_queues: Queues::default(),
            holder: Holder::this_process(),
        }))
    }

    /// Returns the current state of one lock. Cancel safe.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn inspect(&self, name: &LockName) -> Result<Status> {
        Ok(self.store().inspect(name).await?)
    }

    /// Lists the names of all locks that have a record and whose names start with `prefix`.
    ///
    /// # Errors
    /// An error from the store is an item of the stream. The listing is then incomplete.
    pub fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName>> {
        self.store().list(prefix).map(|name| name.map_err(Error::from)).boxed()
    }

    /// Ends the grant of `name` that has this `token`, if it is still the current grant.
    ///
    /// The holder may be any process. It learns of the eviction only at its next renewal, so first make sure that it
    /// has stopped.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted> {
        let span = info_span!("leasehold.evict", lock = %name, token = token.get());
        Ok(self.store().evict(name, token, None).instrument(span).await?)
    }

    /// Does the same as [`evict`](Self::evict). On stores with a [history](Status::history), which are all but etcd and
    /// Azure's own leases, the history also records who decided it and why.
    ///
    /// Not cancel safe, like [`evict`](Self::evict).
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn evict_for(&self, name: &LockName, token: Token, why: &Eviction) -> Result<Evicted> {
        let span = info_span!("leasehold.evict", lock = %name, token = token.get());
        Ok(self.store().evict(name, token, Some(why)).instrument(span).await?)
    }

    /// Waits until the lock is free or its lease has lapsed, without acquiring it.
    ///
    /// Calls `on_wait` each time this learns who holds the lock. Cancel safe.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn wait_free(
        &self,
        name: &LockName,
        on_wait: &(dyn Fn(&HolderInfo) + Send + Sync),
    ) -> Result<()> {
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

    /// Adds processes, such as children of this process, to the holder of `guard`.
    ///
    /// On a store that [detects dead processes](Capabilities::sees_dead_processes), the lock then counts as abandoned
    /// only when this process and all added processes have ended. A release and the end of the lease still end the hold
    /// as before. Use this if child processes work under the lock and may outlive their parent.
    ///
    /// Ids of processes that have already ended are ignored. On other stores, this does nothing.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect. The call may be repeated.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn add_processes(&self, guard: &Guard, pids: &[u32]) -> Result<()> {
        for name in guard.all_names().filter(|_| !pids.is_empty()) {
            self.store().add_processes(name, pids).await?;
        }
        Ok(())
    }

    /// Renews the lock of `ticket` and returns a guard, which keeps it like any other guard.
    ///
    /// The ticket remains valid. The guard and the other users of the ticket are not coordinated: the first one that
    /// releases the lock ends the hold for all of them.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect. The call may be repeated.
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lock was lost in the meantime, or is at its
    ///   [limit](crate::Lock::max_hold), and was released.
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the ticket belongs to another store
    ///   ([`Ticket::check_store`]).
    /// - Any error from the store.
    pub async fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        self.check(ticket)?;
        let renewed = self.renewed(ticket).await?.into_iter();
        let guards = renewed.map(|(grant, limit)| Guard::new(self.opened().clone(), grant, limit)).collect();
        let guard = Guard::together(guards, ticket.are_named());
        guard.ok_or_else(|| Error::invalid("the ticket holds no lock"))
    }

    /// Renews the lock of `ticket` once. Returns the ticket with the time for which the lock is now certain to be held.
    ///
    /// Not cancel safe, like [`resume`](Self::resume).
    ///
    /// # Errors
    /// Returns the same errors as [`resume`](Self::resume).
    pub async fn renew(&self, ticket: &Ticket) -> Result<HeldTicket> {
        self.check(ticket)?;
        let renewed = self.renewed(ticket).await?.into_iter();
        let deadlines = renewed.map(|(grant, limit)| Limit::of_lease(limit, grant.deadline));
        let deadline = deadlines.reduce(Deadline::earliest);
        let deadline = deadline.ok_or_else(|| Error::invalid("the ticket holds no lock"))?;
        Ok(HeldTicket::new(ticket.clone(), deadline, self.store().env().clone()))
    }

    /// Renews all locks of `ticket`. If one of them is lost, the others lapse: another user of the ticket may still work.
    async fn renewed(&self, ticket: &Ticket) -> Result<Vec<(Grant, Option<Limit>)>> {
        let tickets: Vec<_> = ticket.each().collect();
        let renewed = join_all(tickets.iter().map(|ticket| self.renewed_one(ticket))).await;
        let lost = renewed.iter().find_map(|renewed| renewed.as_ref().err()?.loss()).cloned();
        if let Some(loss) = lost {
            return Err(Error::lost(loss));
        }
        renewed.into_iter().collect()
    }

    /// Renews the lock of `ticket`. Returns the limit of the hold too. At the limit, the lock is lost, but not released:
    /// another user of the ticket may not have reached the limit, because the time of the grant is an estimate.
    async fn renewed_one(&self, ticket: &Ticket) -> Result<(Grant, Option<Limit>)> {
        let env = self.store().env();
        let mut grant = ticket.grant(env.now());
        let span = info_span!("leasehold.renew", lock = %grant.name, token = grant.token.get());
        async {
            let limit = Limit::of_ticket(ticket, self.opened()).await?;
            Limit::check(limit, &grant.name, grant.token, env.now())?;
            if let Renewal::Lost(loss) = self.store().renew(&mut grant).await? {
                return Err(Error::lost(loss));
            }
            Limit::check(limit, &grant.name, grant.token, env.now())?;
            Ok((grant, limit))
        }
        .instrument(span)
        .await
    }

    /// Releases the lock of `ticket`.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect. The call may be repeated.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the ticket belongs to another store
    ///   ([`Ticket::check_store`]).
    /// - Any error from the store.
    pub async fn release(&self, ticket: &Ticket) -> Result<Released> {
        self.end(ticket, None, false).await
    }

    /// Releases the lock of `ticket` like [`release`](Self::release), because the work took too long. See
    /// [`Guard::release_at_limit`].
    ///
    /// Not cancel safe, like [`release`](Self::release).
    ///
    /// # Errors
    /// Returns the same errors as [`release`](Self::release).
    pub async fn release_at_limit(&self, ticket: &Ticket) -> Result<Released> {
        self.end(ticket, None, true).await
    }

    /// Releases the lock of `ticket` like [`release`](Self::release). The lock is then not granted for `cooldown`.
    ///
    /// Not cancel safe, like [`release`](Self::release).
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store has
    ///   [no cooldowns](Capabilities::cooldowns), or the ticket holds several locks.
    /// - Otherwise, the same errors as [`release`](Self::release).
    pub async fn release_with_cooldown(&self, ticket: &Ticket, cooldown: Duration) -> Result<Released> {
        if ticket.is_of_several() {
            return Err(no_cooldown(ticket.name()));
        }
        self.end(ticket, Some(cooldown), false).await
    }

    async fn end(&self, ticket: &Ticket, cooldown: Option<Duration>, at_limit: bool) -> Result<Released> {
        self.check(ticket)?;
        release_all(ticket.each(), |ticket| async move { self.end_one(&ticket, cooldown, at_limit).await })
            .await
    }

    async fn end_one(&self, ticket: &Ticket, cooldown: Option<Duration>, at_limit: bool) -> Result<Released> {
        let mut grant = Grant { at_limit, ..ticket.grant(self.store().env().now()) };
        let span = info_span!("leasehold.release", lock = %grant.name, token = grant.token.get());
        Ok(self.store().release(&mut grant, cooldown).instrument(span).await?)
    }

    /// Withdraws the acquisition of `name` that was started with this `secret` by
    /// [`Lock::acquire_ticket`](crate::Lock::acquire_ticket). Ends the hold that the acquisition may have received
    /// unnoticed, and gives up its place in the line. If one of its requests arrives at the store later, it may still
    /// be granted. That grant then lapses.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect. The call may be repeated.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn withdraw(&self, name: &LockName, secret: Secret) -> Result<Released> {
        let mut grant = Grant::withdrawn(name.clone(), secret.id(), Ttl::DEFAULT, self.store().env().now());
        let span = info_span!("leasehold.release", lock = %grant.name);
        Ok(self.store().release(&mut grant, None).instrument(span).await?)
    }

    /// Refuses a ticket of another store. Without this check, this store would report a loss although the lock is still
    /// held.
    fn check(&self, ticket: &Ticket) -> Result<()> {
        self.url().map_or(Ok(()), |url| ticket.check_store(url))
    }

    /// Deletes the record of `name` if the lock has been free for `older_than`, as measured by the store's own clock.
    ///
    /// With `dry_run`, this only determines whether it would delete the record. Tokens continue to rise after a delete.
    /// If another process acquires the lock in the meantime, its hold is not affected. Together with
    /// [`list`](Self::list), this cleans up a store in which many names were used once.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect.
    ///
    /// # Errors
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store has no conditional deletes, or its clock
    ///   must not be used (`store_clock=off`).
    /// - Any error from the store.
    pub async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept> {
        Ok(self.store().sweep(name, older_than, dry_run).await?)
    }

    /// Creates everything that the store needs, such as a file or a table. Does nothing if it already exists.
    ///
    /// Not cancel safe: a dropped call may or may not have had an effect. The call may be repeated.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub async fn init(&self) -> Result<()> {
        Ok(self.store().init().await?)
    }

    /// Examines whether this store is safe for locks.
    ///
    /// Sends requests that a safe store must refuse, under names that begin with [`doctor::RESERVED`] or
    /// `.leasehold-probe`. Takes a few seconds, and sends up to about 1,700 requests to a bucket and fewer to most other
    /// stores. With [`Examination::thorough`], takes minutes and sends about six times as many requests.
    ///
    /// Returns no error: a failed request is one of the findings. Not cancel safe: a dropped examination leaves behind
    /// the data that it has written. This data does not affect any lock.
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

    /// Returns the capabilities of this store.
    pub fn capabilities(&self) -> Capabilities {
        self.store().capabilities()
    }

    /// Returns the store. Direct requests to it are also reported to the observers.
    pub fn store(&self) -> &Arc<dyn LeaseStore> {
        &self.0.opened.store
    }

    /// Returns the URL with which the store was opened, without passwords.
    pub fn url(&self) -> Option<&str> {
        self.0.opened.url.as_deref()
    }

    pub(crate) fn opened(&self) -> &Arc<OpenStore> {
        &self.0.opened
    }

    pub(crate) fn holder(&self) -> &Holder {
        &self.0.holder
    }

    pub(crate) fn queues(&self) -> &Queues<Hold> {
        &self.0.queues
    }

    pub(crate) fn permit_queues(&self) -> &Queues<Hold> {
        &self.0.permit_queues
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locker").field("store", self.store()).field("url", &self.url()).finish()
    }
}
