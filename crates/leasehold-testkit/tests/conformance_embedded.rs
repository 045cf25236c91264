//! The conformance suite on the stores that need no server.

use std::sync::Arc;

use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold_testkit::conformance;
use leasehold_testkit::harness::{OnRegister, Sqlite, assert_described};

/// Memory on a clock that stands still unless everybody waits.
fn memory_on_paused_time() -> OnRegister {
    OnRegister::memory(Env::seeded(Arc::new(TestClock::default()), 1))
}

conformance!(memory_paused, memory_on_paused_time(), (start_paused = true));
conformance!(memory, OnRegister::memory(Env::system()), (flavor = "multi_thread", worker_threads = 4));
conformance!(existence_paused, memory_on_paused_time().by_existence(), (start_paused = true));
conformance!(
    existence,
    OnRegister::memory(Env::system()).by_existence(),
    (flavor = "multi_thread", worker_threads = 4)
);
conformance!(sqlite, Sqlite::default(), (flavor = "multi_thread", worker_threads = 4));

#[tokio::test]
async fn help_says_what_the_stores_can() {
    assert_described("mem:").await;
    assert_described(&Sqlite::default().url()).await;
}
