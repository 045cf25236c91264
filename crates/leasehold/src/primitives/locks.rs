//! [`Locks`]: several locks at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::HolderInfo;
use crate::lock::Lock;
use crate::locker::Locker;
use crate::primitives::blockers::Blockers;
use crate::primitives::together::{OnWaitFor, Patience, Together};
use crate::runtime::task;
use crate::settings::settings;
use crate::types::LockName;

/// A handle to several locks that are acquired together, all or none, with the settings for acquiring them. Cheap to
/// clone.
///
/// The locks are acquired one after the other, in the order of the bytes of their names, whatever the order in which
/// they were given. So two acquisitions of several locks never wait for each other for ever, whichever locks they have
/// in common. While an acquisition waits for a lock, it holds all locks before it in this order.
///
/// The [`Guard`] holds all of the locks. A loss of one is the loss of all: the guard is lost, and the other locks are
/// free when it is released or dropped, or when their leases have ended. It is valid until the earliest deadline. A
/// release frees all of them. Its [ticket](Guard::into_ticket) has
/// all of them. Each lock has its own [token](Guard::tokens).
///
/// If a lock is lost while the acquisition waits for another one, it releases all of them and starts again. With
/// [`max_hold`](Self::max_hold), the limit counts from the moment at which all locks are held. That of a ticket counts
/// from the grant of the first lock.
///
/// Other processes see a plain hold of each lock. A task that holds one of the locks and acquires another one by itself
/// is outside this order, and can still wait for ever.
///
/// # Requests
///
/// As many as those of the single locks. The acquisition takes as many round trips as the locks would take one after the
/// other. The renewals and the release take as long as those of one lock.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = leasehold::Locker::open("mem:").await?;
/// let guard = locker.lock_all(["deploy/us", "deploy/eu"]).acquire().await?;
/// for (name, token) in guard.tokens()? {
///     println!("{name} with token {token}");
/// }
/// assert!(locker.lock("deploy/eu").try_acquire().await.is_err());
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct Locks {
    /// The settings for acquiring each lock.
    lock: Lock,
    names: Vec<String>,
    on_wait_for: Option<Arc<OnWaitFor>>,
}

impl Lock {
    /// Returns this lock and the locks called `names`, with these settings, to acquire together. See
    /// [`Locker::lock_all`].
    #[must_use]
    pub fn and(self, names: impl IntoIterator<Item = impl Into<String>>) -> Locks {
        let names = std::iter::once(self.name().to_owned()).chain(names.into_iter().map(Into::into));
        Locks { names: names.collect(), lock: self, on_wait_for: None }
    }
}

impl Locker {
    /// Returns the locks with these names, from 1 to [`Locks::MAX_NAMES`], to acquire together. Sends no request. If a
    /// name is invalid or occurs twice, acquisitions fail.
    #[must_use]
    pub fn lock_all(&self, names: impl IntoIterator<Item = impl Into<String>>) -> Locks {
        let names = names.into_iter().map(Into::into).collect();
        Locks { lock: self.lock(""), names, on_wait_for: None }
    }
}

impl Locks {
    /// The maximum number of locks. It is limited because they are acquired one after the other, and each lease is renewed
    /// by itself.
    pub const MAX_NAMES: usize = 64;

    settings!();

    /// Makes acquisitions ignore the lines of waiters, like [`Lock::barge`].
    #[must_use]
    pub fn barge(mut self) -> Self {
        self.lock = self.lock.barge();
        self
    }

    /// Calls `callback` like [`on_wait`](Self::on_wait), also with the name of the lock that the acquisition waits for. It
    /// holds the locks whose names come before this one in the order of bytes.
    #[must_use]
    pub fn on_wait_for(mut self, callback: impl Fn(&LockName, &HolderInfo) + Send + Sync + 'static) -> Self {
        self.on_wait_for = Some(Arc::new(callback));
        self
    }

    /// Acquires all of the locks, waiting for as long as it takes.
    ///
    /// Cancel safe: dropping the future leaves nothing held. A grant that arrives later is released in the background,
    /// or lapses.
    ///
    /// # Errors
    /// - [`ErrorKind::Invalid`](crate::ErrorKind::Invalid): a name or a setting is invalid, or the names are none, too
    ///   many or not all different.
    /// - Any error from the store. All locks are then released.
    pub async fn acquire(&self) -> Result<Guard> {
        self.acquire_with(Patience::Unlimited).await
    }

    /// Acquires all of the locks if they are free now. Otherwise, releases what it has acquired. Of several such attempts
    /// at the same time, at least one succeeds if nobody else holds the locks.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// - [`ErrorKind::Held`](crate::ErrorKind::Held): a lock is held. The message names the first such lock.
    /// - [`ErrorKind::Lost`](crate::ErrorKind::Lost): a lock was lost before the last one was acquired.
    /// - Otherwise, the same errors as [`acquire`](Self::acquire).
    pub async fn try_acquire(&self) -> Result<Guard> {
        self.acquire_with(Patience::None).await
    }

    /// Acquires all of the locks, waiting for other processes for at most `limit` in total. Otherwise, releases what it
    /// has acquired.
    ///
    /// Cancel safe, like [`acquire`](Self::acquire).
    ///
    /// # Errors
    /// Returns the same errors as [`Lock::acquire_within`], for the first lock that was not acquired in time.
    pub async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        self.acquire_with(Patience::within(limit, &self.lock)).await
    }

    async fn acquire_with(&self, patience: Patience) -> Result<Guard> {
        let names = self.names.iter().map(LockName::new).collect::<std::result::Result<_, _>>()?;
        let names = Self::in_order(names)?;
        if let Some(name) = names.first() {
            self.lock.renamed(name).checked()?;
        }
        let steps = names.into_iter().map(|name| vec![name]).collect();
        let together = Together::new(&self.lock, steps).named(self.on_wait_for.clone());
        task::run(async move { together.acquire(&patience, &Blockers::default()).await }).await
    }

    /// Returns `names` in the order in which they are acquired.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the names are none, too many or not all different.
    pub fn in_order(mut names: Vec<LockName>) -> Result<Vec<LockName>> {
        let (count, most) = (names.len(), Self::MAX_NAMES);
        if !(1..=most).contains(&count) {
            return Err(Error::invalid(format!("a hold of {count} locks"))
                .with_help(format!("acquire from 1 to {most} locks together")));
        }
        // They are ordered by bytes.
        names.sort_unstable();
        match names.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(Error::invalid(format!("the lock `{}` is named twice", pair[0]))
                .with_help("name each lock once")),
            None => Ok(names),
        }
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("names", &self.names).field("lock", &self.lock).finish_non_exhaustive()
    }
}
