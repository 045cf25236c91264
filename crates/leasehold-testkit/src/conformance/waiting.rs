//! Waiters are woken when the lock is freed, long before its lease would have lapsed.

use leasehold::lease::{Evicted, Ttl};

use super::Harness;
use super::client::{Client, name};

/// A waiter is granted the lock when its holder releases it, although the lease would have lasted long.
pub async fn a_waiter_is_woken_by_a_release(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, Ttl::MAX).await;
    let seen = two.refused(&lock).await;
    let woken = async {
        two.store.changed(&lock, &seen).await.unwrap();
        two.wait(&lock, harness.ttl()).await
    };
    let released = async {
        // Lets the waiter start waiting: it is polled first, and its first request is under way.
        one.env().sleep(harness.ttl() / 4).await;
        one.release(&mut grant).await
    };
    let (next, _) = two.within("waking up", futures_util::future::join(woken, released)).await;
    two.assert_rises(grant.token, next.token);
}

/// A waiter notices a release that happens after it was refused and before it starts to wait.
pub async fn a_waiter_that_comes_after_the_release_is_not_left_waiting(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, Ttl::MAX).await;
    let seen = two.refused(&lock).await;
    one.release(&mut grant).await;
    two.within("waking up", two.store.changed(&lock, &seen)).await.unwrap();
    two.granted(&lock, harness.ttl()).await;
}

/// A waiter is granted the lock when its holder is evicted.
pub async fn a_waiter_is_woken_by_an_eviction(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let grant = one.granted(&lock, Ttl::MAX).await;
    two.refused(&lock).await;
    let evicted = async {
        one.env().sleep(harness.ttl() / 4).await;
        one.evict(&lock, grant.token).await
    };
    let (next, evicted) = futures_util::future::join(two.wait(&lock, harness.ttl()), evicted).await;
    assert_eq!(evicted, Evicted::Evicted);
    two.assert_rises(grant.token, next.token);
}
