//! The conformance suite and the doctor on the store of this example.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;

use leasehold::clock::{SystemClock, TestClock};
use leasehold::doctor::{Examination, probe, probe_deletes};
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold_testkit::conformance;
use leasehold_testkit::harness::OnRegister;
use own_store::{MapRegister, MapServer, open};

/// Returns fresh storage, with a client of its own for each process of a case.
fn storage(env: Env) -> OnRegister {
    let server = Arc::new(MapServer::new(env.clock.clone()));
    let open =
        move || -> Arc<dyn leasehold::Register> { Arc::new(MapRegister::new(server.clone(), env.clone())) };
    OnRegister::of_clients(open, StoreOptions::default())
}

// All cases, in seconds: this clock advances only while all tasks wait.
conformance!(paused, storage(Env::seeded(Arc::new(TestClock::default()), 1)), (start_paused = true));
// The cases of the store's own operations on several threads, where requests overlap.
conformance!(threads, storage(Env::system()), (flavor = "multi_thread", worker_threads = 4), store);

/// The probe asks for what no lock shows as directly: whether deletes are conditional, and how requests race.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_probe_and_the_doctor_find_it_safe() {
    let server = Arc::new(MapServer::new(Arc::new(SystemClock)));
    let register = MapRegister::new(server.clone(), Env::system());
    probe(&register).await.unwrap();
    probe_deletes(&register).await.unwrap();
    let report = open(&server).examine(&Examination::default()).await;
    assert!(report.is_safe(), "{report:#?}");
}
