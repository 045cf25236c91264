//! Several processes on one SQLite file.

use leasehold_testkit::harness::Sqlite;

use crate::workers::{self, Worker};

const LONG: &[&str] = &["--ttl", "3600"];

#[tokio::test]
async fn sixteen_processes_count_exactly() {
    let sqlite = Sqlite::default();
    workers::count_exactly(&sqlite.url(), sqlite.folder()).await;
}

#[tokio::test]
async fn never_more_processes_than_permits() {
    workers::never_more_processes_than_permits(&Sqlite::default().url()).await;
}

/// Like flock(1): the lease had an hour to go, and its holder's death ends it.
#[tokio::test]
async fn a_killed_holder_is_succeeded_at_the_next_try() {
    let sqlite = Sqlite::default();
    let mut holder = Worker::start("hold", &sqlite.url(), "lock", LONG);
    let first = holder.granted().await;
    let (said, code) = Worker::start("try", &sqlite.url(), "lock", &[]).end().await;
    assert_eq!(code, Some(1), "{said:?}");
    holder.kill().await;
    let mut next = Worker::start("try", &sqlite.url(), "lock", &[]);
    assert!(next.granted().await > first);
    assert_eq!(next.end().await.1, Some(0));
}

/// One that waits already is let in by the death of the holder as well, an hour before the lease ends.
#[tokio::test]
async fn a_waiter_succeeds_a_killed_holder() {
    let sqlite = Sqlite::default();
    let mut holder = Worker::start("hold", &sqlite.url(), "lock", LONG);
    let first = holder.granted().await;
    let mut waiter = Worker::start("hold", &sqlite.url(), "lock", LONG);
    holder.kill().await;
    assert!(waiter.granted().await > first);
}

/// A grant that was made to outlive its process does.
#[tokio::test]
async fn a_ticket_outlives_its_process() {
    let sqlite = Sqlite::default();
    let (said, code) = Worker::start("leave", &sqlite.url(), "lock", LONG).end().await;
    assert_eq!((said.len(), code), (1, Some(0)), "{said:?}");
    let (said, code) = Worker::start("try", &sqlite.url(), "lock", &[]).end().await;
    assert_eq!(code, Some(1), "{said:?}");
}
