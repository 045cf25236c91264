//! [`Watch`]: waiting for a lock to change.

use async_trait::async_trait;

use super::{Claim, Grant, HolderInfo};
use crate::error::StoreError;
use crate::types::{LockName, Status};

/// A trait for waiting until a lock changes, by polling or by the store's notifications.
///
/// Every method is cancel safe and may complete early. The caller then asks the store again.
///
/// ```
/// use leasehold::{Locker, State};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let locker = Locker::open("mem:").await?;
/// let guard = locker.lock("deploy").acquire().await?;
/// let name = guard.name().clone();
/// let State::Held(seen) = locker.inspect(&name).await?.state else { panic!("not held") };
/// let (changed, released) = tokio::join!(locker.store().changed(&name, &seen), guard.release());
/// changed?;
/// released?;
/// assert_eq!(locker.inspect(&name).await?.state, State::Free);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[async_trait]
pub trait Watch: Send + Sync {
    /// Completes when the lock that was seen as `seen` may be free, or has entered a cooldown. Never misses a lapse.
    ///
    /// # Errors
    /// Returns an error if the store did not respond for a while.
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError>;

    /// Completes when `claim`, which was refused with `seen`, may be granted. By default, completes when
    /// [`changed`](Self::changed) does.
    ///
    /// # Errors
    /// Returns an error if the store did not respond for a while.
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        self.changed(&claim.name, seen).await
    }

    /// Completes when `grant` may have ended before its deadline. The renewer then renews at once to find out. Stores
    /// with notifications report an eviction this way. Never completes by default.
    async fn ended(&self, grant: &Grant) {
        let _ = grant;
        std::future::pending().await
    }

    /// Completes when `name`, which was inspected as `seen`, may have another holder or none. Never completes by
    /// default: observers then inspect again at the store's [poll interval](super::Capabilities::poll_interval).
    async fn holder_changed(&self, name: &LockName, seen: &Status) {
        let _ = (name, seen);
        std::future::pending().await
    }
}
