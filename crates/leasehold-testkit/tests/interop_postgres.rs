//! leasehold shares a table with ShedLock itself, which runs in processes. `./test` builds the program.

use leasehold::{ErrorKind, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::Process;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;

use crate::interop::{self, acquired, says};
use crate::workers::Worker;

/// ShedLock with the time of the database, in time zones behind and ahead of it.
const ZONES: [&[&str]; 2] = [&["--zone", "America/New_York"], &["--zone", "Europe/Prague"]];

fn peer(fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
    Program::SHEDLOCK.start(verb, fresh.url(), "lock", &[&["--ttl", ttl], more].concat())
}

#[tokio::test]
async fn the_lock_alternates_and_each_client_excludes_the_other() {
    for zone in ZONES {
        let fresh = stores::fresh("postgres");
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
    let fresh = stores::fresh("postgres");
    let url = with_option(fresh.url(), "margin=0s");
    let theirs = |verb: &str, ttl: &str| peer(&fresh, verb, ttl, &[]);
    interop::each_takes_over_when_the_other_has_died(fresh.url(), &url, ["2", "5"], theirs).await;
}

#[tokio::test]
async fn four_of_ours_and_four_of_theirs_count_exactly() {
    let fresh = stores::fresh("postgres");
    let ours =
        |more: &[&str]| Worker::start("increment", fresh.url(), "lock", &[&["--ttl", "20"], more].concat());
    let theirs = |_, more: &[&str]| peer(&fresh, "increment", "60", more);
    interop::count_exactly(4, 8, ours, theirs).await;
}
