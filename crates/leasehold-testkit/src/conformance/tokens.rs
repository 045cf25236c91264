//! Tokens rise from grant to grant, whatever happens between two of them.

use std::time::Duration;

use leasehold::Token;
use leasehold::lease::Evicted;

use super::Harness;
use super::client::{Client, LONG, name};

/// Asserts that `tokens` rise. If the store has no tokens, the number of a grant only identifies it.
fn assert_rising(client: &Client, tokens: &[Token]) {
    let rise = tokens.is_sorted_by(|one, next| one < next);
    assert!(rise || !client.store.capabilities().tokens, "tokens do not rise: {tokens:?}");
}

/// Tokens rise across releases, by one client and by several.
pub async fn tokens_rise_from_grant_to_grant(harness: &dyn Harness) {
    let clients = [Client::open(harness, "one").await, Client::open(harness, "two").await];
    let lock = name("lock");
    let mut tokens = Vec::new();
    for n in 0..6 {
        // Each client acquires twice in a row. With a remembered version, it may take another path.
        let client = &clients[n / 2 % 2];
        let mut grant = client.granted(&lock, LONG).await;
        tokens.push(grant.token);
        client.release(&mut grant).await;
    }
    assert_rising(&clients[0], &tokens);
}

/// Tokens rise across lapses.
pub async fn tokens_rise_when_a_lease_lapses(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut tokens = vec![one.granted(&lock, harness.ttl()).await.token];
    tokens.push(two.wait(&lock, harness.ttl()).await.token);
    tokens.push(one.wait(&lock, harness.ttl()).await.token);
    assert_rising(&one, &tokens);
}

/// Tokens rise across evictions.
pub async fn tokens_rise_when_a_grant_is_evicted(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut tokens = vec![one.granted(&lock, LONG).await.token];
    for client in [&two, &one] {
        assert_eq!(two.evict(&lock, tokens[tokens.len() - 1]).await, Evicted::Evicted);
        tokens.push(client.granted(&lock, LONG).await.token);
    }
    assert_rising(&one, &tokens);
}

/// The record of a grant that is more recent than this must not be deleted by hand, or tokens may not rise.
const RECENT: Duration = Duration::from_secs(3);

/// Tokens rise across deletions of the record, both while the lock is held and while it is free. They rise for
/// clients that saw the record before and for those that did not.
pub async fn tokens_rise_when_the_record_is_deleted_by_hand(harness: &dyn Harness) {
    let one = Client::open(harness, "one").await;
    let lock = name("lock");
    let mut grant = one.granted(&lock, LONG).await;
    let mut tokens = vec![grant.token];
    one.release(&mut grant).await;
    one.store.env().sleep(RECENT).await;
    if one.store.capabilities().history {
        harness.delete_record(&lock).await;
    }
    let other = Client::open(harness, "other").await;
    tokens.push(other.granted(&lock, LONG).await.token);
    one.store.env().sleep(RECENT).await;
    harness.delete_record(&lock).await;
    tokens.push(one.granted(&lock, LONG).await.token);
    assert_rising(&one, &tokens);
}
