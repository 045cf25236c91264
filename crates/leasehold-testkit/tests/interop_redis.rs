//! leasehold shares a key with other lock clients, which run as processes. `./test` builds them.

use leasehold::{ErrorKind, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::peers::Program;
use leasehold_testkit::process::Process;
use leasehold_testkit::servers::with_option;
use leasehold_testkit::stores;
use leasehold_testkit::stores::redis::{key, redis_cli};

use crate::interop::{self, acquired, says};
use crate::workers::Worker;

/// Clients that lock with `SET key value NX PX`.
const PEERS: [Program; 3] = [Program::REDIS_PY, Program::REDSYNC, Program::REDLOCK_NODE];

fn peer(program: Program, fresh: &Fresh, verb: &str, ttl: &str, more: &[&str]) -> Process {
    let key = key(fresh.url(), "lock");
    program.start(verb, fresh.url(), &key, &[&["--ttl", ttl], more].concat())
}

/// Returns the error of a refused try.
async fn refused(fresh: &Fresh) -> leasehold::Error {
    let error = Locker::open(fresh.url()).await.unwrap().lock("lock").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error:?}");
    error
}

#[tokio::test]
async fn the_lock_alternates_and_each_client_excludes_the_other() {
    for (program, storage) in PEERS.into_iter().zip(["redis", "redis_valkey", "redis"]) {
        let fresh = stores::fresh(storage);
        let mut last = None;
        for _ in 0..2 {
            let mut theirs = peer(program, &fresh, "hold", "60", &[]);
            theirs.says("granted").await;
            let error = refused(&fresh).await;
            let secret = redis_cli(fresh.url(), &["GET", &key(fresh.url(), "lock")]).await;
            assert!(error.to_string().contains("another client"), "{error}");
            assert!(secret.len() > 5 && !format!("{error:?}").contains(&secret), "it can be released by it");
            assert!(error.holder().unwrap().lapses_within.unwrap().as_secs() < 60);
            assert_eq!(theirs.end().await, says("released", 0));
            let guard = acquired(fresh.url()).await;
            assert!(guard.token().ok() > last, "tokens rise across grants of theirs");
            last = guard.token().ok();
            assert_eq!(peer(program, &fresh, "try", "60", &[]).end().await, says("held", 1));
            guard.release().await.unwrap();
        }
        assert_eq!(peer(program, &fresh, "try", "60", &[]).end().await, says("granted", 0));
    }
}

/// Our client waits until the lease of their client is over, and vice versa.
#[tokio::test]
async fn each_takes_over_when_the_other_has_died() {
    let fresh = stores::fresh("redis");
    let url = with_option(fresh.url(), "margin=0s");
    let theirs = |verb: &str, ttl: &str| peer(Program::REDIS_PY, &fresh, verb, ttl, &[]);
    interop::each_takes_over_when_the_other_has_died(fresh.url(), &url, ["2", "5"], theirs).await;
}

#[tokio::test]
async fn a_cooldown_keeps_other_clients_out() {
    let fresh = stores::fresh("redis");
    acquired(fresh.url()).await.release_with_cooldown(std::time::Duration::from_secs(60)).await.unwrap();
    assert_eq!(peer(Program::REDSYNC, &fresh, "try", "60", &[]).end().await, says("held", 1));
}

/// Redisson's locks are hashes. Each client refuses the other's locks.
#[tokio::test]
async fn redisson_and_leasehold_refuse_each_others_locks() {
    let fresh = stores::fresh("redis");
    let mut theirs = peer(Program::REDISSON, &fresh, "hold", "60", &[]);
    theirs.says("granted").await;
    assert!(refused(&fresh).await.to_string().contains("type hash"));
    assert_eq!(theirs.end().await, says("released", 0));
    let guard = acquired(fresh.url()).await;
    assert_eq!(peer(Program::REDISSON, &fresh, "try", "60", &[]).end().await, says("held", 1));
    guard.check().unwrap();
    guard.release().await.unwrap();
}

#[tokio::test]
async fn four_of_ours_and_four_of_theirs_count_exactly() {
    const THEIRS: [Program; 4] =
        [Program::REDIS_PY, Program::REDSYNC, Program::REDLOCK_NODE, Program::REDSYNC];
    let fresh = stores::fresh("redis");
    let ours =
        |more: &[&str]| Worker::start("increment", fresh.url(), "lock", &[&["--ttl", "20"], more].concat());
    let theirs = |n: usize, more: &[&str]| peer(THEIRS[n], &fresh, "increment", "60", more);
    interop::count_exactly(THEIRS.len(), 8, ours, theirs).await;
}
