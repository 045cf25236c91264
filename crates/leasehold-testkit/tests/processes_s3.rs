//! Several processes on real S3 servers, which `./test` starts.

use leasehold_testkit::servers::Server;

use crate::workers::{self, killed};

#[tokio::test]
async fn sixteen_processes_count_exactly_on_moto() {
    let folder = tempfile::tempdir().unwrap();
    workers::count_exactly(&Server::Moto.fresh_url(), folder.path()).await;
}

#[tokio::test]
async fn sixteen_processes_count_exactly_on_minio() {
    let folder = tempfile::tempdir().unwrap();
    workers::count_exactly(&Server::MinIo.fresh_url(), folder.path()).await;
}

#[tokio::test]
async fn never_more_processes_than_permits() {
    workers::never_more_processes_than_permits(&Server::MinIo.fresh_url()).await;
}

#[tokio::test]
async fn a_waiter_succeeds_a_killed_holder_by_observation() {
    for server in Server::S3 {
        killed::is_succeeded_by_observation(*server).await;
    }
}

#[tokio::test]
async fn a_try_succeeds_a_killed_holder_once_the_clock_of_the_store_says_so() {
    for server in Server::S3 {
        killed::is_succeeded_once_the_clock_of_the_store_says_so(*server).await;
    }
}
