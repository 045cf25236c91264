//! Readers-writer locks: several shared holders, or one exclusive holder.

use std::sync::Arc;

use futures_util::future::join;
use leasehold::lease::Evicted;
use leasehold::{ErrorKind, Released};
use tokio::sync::Notify;

use super::Harness;
use super::client::{LONG, name};
use super::locks::locker;

/// Shared holders hold the lock together. An exclusive holder excludes shared holders, other exclusive ones and plain
/// locks.
pub async fn shared_holders_are_together_and_an_exclusive_one_is_alone(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let plain = there.lock("x").ttl(LONG);
    let (here, there) = (here.rw_lock("x").ttl(LONG), there.rw_lock("x").ttl(LONG));
    let (first, second) = one.within("two shared holds", join(here.shared(), there.shared())).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_eq!(here.try_exclusive().await.unwrap_err().kind(), ErrorKind::Held);
    first.check().unwrap();
    second.check().unwrap();
    first.release().await.unwrap();
    second.release().await.unwrap();
    let alone = one.within("the exclusive hold", here.exclusive()).await.unwrap();
    assert_eq!(there.try_shared().await.unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(there.try_exclusive().await.unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(plain.try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    alone.check().unwrap();
    let token = one.token(&alone);
    assert_eq!(alone.release().await.unwrap(), Released::Released);
    let next = two.within("the next exclusive hold", there.exclusive()).await.unwrap();
    assert!(token.is_none() || two.token(&next) > token, "{next:?} after {token:?}");
    next.release().await.unwrap();
}

/// While a client waits for the exclusive hold, no other client is given a shared one.
pub async fn shared_holders_do_not_starve_an_exclusive_one(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let here = here.rw_lock("x").ttl(LONG);
    let reader = one.within("the shared hold", here.shared()).await.unwrap();
    let has_heard = Arc::new(Notify::new());
    let writer = {
        let (there, has_heard) = (there.clone(), has_heard.clone());
        there.rw_lock("x").ttl(LONG).on_wait(move |_| has_heard.notify_one())
    };
    let come = async {
        // The writer holds the gate, because it waits for a permit only after it has acquired the gate.
        two.within("the wait for the shared holder", has_heard.notified()).await;
        assert_eq!(here.try_shared().await.unwrap_err().kind(), ErrorKind::Held);
        reader.release().await.unwrap();
    };
    let (alone, ()) = two.within("the exclusive hold", join(writer.exclusive(), come)).await;
    let alone = alone.unwrap();
    alone.check().unwrap();
    alone.release().await.unwrap();
    one.within("the shared hold", here.shared()).await.unwrap().release().await.unwrap();
}

/// An exclusive hold that loses one of its locks is lost, and the other locks are freed.
pub async fn the_loss_of_one_part_is_the_loss_of_an_exclusive_hold(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let guard =
        one.within("the hold", here.rw_lock("x").ttl(LONG.min(harness.ttl() * 5)).exclusive()).await.unwrap();
    let part = name("x/shared-3");
    let token = two.inspect(&part).await.token.unwrap();
    assert_eq!(two.evict(&part, token).await, Evicted::Evicted);
    let loss = one.within("the loss", guard.lost()).await;
    assert_eq!(loss.name, part);
    one.assert_ended(&loss);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    one.within("the cancellation", guard.cancellation().cancelled()).await;
    // The locks are free although the guard has not been dropped.
    let next = two.within("the next hold", there.rw_lock("x").ttl(LONG).exclusive()).await.unwrap();
    next.release().await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
}
