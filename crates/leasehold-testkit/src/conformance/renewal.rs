//! Renewals: they prolong a live grant, and do not restore a lost one.

use std::time::Duration;

use leasehold::LossReason;
use leasehold::lease::Evicted;

use super::Harness;
use super::client::{Client, LONG, name};

/// A holder that renews keeps the lock for longer than its ttl. Each renewal moves its deadline.
pub async fn renewal_keeps_a_lease_beyond_its_first_deadline(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    // Each renewal must arrive in time, also at a server on a busy machine.
    let ttl = harness.ttl().max(Duration::from_secs(4));
    let mut grant = one.granted(&lock, ttl).await;
    let (start, token) = (one.env().now(), grant.token);
    while one.env().now().longest_since(start) < ttl * 2 {
        // The pause between two renewals.
        one.env().sleep(ttl / 4).await;
        let before = grant.deadline;
        one.renewed(&mut grant).await;
        let now = one.env().now();
        assert!(grant.deadline.remaining(now) > before.remaining(now), "a renewal that moved no deadline");
        assert_eq!(two.refused(&lock).await.token, Some(token));
    }
    let renewed = grant.deadline;
    two.wait(&lock, LONG).await;
    two.assert_passed(renewed);
}

/// A renewal does not take back a lock that another client was granted.
pub async fn renewal_after_a_takeover_is_lost(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut first = one.granted(&lock, harness.ttl()).await;
    let mut second = two.wait(&lock, LONG).await;
    match one.lost(&mut first).await.reason {
        LossReason::TakenOver { by } => {
            assert_eq!((by.holder.as_ref(), by.token), (Some(two.who()), Some(second.token)));
        }
        // The holder's own deadline has passed, so a store may respond without a request.
        LossReason::Expired { .. } => {}
        other => panic!("{other:?}"),
    }
    two.renewed(&mut second).await;
    two.assert_held_by(&lock, &second).await;
}

/// A grant that an operator ended stays ended, whether or not another client has the lock by now.
pub async fn renewal_after_an_eviction_is_lost(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut first = one.granted(&lock, LONG).await;
    assert_eq!(two.evict(&lock, first.token).await, Evicted::Evicted);
    let loss = one.lost(&mut first).await;
    two.assert_ended(&loss);
    one.assert_free(&lock).await;
    let mut second = two.granted(&lock, LONG).await;
    one.lost(&mut first).await;
    two.renewed(&mut second).await;
}

/// A holder does not restore a deleted record, because another client may have been granted the lock since.
pub async fn renewal_after_the_record_was_deleted_is_lost(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut first = one.granted(&lock, LONG).await;
    harness.delete_record(&lock).await;
    assert_eq!(one.lost(&mut first).await.reason, LossReason::Deleted);
    two.assert_free(&lock).await;
    let mut second = two.granted(&lock, LONG).await;
    one.lost(&mut first).await;
    two.renewed(&mut second).await;
}
