//! The conformance suite on real DynamoDB servers, which `./test` starts.

use leasehold_testkit::conformance;
use leasehold_testkit::harness::{DynamoDb, assert_described};
use leasehold_testkit::servers::Server;

conformance!(moto, DynamoDb::on(Server::DynamoDbMoto), (flavor = "multi_thread", worker_threads = 4));
conformance!(local, DynamoDb::on(Server::DynamoDbLocal), (flavor = "multi_thread", worker_threads = 4));

#[tokio::test]
async fn help_says_what_the_store_can() {
    assert_described(&Server::DynamoDbMoto.fresh_url()).await;
}
