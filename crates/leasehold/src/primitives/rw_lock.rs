//! [`RwLock`]: a lock with either several shared holders or one exclusive holder.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::HolderInfo;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::primitives::permits::{Blockers, Permits};
use crate::primitives::together::{Patience, Together};
use crate::runtime::task;
use crate::settings::settings;

/// A handle to a readers-writer lock, with the settings for acquisitions. The lock has up to [eight](Self::MAX_SHARED)
/// shared holders, or one exclusive holder. Cheap to clone.
///
/// A readers-writer lock consists of nine exclusive locks: the *gate*, which has the same name, and eight *permits*.
/// The permits of `index` are `index/shared-1` to `index/shared-8`. So it is as safe as an exclusive lock, on every
/// store.
///
/// - A shared holder holds any one permit.
/// - The exclusive holder holds the gate and all permits. If any of the nine locks is lost, the whole hold is lost: its
///   [`Guard`] is valid only while all nine locks are held.
///
/// # Do not combine the plain lock of the same name with shared holders
///
/// [`Locker::lock`](crate::Locker::lock) with the same name acquires only the gate. Such a hold excludes exclusive
/// holders, and later shared acquisitions wait for its end. But **its acquisition does not wait for shared holders that
/// already have a permit**. If some users acquire shared holds, all others must use [`exclusive`](Self::exclusive).
///
/// # Tokens
///
/// The [token](Guard::token) of an exclusive hold is the gate's token. It rises from one exclusive (or plain) hold to
/// the next. The token of a shared hold is its permit's token. It rises from one hold of that permit to the next, and
/// cannot be compared with other tokens.
///
/// # Waiting
///
/// Exclusive acquisitions have priority over shared ones. A shared acquisition reads the gate first, and waits while
/// the gate is held. So an endless series of shared holders does not starve exclusive acquisitions, but an endless
/// series of exclusive acquisitions can starve shared ones. Exclusion does not depend on this read of the gate.
///
/// Acquisitions cannot deadlock. A shared holder waits for nothing while it holds a permit. An exclusive acquisition
/// holds permits while it waits for others, but only the holder of the gate does so. An acquisition that waits for the
/// gate holds nothing.
///
/// A shared hold cannot be upgraded. A task that has a shared hold and requests the exclusive hold waits for itself.
/// Release the shared hold first.
///
/// # Requests
///
/// A shared acquisition costs one more read than the acquisition of a lock. An exclusive hold costs nine acquisitions,
/// nine releases, and nine renewals where a plain lock needs one (on etcd, a single one). All nine leases must stay
/// alive.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let index = locker.rw_lock("index");
/// let (one, two) = (index.shared().await?, index.shared().await?);
/// assert!(index.try_exclusive().await.is_err());
/// one.release().await?;
/// two.release().await?;
/// let alone = index.exclusive().await?;
/// assert!(index.try_shared().await.is_err());
/// alone.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct RwLock {
    lock: Lock,
}

impl Lock {
    /// Returns a readers-writer lock with this name and these settings.
    #[must_use]
    pub fn rw_lock(self) -> RwLock {
        RwLock::new(self)
    }
}

impl Locker {
    /// Returns the readers-writer lock called `name`. Sends no request. If the name is invalid, acquisitions fail.
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        self.lock(name).rw_lock()
    }
}

impl RwLock {
    /// The maximum number of shared holders. Further acquisitions wait.
    ///
    /// This is not a setting, because all users must agree on it. An exclusive acquisition with fewer permits would not
    /// exclude all shared holders.
    pub const MAX_SHARED: usize = 8;

    fn new(lock: Lock) -> Self {
        Self { lock }
    }

    settings!();

    /// Acquires a shared hold, waiting for as long as it takes.
    ///
    /// Waiting tasks of one process are served in the order of their arrival. To the store, they are a single
    /// contender.
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives later is released in the background,
    /// or lapses.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the name or the ttl is invalid.
    /// - Any error from the store.
    pub async fn shared(&self) -> Result<Guard> {
        self.permits()?.acquire().await
    }

    /// Acquires a shared hold if there is no exclusive holder, no exclusive acquisition holds the gate, and a permit is
    /// free.
    ///
    /// Cancel safe, like [`shared`](Self::shared).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held) if no shared hold is available now. Otherwise, returns the
    /// same errors as [`shared`](Self::shared).
    pub async fn try_shared(&self) -> Result<Guard> {
        self.permits()?.try_acquire().await
    }

    /// Acquires a shared hold, waiting for at most `limit`.
    ///
    /// Cancel safe, like [`shared`](Self::shared).
    ///
    /// # Errors
    /// - [`ErrorKind::Held`](crate::ErrorKind::Held): the lock was not free within `limit`.
    /// - [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable): the store did not report a holder within `limit`.
    /// - Otherwise, the same errors as [`shared`](Self::shared).
    pub async fn shared_within(&self, limit: Duration) -> Result<Guard> {
        self.permits()?.acquire_within(limit).await
    }

    /// Acquires the exclusive hold, waiting for as long as it takes.
    ///
    /// Waiting tasks of one process are served in the order of their arrival. To the store, they are a single
    /// contender.
    ///
    /// Cancel safe, like [`shared`](Self::shared).
    ///
    /// # Errors
    /// Returns the same errors as [`shared`](Self::shared).
    pub async fn exclusive(&self) -> Result<Guard> {
        self.exclusive_with(Patience::Unlimited).await
    }

    /// Acquires the exclusive hold if there is neither a shared nor an exclusive holder. Otherwise, releases everything
    /// that it has acquired.
    ///
    /// While this attempt is in progress, shared acquisitions of other processes may be refused, even if this attempt
    /// also fails.
    ///
    /// Cancel safe, like [`shared`](Self::shared).
    ///
    /// # Errors
    /// Returns [`ErrorKind::Held`](crate::ErrorKind::Held) if there is a holder. Otherwise, returns the same errors as
    /// [`shared`](Self::shared).
    pub async fn try_exclusive(&self) -> Result<Guard> {
        self.exclusive_with(Patience::None).await
    }

    /// Acquires the exclusive hold, waiting for at most `limit`.
    ///
    /// Cancel safe, like [`shared`](Self::shared).
    ///
    /// # Errors
    /// Returns the same errors as [`shared_within`](Self::shared_within).
    pub async fn exclusive_within(&self, limit: Duration) -> Result<Guard> {
        self.exclusive_with(Patience::within(limit, &self.lock)).await
    }

    async fn exclusive_with(&self, patience: Patience) -> Result<Guard> {
        let (lock, permits) = (self.clone(), self.permits()?);
        task::run(async move {
            let steps = vec![vec![permits.name().clone()], permits.names().to_vec()];
            let (together, seen) = (Together::new(&lock.lock, steps), Blockers::default());
            together.acquire(&patience, &seen).await.map_err(|error| match error.kind() {
                ErrorKind::Held => lock.refused(&permits, &seen),
                _ => error,
            })
        })
        .await
    }

    /// Returns the error for a lock that is held, shared or exclusively.
    fn refused(&self, permits: &Permits, seen: &Blockers) -> Error {
        let (name, held) = (permits.name(), seen.soonest().unwrap_or_default());
        match seen.of(name) {
            Some(held) => Error::held(name, held),
            None => Error::held_as(format!("lock `{name}` is held shared: {}", seen.described()), held),
        }
    }

    fn permits(&self) -> Result<Permits> {
        Ok(Permits::new(&self.lock, "shared", "shared permits", Self::MAX_SHARED)?.gated())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("lock", &self.lock).finish_non_exhaustive()
    }
}
