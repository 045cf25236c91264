//! Contenders on S3 without leasehold: the plain loop that people write by hand, and baselines of the two calls that
//! any lock needs, with and without conditions.

use std::time::Duration;

use aws_config::BehaviorVersion;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Builder, Region, RequestChecksumCalculation, ResponseChecksumValidation};
use leasehold::clock::{Clock, SystemClock};

use super::Options;
use super::conditional::{Replace, record};

/// Creates a client with the settings of leasehold: no internal retries, and no unnecessary checksums.
async fn client(options: &Options) -> Result<(Client, String), String> {
    let shared = aws_config::load_defaults(BehaviorVersion::latest()).await;
    let config = Builder::from(&shared)
        .endpoint_url(options.text("endpoint")?)
        .region(Region::new("us-east-1"))
        .force_path_style(true)
        .retry_config(RetryConfig::disabled())
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .build();
    Ok((Client::from_conf(config), options.text("bucket")?.to_owned()))
}

/// The plain loop. It calls `PutObject` with `If-None-Match: *`. If the object exists, it sleeps for 0.5 to 1 s and
/// retries. It releases with `DeleteObject`. It has no lease, so if a holder dies, the lock stays held.
pub(super) struct Plain {
    client: Client,
    bucket: String,
}

impl Plain {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let (client, bucket) = client(options).await?;
        Ok(Self { client, bucket })
    }
}

impl super::Client for Plain {
    type Held = String;

    async fn acquire(&self, lock: &str) -> Result<String, String> {
        loop {
            let put = self.client.put_object().bucket(&self.bucket).key(lock).if_none_match("*");
            match put.body("locked".as_bytes().to_vec().into()).send().await {
                Ok(_) => return Ok(lock.to_owned()),
                Err(error) => {
                    let status = error.raw_response().map(|response| response.status().as_u16());
                    if !matches!(status, Some(409 | 412)) {
                        return Err(format!("{error:?}"));
                    }
                }
            }
            SystemClock.sleep(Duration::from_millis(fastrand::u64(500..=1_000))).await;
        }
    }

    async fn release(&self, held: String) -> Result<(), String> {
        let delete = self.client.delete_object().bucket(&self.bucket).key(held);
        delete.send().await.map(|_| ()).map_err(|error| format!("{error:?}"))
    }

    fn is_held(&self, _: &String) -> Option<bool> {
        None
    }
}

/// A baseline, not a lock: writes an object of a few bytes twice, without a condition.
pub(super) struct Bare(Plain);

impl Bare {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        Plain::open(options).await.map(Self)
    }

    async fn put(&self, lock: &str, body: &str) -> Result<(), String> {
        let put = self.0.client.put_object().bucket(&self.0.bucket).key(lock);
        let put = put.body(body.as_bytes().to_vec().into()).send().await;
        put.map(|_| ()).map_err(|error| format!("{error:?}"))
    }
}

impl super::Client for Bare {
    type Held = String;

    async fn acquire(&self, lock: &str) -> Result<String, String> {
        self.put(lock, "held").await?;
        Ok(lock.to_owned())
    }

    async fn release(&self, held: String) -> Result<(), String> {
        self.put(&held, "free").await
    }

    fn is_held(&self, _: &String) -> Option<bool> {
        None
    }
}

impl Replace for Bare {
    /// The ETag of the object.
    type Version = String;

    async fn replace(&self, lock: &str, _held: bool, etag: Option<String>) -> Result<String, String> {
        let put = self.0.client.put_object().bucket(&self.0.bucket).key(lock).set_if_match(etag);
        let put = put.content_type("application/json").body(record().into_bytes().into()).send().await;
        let written = put.map_err(|error| format!("{error:?}"))?;
        written.e_tag.ok_or_else(|| "the response has no ETag".to_owned())
    }
}
