//! Locks in a bucket with versioning: a deleted object remains, behind a delete marker.

use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::types::{BucketVersioningStatus, VersioningConfiguration};
use leasehold::clock::{Clock, SystemClock};
use leasehold::doctor::{CheckStatus, Examination};
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::{ErrorKind, Locker, LossReason};
use leasehold_testkit::servers::Server;
use leasehold_testkit::stores::s3::client;

#[tokio::test]
async fn fault_24_a_delete_marker_counts_as_absent_on_moto() {
    deletes_are_losses_and_tokens_rise(Server::MOTO).await;
}

#[tokio::test]
async fn fault_24_a_delete_marker_counts_as_absent_on_minio() {
    deletes_are_losses_and_tokens_rise(Server::MINIO).await;
}

/// The doctor checks the markers that deletes leave. It warns that every renewal leaves a version.
#[tokio::test]
async fn the_doctor_passes_a_bucket_with_versions_and_warns_of_them() {
    let url = versioned_bucket(Server::MINIO).await.1;
    let report = Locker::open(&url).await.unwrap().examine(&Examination::default()).await;
    assert!(report.is_safe(), "{report:#?}");
    assert_eq!(report.finding("delete-marker").unwrap().verdict, CheckStatus::Passed, "{report:#?}");
    let versioning = report.finding("versioning").unwrap();
    assert_eq!((versioning.verdict, versioning.help.len()), (CheckStatus::Warning, 1), "{versioning:?}");
}

/// Creates a bucket with versioning. Returns a client, and the URL of a store in the bucket.
async fn versioned_bucket(server: Server) -> (Client, String) {
    let bucket = format!("versioned-{}", &Id::random(&Random::from_os()).to_string()[..16]);
    let client = client(&server.url()).await;
    client.create_bucket().bucket(&bucket).send().await.unwrap();
    let versioning = VersioningConfiguration::builder().status(BucketVersioningStatus::Enabled).build();
    client.put_bucket_versioning().bucket(&bucket).versioning_configuration(versioning).send().await.unwrap();
    let url = server.url();
    (client, format!("s3://{bucket}/locks?{}", url.split_once('?').unwrap().1))
}

async fn deletes_are_losses_and_tokens_rise(server: Server) {
    let (client, url) = versioned_bucket(server).await;
    let bucket = url.trim_start_matches("s3://").split('/').next().unwrap();
    let (locker, other) = (Locker::open(&url).await.unwrap(), Locker::open(&url).await.unwrap());

    let mut last = None;
    for _ in 0..3 {
        let guard = locker.lock("x").try_acquire().await.unwrap();
        let token = guard.token().unwrap();
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        assert_eq!(other.lock("x").try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
        let ticket = guard.into_ticket().await.unwrap();
        // Tokens rise across a deletion by hand only if the last grant is three seconds old by the store's clock.
        SystemClock.sleep(Duration::from_secs(4)).await;
        // Delete the object by hand without a version, which adds a delete marker.
        let deleted = client.delete_object().bucket(bucket).key("locks/x.lock").send().await.unwrap();
        assert_eq!(deleted.delete_marker(), Some(true), "{deleted:?}");
        let lost = locker.renew(&ticket).await.unwrap_err();
        assert_eq!(lost.kind(), ErrorKind::Lost, "{lost:?}");
        assert_eq!(lost.loss().map(|loss| loss.reason.clone()), Some(LossReason::Deleted), "{lost:?}");
    }
    // Renewals and releases leave old versions, which have no effect.
    let guard = other.lock("x").try_acquire().await.unwrap();
    assert!(last < Some(guard.token().unwrap()));
    guard.release().await.unwrap();
    locker.lock("x").try_acquire().await.unwrap().release().await.unwrap();
}
