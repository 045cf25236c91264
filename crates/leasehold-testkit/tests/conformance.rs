//! The conformance suite on all storages of every store. `./test` starts the servers.

use std::sync::Arc;

use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold_testkit::harness::{Fresh, OnRegister, assert_described};
use leasehold_testkit::stores::{self, STORES};
use leasehold_testkit::{conformance, for_each_storage};

macro_rules! suite {
    ($($storage:ident: $kind:ident)*) => { $(on! { $storage })* };
}

/// Chooses the cases. On a store with records, the protocol applies the rules, which the simulation, the model and the
/// memory store prove on paused time. So such a store runs the cases of its own operations only. All cases run on one
/// of them, behind a network, and on each store that applies rules itself. Azure's own leases last for at least 15 s, so
/// the cases of the library would take too long there.
macro_rules! on {
    // The register's own tests run on moto, which differs from MinIO in nothing that the cases examine.
    (s3_moto) => {};
    (s3_minio) => { on! { s3_minio, } };
    (etcd) => { on! { etcd, } };
    (sqlite) => { on! { sqlite, } };
    (http_sqlite) => { on! { http_sqlite, } };
    (azure_lease) => { on! { azure_lease, , store rules } };
    ($storage:ident) => { on! { $storage, , store } };
    ($storage:ident, $($suite:tt)*) => {
        conformance!($storage, stores::harness(stringify!($storage)), (flavor = "multi_thread", worker_threads = 4) $($suite)*);
    };
}

for_each_storage!(suite);

/// Returns storage in memory, on a clock that advances only while all tasks wait.
fn memory_on_paused_time() -> OnRegister {
    stores::memory::on(Env::seeded(Arc::new(TestClock::default()), 1))
}

conformance!(memory_paused, memory_on_paused_time(), (start_paused = true));
conformance!(memory_existence_paused, memory_on_paused_time().by_existence(), (start_paused = true));

#[tokio::test]
async fn help_lists_what_each_store_can_do() {
    for store in STORES {
        for storage in store.storages().iter().filter(|storage| storage.options.is_empty()) {
            assert_described(Fresh::on(*store, storage).url()).await;
        }
    }
}
