//! `failover_grace` on MariaDB: a real promotion, and the rules. Each test of a rule fails without that rule.

use std::time::Duration;

use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, LeaseStore, Released, Renewal};
use leasehold::{ErrorKind, LockName, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::mysql::{MariadbServer, query, table};
use tempfile::TempDir;

use crate::leases::{
    TTL, assert_repetition_cannot_outlast, claim, claim_of, granted, granted_to, open, refused, refused_to,
};

const GRACE: Duration = Duration::from_secs(60);

/// Asserts that the lock is refused because of the grace.
async fn assert_withheld(store: &dyn LeaseStore, name: &str) {
    let held = refused_to(store, &claim_of(store, name, TTL)).await;
    assert!(held.to_string().contains("failover_grace"), "{held}");
    assert!(held.lapses_within.unwrap() > TTL, "{held:?}");
}

/// Changes the row about the server.
async fn change_epoch(url: &str, set: &str) {
    let sql = format!("UPDATE {} SET {set} WHERE name = '//leasehold/epoch'; SELECT ROW_COUNT()", table(url));
    assert_eq!(query(url, &sql).await, "1");
}

/// Changes the row as if this many seconds had passed.
async fn wait_for(url: &str, seconds: u64) {
    change_epoch(url, &format!("written_us = written_us - {seconds} * 1000000")).await;
}

/// Changes the row as if another server had been promoted.
async fn fail_over(url: &str) {
    change_epoch(url, "version = 'another server'").await;
}

/// Creates a table that only this test uses, whose server has been known for longer than the grace.
async fn known() -> (Fresh, String) {
    let fresh = stores::fresh("mysql");
    let url = with_option(fresh.url(), "margin=0s&failover_grace=60s");
    Locker::open(&url).await.unwrap().init().await.unwrap();
    wait_for(&url, 100).await;
    (fresh, url)
}

/// A primary and its asynchronous replica.
struct Pair {
    primary: MariadbServer,
    replica: MariadbServer,
    _folders: [TempDir; 2],
}

impl Pair {
    async fn start() -> Self {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let primary = MariadbServer::start_below(folders[0].path()).await.unwrap();
        let replica = primary.replica_below(folders[1].path()).await.unwrap();
        Self { primary, replica, _folders: folders }
    }

    fn url(&self, options: &str) -> String {
        let both = format!("{},{}", self.primary.address(), self.replica.address());
        format!("{}&margin=0s&{options}", self.primary.url_by(&both))
    }
}

/// The replica lacks the grant. Without the grace, two processes hold the lock at once.
#[tokio::test]
async fn a_promoted_replica_adds_no_second_holder() {
    for grace in [Duration::ZERO, GRACE] {
        let mut pair = Pair::start().await;
        let url = pair.url(&format!("failover_grace={}s", grace.as_secs()));
        if !grace.is_zero() {
            Locker::open(&url).await.unwrap().init().await.unwrap();
            wait_for(&pair.primary.url(), grace.as_secs()).await;
        }
        let (one, two) = (open(&url).await, open(&url).await);
        // This grant reaches the replica as well.
        let mut known = granted_to(&*one, &claim_of(&*one, "known", TTL)).await;
        let seen = format!("{}", known.token);
        let sql = "SELECT token FROM leasehold WHERE name = 'known'";
        while query(&pair.replica.url(), sql).await != seen {
            tokio::task::yield_now().await;
        }
        pair.replica.stop_copying().await;
        let mut first = granted(&*one).await;
        pair.primary.kill().await.unwrap();
        pair.replica.promote().await;
        let outcome = two.try_acquire(&claim(&*two)).await.unwrap();
        assert!(!first.deadline.passed(one.env().now()), "its holder still works");
        if grace.is_zero() {
            let AcquireOutcome::Granted(second) = outcome else { panic!("{outcome:?}") };
            assert!(second.token > first.token, "only the token tells them apart");
            continue;
        }
        let AcquireOutcome::Held(held) = outcome else { panic!("{outcome:?}") };
        assert!(held.to_string().contains("failover_grace"), "{held}");
        assert!(held.lapses_within.unwrap() > first.deadline.remaining(one.env().now()), "{held:?}");
        // The holder notices the loss. Grants that the replica had received continue.
        assert!(matches!(one.renew(&mut first).await.unwrap(), Renewal::Lost(_)));
        assert!(matches!(one.renew(&mut known).await.unwrap(), Renewal::Renewed));
        wait_for(&pair.replica.url(), grace.as_secs()).await;
        let three = open(&url).await;
        assert!(granted(&*three).await.token > first.token);
        // A promoted server that has not received the row may lack grants as well.
        query(&pair.replica.url(), "DELETE FROM leasehold WHERE name = '//leasehold/epoch'").await;
        assert_withheld(&*open(&url).await, "other").await;
    }
}

#[tokio::test]
async fn during_the_grace_known_grants_go_on_and_nothing_is_granted() {
    let (_fresh, url) = known().await;
    let mut first = claim(&*open(&url).await);
    first.repeatable = true;
    let store = open(&url).await;
    granted_to(&*store, &first).await;
    granted_to(&*store, &claim_of(&*store, "lapsed", TTL)).await;
    let an_hour_ago = "written_us = written_us - 3600000000 WHERE name = 'lapsed'";
    query(&url, &format!("UPDATE {} SET {an_hour_ago}", table(&url))).await;
    fail_over(&url).await;
    let store = open(&url).await;
    assert_withheld(&*store, "other").await;
    assert_withheld(&*store, "lapsed").await;
    let mut grant = granted_to(&*store, &first).await;
    assert_eq!(refused(&*store).await.token, Some(grant.token), "held by a known grant");
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
    assert_withheld(&*store, "lock").await;
    wait_for(&url, GRACE.as_secs()).await;
    granted(&*open(&url).await).await;
}

/// Another server was the primary meanwhile, and may have lost a grant, while a connection to this one was unused.
#[tokio::test]
async fn a_primary_that_is_promoted_again_is_asked_again() {
    let (_fresh, url) = known().await;
    let store = open(&url).await;
    for name in ["new", "new", "known"] {
        store.release(&mut granted_to(&*store, &claim_of(&*store, name, TTL)).await, None).await.unwrap();
    }
    fail_over(&url).await;
    for name in ["known", "another"] {
        assert_withheld(&*store, name).await;
    }
    wait_for(&url, GRACE.as_secs()).await;
    let store = open(&url).await;
    granted_to(&*store, &claim_of(&*store, "known", TTL)).await;
    query(&url, &format!("DELETE FROM {} WHERE name = '//leasehold/epoch'", table(&url))).await;
    // The grace of this client, which records the server again, is over sooner.
    assert_withheld(&*open(&url.replace("=60s", "=40s")).await, "new").await;
    wait_for(&url, 40).await;
    let held = refused_to(&*store, &claim_of(&*store, "new", TTL)).await;
    assert!(held.to_string().contains("failover_grace"), "{held}");
}

/// Servers accept writes by default, also if they are replicas.
#[tokio::test]
async fn a_replica_that_is_not_read_only_is_refused() {
    let pair = Pair::start().await;
    query(&pair.replica.url(), "SET GLOBAL read_only = 0").await;
    let claim_there = async || {
        let store = open(&pair.replica.url()).await;
        let mut claim = claim(&*store);
        claim.store_timeout = Duration::from_secs(3);
        store.try_acquire(&claim).await
    };
    let error = claim_there().await.unwrap_err();
    assert!(error.is_transient() && error.to_string().contains("is a replica"), "{error:?}");
    pair.replica.stop_copying().await;
    assert!(matches!(claim_there().await.unwrap(), AcquireOutcome::Granted(_)));
}

#[tokio::test]
async fn the_longest_grace_of_all_clients_counts() {
    let (_fresh, url) = known().await;
    let (longer, shorter) = (url.replace("=60s", "=3600s"), url);
    let kept = open(&shorter).await;
    kept.release(&mut granted(&*kept).await, None).await.unwrap();
    let left = async |url: &str| refused(&*open(url).await).await.lapses_within.unwrap().as_secs();
    // By now, 100 s have passed.
    assert!((3_000..3_501).contains(&left(&longer).await));
    assert_withheld(&*kept, "lock").await;
    assert!((3_000..3_501).contains(&left(&shorter).await));
    fail_over(&shorter).await;
    assert!((3_501..=3_600).contains(&left(&shorter).await));
}

/// The grace begins again once, when a connection notices it, and then passes.
#[tokio::test]
async fn a_clock_that_was_set_back_does_not_prolong_the_grace() {
    let (_fresh, url) = known().await;
    for ahead in [1_u64, 3_600, 6_000_000_000] {
        change_epoch(&url, &format!("written_us = UNIX_TIMESTAMP() * 1000000 + {ahead} * 1000000")).await;
        assert!(refused(&*open(&url).await).await.lapses_within.unwrap() <= GRACE);
        wait_for(&url, GRACE.as_secs()).await;
        let store = open(&url).await;
        store.release(&mut granted(&*store).await, None).await.unwrap();
    }
}

#[tokio::test]
async fn a_lease_that_could_outlast_the_grace_is_refused() {
    let (_fresh, url) = known().await;
    let store = open(&url).await;
    let error = store.try_acquire(&claim_of(&*store, "lock", 2 * GRACE)).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)));
    assert_eq!(error.fault().kind, ErrorKind::Invalid, "{error}");
    assert_repetition_cannot_outlast(&*store, GRACE).await;
}

#[tokio::test]
async fn the_epoch_row_is_not_listed_as_a_lock_and_keeps_its_format() {
    let (_fresh, url) = known().await;
    let locker = Locker::open(&url).await.unwrap();
    locker.lock("lock").try_acquire().await.unwrap().release().await.unwrap();
    let names: Vec<_> = futures_util::TryStreamExt::try_collect(locker.list("")).await.unwrap();
    assert_eq!(names, [LockName::new("lock").unwrap()]);
    let older = "token = token - 60000000 WHERE name = 'lock'";
    query(&url, &format!("UPDATE {} SET {older}", table(&url))).await;
    // The row does not count as a lock of another client either, which would prevent all sweeps.
    locker.sweep(&names[0], Duration::ZERO, false).await.unwrap();
    let row = "SELECT name, locked_by, version = CONCAT_WS(' ', @@server_id, @@hostname, @@port), token FROM";
    let row = query(&url, &format!("{row} {}", table(&url))).await;
    assert_eq!(row, "//leasehold/epoch\tleasehold:epoch\t1\t60000000");
}
