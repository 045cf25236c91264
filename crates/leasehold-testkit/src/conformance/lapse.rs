//! Lapsed leases: when other claimants may take over, and which ttl decides.

use std::time::Duration;

use super::Harness;
use super::client::{Client, LONG, name};

/// If a holder does not renew, another claimant takes over, but only after the deadline that the holder was promised.
pub async fn a_lapsed_lease_is_taken_over_and_not_before(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let first = one.granted(&lock, harness.ttl()).await;
    two.refused(&lock).await;
    let second = two.wait(&lock, LONG).await;
    two.assert_passed(first.deadline);
    one.refused(&lock).await;
    assert!(!second.deadline.passed(two.env().now()));
}

/// The record's ttl decides, so a contender with a shorter ttl does not take over earlier.
pub async fn a_contender_with_a_shorter_ttl_waits_for_that_of_the_record(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let first = one.granted(&lock, harness.ttl() * 2).await;
    two.wait(&lock, harness.ttl()).await;
    two.assert_passed(first.deadline);
}

/// The record's ttl decides, so a contender with a ttl of hours does not wait for hours.
pub async fn a_contender_with_a_longer_ttl_waits_no_longer_for_it(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let first = one.granted(&lock, harness.ttl()).await;
    two.wait(&lock, harness.longest_ttl()).await;
    two.assert_passed(first.deadline);
}

/// Contenders wait for a lock delay after a lapse, but not after a release. Lock delays are for resources that check
/// no token.
pub async fn a_lock_delay_lengthens_a_lapse_and_not_a_release(harness: &dyn Harness) {
    const DELAY: Duration = Duration::from_secs(3);
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut claim = one.claim(&lock, harness.ttl());
    claim.lock_delay = DELAY;
    let mut first = one.granted_to(&claim).await;
    one.release(&mut first).await;
    two.granted(&lock, harness.ttl()).await;
    let mut claim = one.claim(&name("other"), harness.ttl());
    claim.lock_delay = DELAY;
    let asked = one.env().now();
    let second = one.granted_to(&claim).await;
    two.wait(&name("other"), LONG).await;
    two.assert_passed(second.deadline);
    let waited = two.env().now().longest_since(asked);
    let least = second.ttl.holder_span() + DELAY.mul_f64(1.0 - leasehold::clock::RATE_ERROR);
    assert!(waited >= least, "granted after {waited:?}, and the delay ends after {least:?}");
}
