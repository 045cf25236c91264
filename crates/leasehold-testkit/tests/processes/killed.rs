//! What happens to a lock whose holder is killed, depending on what ends its lease.

use std::time::Duration;

use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::{State, Ttl};
use leasehold::{LockName, Locker};
use leasehold_testkit::servers::with_option;

use crate::workers::{self, Worker};

/// A ttl of an hour.
pub(super) const LONG: &[&str] = &["--ttl", "3600"];

/// Long enough for a busy server to respond in time.
const TTL: Duration = Duration::from_secs(8);
const TTL_OPTION: &[&str] = &["--ttl", "8"];

/// As with flock(1), the holder's death ends the lease, which had an hour left.
pub(super) async fn the_next_try_takes_over(url: &str) {
    let mut holder = Worker::start("hold", url, "lock", LONG);
    let first = holder.granted().await;
    let (said, code) = Worker::start("try", url, "lock", &[]).end().await;
    assert_eq!(code, Some(1), "{said:?}");
    holder.kill().await;
    let mut next = Worker::start("try", url, "lock", &[]);
    assert!(next.granted().await > first);
    assert_eq!(next.end().await.1, Some(0));
}

/// A waiter is granted the lock when the holder dies, an hour before the lease would end.
pub(super) async fn a_waiter_takes_over_at_once(url: &str) {
    let mut holder = Worker::start("hold", url, "lock", LONG);
    let first = holder.granted().await;
    let mut waiter = Worker::start("hold", url, "lock", LONG);
    holder.kill().await;
    assert!(waiter.granted().await > first);
}

/// A waiter takes over without other clients, and only after the dead holder's lease has ended. `option` is added to
/// the store URL.
pub(super) async fn a_waiter_takes_over_after_the_lease(url: &str, option: &str) {
    let url = with_option(url, option);
    // The holder sends its request after this.
    let granted = Deadline::new(SystemClock.now(), Ttl::new(TTL).unwrap().holder_span());
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let mut waiter = Worker::start("hold", &url, "lock", TTL_OPTION);
    holder.kill().await;
    assert!(waiter.granted().await > first);
    assert!(granted.passed(SystemClock.now()), "{url}: granted before the lease of the dead had run out");
}

/// A try is granted the lock of a dead holder once the store's clock shows that its lease is over. Inspection and the
/// try agree.
pub(super) async fn a_try_takes_over_by_the_clock_of_the_store(url: &str) {
    a_try_takes_over_when(&with_option(url, "margin=0s"), |state| matches!(state, State::Lapsed(_))).await;
}

/// The store ends the lease itself. The lock is then free.
pub(super) async fn a_try_takes_over_when_the_store_ends_the_lease(url: &str) {
    a_try_takes_over_when(url, |state| matches!(state, State::Free)).await;
}

async fn a_try_takes_over_when(url: &str, ended: fn(&State) -> bool) {
    let mut holder = Worker::start("hold", url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    holder.kill().await;
    let name = LockName::new("lock").unwrap();
    let over = async {
        loop {
            // Open a new client each time, so that it has observed nothing before.
            match Locker::open(url).await.unwrap().inspect(&name).await.unwrap().state {
                state if ended(&state) => return,
                State::Held(_) => SystemClock.sleep(TTL / 10).await,
                state => panic!("the lock is {state:?} without a release"),
            }
        }
    };
    workers::within("the end of the lease", over).await;
    let mut next = Worker::start("try", url, "lock", &[]);
    assert!(next.granted().await > first, "{url}");
}

/// etcd ends a dead holder's lease within its ttl, rounded up to seconds, plus the half second between its checks for
/// expired leases. It does not do so before the holder's own deadline.
pub(super) async fn a_waiter_takes_over_within_the_bound(url: &str) {
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
    // The limit is far above the bound, because this machine may be slow. Only the order of magnitude matters.
    assert!(took < TTL * 5, "granted after {took:?}");
}
