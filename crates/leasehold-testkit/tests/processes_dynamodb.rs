//! Several processes on real DynamoDB servers, which `./test` starts.

use leasehold_testkit::servers::Server;

use crate::workers::{self, killed};

#[tokio::test]
async fn sixteen_processes_count_exactly_on_moto() {
    let folder = tempfile::tempdir().unwrap();
    workers::count_exactly(&Server::DynamoDbMoto.fresh_url(), folder.path()).await;
}

#[tokio::test]
async fn sixteen_processes_count_exactly_on_dynamodb_local() {
    let folder = tempfile::tempdir().unwrap();
    workers::count_exactly(&Server::DynamoDbLocal.fresh_url(), folder.path()).await;
}

#[tokio::test]
async fn a_waiter_succeeds_a_killed_holder_by_observation() {
    for server in Server::DYNAMODB {
        killed::is_succeeded_by_observation(*server).await;
    }
}

#[tokio::test]
async fn a_try_succeeds_a_killed_holder_once_the_clock_of_the_store_says_so() {
    for server in Server::DYNAMODB {
        killed::is_succeeded_once_the_clock_of_the_store_says_so(*server).await;
    }
}
