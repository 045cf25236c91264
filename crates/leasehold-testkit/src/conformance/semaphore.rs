//! Semaphores: a limited number of permits, each of which is a lock.

use futures_util::future::{join, join_all, try_join_all};
use leasehold::{ErrorKind, Guard, Locker, State};

use super::Harness;
use super::client::{Client, LONG, name};
use super::locks::locker;

/// Different clients can hold all permits at once, and no more.
pub async fn no_more_permits_are_held_at_once_than_exist(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (_, there) = locker(harness, "two").await;
    let (here, there) = (here.semaphore("s", 2).ttl(LONG), there.semaphore("s", 2).ttl(LONG));
    let (first, second) = one.within("two permits", join(here.acquire(), there.acquire())).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    assert_ne!(first.name(), second.name());
    for refused in [here.try_acquire().await, there.try_acquire().await] {
        let error = refused.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
        assert!(error.to_string().starts_with("all 2 permits of `s` are held: "), "{error}");
    }
    first.check().unwrap();
    second.check().unwrap();
    first.release().await.unwrap();
    one.within("the permit that is free", there.acquire()).await.unwrap().release().await.unwrap();
    second.release().await.unwrap();
}

/// A released permit goes to a client that waits for any permit, with a higher token.
pub async fn a_released_permit_goes_to_a_waiter(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (two, there) = locker(harness, "two").await;
    let here = here.semaphore("s", 2).ttl(LONG);
    let (first, second) = one.within("two permits", join(here.acquire(), here.acquire())).await;
    let (first, second) = (first.unwrap(), second.unwrap());
    let (freed, token) = (first.name().clone(), one.token(&first));
    let there = there.semaphore("s", 2).ttl(LONG);
    let released = async {
        one.env().sleep(harness.ttl() / 4).await;
        first.release().await.unwrap();
    };
    let (third, ()) = two.within("the permit that was released", join(there.acquire(), released)).await;
    let third = third.unwrap();
    assert_eq!(third.name(), &freed);
    assert!(token.is_none() || two.token(&third) > token, "{third:?} after {token:?}");
    second.check().unwrap();
    second.release().await.unwrap();
    third.release().await.unwrap();
}

/// A client that gives up waiting for a permit does not block other clients from any permit.
pub async fn a_wait_for_a_permit_that_is_given_up_leaves_nothing_behind(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (_, there) = locker(harness, "two").await;
    let (here, there) = (here.semaphore("s", 2).ttl(LONG), there.semaphore("s", 2).ttl(LONG));
    let (first, second) = one.within("two permits", join(here.acquire(), here.acquire())).await;
    let given_up = there.acquire_within(harness.ttl() / 2).await.unwrap_err();
    assert!(matches!(given_up.kind(), ErrorKind::Held | ErrorKind::Unavailable), "{given_up}");
    first.unwrap().release().await.unwrap();
    second.unwrap().release().await.unwrap();
    let (first, second) = one.within("both again", join(here.acquire(), here.acquire())).await;
    first.unwrap().release().await.unwrap();
    second.unwrap().release().await.unwrap();
    one.assert_free(&name("s/permit-1")).await;
    one.assert_free(&name("s/permit-2")).await;
}

/// Processes that wait for a permit get one in the order in which they began to wait. Applies to stores
/// with [`permits_in_order`](leasehold::lease::Capabilities::permits_in_order).
pub async fn waiters_are_granted_permits_in_order(harness: &dyn Harness) {
    const WAITERS: usize = 4;
    let (one, here) = locker(harness, "holder").await;
    if !one.store.capabilities().permits_in_order {
        return;
    }
    let here = here.semaphore("s", 2).ttl(LONG);
    let (first, second) = one.within("two permits", join(here.acquire(), here.acquire())).await;
    let (granted, mut order) = tokio::sync::mpsc::unbounded_channel();
    let mut waiters = Vec::new();
    for n in 0..WAITERS {
        let (_, there) = locker(harness, &format!("waiter-{n}")).await;
        let (there, granted) = (there.semaphore("s", 2).ttl(LONG), granted.clone());
        waiters.push(tokio::spawn(async move {
            let guard = there.acquire().await.unwrap();
            granted.send(n).unwrap();
            guard.release().await.unwrap();
        }));
        let joined = async {
            while in_line(&one).await <= n {
                one.env().sleep(one.store.capabilities().poll_interval.min).await;
            }
        };
        one.within("a place in the line", joined).await;
    }
    first.unwrap().release().await.unwrap();
    for n in 0..WAITERS {
        assert_eq!(one.within("the next permit", order.recv()).await, Some(n));
    }
    second.unwrap().release().await.unwrap();
    one.within("the waiters", join_all(waiters)).await;
}

/// The store keeps the number of permits, whatever is done with the locks of the permits. Clients with another number get an
/// error. A resize changes the number. Applies to stores with [`sizes`](leasehold::lease::Capabilities::sizes). On the
/// others, a resize is refused.
pub async fn clients_with_different_numbers_of_permits_learn_it(harness: &dyn Harness) {
    let (one, here) = locker(harness, "one").await;
    let (_, there) = locker(harness, "two").await;
    let of = |locker: &Locker, permits| locker.semaphore("s", permits).ttl(LONG);
    let differ = |refused: leasehold::Result<Guard>, asked, stored| {
        let error = refused.unwrap_err();
        let sizes = error.sizes().unwrap_or_else(|| panic!("{error:?}"));
        assert_eq!((sizes.asked, sizes.stored), (asked, stored), "{error:?}");
    };
    if !one.store.capabilities().sizes {
        assert_eq!(of(&here, 2).resize().await.unwrap_err().kind(), ErrorKind::Unsupported);
        return;
    }
    let guard = one.within("a permit", of(&here, 2).acquire()).await.unwrap();
    differ(of(&there, 3).acquire().await, 3, 2);
    differ(of(&there, 1).try_acquire().await, 1, 2);
    assert_eq!(of(&there, 3).resize().await.unwrap_err().kind(), ErrorKind::Held);
    guard.release().await.unwrap();
    differ(of(&there, 3).acquire().await, 3, 2);
    // Each permit has the number now, and other writes of its record keep it.
    for locker in [&here, &there] {
        let both = one.within("both permits", join(of(locker, 2).acquire(), of(locker, 2).acquire())).await;
        both.0.unwrap().release().await.unwrap();
        both.1.unwrap().release().await.unwrap();
    }
    for permit in ["s/permit-1", "s/permit-2"] {
        for locker in [&there, &here] {
            let plain = one.within("a plain lock", locker.lock(permit).ttl(LONG).acquire()).await.unwrap();
            plain.renew().await.unwrap();
            plain.release().await.unwrap();
        }
        let plain = one.within("a plain lock", here.lock(permit).ttl(LONG).acquire()).await.unwrap();
        let token = one.inspect(&name(permit)).await.token.unwrap();
        one.evict(&name(permit), token).await;
        drop(plain);
        assert_eq!(one.inspect(&name(permit)).await.size, Some(2));
    }
    differ(of(&there, 3).acquire().await, 3, 2);
    assert_eq!(one.within("the resize", of(&there, 3).resize()).await.unwrap(), 2);
    for _ in 0..3 {
        differ(of(&here, 2).acquire().await, 2, 3);
    }
    let three = of(&here, 3);
    let all = one.within("three permits", try_join_all((0..3).map(|_| three.acquire()))).await.unwrap();
    assert_eq!(of(&there, 3).try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    for guard in all {
        guard.release().await.unwrap();
    }
    assert_eq!(one.within("the resize", of(&here, 1).resize()).await.unwrap(), 3);
    differ(of(&there, 3).try_acquire().await, 3, 1);
    of(&there, 1).try_acquire().await.unwrap().release().await.unwrap();
}

/// Returns how many processes wait for a permit of `s`. They hold the lock of the queue or wait for it. On stores
/// without such a queue, they are in the line of each permit.
async fn in_line(client: &Client) -> usize {
    let queue = client.store.inspect(&name("s/permit-queue")).await.unwrap();
    let queued = usize::from(matches!(queue.state, State::Held(_))) + queue.waiters.len();
    let mut waiting = usize::MAX;
    for permit in ["s/permit-1", "s/permit-2"].map(name) {
        waiting = waiting.min(client.store.inspect(&permit).await.unwrap().waiters.len());
    }
    queued.max(waiting)
}
