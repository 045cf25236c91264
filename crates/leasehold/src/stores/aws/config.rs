//! From a store URL's options and the machine's AWS configuration to what a client is made of.

use std::time::Duration;

use aws_config::identity::IdentityCache;
use aws_config::retry::RetryConfig;
use aws_config::stalled_stream_protection::StalledStreamProtectionConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_credential_types::provider::SharedCredentialsProvider;
use aws_types::service_config::ServiceConfigKey;

use super::credentials::BackgroundCredentials;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, ErrorKind};
use crate::url::StoreUrl;

/// The limit of one request, so that several fit into the shortest usual lease. The layers above cut it further.
pub(in crate::stores) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// The SDK's own default: a lost SYN is sent again after one second and after three.
const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// Longer than [`BackgroundCredentials`] ever takes, so that its error is the one that is seen.
const IDENTITY_LIMIT: Duration = Duration::from_secs(30);

/// Reading the configuration files takes no time; asking the metadata service for the region may.
const CONFIGURATION_LIMIT: Duration = Duration::from_secs(8);

/// Which service is meant, for the configuration and for messages.
#[derive(Clone, Copy, Debug)]
pub(in crate::stores) struct Service {
    /// As the SDK's configuration has it: `S3`, `DynamoDB`.
    pub(in crate::stores) id: &'static str,
    /// With its article, before "store URL".
    pub(in crate::stores) article: &'static str,
    /// What a compatible store is told when it wants no region of its own.
    pub(in crate::stores) no_region_help: &'static str,
}

/// What a store URL says about the way to the service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::stores) struct Access {
    pub(in crate::stores) region: Option<String>,
    pub(in crate::stores) endpoint: Option<String>,
    pub(in crate::stores) profile: Option<String>,
}

/// Where a store was found.
#[derive(Clone, Debug)]
pub(in crate::stores) struct Found {
    /// The configuration, with retries off and limits on.
    pub(in crate::stores) sdk: SdkConfig,
    pub(in crate::stores) region: String,
    /// `None` for Amazon's own endpoint.
    pub(in crate::stores) endpoint: Option<String>,
}

impl Access {
    /// Takes the options `region`, `endpoint` and `profile`; refuses a login before the authority.
    pub(in crate::stores) fn take(url: &mut StoreUrl, service: Service) -> Result<Self, Error> {
        if url.user().is_some() || url.password().is_some() {
            let message =
                format!("credentials do not belong in {} {} store URL", service.article, service.id);
            return Err(Error::invalid(message).with_help(
                "use a profile (?profile=name), the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role",
            ));
        }
        Ok(Self {
            region: url.take("region").map(checked_region).transpose()?,
            endpoint: url
                .take("endpoint")
                .map(|text| checked_endpoint(text, "the option `endpoint`"))
                .transpose()?,
            profile: url.take("profile").map(checked_profile).transpose()?,
        })
    }

    /// Reads the machine's AWS configuration. No request is sent, unless the region has to be asked of the machine's
    /// metadata service.
    pub(in crate::stores) async fn find(&self, service: Service, env: &Env) -> Result<Found, Error> {
        let mut loader = aws_config::defaults(BehaviorVersion::latest());
        if let Some(region) = &self.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(profile) = &self.profile {
            loader = loader.profile_name(profile);
        }
        let sdk = clock::timeout(&*env.clock, CONFIGURATION_LIMIT, loader.load()).await.ok_or_else(|| {
            Error::new(ErrorKind::Unavailable, "the AWS configuration could not be read in time")
                .with_help("the machine's metadata service does not answer: say ?region= in the store URL")
        })?;
        let no_region = || Error::invalid("no AWS region is configured").with_help(service.no_region_help);
        let region = sdk.region().map(ToString::to_string).ok_or_else(no_region)?;
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => configured_endpoint(&sdk, service)
                .map(|text| checked_endpoint(text, "the endpoint of the AWS configuration"))
                .transpose()?,
        };
        Ok(Found { sdk: careful(&sdk, env), region, endpoint })
    }
}

/// `sdk` without retries, with limits in time, and with credentials that go on loading in the background.
pub(in crate::stores) fn careful(sdk: &SdkConfig, env: &Env) -> SdkConfig {
    let timeouts = TimeoutConfig::builder()
        .connect_timeout(CONNECT_LIMIT)
        .read_timeout(REQUEST_LIMIT)
        .operation_attempt_timeout(REQUEST_LIMIT)
        .build();
    let mut builder = sdk
        .to_builder()
        // A retry inside would turn an applied write whose answer was lost into a conflict.
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        // Bodies are small and have a limit of their own in time.
        .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
        .identity_cache(IdentityCache::lazy().load_timeout(IDENTITY_LIMIT).build());
    if let Some(provider) = sdk.credentials_provider() {
        let background = BackgroundCredentials::new(provider, env.clone());
        builder = builder.credentials_provider(SharedCredentialsProvider::new(background));
    }
    builder.build()
}

/// What the environment and the profile say about the service's endpoint: the SDK reads it too, but does not tell.
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

fn checked_region(region: String) -> Result<String, Error> {
    if !region.is_empty() && region.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-')
    {
        return Ok(region);
    }
    Err(Error::invalid(format!("{region:?} is no region")).with_help("a region is like eu-west-1"))
}

fn checked_profile(profile: String) -> Result<String, Error> {
    if !profile.is_empty() {
        return Ok(profile);
    }
    Err(Error::invalid("the option `profile` is empty")
        .with_help("name a profile of ~/.aws/config, or leave it out"))
}

fn checked_endpoint(endpoint: String, source: &str) -> Result<String, Error> {
    // What stands before `@` may be a password, so the text is shown only without one.
    if endpoint.contains('@') {
        return Err(Error::invalid(format!("{source} contains a login"))
            .with_help("credentials do not belong in an endpoint: use a profile or the environment"));
    }
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let Some(host) = host else {
        return Err(Error::invalid(format!("{source} is {endpoint:?}, without http:// or https://"))
            .with_help(format!("write endpoint=https://{0} (or endpoint=http://{0})", bare(&endpoint))));
    };
    let fine = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && host.bytes().all(|b| b.is_ascii_graphic() && !b"?#\\\"<>^`{|}".contains(&b));
    if fine {
        return Ok(endpoint);
    }
    Err(Error::invalid(format!("{source} is {endpoint:?}, which is no URL of a host"))
        .with_help("an endpoint is like http://localhost:9000 or https://s3.example.com"))
}

/// An endpoint's host and path, for a suggestion.
fn bare(endpoint: &str) -> &str {
    endpoint.split_once("://").map_or(endpoint, |(_, rest)| rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVICE: Service = Service { id: "DynamoDB", article: "a", no_region_help: "" };

    fn read(url: &str) -> Result<Access, Error> {
        Access::take(&mut StoreUrl::parse(url)?, SERVICE)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let access = read("x1://x?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1:9000&profile=ci").unwrap();
        assert_eq!(access.region.as_deref(), Some("eu-west-1"));
        assert_eq!(access.endpoint.as_deref(), Some("http://127.0.0.1:9000"));
        assert_eq!(access.profile.as_deref(), Some("ci"));
        assert_eq!(read("x1://x").unwrap(), Access::default());
    }

    #[test]
    fn a_bad_option_is_an_error_that_says_what_to_do() {
        for (options, named) in [
            ("region=", "region"),
            ("region=Europe/Berlin", "Europe/Berlin"),
            ("profile=", "profile"),
            ("endpoint=localhost:9000", "localhost:9000"),
            ("endpoint=ftp://localhost", "ftp://localhost"),
            ("endpoint=http://", "http://"),
            ("endpoint=http://a%20b", "a b"),
        ] {
            let error = read(&format!("x1://x?{options}")).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{options}: {error:?}");
            assert!(error.to_string().contains(named), "{options}: {error:?}");
            assert!(!error.help().is_empty(), "{options}: {error:?}");
        }
        let help = read("x1://x?endpoint=localhost:9000").unwrap_err().help().join(" ");
        assert!(help.contains("endpoint=http://localhost:9000"), "{help}");
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for url in
            ["x1://AKIA:hunter2@x", "x1://x?endpoint=http://u:hunter2@host", "x1://x?endpoint=u:hunter2@host"]
        {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
