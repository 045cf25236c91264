//! [`Locks`]: several locks at once.

use std::time::Duration;

use super::guard::Guard;
use super::thread::wait;
use crate::error::Result;
use crate::lease::HolderInfo;
use crate::settings::settings;
use crate::types::LockName;

/// A handle to several locks that are acquired together, all or none. See [`crate::Locks`]. Cheap to clone.
///
/// ```
/// use leasehold::{ErrorKind, blocking::Locker};
///
/// let locker = Locker::open("mem:")?;
/// let guard = locker.lock_all(["deploy/us", "deploy/eu"]).acquire()?;
/// assert_eq!(guard.tokens()?.len(), 2);
/// assert_eq!(locker.lock("deploy/eu").try_acquire().unwrap_err().kind(), ErrorKind::Held);
/// guard.release()?;
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Locks {
    lock: crate::Locks,
}

impl Locks {
    pub(super) fn new(lock: crate::Locks) -> Self {
        Self { lock }
    }

    settings!();

    /// Makes acquisitions ignore the lines of waiters. See [`crate::Locks::barge`].
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.lock = self.lock.barge();
        self
    }

    /// Calls `callback` with the name and the holder of the lock that an acquisition waits for. See
    /// [`crate::Locks::on_wait_for`].
    #[must_use]
    pub fn on_wait_for(mut self, callback: impl Fn(&LockName, &HolderInfo) + Send + Sync + 'static) -> Self {
        self.lock = self.lock.on_wait_for(callback);
        self
    }

    /// Acquires all of the locks, waiting for as long as it takes.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locks::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.lock.acquire()).map(Guard::new)
    }

    /// Acquires all of the locks if they are free now.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locks::try_acquire`].
    pub fn try_acquire(&self) -> Result<Guard> {
        wait(self.lock.try_acquire()).map(Guard::new)
    }

    /// Acquires all of the locks, waiting for at most `limit` in total.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Locks::acquire_within`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        wait(self.lock.acquire_within(limit)).map(Guard::new)
    }
}
