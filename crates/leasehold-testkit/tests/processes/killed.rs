//! What becomes of a lock whose holder is killed, by who ends its lease.

use std::time::Duration;

use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::{State, Ttl};
use leasehold::{LockName, Locker};
use leasehold_testkit::servers::with_option;

use crate::workers::{self, Worker};

/// A ttl of an hour.
pub(super) const LONG: &[&str] = &["--ttl", "3600"];

const TTL: Duration = Duration::from_secs(2);
const TTL_OPTION: &[&str] = &["--ttl", "2"];

/// Like flock(1): the lease had an hour to go, and its holder's death ends it.
pub(super) async fn is_succeeded_at_the_next_try(url: &str) {
    let mut holder = Worker::start("hold", url, "lock", LONG);
    let first = holder.granted().await;
    let (said, code) = Worker::start("try", url, "lock", &[]).end().await;
    assert_eq!(code, Some(1), "{said:?}");
    holder.kill().await;
    let mut next = Worker::start("try", url, "lock", &[]);
    assert!(next.granted().await > first);
    assert_eq!(next.end().await.1, Some(0));
}

/// One that waits already is let in by the death of the holder as well, an hour before the lease ends.
pub(super) async fn lets_a_waiter_in_at_once(url: &str) {
    let mut holder = Worker::start("hold", url, "lock", LONG);
    let first = holder.granted().await;
    let mut waiter = Worker::start("hold", url, "lock", LONG);
    holder.kill().await;
    assert!(waiter.granted().await > first);
}

/// A waiter takes over without anybody's help, and not before the lease that the dead holder was granted has run out.
/// `option` is added to the store URL.
pub(super) async fn lets_a_waiter_in_after_the_lease(url: &str, option: &str) {
    let url = with_option(url, option);
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let granted = Deadline::new(SystemClock.now(), Ttl::new(TTL).unwrap().holder_span());
    let mut waiter = Worker::start("hold", &url, "lock", TTL_OPTION);
    holder.kill().await;
    assert!(waiter.granted().await > first);
    assert!(granted.passed(SystemClock.now()), "{url}: granted before the lease of the dead had run out");
}

/// A try is granted the lock of a dead holder as soon as the store's own clock shows that its lease is over; what
/// inspection says and what a try gets is the same.
pub(super) async fn is_succeeded_when_the_clock_of_the_store_says_so(url: &str) {
    is_succeeded_when(&with_option(url, "margin=0s"), |state| matches!(state, State::Lapsed(_))).await;
}

/// The store ends the lease by itself: then the lock is free.
pub(super) async fn is_succeeded_when_the_store_has_ended_its_lease(url: &str) {
    is_succeeded_when(url, |state| matches!(state, State::Free)).await;
}

async fn is_succeeded_when(url: &str, ended: fn(&State) -> bool) {
    let mut holder = Worker::start("hold", url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    holder.kill().await;
    let name = LockName::new("lock").unwrap();
    let over = async {
        loop {
            // Another client each time: nothing was observed before.
            match Locker::open(url).await.unwrap().inspect(&name).await.unwrap().state {
                state if ended(&state) => return,
                State::Held(_) => SystemClock.sleep(TTL / 10).await,
                state => panic!("nobody released it, and it is {state:?}"),
            }
        }
    };
    workers::within("the end of the lease", over).await;
    let mut next = Worker::start("try", url, "lock", &[]);
    assert!(next.granted().await > first, "{url}");
}

/// etcd ends a dead holder's lease by itself: within its ttl, rounded up to seconds, and the half second in which it
/// looks for expired leases; and not before the holder's own deadline.
pub(super) async fn is_succeeded_within_the_bound(url: &str) {
    let mut holder = Worker::start("hold", url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let mut waiter = Worker::start("hold", url, "lock", TTL_OPTION);
    let killed = SystemClock.now();
    holder.kill().await;
    let alive = Deadline::new(killed, Ttl::new(TTL).unwrap().holder_span() / 3);
    assert!(waiter.granted().await > first);
    let took = SystemClock.now().longest_since(killed);
    assert!(
        alive.passed(SystemClock.now()),
        "granted after {took:?}, and the holder may have renewed just before"
    );
    // Far above the bound, since this machine may be slow: it is the bound's order that matters.
    assert!(took < TTL * 5, "granted after {took:?}");
}
