//! [`RwLock`]: a lock that several may hold together, or one alone.

use std::fmt;
use std::time::Duration;

use futures_util::future::{join_all, try_join_all};

use crate::clock::timeout;
use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::Held;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::primitives::permits::{Permits, Seen};
use crate::runtime::task;
use crate::settings::settings;

/// A readers-writer lock: up to [eight](Self::MAX_SHARED) hold it shared, or one holds it exclusively. A handle that is
/// cheap to clone, and the settings to acquire it with.
///
/// It is made of nine exclusive locks, so it is as safe as they are, on every store: the lock that has its name, the
/// *gate*, and eight *slots*, of `index` `index/shared-1` to `index/shared-8`.
///
/// - A shared hold is the hold of any one slot.
/// - An exclusive hold is that of the gate and of all slots. It ends, as a whole, when any of them is lost: its
///   [`Guard`] goes by the one that is least certain.
///
/// # Never use the plain lock of the same name with shared holders
///
/// [`Locker::lock`](crate::Locker::lock) with the same name takes the gate alone. It excludes exclusive holders, and shared holders
/// that come later wait for it; but **it does not wait for those who hold it shared already**. Where some hold it
/// shared, the others must hold it with [`exclusive`](Self::exclusive).
///
/// # Tokens
///
/// The [token](Guard::token) of an exclusive hold is the gate's: it rises from one exclusive (or plain) hold to the next.
/// That of a shared hold is its slot's, and rises among the holds of that slot; it cannot be compared with any other.
///
/// # Waiting
///
/// Exclusive acquisitions come before shared ones: whoever wants a shared hold looks at the gate first, and waits while it
/// is held. So shared holders who keep coming do not keep an exclusive acquisition waiting; but exclusive ones that keep
/// coming can keep shared ones waiting. What is looked at is a courtesy; nothing is excluded by it.
///
/// Nobody waits in a circle. Shared holders wait for nothing while they hold a slot. Exclusive acquisitions wait for
/// slots while they hold others, but only whoever has the gate does so, and for the gate they wait with empty hands. A
/// task that holds it shared and asks for it exclusively waits for itself: release first.
///
/// # Requests
///
/// A shared acquisition costs a read more than that of a lock. An exclusive one costs nine acquisitions, each beat of
/// its guard nine renewals (on etcd they go together), and its release nine releases; nine leases must stay alive.
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
    /// The readers-writer lock with this name and these settings.
    #[must_use]
    pub fn rw_lock(self) -> RwLock {
        RwLock::new(self)
    }
}

impl Locker {
    /// The readers-writer lock called `name`. Sends nothing; a bad name is reported by the acquisition.
    pub fn rw_lock(&self, name: impl Into<String>) -> RwLock {
        self.lock(name).rw_lock()
    }
}

impl RwLock {
    /// How many can hold it shared at once; further ones wait. The same for everybody, and so not a setting: an exclusive
    /// acquisition that took fewer slots would not exclude all others.
    pub const MAX_SHARED: usize = 8;

    fn new(lock: Lock) -> Self {
        Self { lock }
    }

    settings!();

    /// Acquires a shared hold, waiting for as long as it takes.
    ///
    /// Tasks of one process that wait for one are served in the order of their arrival, and are one contender at the
    /// store.
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives late is released in the background, or
    /// lapses.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad name or ttl; what the store says.
    pub async fn shared(&self) -> Result<Guard> {
        self.slots()?.acquire().await
    }

    /// Acquires a shared hold if nobody holds it exclusively or is about to, and a slot is free.
    ///
    /// Cancel safe, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) otherwise; further as [`shared`](Self::shared).
    pub async fn try_shared(&self) -> Result<Guard> {
        self.slots()?.try_acquire().await
    }

    /// Acquires a shared hold, waiting for at most `limit`.
    ///
    /// Cancel safe, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) when the time was up, or
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) when the store had not said until then who is in the way;
    /// otherwise as [`shared`](Self::shared).
    pub async fn shared_within(&self, limit: Duration) -> Result<Guard> {
        self.slots()?.acquire_within(limit).await
    }

    /// Acquires the exclusive hold, waiting for as long as it takes. The guard cannot be handed on as a ticket.
    ///
    /// Tasks of one process that wait for it are served in the order of their arrival, and are one contender at the
    /// store.
    ///
    /// Cancel safe, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// As [`shared`](Self::shared).
    pub async fn exclusive(&self) -> Result<Guard> {
        let lock = self.clone();
        task::run(async move { lock.exclusive_seeing(&Seen::default()).await }).await
    }

    /// Acquires the exclusive hold if nobody has it, shared or exclusively. Gives back all that it took when somebody has.
    ///
    /// While it looks, shared tries by others may be refused, although it will be refused too.
    ///
    /// Cancel safe, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) when somebody has it; otherwise as [`shared`](Self::shared).
    pub async fn try_exclusive(&self) -> Result<Guard> {
        let lock = self.clone();
        task::run(async move { lock.try_all().await }).await
    }

    async fn try_all(&self) -> Result<Guard> {
        let (slots, seen) = (self.slots()?, Seen::default());
        let gate = self.lock.try_acquire().await?;
        let tries = slots.names().iter().map(async |slot| {
            let tried = self.lock.renamed(slot).try_acquire().await;
            seen.free(slot, tried)
        });
        let (mut parts, mut refused) = (Vec::new(), None);
        for outcome in join_all(tries).await {
            match outcome {
                Ok(Some(part)) => parts.push(part),
                Ok(None) => {}
                Err(error) => refused = Some(error),
            }
        }
        let complete = parts.len() == slots.names().len();
        let whole = gate.bound_to(parts);
        if complete {
            whole.check()?;
            return Ok(whole);
        }
        if let Err(error) = whole.release().await {
            tracing::debug!(lock = %slots.name(), %error, "the parts of a refused exclusive hold were not released; they lapse");
        }
        Err(refused.unwrap_or_else(|| self.refused(&slots, &seen)))
    }

    /// Acquires the exclusive hold, waiting for at most `limit`.
    ///
    /// Cancel safe, as [`shared`](Self::shared).
    ///
    /// # Errors
    /// As [`shared_within`](Self::shared_within).
    pub async fn exclusive_within(&self, limit: Duration) -> Result<Guard> {
        let (lock, slots) = (Self { lock: self.lock.with_own_trouble() }, self.slots()?);
        task::run(async move {
            let seen = Seen::default();
            let clock = lock.lock.locker().store().env().clock.clone();
            match timeout(&*clock, limit, lock.exclusive_seeing(&seen)).await {
                Some(outcome) => outcome,
                None if seen.soonest().is_none() => Err(lock.lock.unanswered(slots.name(), limit)),
                None => Err(lock.refused(&slots, &seen)),
            }
        })
        .await
    }

    async fn exclusive_seeing(&self, seen: &Seen) -> Result<Guard> {
        let slots = self.slots()?;
        loop {
            let gate = seen.noting(slots.name(), &self.lock).acquire().await?;
            seen.forget(slots.name());
            let all = try_join_all(slots.names().iter().map(async |slot| {
                let part = seen.noting(slot, &self.lock).acquire().await?;
                seen.forget(slot);
                Ok::<_, Error>(part)
            }));
            let loss = tokio::select! {
                biased;
                // Another may have it now, and wait for the slots that we have.
                loss = gate.lost() => loss,
                parts = all => {
                    let whole = gate.bound_to(parts?);
                    match whole.check() {
                        Ok(()) => return Ok(whole),
                        Err(error) => {
                            tracing::warn!(%error, "lost before all of it was acquired");
                            continue;
                        }
                    }
                }
            };
            tracing::warn!(%loss, "lost before all of it was acquired");
        }
    }

    /// The error of who found it held, shared or exclusively.
    fn refused(&self, slots: &Permits, seen: &Seen) -> Error {
        let (name, held) = (slots.name(), seen.soonest().unwrap_or_default());
        match seen.of(name) {
            Some(held) => Error::held_as(format!("lock `{name}` is held by {held}"), held),
            None => Error::held_as(format!("lock `{name}` is held shared: {}", seen.told()), held),
        }
    }

    fn slots(&self) -> Result<Permits> {
        Ok(Permits::new(&self.lock, "shared", "shared slots", Self::MAX_SHARED)?.gated())
    }
}

impl fmt::Debug for RwLock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RwLock").field("lock", &self.lock).finish_non_exhaustive()
    }
}
