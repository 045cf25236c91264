//! PostgreSQL behind pgbouncer. The conformance suite also runs through its transaction pool.

use std::time::Duration;

use leasehold::{Guard, Locker};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::servers::{Server, with_option};
use leasehold_testkit::stores;
use leasehold_testkit::stores::postgres::psql;

use crate::workers;

/// Creates a table that clients reach through pgbouncer's database `pool`.
fn fresh(pool: &str) -> (Fresh, String) {
    let fresh = stores::fresh("postgres_pgbouncer");
    let url = fresh.url().replace("/transaction?", &format!("/{pool}?"));
    (fresh, url)
}

async fn acquired(url: &str) -> Guard {
    Locker::open(url).await.unwrap().lock("lock").acquire().await.unwrap()
}

#[tokio::test]
async fn sixteen_processes_count_exactly_through_pooled_transactions() {
    let (fresh, url) = fresh("transaction");
    workers::count_exactly(&url, fresh.folder()).await;
}

#[tokio::test]
async fn sixteen_processes_count_exactly_through_a_pool_of_sessions() {
    let (fresh, url) = fresh("session");
    workers::count_exactly(&url, fresh.folder()).await;
}

/// Other clients of the same server connection find neither settings nor locks of leasehold there.
#[tokio::test]
async fn a_pooled_session_keeps_nothing_of_a_statement() {
    let (_fresh, url) = fresh("single");
    let settings = "SELECT string_agg(current_setting(name), ' ') FROM unnest(ARRAY['lock_timeout',
        'synchronous_commit', 'client_min_messages', 'search_path', 'application_name']) AS name";
    let before = psql(&url, settings).await;
    let guard = acquired(&url).await;
    let refused = Locker::open(&url).await.unwrap().lock("lock").try_acquire().await;
    assert!(refused.is_err());
    assert_eq!(psql(&url, settings).await.replace("leasehold", "psql"), before);
    let advisory = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(psql(&url, advisory).await, "0");
    guard.release().await.unwrap();
}

/// Returns how many statements pgbouncer has passed on for its database `counted`, which no other test uses.
async fn passed_on() -> u64 {
    let admin = format!("postgres://leasehold@{}/pgbouncer", Server::PGBOUNCER.address());
    let stats = psql(&admin, "SHOW STATS").await;
    let line = stats.lines().find(|line| line.starts_with("counted|")).unwrap();
    line.split('|').nth(2).unwrap().parse().unwrap()
}

#[tokio::test]
async fn each_step_of_a_lock_is_one_statement_of_the_pooler() {
    let (_fresh, url) = fresh("counted");
    let locker = Locker::open(&url).await.unwrap();
    // Open the connection.
    locker.inspect(&"lock".parse().unwrap()).await.unwrap();
    let before = passed_on().await;
    let guard = locker.lock("lock").acquire().await.unwrap();
    assert_eq!(passed_on().await - before, 1, "an acquisition");
    guard.release().await.unwrap();
    assert_eq!(passed_on().await - before, 2, "a release");
}

#[tokio::test]
async fn the_failover_grace_works_through_a_pooler() {
    let (_fresh, url) = fresh("transaction");
    let url = with_option(&url, "failover_grace=60s");
    let locker = Locker::open(&url).await.unwrap();
    let error = locker.lock("lock").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("failover_grace"), "the server has fsync=off: {error}");
    let long = locker.lock("lock").ttl(Duration::from_secs(120)).try_acquire().await.unwrap_err();
    assert!(long.to_string().contains("outlast"), "{long}");
}
