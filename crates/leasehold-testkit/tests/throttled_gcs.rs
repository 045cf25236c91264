//! GCS promises to accept only one write a second for each object. Locks that change hands faster are slowed down to
//! this rate, without other effects.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::fakes::gcs::FakeGcs;

async fn locker(server: &FakeGcs, protocol: &str) -> Locker {
    Locker::open(&format!("{}&protocol={protocol}", server.url())).await.unwrap()
}

/// The lock is acquired and released repeatedly without a pause. The store refuses some writes. The client retries them
/// about a second later, not more often than the store accepts writes.
#[tokio::test]
async fn a_lock_that_changes_hands_too_fast_is_slowed_down() {
    const TIMES: usize = 3;
    for protocol in ["lease", "existence"] {
        let server = FakeGcs::start().await;
        let locker = locker(&server, protocol).await;
        for _ in 0..TIMES {
            let guard = locker.lock("lock").ttl(Duration::from_secs(30)).acquire().await.unwrap();
            guard.check().unwrap();
            guard.release().await.unwrap();
        }
        let writes = server.writes();
        assert_eq!((writes.done, writes.conflicts), (TIMES * 2, 0), "{writes:?}");
        // Each write is retried between half a second and a second after a refusal, so it is refused at most twice.
        assert!(writes.throttled <= writes.done * 2, "{protocol}: {writes:?}");
    }
}

/// Many processes wait. One of them marks the lock's object once, and then they only read, so the holder's renewals are
/// not throttled.
#[tokio::test]
async fn waiters_do_not_get_in_the_way_of_renewals() {
    let ttl = Duration::from_secs(6);
    let server = FakeGcs::start().await;
    let holder = locker(&server, "lease").await;
    let guard = holder.lock("lock").ttl(ttl).acquire().await.unwrap();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let waiter = locker(&server, "lease").await;
        waiters.spawn(async move { waiter.lock("lock").acquire().await });
    }
    SystemClock.sleep(ttl * 2).await;
    guard.check().unwrap();
    let writes = server.writes();
    // One waiter marks the object, others that saw it unmarked try to mark it, and the holder conflicts with the mark
    // once.
    assert!(writes.done > 4, "{writes:?}");
    assert!(writes.conflicts + writes.throttled <= 9, "{writes:?}");
    // From now on nothing is throttled.
    SystemClock.sleep(ttl).await;
    let later = server.writes();
    assert_eq!((later.conflicts, later.throttled), (writes.conflicts, writes.throttled), "{later:?}");
}

/// All waiters see the release at about the same time and write. One is granted the lock, and the others notice this
/// and keep waiting. In the end, each of them has held the lock without an error.
#[tokio::test]
async fn waiters_are_served_one_after_the_other() {
    const PROCESSES: usize = 4;
    let server = FakeGcs::start().await;
    let holding = Arc::new(AtomicUsize::new(0));
    let mut processes = tokio::task::JoinSet::new();
    for _ in 0..PROCESSES {
        let locker = locker(&server, "lease").await;
        let holding = holding.clone();
        processes.spawn(async move {
            let guard = locker.lock("lock").ttl(Duration::from_secs(30)).acquire().await.unwrap();
            assert_eq!(holding.fetch_add(1, Ordering::SeqCst), 0);
            assert_eq!(locker.lock("lock").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
            assert_eq!(holding.fetch_sub(1, Ordering::SeqCst), 1);
            guard.release().await.unwrap();
        });
    }
    while let Some(process) = processes.join_next().await {
        process.unwrap();
    }
    // Each process writes a grant and a release, and those that joined the line may write a mark.
    let most = PROCESSES * 3;
    assert!((PROCESSES * 2..=most).contains(&server.writes().done), "{:?}", server.writes());
}
