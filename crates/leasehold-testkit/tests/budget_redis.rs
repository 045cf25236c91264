//! How many scripts a lock costs on Redis, as counted by the server.

use leasehold::Released;
use leasehold::lease::{Claim, Grant, LeaseStore, Renewal};
use leasehold_testkit::process::within;
use leasehold_testkit::stores::redis::{RedisServer, redis_cli};

use crate::leases::{claim, granted, granted_to, open, refused, refused_to};
use crate::rules_redis::server;

/// Returns how many scripts the server has run since the last call.
async fn scripts(url: &str) -> usize {
    let stats = redis_cli(url, &["INFO", "commandstats"]).await;
    redis_cli(url, &["CONFIG", "RESETSTAT"]).await;
    let calls = stats.split_once("cmdstat_evalsha:calls=").map_or("0", |(_, rest)| rest);
    calls.split(',').next().and_then(|calls| calls.parse().ok()).unwrap_or(0)
}

async fn releases(store: &dyn LeaseStore, grant: &mut Grant) {
    assert_eq!(store.release(grant, None).await.unwrap(), Released::Released);
}

/// Returns a claim that has a place in the line.
async fn joined(store: &dyn LeaseStore) -> Claim {
    let mut claim = claim(store);
    claim.waits = true;
    let held = refused_to(store, &claim).await;
    within("a place", store.turn(&claim, &held)).await.unwrap();
    // It learns its place from what it has just read.
    assert!(refused_to(store, &claim).await.ahead.is_some());
    claim
}

#[tokio::test]
async fn each_step_is_one_script_and_a_hand_off_two() {
    let (_server, url, _folder) = server(&RedisServer::KEEPING, "margin=0s&failover_grace=0s").await;
    let (one, two, three) = (open(&url).await, open(&url).await, open(&url).await);
    // From now on, the server knows the scripts.
    let mut grant = granted(&*one).await;
    let (first, second) = (joined(&*two).await, joined(&*three).await);
    releases(&*one, &mut grant).await;
    let mut grant = granted_to(&*two, &first).await;
    releases(&*two, &mut grant).await;
    let mut grant = granted_to(&*three, &second).await;
    three.stop_waiting(&second).await.unwrap();
    releases(&*three, &mut grant).await;
    for store in [&open(&url).await, &one, &one] {
        scripts(&url).await;
        let mut grant = granted(&**store).await;
        assert_eq!(scripts(&url).await, 1, "acquire, cold or warm");
        assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
        assert_eq!(scripts(&url).await, 1, "renew");
        for other in [&open(&url).await, &two, &two] {
            refused(&**other).await;
            assert_eq!(scripts(&url).await, 1, "a try that finds the lock held, cold or warm");
        }
        releases(&**store, &mut grant).await;
        assert_eq!(scripts(&url).await, 1, "release");
    }
    let mut grant = granted(&*one).await;
    scripts(&url).await;
    let first = joined(&*two).await;
    assert_eq!(scripts(&url).await, 2, "ask and join");
    let second = joined(&*three).await;
    scripts(&url).await;
    releases(&*one, &mut grant).await;
    let mut grant = granted_to(&*two, &first).await;
    assert_eq!(scripts(&url).await, 2, "a hand-off");
    three.stop_waiting(&second).await.unwrap();
    assert_eq!(scripts(&url).await, 1, "leave the line");
    releases(&*two, &mut grant).await;
}
