//! [`Semaphore`]: a lock with room for several holders.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::Held;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::primitives::permits::Permits;
use crate::settings::settings;

/// At most N holders at once: a handle that is cheap to clone, and the settings to acquire a permit with.
///
/// A permit is an exclusive lock: of the semaphore `render` with three permits, `render/permit-1`, `render/permit-2` or
/// `render/permit-3`. So the promise of locks holds for each permit, on every store, and a permit's [`Guard`] is a guard
/// like any other: it is renewed, reports its loss in time, and can be handed on as a ticket.
///
/// Each permit has its own [fencing tokens](Guard::token): they rise from holder to holder of *that* permit. Tokens of
/// different permits say nothing about each other.
///
/// # Different numbers
///
/// Nowhere is it written how many permits there are. Of users who give different numbers, at most as many as the greatest
/// number hold permits at once. To raise the number, just use the greater one. To lower it, use the lower one everywhere
/// and wait until nobody holds the permits above it.
///
/// # Requests
///
/// An acquisition tries one permit after the other, beginning anywhere, until one is free. When none is, it waits for all
/// of them at once: N times what it costs to wait for a lock, less those that tasks of the same process hold. All
/// tasks that wait in one process are one contender, and are served in the order of their arrival; between processes
/// there is no order.
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
    /// The semaphore with this name and these settings, and with `permits` permits.
    #[must_use]
    pub fn semaphore(self, permits: usize) -> Semaphore {
        Semaphore::new(self, permits)
    }
}

impl Locker {
    /// The semaphore called `name`, with `permits` permits: from 1 to [`Semaphore::MAX_PERMITS`]. Sends nothing; a bad
    /// name or number is reported by the acquisition.
    pub fn semaphore(&self, name: impl Into<String>, permits: usize) -> Semaphore {
        self.lock(name).semaphore(permits)
    }
}

impl Semaphore {
    /// The most permits that a semaphore can have: an acquisition that waits asks for each of them.
    pub const MAX_PERMITS: usize = 64;

    fn new(lock: Lock, permits: usize) -> Self {
        Self { lock, permits }
    }

    settings!();

    /// Acquires a permit, waiting for as long as it takes. The guard's [name](Guard::name) says which one it is.
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives late is released in the background, or
    /// lapses.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name, ttl or number of permits; what the store says
    /// about any of the permits.
    pub async fn acquire(&self) -> Result<Guard> {
        self.slots()?.acquire().await
    }

    /// Acquires a permit if one is free now.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) when all are held, or a task of this process waits for one; otherwise
    /// as [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Guard> {
        self.slots()?.try_acquire().await
    }

    /// Acquires a permit, waiting for at most `limit`.
    ///
    /// Cancel safe, as [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) when the time was up and all were held, or
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the store had not said so until then; otherwise as
    /// [`acquire`](Self::acquire).
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.slots()?.acquire_within(limit).await
    }

    fn slots(&self) -> Result<Permits> {
        if !(1..=Self::MAX_PERMITS).contains(&self.permits) {
            let (permits, most) = (self.permits, Self::MAX_PERMITS);
            return Err(Error::invalid(format!("a semaphore with {permits} permits"))
                .with_help(format!("a semaphore has from 1 to {most} permits")));
        }
        Permits::new(&self.lock, "permit", "permits", self.permits)
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
