//! Releases: they end the holder's grant, and no other.

use leasehold::ErrorKind;
use leasehold::clock::RATE_ERROR;
use leasehold::lease::{AcquireOutcome, Released, State};

use super::Harness;
use super::client::{Client, LONG, name};

/// After a release, another client is granted the lock at the first try, regardless of the ttl.
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

/// A repeated release, for example after a lost response, does not free another client's grant.
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

/// A lock that was released with a cooldown is granted to no client before the cooldown is over, not even to its last
/// holder.
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
    let least = cooldown.mul_f64(1.0 - RATE_ERROR);
    let is_over = || one.env().now().longest_since(start) >= least;
    assert_eq!(one.release_with(&mut grant, Some(cooldown)).await, Released::Released);
    // On a busy machine, the cooldown may end before a response arrives.
    for client in [&one, &two] {
        match client.attempt(&client.claim(&lock, LONG)).await {
            AcquireOutcome::Held(held) => assert!(held.in_cooldown, "{held:?}"),
            AcquireOutcome::Granted(mut early) => {
                assert!(is_over(), "{} was granted the lock during its cooldown", client.who().name);
                client.release(&mut early).await;
            }
            AcquireOutcome::Lost(loss) => panic!("{loss}"),
        }
    }
    match two.inspect(&lock).await.state {
        State::Held(held) => assert!(held.in_cooldown, "{held:?}"),
        state => assert!(is_over(), "{state:?} during the cooldown"),
    }
    let mut next = two.wait(&lock, LONG).await;
    assert!(is_over(), "granted during the cooldown of {cooldown:?}");
    assert!(next.token > grant.token);
    two.renewed(&mut next).await;
}
