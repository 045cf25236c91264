//! [`Semaphore`]: a lock with several permits.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::HolderInfo;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::primitives::permits::{Kind, Permits};
use crate::primitives::resize::resize;
use crate::settings::settings;

/// A handle to a semaphore, which has at most N holders at once, with the settings for acquisitions. Cheap to clone.
///
/// Each permit is an exclusive lock. The permits of a semaphore `render` with three permits are the locks
/// `render/permit-1`, `render/permit-2` and `render/permit-3`. So each permit has the guarantees of a lock, on every
/// store. The [`Guard`] of a permit is an ordinary guard: it is renewed, reports its loss in time, and can be handed on
/// as a ticket.
///
/// Each permit has separate [fencing tokens](Guard::token), which rise from one holder of *that* permit to the next.
/// Tokens of different permits cannot be compared.
///
/// # The number of permits
///
/// The first acquisition records the number of permits in the store, in the record of the first permit. An acquisition that
/// asks for another number fails, and [`Error::sizes`] returns both. [`resize`](Self::resize) changes the number while nobody
/// holds a permit. If the record of the first permit is deleted by hand, the next acquisition records its number.
///
/// Stores without [`sizes`](crate::lease::Capabilities::sizes) do not record it. If users specify different numbers there, at
/// most the largest number of permits is held at once.
///
/// # Requests
///
/// The first grant of each permit costs one more read, of the first permit's record. So does the first one after a resize.
///
/// An acquisition tries the permits one after the other, starting with a random one, until one is free. If none is
/// free, it waits for all of them at once. This costs N times as many requests as waiting for a lock, except that
/// permits that this process holds cost nothing. All waiting tasks of a process are one contender and are served in the
/// order of their arrival. [Most stores](crate::lease::Capabilities::permits_in_order) also keep the order of
/// processes. On some of them, a waiting process joins the line of each permit. On the others, it waits for the lock
/// `render/permit-queue`, and only the holder of that lock waits for the permits.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let semaphore = locker.semaphore("render", 2);
/// let first = semaphore.acquire().await?;
/// let second = semaphore.acquire().await?;
/// assert!(semaphore.try_acquire().await.is_err());
/// first.release().await?;
/// assert!(semaphore.try_acquire().await.is_ok());
/// # second.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Semaphore {
    lock: Lock,
    permits: usize,
}

impl Lock {
    /// Returns a semaphore with this name, these settings, and `permits` permits.
    #[must_use]
    pub fn semaphore(self, permits: usize) -> Semaphore {
        Semaphore::new(self, permits)
    }
}

impl Locker {
    /// Returns the semaphore called `name` with `permits` permits, from 1 to [`Semaphore::MAX_PERMITS`]. Sends no
    /// request. If the name or the number is invalid, acquisitions fail.
    #[must_use]
    pub fn semaphore(&self, name: impl Into<String>, permits: usize) -> Semaphore {
        self.lock(name).semaphore(permits)
    }
}

impl Semaphore {
    /// The maximum number of permits. It is limited because a waiting acquisition sends requests for each permit.
    pub const MAX_PERMITS: usize = 64;

    fn new(lock: Lock, permits: usize) -> Self {
        Self { lock, permits }
    }

    settings!();

    /// Acquires a permit, waiting for as long as it takes. The guard's [name](Guard::name) is the name of the permit.
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives later is released in the background,
    /// or lapses.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the name, the ttl or the number of permits is invalid, or the
    ///   store has [another number](Error::sizes).
    /// - Any error from the store, for any of the permits.
    pub async fn acquire(&self) -> Result<Guard> {
        self.permits()?.acquire().await
    }

    /// Acquires a permit if one is free now.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held) if all permits are held, if the free ones are reserved for
    /// waiting processes, or if a task of this process is waiting for a permit. Otherwise, returns the same errors as
    /// [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Guard> {
        self.permits()?.try_acquire().await
    }

    /// Acquires a permit, waiting for at most `limit`.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// - [`ErrorKind::Held`](crate::ErrorKind::Held): all permits were held, and none became free within `limit`.
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not report a holder within `limit`.
    /// - Otherwise, the same errors as [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.permits()?.acquire_within(limit).await
    }

    /// Changes the number of permits in the store to that of this handle, and returns the number before. Nobody may hold a
    /// permit meanwhile: this acquires all of them, up to the larger number.
    ///
    /// From the beginning of this call, the process must not be paused for longer than the [`ttl`](Self::ttl). Otherwise
    /// there may be holders by the old number and by the new one.
    ///
    /// Dropping the future does not stop the change.
    ///
    /// # Errors
    /// - [`ErrorKind::Held`](crate::ErrorKind::Held): a permit is held.
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the name, the ttl or the number is invalid, or the store has no
    ///   number yet.
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store does not record
    ///   [sizes](crate::lease::Capabilities::sizes).
    /// - [`ErrorKind::Conflict`](crate::ErrorKind::Conflict): another process resized it at the same time.
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): a permit was lost meanwhile. The number may have been changed.
    /// - Any error from the store. The number may have been changed.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let locker = leasehold::Locker::open("mem:").await?;
    /// locker.semaphore("render", 2).acquire().await?.release().await?;
    /// let error = locker.semaphore("render", 3).acquire().await.unwrap_err();
    /// assert_eq!(error.sizes().map(|sizes| (sizes.asked, sizes.stored)), Some((3, 2)));
    /// assert_eq!(locker.semaphore("render", 3).resize().await?, 2);
    /// locker.semaphore("render", 3).acquire().await?.release().await?;
    /// # Ok::<_, leasehold::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn resize(&self) -> Result<u64> {
        self.permits()?;
        resize(&self.lock, Kind::Permit, self.permits).await
    }

    fn permits(&self) -> Result<Permits> {
        if !(1..=Self::MAX_PERMITS).contains(&self.permits) {
            let (permits, most) = (self.permits, Self::MAX_PERMITS);
            return Err(Error::invalid(format!("a semaphore with {permits} permits"))
                .with_help(format!("a semaphore has from 1 to {most} permits")));
        }
        Permits::new(&self.lock, Kind::Permit, self.permits)
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("lock", &self.lock)
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
