//! Several processes on every store that they can share: counters, permits, tickets, and holders that are killed.
//! `./test` starts the servers.

mod killed;

use leasehold_testkit::for_each_storage;
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::stores;
use leasehold_testkit::test_store::Reaper;

use crate::workers::{self, Worker};

macro_rules! suite {
    ($($storage:ident: $kind:ident)*) => { $(processes!($storage $kind);)* };
}

macro_rules! processes {
    ($storage:ident alone) => {};
    // 16 processes that want permits write so often that one of them gives up after 15 s.
    ($storage:ident serial) => { processes! { $storage: } };
    ($storage:ident $shared:ident) => { processes! { $storage: never_more_processes_than_permits } };
    ($storage:ident: $($more:ident)?) => {
        on_storage! { $storage:
            sixteen_processes_count_exactly
            a_waiter_succeeds_a_killed_holder
            a_try_succeeds_a_killed_holder
            a_ticket_outlives_its_process
            $($more)?
        }
    };
}

for_each_storage!(suite);

/// Empty storage that processes may use at once.
async fn fresh(storage: &str) -> Fresh {
    let fresh = stores::fresh(storage);
    fresh.vouch().await;
    fresh
}

async fn sixteen_processes_count_exactly(storage: &str) {
    let fresh = fresh(storage).await;
    workers::count_exactly(fresh.url(), fresh.folder()).await;
}

async fn never_more_processes_than_permits(storage: &str) {
    workers::never_more_processes_than_permits(fresh(storage).await.url()).await;
}

async fn a_waiter_succeeds_a_killed_holder(storage: &str) {
    let fresh = fresh(storage).await;
    match fresh.store().reaper() {
        Reaper::Death => killed::lets_a_waiter_in_at_once(fresh.url()).await,
        // By observation.
        Reaper::Contenders => killed::lets_a_waiter_in_after_the_lease(fresh.url(), "store_clock=off").await,
        Reaper::StoreClock => killed::lets_a_waiter_in_after_the_lease(fresh.url(), "margin=0s").await,
        Reaper::Server => killed::is_succeeded_within_the_bound(fresh.url()).await,
    }
}

/// One that never waited and only tries, as a job of cron does.
async fn a_try_succeeds_a_killed_holder(storage: &str) {
    let fresh = fresh(storage).await;
    match fresh.store().reaper() {
        Reaper::Death => killed::is_succeeded_at_the_next_try(fresh.url()).await,
        Reaper::Contenders | Reaper::StoreClock => {
            killed::is_succeeded_when_the_clock_of_the_store_says_so(fresh.url()).await;
        }
        Reaper::Server => killed::is_succeeded_when_the_store_has_ended_its_lease(fresh.url()).await,
    }
}

/// A grant that was made to outlive its process does.
async fn a_ticket_outlives_its_process(storage: &str) {
    let fresh = fresh(storage).await;
    let (said, code) = Worker::start("leave", fresh.url(), "lock", killed::LONG).end().await;
    assert_eq!((said.len(), code), (1, Some(0)), "{said:?}");
    let (said, code) = Worker::start("try", fresh.url(), "lock", &[]).end().await;
    assert_eq!(code, Some(1), "{said:?}");
}
