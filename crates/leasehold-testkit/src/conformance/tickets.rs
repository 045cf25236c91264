//! Grants that are passed to another client.

use leasehold::lease::{Released, Token};

use super::Harness;
use super::client::{Client, LONG, name};

/// A process that has only the ticket of a grant, without what the store remembers about the grant, can renew and
/// release it. Once the grant has ended, the ticket is invalid.
pub async fn a_ticket_renews_and_releases(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, LONG).await;
    one.store.detach(&mut grant).await.unwrap();
    let mut ticket = grant.without_memo();
    two.renewed(&mut ticket).await;
    two.renewed(&mut ticket).await;
    one.refused(&lock).await;
    assert_eq!(two.release(&mut grant.without_memo()).await, Released::Released);
    one.assert_free(&lock).await;
    two.lost(&mut grant.without_memo()).await;
    let mut next = one.granted(&lock, LONG).await;
    two.lost(&mut grant.without_memo()).await;
    assert_eq!(two.release(&mut grant.without_memo()).await, Released::AlreadyLost);
    one.renewed(&mut next).await;
}

/// A ticket whose token was altered is not a ticket of the grant. It renews and releases nothing.
pub async fn a_ticket_with_another_token_is_invalid(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    if !one.store.capabilities().tokens {
        return;
    }
    let mut grant = one.granted(&name("lock"), LONG).await;
    one.store.detach(&mut grant).await.unwrap();
    // The token of a withdrawn claim is 0.
    let others = [grant.token.get() - 1, grant.token.get() + 1].into_iter().filter(|token| *token > 0);
    for token in others.map(|token| Token::new(token).unwrap()) {
        let altered = || {
            let mut ticket = grant.without_memo();
            ticket.token = token;
            ticket
        };
        two.lost(&mut altered()).await;
        assert_eq!(two.release(&mut altered()).await, Released::AlreadyLost);
    }
    two.renewed(&mut grant.without_memo()).await;
}

/// A detached grant is exclusive, lapses, and is renewed and released like any other.
pub async fn a_detached_grant_is_a_grant_like_any_other(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut claim = one.claim(&lock, LONG);
    claim.detached = true;
    let mut grant = one.granted_to(&claim).await;
    two.refused(&lock).await;
    one.renewed(&mut grant).await;
    assert_eq!(one.release(&mut grant).await, Released::Released);
    let mut claim = one.claim(&lock, harness.ttl());
    claim.detached = true;
    let lapsing = one.granted_to(&claim).await;
    two.wait(&lock, LONG).await;
    two.assert_passed(lapsing.deadline);
}
