//! The calls that a lock cannot do without.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Client;

/// A conditional write, by a store's client.
pub(super) trait Replace: Send + Sync + 'static {
    /// What the store calls what was written.
    type Version: Send + 'static;

    /// Writes what a lock that is held, or free, takes, on condition that `seen` is still there; on none where it is `None`.
    fn replace(
        &self,
        lock: &str,
        held: bool,
        seen: Option<Self::Version>,
    ) -> impl Future<Output = Result<Self::Version, String>> + Send;
}

/// No lock: under each name it is written twice, each time as many bytes as a record has, and only over what was written
/// before. That is what taking and releasing a lock cannot do without.
pub(super) struct Conditional<R: Replace> {
    calls: R,
    /// What was written last under each name. Of the first write nothing is known.
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

    fn still(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}

/// As large as a lock's record in JSON, when its history is full.
const RECORD_BYTES: usize = 1_840;

/// As many bytes as a record, and others each time.
pub(super) fn record() -> String {
    format!("{:0RECORD_BYTES$}", fastrand::u128(..))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    /// Or the calls that it is measured against would have less to carry than a lock.
    #[tokio::test]
    async fn a_record_is_as_large_as_what_the_bare_calls_write() {
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
        // The names of user and host, and the process id, are part of it.
        let bytes = written.value.len();
        assert!(bytes.abs_diff(RECORD_BYTES) < RECORD_BYTES / 3, "{bytes}");
    }
}
