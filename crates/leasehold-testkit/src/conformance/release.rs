//! What a release frees, and what it must not free.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold::clock::RATE_ERROR;
use leasehold::lease::{Released, State};

use super::Harness;
use super::client::{Client, LONG, name};

/// After a release, another client is granted the lock at the first try, whatever the ttl was.
pub async fn release_frees_at_once(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, LONG).await;
    two.refused(&lock).await;
    one.renewed(&mut grant).await;
    assert_eq!(one.release(&mut grant).await, Released::Released);
    two.assert_free(&lock).await;
    two.granted(&lock, LONG).await;
}

/// Repeating a release, as after a lost answer, does not free another client's grant.
pub async fn a_second_release_changes_nothing(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut first = one.granted(&lock, LONG).await;
    assert_eq!(one.release(&mut first).await, Released::Released);
    one.release(&mut first).await;
    two.assert_free(&lock).await;
    let mut second = two.granted(&lock, LONG).await;
    one.release(&mut first).await;
    two.assert_held_by(&lock, &second).await;
    two.renewed(&mut second).await;
}

/// A holder that releases too late learns that it had lost the lock, and does not free its successor's grant.
pub async fn release_after_a_takeover_does_not_free_the_successor(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut first = one.granted(&lock, harness.ttl()).await;
    let mut second = two.wait(&lock, LONG).await;
    assert_eq!(one.release(&mut first).await, Released::AlreadyLost);
    two.assert_held_by(&lock, &second).await;
    two.renewed(&mut second).await;
    one.refused(&lock).await;
}

/// Without a record there is nothing to release, and the release creates none.
pub async fn release_after_the_record_was_deleted_is_already_lost(harness: &dyn Harness) {
    let one = Client::open(harness, "one").await;
    let lock = name("lock");
    let mut grant = one.granted(&lock, LONG).await;
    harness.delete_record(&lock).await;
    assert_eq!(one.release(&mut grant).await, Released::AlreadyLost);
    one.granted(&lock, LONG).await;
}

/// A lock that was released with a cooldown is granted to no client before the cooldown is over, not even to its last holder.
pub async fn a_cooldown_keeps_the_lock_from_being_granted_early(harness: &dyn Harness) {
    let cooldown = harness.ttl();
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, LONG).await;
    let start = one.env().now();
    if !one.store.capabilities().cooldowns {
        let refusal = one.store.release(&mut grant, Some(cooldown)).await.unwrap_err();
        assert_eq!(refusal.fault().kind, ErrorKind::Unsupported);
        return;
    }
    assert_eq!(one.release_with(&mut grant, Some(cooldown)).await, Released::Released);
    for client in [&one, &two] {
        let held = client.refused(&lock).await;
        assert!(held.in_cooldown, "{held:?}");
    }
    let state = two.inspect(&lock).await.state;
    assert!(matches!(&state, State::Held(held) if held.in_cooldown), "{state:?}");
    let mut next = two.wait(&lock, LONG).await;
    let rested = two.env().now().longest_since(start);
    let least: Duration = cooldown.mul_f64(1.0 - RATE_ERROR);
    assert!(rested >= least, "granted after {rested:?} of a rest of {cooldown:?}");
    assert!(next.token > grant.token);
    two.renewed(&mut next).await;
}
