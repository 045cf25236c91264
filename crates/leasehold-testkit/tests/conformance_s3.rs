//! The conformance suite on real S3 servers, which `./test` starts.

use leasehold_testkit::conformance;
use leasehold_testkit::harness::{S3, assert_described};
use leasehold_testkit::servers::Server;

conformance!(moto, S3::on(Server::Moto), (flavor = "multi_thread", worker_threads = 4));
conformance!(
    moto_existence,
    S3::on(Server::Moto).by_existence(),
    (flavor = "multi_thread", worker_threads = 4)
);
conformance!(minio, S3::on(Server::MinIo), (flavor = "multi_thread", worker_threads = 4));

#[tokio::test]
async fn help_says_what_the_store_can() {
    assert_described(&Server::Moto.fresh_url()).await;
}
