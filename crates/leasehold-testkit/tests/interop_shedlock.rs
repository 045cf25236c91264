//! leasehold shares a table with ShedLock itself, which runs in processes, on MariaDB and on PostgreSQL. `./test` builds the
//! program.

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

/// A store with ShedLock's program for it.
#[derive(Clone, Copy)]
struct On(&'static str, Program);

impl On {
    fn fresh(self) -> Fresh {
        stores::fresh(self.0)
    }

    fn peer(self, fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
        self.1.start(verb, fresh.url(), "lock", &[&["--ttl", ttl], more].concat())
    }
}

macro_rules! on {
    ($($store:ident: $feature:literal, $program:expr;)*) => {$(
        #[cfg(feature = $feature)]
        mod $store {
            use leasehold_testkit::peers::Program;

            use super::On;

            const ON: On = On($feature, $program);

            #[tokio::test]
            async fn the_lock_alternates_and_each_client_excludes_the_other() {
                super::the_lock_alternates_and_each_client_excludes_the_other(ON).await;
            }

            #[tokio::test]
            async fn each_takes_over_when_the_other_has_died() {
                super::each_takes_over_when_the_other_has_died(ON).await;
            }

            #[tokio::test]
            async fn four_of_ours_and_four_of_theirs_count_exactly() {
                super::four_of_ours_and_four_of_theirs_count_exactly(ON).await;
            }
        }
    )*};
}

on! {
    mysql: "mysql", Program::SHEDLOCK_ON_MYSQL;
    postgres: "postgres", Program::SHEDLOCK;
}

async fn the_lock_alternates_and_each_client_excludes_the_other(on: On) {
    for zone in ZONES {
        let fresh = on.fresh();
        let mut last = None;
        for _ in 0..2 {
            let mut theirs = on.peer(&fresh, "hold", "60", zone);
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
            assert_eq!(on.peer(&fresh, "try", "60", zone).end().await, says("held", 1));
            guard.release().await.unwrap();
        }
        assert_eq!(on.peer(&fresh, "try", "60", zone).end().await, says("granted", 0));
    }
}

/// Our client waits until the lease of their client is over, and vice versa.
async fn each_takes_over_when_the_other_has_died(on: On) {
    let fresh = on.fresh();
    let url = with_option(fresh.url(), "margin=0s");
    let theirs = |verb: &str, ttl: &str| on.peer(&fresh, verb, ttl, &[]);
    interop::each_takes_over_when_the_other_has_died(fresh.url(), &url, ["2", "5"], theirs).await;
}

async fn four_of_ours_and_four_of_theirs_count_exactly(on: On) {
    let fresh = on.fresh();
    let ours =
        |more: &[&str]| Worker::start("increment", fresh.url(), "lock", &[&["--ttl", "20"], more].concat());
    let theirs = |_, more: &[&str]| on.peer(&fresh, "increment", "60", more);
    interop::count_exactly(4, 8, ours, theirs).await;
}
