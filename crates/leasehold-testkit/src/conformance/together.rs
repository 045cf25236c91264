//! Several locks at once.

use futures_util::future::join;
use leasehold::lease::Evicted;
use leasehold::{ErrorKind, Released};

use super::Harness;
use super::client::{LONG, name};
use super::locks::locker;

/// Several locks are held all or none, lost together, and handed on in one ticket.
pub async fn several_locks_are_held_and_lost_together(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let (names, ttl) = (["several/b", "several/a"], LONG.min(harness.ttl() * 5));
    let (here_all, there_all) = (here.lock_all(names).ttl(ttl), there.lock_all(names).ttl(ttl));
    let guard = one.within("both locks", here_all.acquire()).await.unwrap();
    for lock in names {
        assert_eq!(there.lock(lock).try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    }
    let lost = name("several/b");
    let token = two.inspect(&lost).await.token.unwrap();
    assert!(guard.tokens().is_ok_and(|tokens| tokens[&lost] == token) || one.token(&guard).is_none());
    assert_eq!(two.evict(&lost, token).await, Evicted::Evicted);
    let loss = one.within("the loss", guard.lost()).await;
    assert_eq!(loss.name, lost);
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    // The work may still run, so the other lock is free only when the guard is given up.
    let alone = two.within("the lost lock", there.lock("several/b").ttl(ttl).acquire()).await.unwrap();
    let refused = two.within("the attempt", there_all.try_acquire()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Held);
    assert_eq!(there.lock("several/a").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    let other = two.within("the other lock", there.lock("several/a").ttl(ttl).acquire()).await.unwrap();
    assert_eq!(other.release().await.unwrap(), Released::Released);

    // A wait for the lock that another client holds. Meanwhile this client holds the other lock.
    let here_all = here_all.for_ticket();
    let both = join(here_all.acquire(), alone.release());
    let (guard, released) = one.within("the locks, one after the other", both).await;
    assert_eq!(released.unwrap(), Released::Released);
    let ticket = guard.unwrap().into_ticket().await.unwrap();
    two.within("the renewal", there.renew(&ticket)).await.unwrap();
    assert_eq!(there_all.try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(two.within("the release", there.release(&ticket)).await.unwrap(), Released::Released);
    for lock in names {
        one.assert_free(&name(lock)).await;
    }
}
