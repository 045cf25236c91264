//! Requests that wait for a change of a lock. All that wait for the same lock share its reads.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::clock::Moment;
use leasehold::view::LockDetail;
use leasehold::{LockName, Locker};
use tokio::sync::watch;

use crate::problem::Problem;

/// The interval at which a lock is read while requests wait for its change.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// How many reads per second all these locks may cause. If there are many, each is read less often.
const MAX_READS: f64 = 50.0;

/// A read of a lock.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) began: Moment,
    pub(crate) result: Result<Arc<LockDetail>, Problem>,
}

/// The locks that are read because requests wait for their change.
#[derive(Debug)]
pub(crate) struct Changes {
    locker: Locker,
    readers: Mutex<HashMap<LockName, watch::Sender<Option<Read>>>>,
}

/// A request that waits for a change of a lock.
#[derive(Debug)]
pub(crate) struct Changed(watch::Receiver<Option<Read>>);

impl Changes {
    pub(crate) fn new(locker: &Locker) -> Self {
        Self { locker: locker.clone(), readers: Mutex::default() }
    }

    fn readers(&self) -> MutexGuard<'_, HashMap<LockName, watch::Sender<Option<Read>>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the lock `name` now.
    pub(crate) async fn read(&self, name: &LockName) -> Read {
        let began = self.locker.store().env().now();
        let status = self.locker.inspect(name).await;
        let result = status.map(|status| Arc::new(LockDetail::of(&status))).map_err(Problem::from);
        Read { began, result }
    }

    /// Begins to wait for later reads of the lock `name`.
    pub(crate) fn follow(self: &Arc<Self>, name: &LockName) -> Changed {
        let mut readers = self.readers();
        if let Some(reader) = readers.get(name) {
            return Changed(reader.subscribe());
        }
        let (sender, receiver) = watch::channel(None);
        readers.insert(name.clone(), sender);
        let (changes, name) = (self.clone(), name.clone());
        tokio::spawn(async move { changes.read_while_followed(&name).await });
        Changed(receiver)
    }

    /// Reads the lock `name` at intervals, until no request waits for its change.
    async fn read_while_followed(&self, name: &LockName) {
        loop {
            #[expect(clippy::cast_precision_loss, reason = "there are few locks")]
            let fair = Duration::from_secs_f64(self.readers().len() as f64 / MAX_READS);
            self.locker.store().env().sleep(POLL_INTERVAL.max(fair)).await;
            {
                let mut readers = self.readers();
                if readers.get(name).is_none_or(|reader| reader.receiver_count() == 0) {
                    readers.remove(name);
                    return;
                }
            }
            let read = self.read(name).await;
            if let Some(reader) = self.readers().get(name) {
                reader.send_replace(Some(read));
            }
        }
    }
}

impl Changed {
    /// Returns the next read that began after `moment`. Cancel safe.
    pub(crate) async fn read_after(&mut self, moment: Moment) -> Option<Read> {
        loop {
            // An error means that the server stops.
            self.0.changed().await.ok()?;
            let read = self.0.borrow_and_update().clone();
            if let Some(read) = read.filter(|read| !read.began.shortest_since(moment).is_zero()) {
                return Some(read);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::{Feed, paused_store};

    #[tokio::test(start_paused = true)]
    async fn all_that_wait_for_one_lock_share_its_reads() {
        // It counts the requests to the store.
        let feed = Feed::new(&paused_store().await);
        let (locker, changes) = (feed.locker(), Arc::new(Changes::new(feed.locker())));
        let (name, begin) = (LockName::new("a").unwrap(), locker.store().env().now());
        let mut followers: Vec<_> = (0..100).map(|_| changes.follow(&name)).collect();
        locker.store().env().sleep(20 * POLL_INTERVAL).await;
        let reads = feed.meter().total();
        assert!((15..=20).contains(&reads), "{reads}");
        for follower in &mut followers {
            assert!(follower.read_after(begin).await.unwrap().result.is_ok());
        }
        drop(followers);
        locker.store().env().sleep(2 * POLL_INTERVAL).await;
        assert!(changes.readers().is_empty());
        let reads = feed.meter().total();
        locker.store().env().sleep(20 * POLL_INTERVAL).await;
        assert_eq!(feed.meter().total(), reads, "no request waits");
    }

    #[tokio::test(start_paused = true)]
    async fn many_locks_cause_few_reads() {
        let feed = Feed::new(&paused_store().await);
        let (locker, changes) = (feed.locker(), Arc::new(Changes::new(feed.locker())));
        let follow = |number| changes.follow(&LockName::new(format!("lock-{number}")).unwrap());
        let _followers: Vec<_> = (0..500).map(follow).collect();
        locker.store().env().sleep(Duration::from_secs(20)).await;
        let reads = feed.meter().total();
        assert!((500..=1_000).contains(&reads), "{reads}");
    }

    #[tokio::test(start_paused = true)]
    async fn an_earlier_read_is_no_change() {
        let locker = paused_store().await;
        let (changes, name) = (Arc::new(Changes::new(&locker)), LockName::new("a").unwrap());
        let mut follower = changes.follow(&name);
        let begin = locker.store().env().now();
        let earlier = Read { began: begin, result: Err(Problem::invalid("it is out of date")) };
        changes.readers()[&name].send_replace(Some(earlier));
        assert!(follower.read_after(begin).await.unwrap().result.is_ok());
    }
}
