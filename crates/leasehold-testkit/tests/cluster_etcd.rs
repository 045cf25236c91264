//! Three-member clusters whose members are killed and stopped while locks are held and contended.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::{ErrorKind, Guard, Locker};
use leasehold_testkit::process::within;
use leasehold_testkit::stores::etcd::Cluster;

use crate::leases::until_renewed;
use crate::workers;

const TTL: Duration = Duration::from_secs(12);

async fn acquired(url: &str) -> Guard {
    let locker = Locker::open(url).await.unwrap();
    // On a busy machine, the fifteen members of five tests take long to elect their leaders.
    let lock = locker.lock("lock").ttl(TTL).store_timeout(TTL * 20);
    within("a grant", lock.acquire()).await.unwrap()
}

/// Asserts that the guard stays valid for this long.
async fn stays_held(guard: &Guard, how_long: Duration) {
    let start = SystemClock.now();
    while SystemClock.now().longest_since(start) < how_long {
        guard.check().unwrap();
        SystemClock.sleep(Duration::from_millis(100)).await;
    }
}

/// 16 processes count under one lock while leaders are killed and members stopped. The sum is exact, no two processes
/// held the lock at once, and tokens rise.
#[tokio::test]
async fn a_counter_stays_exact_while_leaders_are_killed() {
    let mut cluster = Cluster::start(3, &[]).await;
    let folder = tempfile::tempdir().unwrap();
    let url = cluster.url();
    let sabotaging = AtomicBool::new(true);
    let counting = async {
        while sabotaging.load(Ordering::Relaxed) {
            workers::count_exactly(&url, folder.path()).await;
        }
    };
    let sabotage = async {
        for _ in 0..2 {
            let leader = cluster.leader().await;
            cluster.kill(leader).await;
            let next = cluster.leader().await;
            cluster.restart(leader);
            SystemClock.sleep(Duration::from_secs(3)).await;
            cluster.stop(next);
            SystemClock.sleep(Duration::from_secs(4)).await;
            cluster.resume(next);
            SystemClock.sleep(Duration::from_secs(3)).await;
        }
        sabotaging.store(false, Ordering::Relaxed);
    };
    futures_util::future::join(counting, sabotage).await;
}

/// A holder keeps its lock while the leader dies and restarts. The next grant has a higher token.
#[tokio::test]
async fn a_holder_outlives_the_leader() {
    let mut cluster = Cluster::start(3, &[]).await;
    let guard = acquired(&cluster.url()).await;
    let waiting = tokio::spawn({
        let url = cluster.url();
        async move { acquired(&url).await }
    });
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    stays_held(&guard, TTL * 2).await;
    assert!(!waiting.is_finished());
    cluster.restart(leader);
    stays_held(&guard, TTL).await;
    let token = guard.token().unwrap();
    guard.release().await.unwrap();
    let next = waiting.await.unwrap();
    assert!(next.token().unwrap() > token);
    next.release().await.unwrap();
}

/// The client's member hangs: it accepts requests but does not respond. The client switches to another member, and so
/// do its keep-alives, although their stream is still open.
#[tokio::test]
async fn a_member_that_hangs_costs_no_lock() {
    let cluster = Cluster::start(3, &[]).await;
    // Use a member that is not the leader, because an election would take most of the time.
    let member = (cluster.leader().await + 1) % 3;
    let guard = acquired(&cluster.url_from(member)).await;
    until_renewed(&guard).await;
    assert_eq!(cluster.calls(member).await.get("LeaseKeepAlive"), Some(&1), "the stream stands open");
    cluster.stop(member);
    stays_held(&guard, TTL * 2).await;
    cluster.resume(member);
    guard.release().await.unwrap();
    acquired(&cluster.url_from(member)).await.release().await.unwrap();
}

/// A holder that can reach only the old leader, which hangs, loses its lock before the other members elect a new
/// leader and grant the lock again. It does not get the lock back when the old leader resumes.
#[tokio::test]
async fn a_holder_cut_off_with_the_old_leader_stops_first() {
    let cluster = Cluster::start(3, &[]).await;
    let leader = cluster.leader().await;
    let alone = format!("etcd://{}/tests/", cluster.address(leader));
    let guard = acquired(&alone).await;
    let waiting = tokio::spawn({
        let url = cluster.url_from((leader + 1) % 3);
        async move { acquired(&url).await }
    });
    cluster.stop(leader);
    let next = within("the successor", waiting).await.unwrap();
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost, "two hold the lock");
    assert!(next.token().unwrap() > guard.token().unwrap());
    cluster.resume(leader);
    stays_held(&next, TTL).await;
    assert!(guard.check().is_err());
    next.release().await.unwrap();
}

/// Without a majority nothing is granted or prolonged. The holder notices in time, and waiters continue when the
/// members are back.
#[tokio::test]
async fn without_a_majority_a_lock_is_lost_in_time_and_granted_later() {
    let mut cluster = Cluster::start(3, &[]).await;
    let guard = acquired(&cluster.url()).await;
    let token = guard.token().unwrap();
    let waiting = tokio::spawn({
        let url = cluster.url();
        async move { acquired(&url).await }
    });
    let leader = cluster.leader().await;
    cluster.kill(leader).await;
    cluster.stop((leader + 1) % 3);
    let loss = within("the loss", guard.lost()).await;
    assert_eq!(loss.token, token);
    assert!(!waiting.is_finished());
    cluster.restart(leader);
    cluster.resume((leader + 1) % 3);
    let next = within("the successor", waiting).await.unwrap();
    assert!(next.token().unwrap() > token);
    next.release().await.unwrap();
}
