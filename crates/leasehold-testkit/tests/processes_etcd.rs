//! Several processes on a real etcd, whose waiters form a line. `./test` starts the server.

use leasehold::Locker;
use leasehold::url::StoreUrl;
use leasehold_testkit::servers::Server;
use leasehold_testkit::stores::etcd::in_line;

use crate::workers::{self, Worker};

const TTL_OPTION: &[&str] = &["--ttl", "10"];

/// If the name of this lock is a prefix of another lock's name, the other lock's keys lie among its keys. It must
/// ignore them.
#[tokio::test]
async fn processes_count_exactly_also_amid_the_keys_of_other_locks() {
    let (url, folder) = (Server::ETCD.fresh_url(), tempfile::tempdir().unwrap());
    let other = Locker::open(&url).await.unwrap().lock("counter-0/below").acquire().await.unwrap();
    workers::count_exactly(&url, folder.path()).await;
    other.check().unwrap();
    other.release().await.unwrap();
}

/// A waiter that is killed loses its place in line with its lease. The waiters behind it continue.
#[tokio::test]
async fn a_killed_waiter_does_not_block_the_waiters_behind_it() {
    let url = Server::ETCD.fresh_url();
    let mut holder = Worker::start("hold", &url, "lock", TTL_OPTION);
    let first = holder.granted().await;
    let mut second = Worker::start("hold", &url, "lock", TTL_OPTION);
    in_line(&Server::ETCD.address(), &line(&url), 2).await;
    let mut third = Worker::start("hold", &url, "lock", TTL_OPTION);
    in_line(&Server::ETCD.address(), &line(&url), 3).await;
    second.kill().await;
    holder.kill().await;
    assert!(third.granted().await > first);
}

/// Returns the prefix of the keys of `lock`.
fn line(url: &str) -> String {
    format!("{}/lock/", StoreUrl::parse(url).unwrap().path().trim_matches('/'))
}
