//! leasehold shares a table with ShedLock itself, which runs in processes. `./test` builds the program.

use leasehold::{ErrorKind, Guard, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::stores;

use crate::workers::{self, Worker};

/// ShedLock with the time of the database, in time zones behind and ahead of it.
const ZONES: [&[&str]; 2] = [&["--zone", "America/New_York"], &["--zone", "Europe/Prague"]];

fn peer(fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
    Program::SHEDLOCK.start(verb, fresh.url(), "lock", &[&["--ttl", ttl], more].concat())
}

async fn ours(fresh: &Fresh) -> Guard {
    let lock = Locker::open(fresh.url()).await.unwrap().lock("lock");
    within("a grant", lock.acquire()).await.unwrap()
}

fn says(word: &str, code: i32) -> (Vec<String>, Option<i32>) {
    (vec![word.to_owned()], Some(code))
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
            let holder = error.holder().unwrap().holder.as_ref().unwrap();
            assert!(holder.is_foreign() && !holder.name.is_empty(), "{error:?}");
            assert_eq!(theirs.end().await, says("released", 0));
            let guard = ours(&fresh).await;
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
    let mut theirs = peer(&fresh, "hold", "2", &[]);
    theirs.says("granted").await;
    theirs.kill().await;
    let guard = ours(&fresh).await;
    guard.release().await.unwrap();
    let url = leasehold_testkit::servers::with_option(fresh.url(), "margin=0s");
    let mut dying = Worker::start("hold", &url, "lock", &["--ttl", "5"]);
    dying.granted().await;
    dying.kill().await;
    let mut next = peer(&fresh, "hold", "60", &[]);
    next.says("granted").await;
    assert_eq!(next.end().await, says("released", 0));
}

#[tokio::test]
async fn four_of_ours_and_four_of_theirs_count_exactly() {
    const EACH: usize = 4;
    const ADD: usize = 8;
    let fresh = stores::fresh("postgres");
    let file = fresh.folder().join("counter");
    std::fs::write(&file, "0").unwrap();
    let times = ADD.to_string();
    let more = ["--file", file.to_str().unwrap(), "--times", &times];
    let theirs: Vec<_> = (0..EACH).map(|_| peer(&fresh, "increment", "60", &more)).collect();
    let options = [&["--ttl", "20"], &more[..]].concat();
    let ours: Vec<_> = (0..EACH).map(|_| Worker::start("increment", fresh.url(), "lock", &options)).collect();
    workers::count_exactly_beside(ours, theirs, &file, 2 * EACH * ADD).await;
}
