//! The conformance suite on a real GCS server, which `./test` starts.

use leasehold_testkit::conformance;
use leasehold_testkit::harness::{Gcs, assert_described};
use leasehold_testkit::servers::Server;

conformance!(fake_gcs, Gcs::on(Server::FakeGcs), (flavor = "multi_thread", worker_threads = 4));
conformance!(
    fake_gcs_existence,
    Gcs::on(Server::FakeGcs).by_existence(),
    (flavor = "multi_thread", worker_threads = 4)
);

#[tokio::test]
async fn help_says_what_the_store_can() {
    assert_described(&Server::FakeGcs.fresh_url()).await;
}
