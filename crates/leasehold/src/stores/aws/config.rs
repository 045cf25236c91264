//! Combines the machine's AWS configuration with the settings in a store URL, to configure a client.

use std::sync::Arc;
use std::time::Duration;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, ConfigLoader, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_types::service_config::ServiceConfigKey;

use super::access::{Access, Service, checked_endpoint};
use super::credentials::{Source, StoreCredentials};
use super::http::{self, Authorities, Network};
use super::requests::Requests;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, ErrorKind};

/// The time limit of one request. Several requests fit into the shortest usual lease. The layers above shorten it
/// further.
pub(in crate::stores) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// The time limit of a connection attempt, which is the SDK's default. A lost SYN is sent again after one second and
/// after three.
pub(in crate::stores) const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// The time limit for loading the configuration. Reading files is fast, but asking the metadata service for the region
/// may not be.
const CONFIGURATION_LIMIT: Duration = Duration::from_secs(8);

/// The configuration for a store.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Found {
    /// The configuration, without retries and with time limits.
    pub(in crate::stores) sdk: SdkConfig,
    pub(in crate::stores) requests: Requests,
    pub(in crate::stores) region: String,
    /// `None` for Amazon's own endpoint.
    pub(in crate::stores) endpoint: Option<String>,
}

impl Access {
    /// Reads the machine's AWS configuration, for at most `limit`. Sends no request, except to the machine's metadata
    /// service if it must be asked for the region.
    pub(in crate::stores) async fn find(
        &self,
        service: Service,
        env: &Env,
        limit: Duration,
    ) -> Result<Found, Error> {
        let loading = self.loader(None)?.load();
        let sdk =
            clock::timeout(&*env.clock, CONFIGURATION_LIMIT.min(limit), loading).await.ok_or_else(|| {
                Error::new(ErrorKind::Unavailable, "the AWS configuration could not be read in time")
                    .with_help(
                        "the machine's metadata service does not respond: set ?region= in the store URL",
                    )
            })?;
        let no_region = || Error::invalid("no AWS region is configured").with_help(service.no_region_help);
        let region = sdk.region().map(ToString::to_string).ok_or_else(no_region)?;
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => configured(&sdk, service, "AWS_ENDPOINT_URL", "endpoint_url")
                .or_else(|| sdk.endpoint_url().map(str::to_owned))
                .map(|text| checked_endpoint(&text, "the endpoint of the AWS configuration", self.plaintext))
                .transpose()?,
        };
        if let Some(endpoint) = &endpoint {
            self.check_variants(endpoint)?;
        }
        let bundle = configured(&sdk, service, "AWS_CA_BUNDLE", "ca_bundle");
        let bundle = bundle.filter(|file| !file.is_empty()).map(Authorities::of_machine);
        // The first provider does not trust the bundle.
        let first = sdk.credentials_provider().filter(|_| bundle.is_none());
        // Names the region, so that it is not looked up again.
        let again = Self { region: Some(region.clone()), ..self.clone() };
        let trusted = bundle.clone();
        let source = providers(move || again.loader(trusted.as_ref()));
        let credentials = StoreCredentials::new(first, source, env.clone());
        let (sdk, network) = self.applied(&careful(&sdk, &credentials), bundle)?;
        Ok(Found { sdk, requests: Requests::new(env.clone(), credentials, network), region, endpoint })
    }

    /// Returns what reads the machine's configuration, with the settings in the store URL. Its requests trust only the
    /// certificates of `bundle`, if there is one.
    pub(super) fn loader(&self, bundle: Option<&Authorities>) -> Result<ConfigLoader, Error> {
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
        // Credentials come from other endpoints than the store's. Requests to those also use the proxy, but they do not
        // trust `ca`.
        if let Some(client) = http::client(bundle, self.proxy.as_deref())? {
            loader = loader.http_client(client);
        }
        Ok(loader)
    }

    /// Returns `sdk` with the settings that apply only to requests to the service itself, and the client of these
    /// requests, unless it is the SDK's own. `bundle` is trusted if the store URL has no option `ca`.
    pub(in crate::stores) fn applied(
        &self,
        sdk: &SdkConfig,
        bundle: Option<Authorities>,
    ) -> Result<(SdkConfig, Option<Network>), Error> {
        let mut builder = sdk.to_builder();
        let authorities = self.ca.as_deref().map(Authorities::of_option).or(bundle);
        let network = Network::new(authorities, self.proxy.clone())?;
        if let Some(network) = network.clone() {
            builder = builder.http_client(network);
        }
        builder.set_use_fips(self.fips.or(sdk.use_fips()));
        builder.set_use_dual_stack(self.dualstack.or(sdk.use_dual_stack()));
        Ok((builder.build(), network))
    }
}

/// Returns a source of providers. Each has its own configuration, which `loader` reads from the machine.
pub(in crate::stores) fn providers(
    loader: impl Fn() -> Result<ConfigLoader, Error> + Send + Sync + 'static,
) -> Source {
    Arc::new(move || {
        let loader = loader();
        Box::pin(async move {
            let sdk = loader.map_err(|error| error.to_string())?.load().await;
            sdk.credentials_provider().ok_or_else(|| "no source of credentials is configured".to_owned())
        })
    })
}

/// Returns `sdk` without retries, with time limits, and with `credentials`.
pub(in crate::stores) fn careful(sdk: &SdkConfig, credentials: &StoreCredentials) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_LIMIT)
        .read_timeout(REQUEST_LIMIT)
        .operation_attempt_timeout(REQUEST_LIMIT)
        .build();
    sdk.to_builder()
        // If a write was applied and its response was lost, a retry by the SDK would report a conflict.
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        // Bodies are small and have their own time limit.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        // The SDK's cache would keep credentials that the store has refused.
        .identity_cache(IdentityCache::no_cache())
        .credentials_provider(SharedCredentialsProvider::new(credentials.clone()))
        .build()
}

/// Returns a setting of the environment or the profile that the SDK does not expose, or does not read.
fn configured(
    sdk: &SdkConfig,
    service: Service,
    variable: &'static str,
    setting: &'static str,
) -> Option<String> {
    let key = ServiceConfigKey::builder().service_id(service.id).env(variable).profile(setting).build();
    sdk.service_config()?.load_config(key.ok()?)
}
