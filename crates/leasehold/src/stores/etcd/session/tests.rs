//! Tests of sweeping, and of heartbeats.

use super::super::wire::ResponseHeader;
use super::*;
use crate::clock::{Clock, TestClock};
use crate::random::Random;

/// Returns a lease of three seconds, and a claim on it whose key exists.
fn standing(clock: &TestClock) -> (Session, Id) {
    let id = Id::random(&Random::seeded(1));
    let kept = Kept { sent: clock.now(), ttl: Duration::from_secs(3) };
    let session = Session::granted(7, 3, Ttl::new(kept.ttl).unwrap(), kept);
    session.expect(id, b"key", clock.now());
    session.put(id, Place { create: 5, revision: 5, before: None });
    (session, id)
}

/// A renewal may wait for its keep-alive. The deadline counts from the keep-alive, not from the start of the renewal.
#[tokio::test(start_paused = true)]
async fn a_slowly_renewed_grant_is_not_swept_before_its_deadline() {
    let clock = TestClock::default();
    let (session, id) = standing(&clock);
    clock.suspend(Duration::from_secs(2));
    let sent = clock.now();
    assert!(session.stands(id, clock.now()));
    clock.suspend(Duration::from_secs(3));
    assert!(sent.since_boot() + Duration::from_secs(3) <= clock.now().since_boot());
    assert_eq!(session.stale(clock.now()), []);
    clock.suspend(Duration::from_millis(1));
    assert_eq!(session.stale(clock.now()).len(), 1);
}

/// Once the delete may have been sent, the key is not valid, even if it still exists.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_being_swept_is_not_prolonged() {
    let clock = TestClock::default();
    let (session, id) = standing(&clock);
    clock.suspend(Duration::from_secs(4));
    assert_eq!(session.stale(clock.now()).len(), 1);
    assert!(!session.prolongs(id, b"key", clock.now()));
    session.put(id, Place { create: 5, revision: 5, before: None });
    assert!(!session.stands(id, clock.now()));
    assert_eq!(session.stale(clock.now()).len(), 1, "and it is tried again");
    // A claim that is used again writes its key before it is granted.
    session.expect(id, b"key", clock.now());
    assert!(session.stands(id, clock.now()) && session.stale(clock.now()).is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_abandoned_request_is_looked_for_beyond_a_short_lease() {
    let clock = TestClock::default();
    let (session, id) = standing(&clock);
    session.doubt(id, true);
    session.forget(id);
    clock.suspend(LATEST);
    session.stale(clock.now());
    assert_eq!(session.batches()[0].len(), 1);
    clock.suspend(Duration::from_millis(1));
    session.stale(clock.now());
    assert!(session.batches()[0].is_empty());
}

#[test]
fn a_keep_alive_is_confirmed_within_its_term_only() {
    let answer = |raft_term| TxnResponse {
        header: Some(ResponseHeader { revision: 1, raft_term }),
        ..TxnResponse::default()
    };
    assert!(in_term(&answer(7), 7).is_ok());
    for other in [6, 8, 0] {
        assert!(
            in_term(&answer(other), 7).is_err_and(|error| error.into_store_error().is_transient()),
            "{other}"
        );
    }
}
