//! Grants of locks, and what they show to other claimants.

use futures_util::future::join_all;
use leasehold::HolderInfo;
use leasehold::lease::Released;

use super::Harness;
use super::client::{Client, LONG, name};

/// A lock that never existed is granted. After its release, it is granted again.
pub async fn a_free_lock_is_granted_and_granted_again_after_its_release(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut first = one.granted(&lock, LONG).await;
    assert_eq!(one.release(&mut first).await, Released::Released);
    let mut second = two.granted(&lock, LONG).await;
    assert_eq!(two.release(&mut second).await, Released::Released);
    let mut third = two.granted(&lock, LONG).await;
    assert_eq!(two.release(&mut third).await, Released::Released);
}

/// A second claimant, on the same client or on another, is refused and sees the token and the holder, with the value that
/// it advertises. A renewal changes neither.
pub async fn a_second_claimant_sees_the_holder(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut claim = one.claim(&lock, LONG);
    claim.holder.value = Some("http://one.example".to_owned());
    let mut grant = one.granted_to(&claim).await;
    for client in [&one, &two, &one, &two] {
        let held: HolderInfo = client.refused(&lock).await;
        assert_eq!(held.holder.as_ref(), Some(&claim.holder));
        assert_eq!(held.token, Some(grant.token));
        assert!(!held.in_cooldown && held.foreign.is_none(), "{held:?}");
        one.renewed(&mut grant).await;
    }
}

/// Locks with different names are independent, even if one name is a prefix of the other.
pub async fn locks_of_different_names_are_independent(harness: &dyn Harness) {
    let client = Client::open(harness, "one").await;
    let locks = ["a", "a/b", "a/b/c", "ab", "b"].map(name);
    let mut grants = join_all(locks.iter().map(|lock| client.granted(lock, LONG))).await;
    assert_eq!(client.release(&mut grants[0]).await, Released::Released);
    for grant in &mut grants[1..] {
        client.renewed(grant).await;
    }
}

/// A claim that is tried again is not refused because of its own earlier grant. Claims are retried when a response is
/// lost or a caller times out.
pub async fn one_claim_tried_twice_is_granted_to_itself(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let claim = one.claim(&lock, LONG);
    let first = one.granted_to(&claim).await;
    let mut again = one.granted_to(&claim).await;
    assert!(again.token >= first.token, "{} after {}", again.token, first.token);
    two.refused(&lock).await;
    one.renewed(&mut again).await;
    assert_eq!(one.release(&mut again).await, Released::Released);
    two.granted(&lock, LONG).await;
}

/// A grant is live when it arrives. Neither a grant nor a renewal lasts longer than its ttl.
pub async fn a_grant_is_for_at_most_its_ttl(harness: &dyn Harness) {
    let client = Client::open(harness, "one").await;
    for ttl in [harness.ttl(), LONG] {
        let mut grant = client.granted(&name(&format!("for {ttl:?}")), ttl).await;
        assert_eq!(grant.ttl.get(), ttl);
        for _ in 0..2 {
            let left = grant.deadline.remaining(client.env().now());
            assert!(!left.is_zero() && left <= ttl, "{left:?} left of a ttl of {ttl:?}");
            client.renewed(&mut grant).await;
        }
    }
}
