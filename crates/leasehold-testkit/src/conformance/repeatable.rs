//! Acquisitions that a caller repeats with the same secret: [`Lock::acquire_ticket`](leasehold::Lock::acquire_ticket).

use std::time::Duration;

use futures_util::poll;
use leasehold::lease::{AcquireOutcome, Released, Secret, State};
use leasehold::{ErrorKind, HeldTicket, Locker};

use super::Harness;
use super::client::{Client, LONG, name};
use super::locks::locker;

fn secret(client: &Client) -> Secret {
    Secret::new(client.env())
}

async fn acquired(client: &Client, locker: &Locker, secret: Secret) -> leasehold::Result<HeldTicket> {
    client
        .within("acquire_ticket", locker.lock("lock").ttl(LONG).acquire_ticket(secret, Duration::ZERO))
        .await
}

/// Returns whether the store refuses callers' secrets. It must refuse them if it does not support them.
async fn is_refused(client: &Client, locker: &Locker) -> bool {
    if client.store.capabilities().history {
        return false;
    }
    let refused = acquired(client, locker, secret(client)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    client.assert_free(&name("lock")).await;
    true
}

/// A repeated acquisition, even at another client, gets the hold of the first one, and can release it.
pub async fn a_repeated_acquisition_has_the_same_hold(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    if is_refused(&one, &here).await {
        return;
    }
    let first = secret(&one);
    let mut held = acquired(&one, &here, first).await.unwrap();
    for (client, locker) in [(&two, &there), (&one, &here), (&two, &there)] {
        assert_eq!(acquired(client, locker, secret(client)).await.unwrap_err().kind(), ErrorKind::Held);
        let again = acquired(client, locker, first).await.unwrap();
        assert!(again.ticket().token() >= held.ticket().token());
        held = again;
    }
    client_renews(&one, &here, &held).await;
    assert_eq!(two.within("release", there.release(held.ticket())).await.unwrap(), Released::Released);
    one.assert_free(&name("lock")).await;
}

/// Contenders wait for the longest ttl of all repetitions, even after a renewal.
pub async fn a_repetition_with_a_shorter_ttl_shortens_no_lease(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    if is_refused(&one, &here).await {
        return;
    }
    // A repetition over a record that was just created may have a new token.
    let earlier = acquired(&one, &here, secret(&one)).await.unwrap();
    one.within("release", here.release(earlier.ticket())).await.unwrap();
    let first = secret(&one);
    let long = acquired(&one, &here, first).await.unwrap();
    let short = there.lock("lock").ttl(harness.ttl());
    two.within("acquire_ticket", short.acquire_ticket(first, Duration::ZERO)).await.unwrap();
    contenders_wait_for(&two, &long).await;
    let renewed = one.within("renew", here.renew(long.ticket())).await.unwrap();
    contenders_wait_for(&two, &renewed).await;
}

/// A repetition renews its hold while another task of the process waits for the lock. Contenders go by the ttl of the
/// record, even if the repetition asks for a longer one.
pub async fn a_renewal_is_valid_no_longer_than_the_record_shows(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, _) = locker(harness, "two").await;
    if is_refused(&one, &here).await {
        return;
    }
    // A repetition over a record that was just created may have a new token.
    let earlier = acquired(&one, &here, secret(&one)).await.unwrap();
    one.within("release", here.release(earlier.ticket())).await.unwrap();
    let first = secret(&one);
    let short = here.lock("lock").ttl(harness.ttl());
    one.within("acquire_ticket", short.acquire_ticket(first, Duration::ZERO)).await.unwrap();
    let waiting = here.lock("lock");
    let waiter = waiting.acquire();
    let mut waiter = std::pin::pin!(waiter);
    assert!(poll!(waiter.as_mut()).is_pending());
    let long = acquired(&one, &here, first).await.unwrap();
    contenders_wait_for(&two, &long).await;
}

async fn contenders_wait_for(client: &Client, held: &HeldTicket) {
    // Behind a server, an attempt may be refused with what an earlier waiter of the server has seen.
    let State::Held(holder) = client.inspect(&name("lock")).await.state else { panic!("the lock is held") };
    let (within, left) = (holder.lapses_within.unwrap(), held.remaining());
    assert!(
        within >= left,
        "the lock lapses within {within:?}, and its holder may believe in it for another {left:?}"
    );
}

async fn client_renews(client: &Client, locker: &Locker, held: &HeldTicket) {
    let renewed = client.within("renew", locker.renew(held.ticket())).await.unwrap();
    assert!(renewed.remaining() > LONG / 2);
}

/// A secret whose hold was released or evicted is never granted again, by any client.
pub async fn a_spent_id_is_refused(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    if is_refused(&one, &here).await {
        return;
    }
    let (first, second) = (secret(&one), secret(&one));
    let held = acquired(&one, &here, first).await.unwrap();
    two.within("release", there.release(held.ticket())).await.unwrap();
    for (client, locker) in [(&one, &here), (&two, &there)] {
        assert_eq!(acquired(client, locker, first).await.unwrap_err().kind(), ErrorKind::Lost);
    }
    let held = acquired(&two, &there, second).await.unwrap();
    one.within("evict", here.evict(&name("lock"), held.ticket().token())).await.unwrap();
    for (client, locker) in [(&one, &here), (&two, &there)] {
        for spent in [first, second] {
            assert_eq!(acquired(client, locker, spent).await.unwrap_err().kind(), ErrorKind::Lost);
        }
    }
    one.granted(&name("lock"), LONG).await;
}

/// A client that gives up waiting does not free the lock that another client has acquired with the same secret.
pub async fn a_wait_given_up_frees_no_repetition(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    if is_refused(&one, &here).await {
        return;
    }
    let (first, second) = (secret(&one), secret(&one));
    let earlier = acquired(&two, &there, first).await.unwrap();
    let mut claim = one.claim(&name("lock"), LONG);
    (claim.id, claim.waits, claim.detached, claim.repeatable) = (second.id(), true, true, true);
    assert!(matches!(one.attempt(&claim).await, AcquireOutcome::Held(_)));
    two.within("release", there.release(earlier.ticket())).await.unwrap();
    let held = acquired(&two, &there, second).await.unwrap();
    one.within("stop_waiting", one.store.stop_waiting(&claim)).await.unwrap();
    client_renews(&two, &there, &held).await;
    assert_eq!(acquired(&one, &here, secret(&one)).await.unwrap_err().kind(), ErrorKind::Held);
}
