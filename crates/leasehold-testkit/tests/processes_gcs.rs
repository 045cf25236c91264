//! Several processes on a real GCS server, which `./test` starts.

use leasehold_testkit::servers::Server;

use crate::workers::{self, killed};

#[tokio::test]
async fn sixteen_processes_count_exactly() {
    let folder = tempfile::tempdir().unwrap();
    workers::count_exactly(&Server::FakeGcs.fresh_url(), folder.path()).await;
}

#[tokio::test]
async fn a_waiter_succeeds_a_killed_holder_by_observation() {
    killed::is_succeeded_by_observation(Server::FakeGcs).await;
}

#[tokio::test]
async fn a_try_succeeds_a_killed_holder_once_the_clock_of_the_store_says_so() {
    killed::is_succeeded_once_the_clock_of_the_store_says_so(Server::FakeGcs).await;
}
