//! Locks in a NATS cluster of three servers, whose leader is killed and stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use leasehold::Locker;
use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::url::StoreUrl;
use leasehold_testkit::process::within;
use leasehold_testkit::stores::nats::{Cluster, api};

use crate::leases::until_renewed;

/// Starts a cluster, and creates a bucket with `leasehold init`.
async fn cluster() -> (Cluster, String) {
    let cluster = Cluster::start().await;
    let url = cluster.url("b");
    let store = leasehold::stores::open(StoreUrl::parse(&url).unwrap(), Default::default()).await.unwrap();
    within("a bucket", async {
        // The leader may not know its followers yet.
        while let Err(error) = store.init().await {
            assert!(error.is_transient(), "{error:?}");
            SystemClock.sleep(Duration::from_millis(200)).await;
        }
    })
    .await;
    (cluster, url)
}

#[tokio::test]
async fn init_creates_three_replicas_which_the_doctor_approves() {
    let (_cluster, url) = cluster().await;
    assert_eq!(api(&url, "STREAM.INFO", "").await["config"]["num_replicas"], 3);
    let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
    assert_eq!(report.finding("bucket").unwrap().verdict, CheckStatus::Passed);
    let durability = report.finding("durability").unwrap();
    assert_eq!(durability.verdict, CheckStatus::Passed);
    assert!(durability.seen.contains("sync_interval"), "{durability:?}");
}

#[tokio::test]
async fn a_holder_keeps_its_grant_when_the_leader_dies_or_freezes() {
    let (mut cluster, url) = cluster().await;
    let guard = Locker::open(&url).await.unwrap().lock("lock").acquire().await.unwrap();
    let leader = cluster.leader("b").await;
    cluster.kill(leader).await;
    until_renewed(&guard).await;
    cluster.restart(leader);
    let leader = cluster.leader("b").await;
    cluster.pause(leader, true);
    until_renewed(&guard).await;
    cluster.pause(leader, false);
    until_renewed(&guard).await;
    guard.release().await.unwrap();
}

/// It responds nevertheless, with its own clock.
#[tokio::test]
async fn a_server_that_lost_the_others_is_not_used() {
    let (cluster, _) = cluster().await;
    cluster.pause(1, true);
    cluster.pause(2, true);
    cluster.until_leaderless("b").await;
    let url = StoreUrl::parse(&cluster.url_of(0, "b")).unwrap();
    let store = leasehold::stores::open(url, Default::default()).await.unwrap();
    let error = store.init().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("knows no leader"), "{error:?}");
}

/// The lock protects a counter in this process. Each of its clients has its own connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_change_and_the_count_is_exact() {
    const CLIENTS: u64 = 6;
    let (mut cluster, url) = cluster().await;
    let (counter, inside) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let (stop, tokens) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let (url, counter, inside) = (url.clone(), counter.clone(), inside.clone());
            let (stop, tokens) = (stop.clone(), tokens.clone());
            tokio::spawn(async move {
                let locker = Locker::open(&url).await.unwrap();
                let mut count = 0;
                while stop.load(Ordering::SeqCst) == 0 {
                    let lock = locker.lock("lock").store_timeout(Duration::from_secs(60));
                    let Ok(guard) = lock.acquire().await else { continue };
                    let token = guard.token().unwrap().get();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                    assert!(tokens.swap(token, Ordering::SeqCst) < token, "tokens rise");
                    let before = counter.load(Ordering::SeqCst);
                    SystemClock.sleep(Duration::from_millis(5)).await;
                    counter.store(before + 1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    count += 1;
                    let _ = guard.release().await;
                }
                count
            })
        })
        .collect();
    let goes_on = async |counter: &AtomicU64| {
        let before = counter.load(Ordering::SeqCst);
        within("ten more grants", async {
            while counter.load(Ordering::SeqCst) < before + 10 {
                SystemClock.sleep(Duration::from_millis(20)).await;
            }
        })
        .await;
    };
    goes_on(&counter).await;
    for kills in [true, false, true] {
        let leader = cluster.leader("b").await;
        if kills {
            cluster.kill(leader).await;
        } else {
            cluster.pause(leader, true);
        }
        goes_on(&counter).await;
        if kills {
            cluster.restart(leader);
        } else {
            // It believes that it still leads.
            cluster.pause(leader, false);
        }
        goes_on(&counter).await;
    }
    stop.store(1, Ordering::SeqCst);
    let mut counted = 0;
    for client in clients {
        counted += within("a client", client).await.unwrap();
    }
    assert_eq!(counter.load(Ordering::SeqCst), counted);
}
