//! leasehold shares a table of MariaDB with ShedLock itself, which runs in processes. `./test` builds the program.

use leasehold::lease::{Released, Renewal};
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::Process;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::mysql::{query, table};

use crate::interop::{self, acquired, says};
use crate::leases::{granted, lock, open, refused};
use crate::workers::Worker;

/// ShedLock with the time of the database, in time zones behind and ahead of it.
const ZONES: [&[&str]; 2] = [&["--zone", "America/New_York"], &["--zone", "Europe/Prague"]];

fn peer(fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
    Program::SHEDLOCK_ON_MYSQL.start(verb, fresh.url(), "lock", &[&["--ttl", ttl], more].concat())
}

#[tokio::test]
async fn the_lock_alternates_and_each_client_excludes_the_other() {
    for zone in ZONES {
        let fresh = stores::fresh("mysql");
        let mut last = None;
        for _ in 0..2 {
            let mut theirs = peer(&fresh, "hold", "60", zone);
            theirs.says("granted").await;
            let locker = Locker::open(fresh.url()).await.unwrap();
            let error = locker.lock("lock").try_acquire().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Held, "{error:?}");
            let foreign = error.holder().unwrap().foreign.as_ref().unwrap();
            assert!(foreign.len() > "another client: ".len(), "{error:?}");
            assert_eq!(theirs.end().await, says("released", 0));
            let guard = acquired(fresh.url()).await;
            assert!(guard.token().ok() > last, "tokens rise across grants of theirs");
            last = guard.token().ok();
            assert_eq!(peer(&fresh, "try", "60", zone).end().await, says("held", 1));
            guard.release().await.unwrap();
        }
        assert_eq!(peer(&fresh, "try", "60", zone).end().await, says("granted", 0));
    }
}

/// Our client waits until the lease of their client is over, and vice versa.
#[tokio::test]
async fn each_takes_over_when_the_other_has_died() {
    let fresh = stores::fresh("mysql");
    let url = with_option(fresh.url(), "margin=0s");
    let theirs = |verb: &str, ttl: &str| peer(&fresh, verb, ttl, &[]);
    interop::each_takes_over_when_the_other_has_died(fresh.url(), &url, ["2", "5"], theirs).await;
}

#[tokio::test]
async fn four_of_ours_and_four_of_theirs_count_exactly() {
    let fresh = stores::fresh("mysql");
    let ours =
        |more: &[&str]| Worker::start("increment", fresh.url(), "lock", &[&["--ttl", "20"], more].concat());
    let theirs = |_, more: &[&str]| peer(&fresh, "increment", "60", more);
    interop::count_exactly(4, 8, ours, theirs).await;
}

/// Old versions of ShedLock unlock whatever row has the name.
#[tokio::test]
async fn an_unlock_by_another_client_ends_no_lease_of_ours() {
    let fresh = stores::fresh("mysql");
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let unlock =
        format!("UPDATE {} SET lock_until = UTC_TIMESTAMP(3) WHERE name = 'lock'", table(fresh.url()));
    query(fresh.url(), &unlock).await;
    refused(&*open(fresh.url()).await).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
}

/// The row that was read allowed the grant. Then another client takes the lock, or prolongs its own lease.
#[tokio::test]
async fn a_lock_that_another_client_takes_is_neither_granted_nor_renewed_nor_swept() {
    let fresh = stores::fresh("mysql");
    let store = open(fresh.url()).await;
    let mut grant = granted(&*store).await;
    let taken = "locked_by = 'host-1', lock_until = TIMESTAMPADD(SECOND, 60, UTC_TIMESTAMP(3))";
    let theirs = format!("UPDATE {} SET {taken} WHERE name = 'lock'", table(fresh.url()));
    query(fresh.url(), &theirs).await;
    assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Lost(_)));
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::AlreadyLost);
    assert!(refused(&*store).await.foreign.unwrap().contains("host-1"));
    let error = store.sweep(&lock(), std::time::Duration::ZERO, false).await.unwrap_err();
    assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{error:?}");
}

/// Rows that leasehold has never written.
#[tokio::test]
async fn a_lock_that_only_another_client_has_had_is_granted_when_it_ends() {
    let fresh = stores::fresh("mysql");
    let store = open(fresh.url()).await;
    let insert = format!(
        "INSERT INTO {} (name, lock_until, locked_at, locked_by)
         VALUES ('lock', TIMESTAMPADD(SECOND, 60, UTC_TIMESTAMP(3)), UTC_TIMESTAMP(3), 'host-1')",
        table(fresh.url())
    );
    query(fresh.url(), &insert).await;
    refused(&*store).await;
    let ends = format!("UPDATE {} SET lock_until = UTC_TIMESTAMP(3) WHERE name = 'lock'", table(fresh.url()));
    query(fresh.url(), &ends).await;
    let mut grant = granted(&*store).await;
    assert_eq!(store.release(&mut grant, None).await.unwrap(), Released::Released);
}
