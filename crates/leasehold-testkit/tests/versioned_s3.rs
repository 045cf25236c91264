//! Locks in a bucket that keeps every version of its objects: a deleted object is there, behind a delete marker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A panic is how a test fails.

use aws_sdk_s3::types::{BucketVersioningStatus, VersioningConfiguration};
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::{ErrorKind, Locker, LossReason};
use leasehold_testkit::harness::s3_client;
use leasehold_testkit::servers::Server;

#[tokio::test]
async fn fault_24_a_delete_marker_counts_as_absent_on_moto() {
    deletes_are_losses_and_tokens_rise(Server::Moto).await;
}

#[tokio::test]
async fn fault_24_a_delete_marker_counts_as_absent_on_minio() {
    deletes_are_losses_and_tokens_rise(Server::MinIo).await;
}

async fn deletes_are_losses_and_tokens_rise(server: Server) {
    let bucket = format!("versioned-{}", &Id::random(&Random::from_os()).to_string()[..16]);
    let client = s3_client(&server.url()).await;
    client.create_bucket().bucket(&bucket).send().await.unwrap();
    let versioning = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    client.put_bucket_versioning().bucket(&bucket).versioning_configuration(versioning).send().await.unwrap();
    let url = server.url();
    let url = format!("s3://{bucket}/locks?{}", url.split_once('?').unwrap().1);
    let (locker, other) = (Locker::open(&url).await.unwrap(), Locker::open(&url).await.unwrap());

    let mut last = None;
    for _ in 0..3 {
        let guard = locker.lock("x").try_acquire().await.unwrap();
        let token = guard.token().unwrap();
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        assert_eq!(other.lock("x").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
        let ticket = guard.into_ticket().await.unwrap();
        // By hand: without a version, so that a marker is put on top.
        let deleted = client.delete_object().bucket(&bucket).key("locks/x.lock").send().await.unwrap();
        assert_eq!(deleted.delete_marker(), Some(true), "{deleted:?}");
        let lost = locker.renew(&ticket).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Lost, "{lost:?}");
        assert_eq!(lost.loss().map(|loss| loss.reason.clone()), Some(LossReason::Deleted), "{lost:?}");
    }
    // Renewals and releases leave versions, and nobody minds.
    let guard = other.lock("x").try_acquire().await.unwrap();
    assert!(last < Some(guard.token().unwrap()));
    guard.release().await.unwrap();
    locker.lock("x").try_acquire().await.unwrap().release().await.unwrap();
}
