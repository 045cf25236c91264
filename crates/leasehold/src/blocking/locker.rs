//! [`Locker`]: an open store and the locks in it.

use std::sync::Arc;
use std::time::Duration;

use super::election::Election;
use super::guard::Guard;
use super::lock::Lock;
use super::locks::Locks;
use super::permits::{RwLock, Semaphore};
use super::thread::{iterate, wait};
use crate::error::Result;
use crate::lease::{
    Capabilities, Evicted, Eviction, HolderInfo, LeaseStore, Released, Secret, Status, StoreOptions, Swept,
    Token,
};
use crate::observe::Observer;
use crate::proof::doctor::{Examination, Report};
use crate::ticket::{HeldTicket, Ticket};
use crate::types::LockName;

/// An open store and the locks in it. See [`crate::Locker`]. Cheap to clone.
///
/// ```
/// use leasehold::{LockName, State, blocking::Locker};
///
/// let locker = Locker::open("mem:")?;
/// let guard = locker.lock("deploy/prod").acquire()?;
/// for name in locker.list("deploy/") {
///     let name = name?;
///     println!("{name}: {:?}", locker.inspect(&name)?.state);
/// }
/// drop(guard); // releases it
/// assert!(matches!(locker.inspect(&LockName::new("deploy/prod")?)?.state, State::Free));
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locker(crate::Locker);

impl Locker {
    /// Opens the store that `url` names.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::open`], and
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the background thread cannot be started.
    pub fn open(url: &str) -> Result<Self> {
        wait(crate::Locker::open(url)).map(Self)
    }

    /// Opens a store like [`open`](Self::open), with the given settings. Options in the URL override them.
    ///
    /// # Errors
    /// Returns the same errors as [`open`](Self::open).
    pub fn open_with(url: &str, options: StoreOptions) -> Result<Self> {
        wait(crate::Locker::open_with(url, options)).map(Self)
    }

    /// Creates a locker for a store that you opened or implemented yourself.
    pub fn new(store: Arc<dyn LeaseStore>) -> Self {
        Self(crate::Locker::new(store))
    }

    /// Returns a locker for the same store that also reports to `observer`. See [`crate::Locker::observed_by`].
    #[must_use]
    pub fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        Self(self.0.observed_by(observer))
    }

    /// Returns the lock called `name`. Sends no request. If the name is invalid, the acquisition fails.
    #[must_use]
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.0.lock(name))
    }

    /// Returns the locks with these names, to acquire together. See [`crate::Locker::lock_all`].
    #[must_use]
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl Into<String>>) -> Locks {
        Locks::new(self.0.lock_all(names))
    }

    /// Returns the semaphore called `name` with `permits` permits. See [`crate::Locker::semaphore`].
    #[must_use]
    pub fn semaphore(&self, name: impl Into<String>, permits: usize) -> Semaphore {
        self.lock(name).semaphore(permits)
    }

    /// Returns the readers-writer lock called `name`. See [`crate::Locker::rw_lock`].
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        self.lock(name).rw_lock()
    }

    /// Returns the election called `name`. See [`crate::Locker::election`].
    #[must_use]
    pub fn election(&self, name: impl Into<String>) -> Election {
        self.lock(name).election()
    }

    /// Returns the current state of one lock.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn inspect(&self, name: &LockName) -> Result<Status> {
        wait(self.0.inspect(name))
    }

    /// Lists the names of all locks that have a record and whose names start with `prefix`.
    ///
    /// # Errors
    /// The items of the iterator include the errors of [`crate::Locker::list`].
    pub fn list(&self, prefix: &str) -> impl Iterator<Item = Result<LockName>> {
        iterate(self.0.list(prefix))
    }

    /// Ends the grant of `name` that has this `token`, if it is still the current grant. See [`crate::Locker::evict`].
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn evict(&self, name: &LockName, token: Token) -> Result<Evicted> {
        wait(self.0.evict(name, token))
    }

    /// Ends a grant like [`evict`](Self::evict), and records who evicted its holder and why. See
    /// [`crate::Locker::evict_for`].
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn evict_for(&self, name: &LockName, token: Token, why: &Eviction) -> Result<Evicted> {
        wait(self.0.evict_for(name, token, why))
    }

    /// Waits until the lock is free or its lease has lapsed, without acquiring it. Calls `on_wait` on the calling
    /// thread, each time this learns who holds the lock.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn wait_free(&self, name: &LockName, on_wait: &(dyn Fn(&HolderInfo) + Send + Sync)) -> Result<()> {
        wait(self.0.wait_free(name, on_wait))
    }

    /// Adds processes, such as children of this process, to the holder of `guard`. See
    /// [`crate::Locker::add_processes`].
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn add_processes(&self, guard: &Guard, pids: &[u32]) -> Result<()> {
        wait(self.0.add_processes(guard.held()?, pids))
    }

    /// Renews the lock of `ticket` and returns a guard. See [`crate::Locker::resume`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::resume`].
    pub fn resume(&self, ticket: &Ticket) -> Result<Guard> {
        wait(self.0.resume(ticket)).map(Guard::new)
    }

    /// Renews the lock of `ticket` once. Returns the ticket with the time for which the lock is now certain to be held.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::resume`].
    pub fn renew(&self, ticket: &Ticket) -> Result<HeldTicket> {
        wait(self.0.renew(ticket))
    }

    /// Releases the lock of `ticket`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::release`].
    pub fn release(&self, ticket: &Ticket) -> Result<Released> {
        wait(self.0.release(ticket))
    }

    /// Releases the lock of `ticket`, because the work took too long. See [`crate::Locker::release_at_limit`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::release`].
    pub fn release_at_limit(&self, ticket: &Ticket) -> Result<Released> {
        wait(self.0.release_at_limit(ticket))
    }

    /// Releases the lock of `ticket` with a cooldown. See [`crate::Locker::release_with_cooldown`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::release_with_cooldown`].
    pub fn release_with_cooldown(&self, ticket: &Ticket, cooldown: Duration) -> Result<Released> {
        wait(self.0.release_with_cooldown(ticket, cooldown))
    }

    /// Withdraws the acquisition of `name` that was started with this `secret` by
    /// [`Lock::acquire_ticket`](super::Lock::acquire_ticket). See [`crate::Locker::withdraw`].
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn withdraw(&self, name: &LockName, secret: Secret) -> Result<Released> {
        wait(self.0.withdraw(name, secret))
    }

    /// Deletes the record of `name` if the lock has been free for `older_than`. See [`crate::Locker::sweep`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locker::sweep`].
    pub fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept> {
        wait(self.0.sweep(name, older_than, dry_run))
    }

    /// Creates everything that the store needs, such as a file or a table. Does nothing if it already exists.
    ///
    /// # Errors
    /// Returns any error from the store.
    pub fn init(&self) -> Result<()> {
        wait(self.0.init())
    }

    /// Examines whether this store is safe for locks. See [`crate::Locker::examine`].
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if this is called from a callback of this module. A
    /// failed request is a finding in the report.
    pub fn examine(&self, examination: &Examination) -> Result<Report> {
        wait(async { Ok(self.0.examine(examination).await) })
    }

    /// Returns the capabilities of this store.
    pub fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    /// Returns the underlying store.
    pub fn store(&self) -> &Arc<dyn LeaseStore> {
        self.0.store()
    }

    /// Returns the part of the URL that identifies the store. See [`crate::Locker::store_id`].
    pub fn store_id(&self) -> Option<&str> {
        self.0.store_id()
    }

    /// Returns the URL with which the store was opened, without passwords.
    pub fn url(&self) -> Option<&str> {
        self.0.url()
    }
}
