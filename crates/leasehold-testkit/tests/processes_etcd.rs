//! Several processes on a real etcd, which `./test` starts.

use std::time::Duration;

use leasehold::Locker;
use leasehold::clock::{Clock, Deadline, SystemClock};
use leasehold::lease::Ttl;
use leasehold::url::StoreUrl;
use leasehold_testkit::etcd::in_line;
use leasehold_testkit::servers::Server;

use crate::workers::{self, Worker};

const TTL: Duration = Duration::from_secs(2);
const TTL_OPTION: &[&str] = &["--ttl", "2"];

#[tokio::test]
async fn sixteen_processes_count_exactly() {
    let folder = tempfile::tempdir().unwrap();
    workers::count_exactly(&Server::Etcd.fresh_url(), folder.path()).await;
}

#[tokio::test]
async fn never_more_processes_than_permits() {
    workers::never_more_processes_than_permits(&Server::Etcd.fresh_url()).await;
}

/// Keys of a lock whose name begins with this one's lie among this one's keys, and are none of its business.
#[tokio::test]
async fn processes_count_exactly_also_amid_the_keys_of_other_locks() {
    let (url, folder) = (Server::Etcd.fresh_url(), tempfile::tempdir().unwrap());
    let other = Locker::open(&url).await.unwrap().lock("counter-0/below").acquire().await.unwrap();
    workers::count_exactly(&url, folder.path()).await;
    other.check().unwrap();
    other.release().await.unwrap();
}

/// etcd ends a dead holder's lease by itself: within its ttl, rounded up to seconds, and the half second in which it
/// looks for expired leases; and not before the holder's own deadline.
#[tokio::test]
async fn a_waiter_succeeds_a_killed_holder_within_the_bound_of_etcd() {
    let url = Server::Etcd.fresh_url();
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let mut waiter = Worker::start("hold", &url, "lock", TTL_OPTION);
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

/// One that is killed while it waits leaves its place in line with its lease; those behind it go on.
#[tokio::test]
async fn a_killed_waiter_does_not_hold_up_those_behind_it() {
    let url = Server::Etcd.fresh_url();
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let mut second = Worker::start("hold", &url, "lock", TTL_OPTION);
    in_line(&Server::Etcd.address(), &line(&url), 2).await;
    let mut third = Worker::start("hold", &url, "lock", TTL_OPTION);
    in_line(&Server::Etcd.address(), &line(&url), 3).await;
    second.kill().await;
    holder.kill().await;
    assert!(third.granted().await > first);
}

/// What the keys of `lock` begin with.
fn line(url: &str) -> String {
    format!("{}/lock/", StoreUrl::parse(url).unwrap().path().trim_matches('/'))
}
