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

/// Chooses the cases. Those of the library run on paused time, on each `LeaseStore` that is not the protocol on records
/// (except Azure's own leases, which last for at least 15 s), and on one store that is, behind a network.
macro_rules! on {
    // The register's own tests run on moto, which differs from MinIO in nothing that the cases examine.
    (s3_moto) => {};
    (s3_minio) => { on! { s3_minio, } };
    (etcd) => { on! { etcd, } };
    (sqlite) => { on! { sqlite, } };
    (http_sqlite) => { on! { http_sqlite, } };
    (postgres) => { on! { postgres, } };
    (redis) => { on! { redis, } };
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
