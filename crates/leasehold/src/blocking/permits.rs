//! [`Semaphore`] and [`RwLock`].

use std::time::Duration;

use super::guard::Guard;
use super::thread::wait;
use crate::error::Result;
use crate::lease::HolderInfo;
use crate::settings::settings;

/// A handle to a semaphore, which has at most N holders at once. See [`crate::Semaphore`]. Cheap to clone.
///
/// ```
/// use leasehold::{ErrorKind, blocking::Locker};
///
/// let render = Locker::open("mem:")?.semaphore("render", 2);
/// let (one, two) = (render.acquire()?, render.acquire()?);
/// assert_eq!(render.try_acquire().unwrap_err().kind(), ErrorKind::Held);
/// drop((one, two));
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Semaphore {
    lock: crate::Semaphore,
}

impl Semaphore {
    pub(super) fn new(lock: crate::Semaphore) -> Self {
        Self { lock }
    }

    settings!();

    /// Acquires a permit, waiting for as long as it takes.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Semaphore::acquire`].
    pub fn acquire(&self) -> Result<Guard> {
        wait(self.lock.acquire()).map(Guard::new)
    }

    /// Acquires a permit if one is free now.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Semaphore::try_acquire`].
    pub fn try_acquire(&self) -> Result<Guard> {
        wait(self.lock.try_acquire()).map(Guard::new)
    }

    /// Acquires a permit, waiting for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Semaphore::acquire_within`].
    pub fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        wait(self.lock.acquire_within(limit)).map(Guard::new)
    }

    /// Changes the number of permits in the store to that of this handle, and returns the number before.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::Semaphore::resize`].
    pub fn resize(&self) -> Result<u64> {
        wait(self.lock.resize())
    }
}

/// A handle to a readers-writer lock, which has several shared holders or one exclusive holder. See [`crate::RwLock`].
/// Cheap to clone.
///
/// ```
/// use leasehold::{ErrorKind, blocking::Locker};
///
/// let index = Locker::open("mem:")?.rw_lock("index");
/// let (one, two) = (index.shared()?, index.shared()?);
/// assert_eq!(index.try_exclusive().unwrap_err().kind(), ErrorKind::Held);
/// drop((one, two));
/// index.exclusive()?.release()?;
/// # Ok::<_, leasehold::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    lock: crate::RwLock,
}

impl RwLock {
    pub(super) fn new(lock: crate::RwLock) -> Self {
        Self { lock }
    }

    settings!();

    /// Sets how many shared holders there can be at once, like [`crate::RwLock::readers`].
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.lock = self.lock.readers(readers);
        self
    }

    /// Changes the number of readers in the store to that of this handle, and returns the number before.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::resize`].
    pub fn resize(&self) -> Result<u64> {
        wait(self.lock.resize())
    }

    /// Acquires a shared hold, waiting for as long as it takes.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::shared`].
    pub fn shared(&self) -> Result<Guard> {
        wait(self.lock.shared()).map(Guard::new)
    }

    /// Acquires a shared hold if one is available now.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::try_shared`].
    pub fn try_shared(&self) -> Result<Guard> {
        wait(self.lock.try_shared()).map(Guard::new)
    }

    /// Acquires a shared hold, waiting for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::shared_within`].
    pub fn shared_within(&self, limit: Duration) -> Result<Guard> {
        wait(self.lock.shared_within(limit)).map(Guard::new)
    }

    /// Acquires the exclusive hold, waiting for as long as it takes.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::exclusive`].
    pub fn exclusive(&self) -> Result<Guard> {
        wait(self.lock.exclusive()).map(Guard::new)
    }

    /// Acquires the exclusive hold if there is neither a shared nor an exclusive holder now.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::try_exclusive`].
    pub fn try_exclusive(&self) -> Result<Guard> {
        wait(self.lock.try_exclusive()).map(Guard::new)
    }

    /// Acquires the exclusive hold, waiting for at most `limit`.
    ///
    /// # Errors
    /// Returns the same errors as [`crate::RwLock::exclusive_within`].
    pub fn exclusive_within(&self, limit: Duration) -> Result<Guard> {
        wait(self.lock.exclusive_within(limit)).map(Guard::new)
    }
}
