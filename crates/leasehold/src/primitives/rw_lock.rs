//! [`RwLock`]: a lock with either several shared holders or one exclusive holder.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::HolderInfo;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::primitives::blockers::Blockers;
use crate::primitives::permits::{Kind, Permits};
use crate::primitives::resize::resize;
use crate::primitives::together::{Patience, Together};
use crate::runtime::task;
use crate::settings::settings;

/// A handle to a readers-writer lock, with the settings for acquisitions. The lock has up to eight shared
/// holders ([or another number](Self::readers)), or one exclusive holder. Cheap to clone.
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
/// # The number of readers
///
/// The first acquisition records the number of [readers](Self::readers) in the store, like that of the permits of a
/// [`Semaphore`](crate::Semaphore). An acquisition that asks for another number fails, and [`Error::sizes`] returns both.
/// [`resize`](Self::resize) changes the number while nobody holds the lock. On stores without
/// [`sizes`](crate::lease::Capabilities::sizes), the number is always eight.
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
    readers: usize,
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
    #[must_use]
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        self.lock(name).rw_lock()
    }
}

impl RwLock {
    /// The number of [readers](Self::readers), unless it is set.
    pub const DEFAULT_READERS: usize = 8;

    /// The largest number of [readers](Self::readers). It is limited because an exclusive hold has a lock for each of them.
    pub const MAX_READERS: usize = 64;

    fn new(lock: Lock) -> Self {
        Self { lock, readers: Self::DEFAULT_READERS }
    }

    /// Sets how many shared holders there can be at once, from 1 to [`MAX_READERS`](Self::MAX_READERS). Further shared
    /// acquisitions wait. All users of the lock must set the same number: see [the number of
    /// readers](Self#the-number-of-readers). The exclusive hold costs one lock for each reader, and one more.
    #[must_use]
    pub fn readers(mut self, readers: usize) -> Self {
        self.readers = readers;
        self
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
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): the name, the ttl or the number of readers is invalid, or the
    ///   store has [another number](Error::sizes).
    /// - [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported): the store does not record the number of readers
    ///   ([`Capabilities::sizes`](crate::lease::Capabilities::sizes)), and it is not eight.
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
            let (together, seen) = (Together::new(&permits.sized(&lock.lock), steps), Blockers::default());
            let acquired = tokio::select! {
                biased;
                acquired = together.acquire(&patience, &seen) => acquired,
                stored = seen.until_other_size(permits.count()) => return Err(permits.other_size(stored)),
            };
            match acquired {
                // It has the first permit, and so the size.
                Ok(guard) => {
                    permits.settled(guard).await?.ok_or_else(|| Error::invalid("there is no permit"))
                }
                Err(error) if error.kind() == ErrorKind::Held => Err(lock.refused(&permits, &seen)),
                Err(error) => Err(error),
            }
        })
        .await
    }

    /// Changes the number of readers in the store to that of this handle, and returns the number before. Nobody may hold the
    /// lock meanwhile. See [`Semaphore::resize`](crate::Semaphore::resize), also for the errors.
    ///
    /// # Errors
    /// Returns the same errors as [`Semaphore::resize`](crate::Semaphore::resize).
    pub async fn resize(&self) -> Result<u64> {
        self.permits()?;
        resize(&self.lock, Kind::Shared, self.readers).await
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
        let (readers, most) = (self.readers, Self::MAX_READERS);
        if !(1..=most).contains(&readers) {
            return Err(Error::invalid(format!("a readers-writer lock with {readers} readers"))
                .with_help(format!("a readers-writer lock has from 1 to {most} readers")));
        }
        let capabilities = self.lock.locker().capabilities();
        // Without this, an exclusive acquisition by a smaller number would not exclude all readers.
        if readers != Self::DEFAULT_READERS && !capabilities.sizes {
            let usual = Self::DEFAULT_READERS;
            return Err(Kind::Shared
                .not_kept(capabilities.store)
                .with_help(format!("a readers-writer lock there has {usual} readers")));
        }
        Ok(Permits::new(&self.lock, Kind::Shared, readers)?.gated())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock")
            .field("lock", &self.lock)
            .field("readers", &self.readers)
            .finish_non_exhaustive()
    }
}
