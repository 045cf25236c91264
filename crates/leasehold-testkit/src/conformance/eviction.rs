//! Eviction ends the grant that it names, and no other.

use leasehold::Token;
use leasehold::lease::{Evicted, Released};

use super::Harness;
use super::client::{Client, LONG, name};

/// An evicted grant ends at once, regardless of its ttl. The holder's release then finds nothing to release.
pub async fn eviction_frees_at_once(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, LONG).await;
    assert_eq!(two.evict(&lock, grant.token).await, Evicted::Evicted);
    two.assert_free(&lock).await;
    let mut next = two.granted(&lock, LONG).await;
    assert_eq!(one.release(&mut grant).await, Released::AlreadyLost);
    two.renewed(&mut next).await;
}

/// Eviction is a compare-and-set: with a token other than the live grant's, it changes nothing.
pub async fn eviction_with_another_token_changes_nothing(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let token = |number| Token::new(number).unwrap();
    assert_eq!(two.evict(&lock, token(7)).await, Evicted::Changed, "there was never such a lock");
    let mut past = one.granted(&lock, LONG).await;
    one.release(&mut past).await;
    assert_eq!(two.evict(&lock, past.token).await, Evicted::Changed, "released already");
    let mut grant = one.granted(&lock, LONG).await;
    for wrong in [past.token, token(grant.token.get() - 1), token(grant.token.get() + 1), token(0)] {
        assert_eq!(two.evict(&lock, wrong).await, Evicted::Changed, "{wrong} is not {}", grant.token);
    }
    two.assert_held_by(&lock, &grant).await;
    one.renewed(&mut grant).await;
}
