//! A baseline: the conditional writes that any lock needs.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Client;

/// A store's conditional write.
pub(super) trait Replace: Send + Sync + 'static {
    /// The store's version of a written value.
    type Version: Send + 'static;

    /// Writes a value of the size of a lock's record if `seen` is still the current version. If `seen` is `None`,
    /// writes unconditionally.
    fn replace(
        &self,
        lock: &str,
        held: bool,
        seen: Option<Self::Version>,
    ) -> impl Future<Output = Result<Self::Version, String>> + Send;
}

/// A baseline, not a lock. It writes each name twice, each time a value of the size of a record that replaces only the
/// previous version. Acquiring and releasing a lock needs at least these writes.
pub(super) struct Conditional<R: Replace> {
    calls: R,
    /// The latest version of each name. The first write has none.
    latest: Mutex<HashMap<String, R::Version>>,
}

impl<R: Replace> Conditional<R> {
    pub(super) fn new(calls: R) -> Self {
        Self { calls, latest: Mutex::default() }
    }

    fn latest(&self) -> MutexGuard<'_, HashMap<String, R::Version>> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<R: Replace> Client for Conditional<R> {
    type Held = (String, R::Version);

    async fn acquire(&self, lock: &str) -> Result<Self::Held, String> {
        let seen = self.latest().remove(lock);
        Ok((lock.to_owned(), self.calls.replace(lock, true, seen).await?))
    }

    async fn release(&self, (lock, seen): Self::Held) -> Result<(), String> {
        let written = self.calls.replace(&lock, false, Some(seen)).await?;
        self.latest().insert(lock, written);
        Ok(())
    }

    fn is_held(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}

/// The size of a lock's record in JSON with a full history.
pub(super) const RECORD_BYTES: usize = 1_840;

/// Returns a value of the size of a record, which is different each time.
pub(super) fn record() -> String {
    text(RECORD_BYTES)
}

/// Returns a text of at least `bytes` bytes, which is different each time.
pub(super) fn text(bytes: usize) -> String {
    format!("{:0bytes$}", fastrand::u128(..))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Checks that the baseline does not write less than a lock.
    #[tokio::test]
    async fn a_record_is_as_large_as_the_baselines_writes() {
        use leasehold::lease::StoreOptions;
        use leasehold::register::Register;
        use leasehold::stores::memory::MemoryRegister;

        let register = Arc::new(MemoryRegister::new(leasehold::env::Env::system()));
        let leases = leasehold::RegisterLeases::new(register.clone(), StoreOptions::default());
        let lock = leasehold::Locker::new(Arc::new(leases)).lock("uncontended-leasehold-1234567890-0");
        for _ in 0..10 {
            lock.acquire().await.unwrap().release().await.unwrap();
        }
        let written = register.read("uncontended-leasehold-1234567890-0.lock").await.unwrap().unwrap();
        // The size varies, because the record contains the user name, the host name and the process id.
        let bytes = written.value.len();
        assert!(bytes.abs_diff(RECORD_BYTES) < RECORD_BYTES / 3, "{bytes}");
    }
}
