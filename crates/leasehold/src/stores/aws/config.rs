//! Combines the machine's AWS configuration with the settings in a store URL, to configure a client.

use std::time::Duration;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_types::service_config::ServiceConfigKey;

use super::access::{Access, Service, checked_endpoint};
use super::credentials::BackgroundCredentials;
use super::http;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, ErrorKind};

/// The time limit of one request. Several requests fit into the shortest usual lease. The layers above shorten it
/// further.
pub(in crate::stores) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// The time limit of a connection attempt, which is the SDK's default. A lost SYN is sent again after one second and
/// after three.
pub(in crate::stores) const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// Longer than [`BackgroundCredentials`] ever takes, so that its error is reported and not a timeout of the SDK.
const IDENTITY_LIMIT: Duration = Duration::from_secs(30);

/// The time limit for loading the configuration. Reading files is fast, but asking the metadata service for the region
/// may not be.
const CONFIGURATION_LIMIT: Duration = Duration::from_secs(8);

/// The configuration for a store.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Found {
    /// The configuration, without retries and with time limits.
    pub(in crate::stores) sdk: SdkConfig,
    pub(in crate::stores) region: String,
    /// `None` for Amazon's own endpoint.
    pub(in crate::stores) endpoint: Option<String>,
}

impl Access {
    /// Reads the machine's AWS configuration. Sends no request, except to the machine's metadata service if it must be
    /// asked for the region.
    pub(in crate::stores) async fn find(&self, service: Service, env: &Env) -> Result<Found, Error> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &self.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(profile) = &self.profile {
            loader = loader.profile_name(profile);
        }
        if let Some(fips) = self.fips {
            loader = loader.use_fips(fips);
        }
        if let Some(dualstack) = self.dualstack {
            loader = loader.use_dual_stack(dualstack);
        }
        // Credentials come from other endpoints than the store's. Requests to those also use the proxy, but they trust
        // the machine's certificates and not `ca`.
        if let Some(client) = http::client(None, self.proxy.as_deref())? {
            loader = loader.http_client(client);
        }
        let sdk = clock::timeout(&*env.clock, CONFIGURATION_LIMIT, loader.load()).await.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the AWS configuration could not be read in time")
                .with_help("the machine's metadata service does not respond: set ?region= in the store URL")
        })?;
        let no_region = || Error::invalid("no AWS region is configured").with_help(service.no_region_help);
        let region = sdk.region().map(ToString::to_string).ok_or_else(no_region)?;
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => configured_endpoint(&sdk, service)
                .map(|text| checked_endpoint(text, "the endpoint of the AWS configuration", self.plaintext))
                .transpose()?,
        };
        if let Some(endpoint) = &endpoint {
            self.check_variants(endpoint)?;
        }
        Ok(Found { sdk: self.applied(&careful(&sdk, env))?, region, endpoint })
    }

    /// Returns `sdk` with the settings that apply only to requests to the service itself.
    pub(in crate::stores) fn applied(&self, sdk: &SdkConfig) -> Result<SdkConfig, Error> {
        let mut builder = sdk.to_builder();
        if let Some(client) = http::client(self.ca.as_deref(), self.proxy.as_deref())? {
            builder = builder.http_client(client);
        }
        builder.set_use_fips(self.fips.or(sdk.use_fips()));
        builder.set_use_dual_stack(self.dualstack.or(sdk.use_dual_stack()));
        Ok(builder.build())
    }
}

/// Returns `sdk` without retries, with time limits, and with credentials that continue to load in the background.
pub(in crate::stores) fn careful(sdk: &SdkConfig, env: &Env) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_LIMIT)
        .read_timeout(REQUEST_LIMIT)
        .operation_attempt_timeout(REQUEST_LIMIT)
        .build();
    let mut builder = sdk
        .to_builder()
        // If a write was applied and its response was lost, a retry by the SDK would report a conflict.
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        // Bodies are small and have their own time limit.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .identity_cache(IdentityCache::lazy().load_timeout(IDENTITY_LIMIT).build());
    if let Some(provider) = sdk.credentials_provider() {
        let background = BackgroundCredentials::new(provider, env.clone());
        builder = builder.credentials_provider(SharedCredentialsProvider::new(background));
    }
    builder.build()
}

/// Returns the endpoint that the environment or the profile configures. The SDK also reads it, but does not expose it.
fn configured_endpoint(sdk: &SdkConfig, service: Service) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id(service.id)
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .ok()?;
    let of_service = sdk.service_config().and_then(|config| config.load_config(key));
    of_service.or_else(|| sdk.endpoint_url().map(str::to_owned))
}
