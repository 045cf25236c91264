//! leasehold shares a blob with azure-storage-blob, Microsoft's client for Python, which runs in processes. `./test`
//! installs it.

use leasehold::{ErrorKind, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::stores;
use leasehold_testkit::stores::azure::leased_blob;

use crate::workers::{self, Worker};

fn peer(fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
    let blob = leased_blob(fresh.url(), "lock");
    Program::AZURE_PY.start(verb, fresh.url(), &blob, &[&["--ttl", ttl], more].concat())
}

fn says(word: &str, code: i32) -> (Vec<String>, Option<i32>) {
    (vec![word.to_owned()], Some(code))
}

#[tokio::test]
async fn the_lock_alternates_and_each_client_excludes_the_other() {
    let fresh = stores::fresh("azure_lease");
    let locker = Locker::open(fresh.url()).await.unwrap();
    let lock = locker.lock("lock");
    for (ttl, shown) in [("60", "by another program"), ("-1", "without an end")] {
        let mut theirs = peer(&fresh, "hold", ttl, &[]);
        theirs.says("granted").await;
        let error = lock.try_acquire().await.unwrap_err();
        assert!(error.kind() == ErrorKind::Held && error.to_string().contains(shown), "{error:?}");
        assert_eq!(theirs.end().await, says("released", 0));
        let guard = within("a grant", lock.acquire()).await.unwrap();
        assert_eq!(peer(&fresh, "try", "60", &[]).end().await, says("held", 1));
        guard.release().await.unwrap();
    }
    assert_eq!(peer(&fresh, "try", "60", &[]).end().await, says("granted", 0));
}

/// Our client waits until the lease of their client is over, and vice versa.
#[tokio::test]
async fn each_takes_over_when_the_other_has_died() {
    let fresh = stores::fresh("azure_lease");
    let mut theirs = peer(&fresh, "hold", "15", &[]);
    theirs.says("granted").await;
    theirs.kill().await;
    let mut dying = Worker::start("hold", fresh.url(), "lock", &["--ttl", "15"]);
    dying.granted().await;
    dying.kill().await;
    let mut next = peer(&fresh, "hold", "60", &[]);
    next.says("granted").await;
    assert_eq!(next.end().await, says("released", 0));
}

#[tokio::test]
async fn two_of_ours_and_two_of_theirs_count_exactly() {
    const ADD: usize = 5;
    let fresh = stores::fresh("azure_lease");
    let file = fresh.folder().join("counter");
    std::fs::write(&file, "0").unwrap();
    let times = ADD.to_string();
    let more = ["--file", file.to_str().unwrap(), "--times", &times];
    let theirs: Vec<_> = (0..2).map(|_| peer(&fresh, "increment", "60", &more)).collect();
    let options = [&["--ttl", "60"], &more[..]].concat();
    let ours: Vec<_> = (0..2).map(|_| Worker::start("increment", fresh.url(), "lock", &options)).collect();
    workers::count_without_tokens_beside(ours, theirs, &file, 4 * ADD).await;
}
