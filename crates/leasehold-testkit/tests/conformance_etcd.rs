//! The conformance suite on a real etcd, which `./test` starts.

use leasehold_testkit::conformance;
use leasehold_testkit::harness::{Etcd, assert_described};
use leasehold_testkit::servers::Server;

conformance!(etcd, Etcd::default(), (flavor = "multi_thread", worker_threads = 4));

#[tokio::test]
async fn help_says_what_the_store_can() {
    assert_described(&Server::Etcd.fresh_url()).await;
}
