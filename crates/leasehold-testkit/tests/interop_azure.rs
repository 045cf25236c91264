//! leasehold shares a blob with azure-storage-blob, Microsoft's client for Python, which runs in processes. `./test`
//! installs it.

use leasehold::{ErrorKind, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::{Process, within};
use leasehold_testkit::stores;
use leasehold_testkit::stores::azure::leased_blob;

use crate::interop::{self, says};
use crate::workers::Worker;

fn peer(fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
    let blob = leased_blob(fresh.url(), "lock");
    Program::AZURE_PY.start(verb, fresh.url(), &blob, &[&["--ttl", ttl], more].concat())
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
    let theirs = |verb: &str, ttl: &str| peer(&fresh, verb, ttl, &[]);
    interop::each_takes_over_when_the_other_has_died(fresh.url(), fresh.url(), ["15", "15"], theirs).await;
}

#[tokio::test]
async fn two_of_ours_and_two_of_theirs_count_exactly() {
    let fresh = stores::fresh("azure_lease");
    let ours =
        |more: &[&str]| Worker::start("increment", fresh.url(), "lock", &[&["--ttl", "60"], more].concat());
    let theirs = |_, more: &[&str]| peer(&fresh, "increment", "60", more);
    interop::count_without_tokens(2, 5, ours, theirs).await;
}
