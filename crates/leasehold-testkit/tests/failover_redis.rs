//! The primary of Redis is cut off from its replica alone.

use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::lease::{AcquireOutcome, Renewal, Ttl};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores::redis::{RedisServer, answers, redis_cli, replicate};
use leasehold_testkit::tcp_proxy::{Answers, Wire};

use crate::leases::{claim_of, granted_to, open};
use crate::rules_redis::server;

const SECOND: Duration = Duration::from_secs(1);

/// The primary loses the packets of its replica, which is promoted at once. Its clients still reach it.
#[tokio::test]
async fn a_primary_that_is_cut_off_renews_no_lease_past_the_grace() {
    let (primary, _, _folder) = server(&RedisServer::KEEPING, "").await;
    let (replica, _, _other) = server(&RedisServer::KEEPING, "").await;
    let wire = Wire::to(primary.address()).await;
    replicate(replica.url(), Some(&wire.address().to_string())).await;
    for (setting, value) in [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")] {
        redis_cli(primary.url(), &["CONFIG", "SET", setting, value]).await;
    }
    answers(replica.url(), &["INFO", "everything"], |info| info.contains("master_link_status:up")).await;
    answers(primary.url(), &["INFO", "everything"], |info| info.contains("min_slaves_good_slaves:1")).await;
    // Without a grace, because a server that has just started grants nothing during the grace.
    let old = open(&with_option(primary.url(), "margin=0s&failover_grace=0s")).await;
    let ttl = 3 * SECOND;
    let mut grant = granted_to(&*old, &claim_of(&*old, "lock", ttl)).await;
    wire.let_answers(Answers::Stopped);
    replicate(replica.url(), None).await;
    // The smallest grace that this lease and a lag of one second allow.
    let grace = Ttl::new(ttl).unwrap().contender_span() + 3 * SECOND;
    let url = with_option(replica.url(), &format!("margin=0s&failover_grace={}ms", grace.as_millis()));
    let new = open(&url).await;
    let claim = claim_of(&*new, "lock", ttl);
    let outcome = new.try_acquire(&claim).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Held(_)), "the grace begins: {outcome:?}");
    let began = old.env().now();
    let lost = within("the end of the renewals", async {
        while let Ok(Renewal::Renewed) = old.renew(&mut grant).await {
            SystemClock.sleep(Duration::from_millis(20)).await;
        }
        // The holder stops at its deadline.
        SystemClock.sleep(grant.deadline.remaining(old.env().now())).await;
        old.env().now()
    });
    let granted = within("the end of the grace", async {
        loop {
            match new.try_acquire(&claim).await.unwrap() {
                AcquireOutcome::Granted(_) => break new.env().now(),
                AcquireOutcome::Held(held) => new.turn(&claim, &held).await.unwrap(),
                AcquireOutcome::Lost(loss) => panic!("{loss}"),
            }
        }
    });
    let (lost, granted) = tokio::join!(lost, granted);
    let (lost, granted) = (lost.longest_since(began), granted.shortest_since(began));
    assert!(lost > ttl, "the old primary renewed the lease after the cut: {lost:?}");
    assert!(lost < granted, "the old holder stopped after {lost:?}, the new one began after {granted:?}");
}
