//! Creates a client from a store URL and the machine's AWS configuration.

use std::time::Duration;

use aws_config::SdkConfig;
use aws_config::timeout::TimeoutConfig;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{Builder, RequestChecksumCalculation, ResponseChecksumValidation};

use super::config::{Location, SERVICE, Target};
use crate::env::Env;
use crate::error::Error;
use crate::stores::aws::requests::Requests;

impl Location {
    /// Reads the machine's AWS configuration and creates a client. Sends no request, except to the machine's metadata
    /// service if it must be asked for the region.
    pub(super) async fn connect(
        &self,
        env: &Env,
        limit: Duration,
    ) -> Result<(Client, Requests, Target), Error> {
        let found = self.access.find(SERVICE, env, limit).await?;
        let client = Client::from_conf(self.client_config(&found.sdk, found.endpoint.as_deref()).build());
        let bucket = self.bucket.clone();
        let target = Target { bucket, region: found.region, endpoint: found.endpoint, address: None };
        Ok((client, found.requests, target))
    }

    pub(super) fn has_path_style(&self, endpoint: Option<&str>) -> bool {
        self.path_style.unwrap_or(endpoint.is_some() && !self.bucket.starts_with("arn:"))
    }

    pub(super) fn client_config(&self, sdk: &SdkConfig, endpoint: Option<&str>) -> Builder {
        let config = Builder::from(sdk)
            // Many compatible stores refuse the newer checksums, so they are used only where they are known to be
            // supported.
            .request_checksum_calculation(match self.sdk_checksums(endpoint) {
                true => RequestChecksumCalculation::WhenSupported,
                false => RequestChecksumCalculation::WhenRequired,
            })
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .force_path_style(self.has_path_style(endpoint));
        match endpoint {
            Some(endpoint) => config.endpoint_url(endpoint),
            None => config,
        }
    }
}

/// Returns a client configuration with another time limit for a request, for large bodies.
pub(super) fn limited(limit: Duration) -> Builder {
    let timeouts = TimeoutConfig::builder().read_timeout(limit).operation_attempt_timeout(limit).build();
    Builder::new().timeout_config(timeouts)
}
