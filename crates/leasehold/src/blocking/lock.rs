//! [`Lock`]: a named lock and its acquisition.

use std::time::Duration;

use super::election::Election;
use super::guard::Guard;
use super::locks::Locks;
use super::once::OncePer;
use super::permits::{RwLock, Semaphore};
use super::thread::wait;
use crate::error::Result;
use crate::lease::{Holder, HolderInfo, Secret, Token};
use crate::settings::settings;
use crate::ticket::HeldTicket;
use crate::types::{LockName, OnDeadlock};

/// A handle to a named lock, with the settings for acquiring it. See [`crate::Lock`]. Cheap to clone.
///
/// ```
/// use std::time::Duration;
/// use leasehold::{ErrorKind, blocking::Locker};
///
/// let lock = Locker::open("mem:")?.lock("deploy/prod").ttl(Duration::from_secs(10));
/// let guard = lock.acquire()?;
/// let refused = lock.try_acquire().unwrap_err();
/// assert_eq!(refused.kind(), ErrorKind::Held);
/// guard.release()?;
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Lock {
    lock: crate::Lock,
}

impl Lock {
    pub(super) fn new(lock: crate::Lock) -> Self {
        Self { lock }
    }

    settings!();

    /// Makes acquisitions ignore the line of waiters. See [`crate::Lock::barge`].
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.lock = self.lock.barge();
        self
    }

    /// Says that the caller holds `guard` until the acquisition ends. See [`crate::Lock::while_holding`].
    #[must_use]
    pub fn while_holding(mut self, guard: &Guard) -> Self {
        if let Ok(guard) = guard.held() {
            self.lock = self.lock.while_holding(guard);
        }
        self
    }

    /// Says that another process holds `lock` until the acquisition ends. See [`crate::Lock::while_other_holds`].
    #[must_use]
    pub fn while_other_holds(mut self, lock: LockName, token: Token) -> Self {
        self.lock = self.lock.while_other_holds(lock, token);
        self
    }

    /// Sets another process as the holder. See [`crate::Lock::on_behalf_of`].
    #[must_use]
    pub fn on_behalf_of(mut self, holder: Holder) -> Self {
        self.lock = self.lock.on_behalf_of(holder);
        self
    }

    /// Sets what happens if the acquisition is in a cycle of waiters. See [`crate::Lock::on_deadlock`].
    #[must_use]
    pub fn on_deadlock(mut self, action: OnDeadlock) -> Self {
        self.lock = self.lock.on_deadlock(action);
        self
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.lock.acquire()).map(Guard::new)
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held) if it is not free. Otherwise, returns the same errors as
    /// [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Guard> {
        wait(self.lock.try_acquire()).map(Guard::new)
    }

    /// Acquires the lock, waiting for at most `limit`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held) if the lock was not acquired within `limit`. Otherwise,
    /// returns the same errors as [`crate::Lock::acquire_within`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        wait(self.lock.acquire_within(limit)).map(Guard::new)
    }

    /// Acquires the lock as a [`Ticket`](crate::Ticket), under an `id` that the caller chooses, waiting for at most
    /// `limit`. The call can be repeated with the same `secret`. See [`crate::Lock::acquire_ticket`].
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Lock::acquire_ticket`].
    pub fn acquire_ticket(&self, secret: Secret, limit: Duration) -> Result<HeldTicket> {
        wait(self.lock.acquire_ticket(secret, limit))
    }

    /// Runs `body` while holding the lock, and releases it afterwards.
    ///
    /// If the lock is lost, the body is not stopped. See [`Guard::check`].
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lock was lost before it was released. The output of the body
    ///   is dropped, because the work may not have been protected until its end.
    /// - Otherwise, the same errors as [`acquire`](Self::acquire).
    ///
    /// ```
    /// let lock = leasehold::blocking::Locker::open("mem:")?.lock("report");
    /// let pages = lock.with(|guard| {
    ///     println!("token {:?}", guard.token());
    ///     3
    /// })?;
    /// assert_eq!(pages, 3);
    /// # Ok::<_, leasehold::Error>(())
    /// ```
    pub fn with<T>(&self, body: impl FnOnce(&Guard) -> T) -> Result<T> {
        let mut guard = self.acquire()?;
        let output = body(&guard);
        wait(guard.take()?.release_held())?;
        Ok(output)
    }

    /// Returns this lock and the locks `names`, to acquire together. See [`crate::Lock::and`].
    #[must_use]
    pub fn and(self, names: impl IntoIterator<Item = impl Into<String>>) -> Locks {
        Locks::new(self.lock.and(names))
    }

    /// Returns a job that runs once per `period`. See [`crate::Lock::once_per`].
    #[must_use]
    pub fn once_per(self, period: Duration) -> OncePer {
        OncePer::new(self.lock.once_per(period))
    }

    /// Returns a semaphore with this name and these settings. See [`crate::Lock::semaphore`].
    #[must_use]
    pub fn semaphore(self, permits: usize) -> Semaphore {
        Semaphore::new(self.lock.semaphore(permits))
    }

    /// Returns a readers-writer lock with this name and these settings. See [`crate::Lock::rw_lock`].
    #[must_use]
    pub fn rw_lock(self) -> RwLock {
        RwLock::new(self.lock.rw_lock())
    }

    /// Returns an election with this name and these settings. See [`crate::Lock::election`].
    #[must_use]
    pub fn election(self) -> Election {
        Election::new(self.lock.election())
    }
}
