//! [`Lock`]: a named lock, and how to acquire it.

use std::time::Duration;

use super::election::Election;
use super::guard::Guard;
use super::once::OncePer;
use super::permits::{RwLock, Semaphore};
use super::thread::wait;
use crate::error::Result;
use crate::lease::HolderInfo;
use crate::settings::settings;

/// A lock: a name, and the settings for its acquisitions, as [`crate::Lock`]. Cheap to clone.
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

    /// Takes the lock as soon as it is free, without regard to the line of waiters, as [`crate::Lock::barge`].
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.lock = self.lock.barge();
        self
    }

    /// Acquires the lock, waiting for as long as it takes.
    ///
    /// # Errors
    /// As [`crate::Lock::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.lock.acquire()).map(Guard::new)
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) if it is not; otherwise as [`crate::Lock::try_acquire`].
    pub fn try_acquire(&self) -> Result<Guard> {
        wait(self.lock.try_acquire()).map(Guard::new)
    }

    /// Acquires the lock, waiting for at most `limit`.
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) if it was not free within `limit`; otherwise as
    /// [`crate::Lock::acquire_within`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        wait(self.lock.acquire_within(limit)).map(Guard::new)
    }

    /// Runs `body` under the lock, and then releases it.
    ///
    /// The body is not stopped if the lock is lost: see [`Guard::check`].
    ///
    /// # Errors
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): the lock was lost while the body ran. The output of the body is
    ///   dropped, because it may not have been protected until the end.
    /// - As [`acquire`](Self::acquire).
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

    /// A job that runs once per `period`, as [`crate::Lock::once_per`].
    pub fn once_per(self, period: Duration) -> OncePer {
        OncePer::new(self.lock.once_per(period))
    }

    /// A semaphore with this name and these settings, as [`crate::Lock::semaphore`].
    pub fn semaphore(self, permits: usize) -> Semaphore {
        Semaphore::new(self.lock.semaphore(permits))
    }

    /// A readers-writer lock with this name and these settings, as [`crate::Lock::rw_lock`].
    pub fn rw_lock(self) -> RwLock {
        RwLock::new(self.lock.rw_lock())
    }

    /// An election with this name and these settings, as [`crate::Lock::election`].
    pub fn election(self) -> Election {
        Election::new(self.lock.election())
    }
}
