//! Several processes on every store that processes can share: counters, permits, tickets, and killed holders. `./test`
//! starts the servers.

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
    // A serial server does not respond to so many clients within the time limits.
    ($storage:ident serial) => { processes! { $storage: } };
    ($storage:ident $shared:ident) => {
        processes! { $storage: sixteen_processes_count_exactly }
    };
    ($storage:ident: $($crowd:ident)*) => {
        on_storage! { $storage:
            a_waiter_succeeds_a_killed_holder
            a_try_takes_over_from_a_killed_holder
            a_ticket_outlives_its_process
            $($crowd)*
        }
    };
}

for_each_storage!(suite);

/// Creates empty storage that several processes may use at once.
async fn fresh(storage: &str) -> Fresh {
    let fresh = stores::fresh(storage);
    fresh.vouch().await;
    fresh
}

async fn sixteen_processes_count_exactly(storage: &str) {
    let fresh = fresh(storage).await;
    workers::count_exactly(fresh.url(), fresh.folder()).await;
}

/// A semaphore consists of locks, and the simulation proves its rules. So it runs on one store with records, and on the
/// two that have a queue or transactions of their own.
mod permits {
    #[cfg(feature = "etcd")]
    on_storage! { etcd: never_more_processes_than_permits }
    #[cfg(feature = "s3")]
    on_storage! { s3_minio: never_more_processes_than_permits }
    #[cfg(feature = "sqlite")]
    on_storage! { sqlite: never_more_processes_than_permits }

    async fn never_more_processes_than_permits(storage: &str) {
        crate::workers::never_more_processes_than_permits(super::fresh(storage).await.url()).await;
    }
}

async fn a_waiter_succeeds_a_killed_holder(storage: &str) {
    let fresh = fresh(storage).await;
    match fresh.store().reaper() {
        Reaper::Death => killed::a_waiter_takes_over_at_once(fresh.url()).await,
        Reaper::Contenders | Reaper::Waiters => {
            killed::a_waiter_takes_over_after_the_lease(fresh.url(), "store_clock=off").await
        }
        Reaper::StoreClock => killed::a_waiter_takes_over_after_the_lease(fresh.url(), "margin=0s").await,
        Reaper::Server => killed::a_waiter_takes_over_within_the_bound(fresh.url()).await,
    }
}

/// A process that only tries, like a cron job, takes over after a killed holder.
async fn a_try_takes_over_from_a_killed_holder(storage: &str) {
    let fresh = fresh(storage).await;
    match fresh.store().reaper() {
        Reaper::Death => killed::the_next_try_takes_over(fresh.url()).await,
        // A try has observed nothing, so it is refused for ever.
        Reaper::Waiters => {}
        Reaper::Contenders | Reaper::StoreClock => {
            killed::a_try_takes_over_by_the_clock_of_the_store(fresh.url()).await;
        }
        Reaper::Server => killed::a_try_takes_over_when_the_store_ends_the_lease(fresh.url()).await,
    }
}

/// A detached grant outlives its process.
async fn a_ticket_outlives_its_process(storage: &str) {
    let fresh = fresh(storage).await;
    let (said, code) = Worker::start("leave", fresh.url(), "lock", killed::LONG).end().await;
    assert_eq!((said.len(), code), (1, Some(0)), "{said:?}");
    let (said, code) = Worker::start("try", fresh.url(), "lock", &[]).end().await;
    assert_eq!(code, Some(1), "{said:?}");
}
