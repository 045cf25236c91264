//! From a store URL and the machine's AWS configuration to a client.

use std::time::Duration;

use aws_config::{BehaviorVersion, SdkConfig};
use aws_sdk_s3::Client;
use aws_sdk_s3::config::retry::RetryConfig;
use aws_sdk_s3::config::timeout::TimeoutConfig;
use aws_sdk_s3::config::{
    Builder, IdentityCache, Region, RequestChecksumCalculation, ResponseChecksumValidation,
    StalledStreamProtectionConfig,
};
use aws_types::service_config::ServiceConfigKey;

use super::credentials::BackgroundCredentials;
use super::errors::Place;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, ErrorKind};
use crate::lease::StoreOptions;
use crate::stores::objects::{Protocol, checked_prefix};
use crate::url::StoreUrl;

/// The limit of one request, so that several fit into the shortest usual lease. The layers above cut it further.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// The SDK's own default: a lost SYN is sent again after one second and after three.
const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// Longer than [`BackgroundCredentials`] ever takes, so that its error is the one that is seen.
const IDENTITY_LIMIT: Duration = Duration::from_secs(30);

/// Reading the configuration files takes no time; asking the metadata service for the region may.
const CONFIGURATION_LIMIT: Duration = Duration::from_secs(8);

/// What a store URL says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) bucket: String,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
    region: Option<String>,
    endpoint: Option<String>,
    path_style: Option<bool>,
    profile: Option<String>,
    pub(super) protocol: Protocol,
}

impl Location {
    /// Reads `url`, and what it says about `options`.
    pub(super) fn from_url(mut url: StoreUrl, options: &mut StoreOptions) -> Result<Self, Error> {
        if url.user().is_some() || url.password().is_some() {
            return Err(Error::invalid("credentials do not belong in an S3 store URL").with_help(
                "use a profile (?profile=name), the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY) or a role",
            ));
        }
        let bucket = checked_bucket(url.authority().unwrap_or(""))?;
        let prefix = checked_prefix(url.path(), "s3://my-bucket/team/locks")?;
        let location = Self {
            bucket,
            prefix,
            region: url.take("region").map(checked_region).transpose()?,
            endpoint: url
                .take("endpoint")
                .map(|text| checked_endpoint(text, "the option `endpoint`"))
                .transpose()?,
            path_style: url.take_switch("path_style")?,
            profile: url.take("profile").map(checked_profile).transpose()?,
            protocol: Protocol::take(&mut url)?,
        };
        url.take_common(options)?;
        url.finish()?;
        Ok(location)
    }

    /// Reads the machine's AWS configuration and makes a client. No request is sent, unless the region has to be asked
    /// of the machine's metadata service.
    pub(super) async fn connect(&self, env: &Env) -> Result<(Client, Place), Error> {
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
        let region = sdk.region().map(ToString::to_string).ok_or_else(no_region)?;
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => configured_endpoint(&sdk)
                .map(|text| checked_endpoint(text, "the endpoint of the AWS configuration"))
                .transpose()?,
        };
        let client = Client::from_conf(self.client_config(&sdk, endpoint.as_deref(), env).build());
        Ok((client, Place { bucket: self.bucket.clone(), region, endpoint }))
    }

    pub(super) fn client_config(&self, sdk: &SdkConfig, endpoint: Option<&str>, env: &Env) -> Builder {
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(CONNECT_LIMIT)
            .read_timeout(REQUEST_LIMIT)
            .operation_attempt_timeout(REQUEST_LIMIT)
            .build();
        let mut config = Builder::from(sdk)
            // A retry inside would turn an applied write whose answer was lost into a conflict.
            .retry_config(RetryConfig::disabled())
            .timeout_config(timeouts)
            // Bodies are small and have a limit of their own in time.
            .stalled_stream_protection(StalledStreamProtectionConfig::disabled())
            // Many compatible stores refuse the newer checksums, and none of our requests requires one.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .identity_cache(IdentityCache::lazy().load_timeout(IDENTITY_LIMIT).build())
            .force_path_style(self.path_style.unwrap_or(endpoint.is_some()));
        if let Some(endpoint) = endpoint {
            config = config.endpoint_url(endpoint);
        }
        if let Some(provider) = sdk.credentials_provider() {
            config = config.credentials_provider(BackgroundCredentials::new(provider, env.clone()));
        }
        config
    }
}

/// What the environment and the profile say about S3's endpoint: the SDK reads it too, but does not tell.
fn configured_endpoint(sdk: &SdkConfig) -> Option<String> {
    let key = ServiceConfigKey::builder()
        .service_id("S3")
        .env("AWS_ENDPOINT_URL")
        .profile("endpoint_url")
        .build()
        .ok()?;
    let of_service = sdk.service_config().and_then(|config| config.load_config(key));
    of_service.or_else(|| sdk.endpoint_url().map(str::to_owned))
}

fn no_region() -> Error {
    Error::invalid("no AWS region is configured").with_help(
        "add ?region=eu-west-1 to the store URL, or set AWS_REGION; most compatible stores take us-east-1",
    )
}

fn checked_bucket(bucket: &str) -> Result<String, Error> {
    let ends = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fine = (3..=63).contains(&bucket.len())
        && bucket.bytes().all(|b| ends(b) || b == b'-' || b == b'.')
        && bucket.bytes().next().is_some_and(ends)
        && bucket.bytes().next_back().is_some_and(ends)
        && !bucket.contains("..");
    if fine {
        return Ok(bucket.to_owned());
    }
    let error = Error::invalid(if bucket.is_empty() {
        "the S3 store URL names no bucket".to_owned()
    } else {
        format!("{bucket:?} is no bucket name")
    });
    Err(error.with_help(
        "an S3 store is s3://bucket/prefix; a bucket name has 3 to 63 lower-case letters, digits, `-` and `.`",
    ))
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

    fn read(url: &str) -> Result<Location, Error> {
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default())
    }

    #[test]
    fn a_url_says_where_and_how() {
        let mut options = StoreOptions::default();
        let url = "s3://my-bucket/team/locks/?region=eu-west-1&endpoint=http%3A%2F%2F127.0.0.1:9000&path_style=off\
                   &profile=ci&protocol=existence&store_clock=off&margin=9s";
        let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut options).unwrap();
        assert_eq!(
            location,
            Location {
                bucket: "my-bucket".into(),
                prefix: "team/locks".into(),
                region: Some("eu-west-1".into()),
                endpoint: Some("http://127.0.0.1:9000".into()),
                path_style: Some(false),
                profile: Some("ci".into()),
                protocol: Protocol::Existence,
            }
        );
        assert!(!options.store_clock && options.margin == Duration::from_secs(9));
        for url in ["s3://my-bucket", "s3://my-bucket/"] {
            assert_eq!(read(url).unwrap().prefix, "", "{url}");
        }
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("s3:", "no bucket"),
            ("s3:bucket/prefix", "no bucket"),
            ("s3:///prefix", "no bucket"),
            ("s3://My_Bucket", "My_Bucket"),
            ("s3://ab", "\"ab\""),
            ("s3://-abc", "-abc"),
            ("s3://a..b", "a..b"),
            ("s3://arn:aws:s3:eu-west-1:1:accesspoint/x", "no bucket name"),
            ("s3://bucket/a//b", "segment"),
            ("s3://bucket/../b", "segment"),
            ("s3://bucket/a%0Ab", "control"),
            ("s3://bucket?region=", "region"),
            ("s3://bucket?region=Europe/Berlin", "Europe/Berlin"),
            ("s3://bucket?profile=", "profile"),
            ("s3://bucket?path_style=maybe", "path_style"),
            ("s3://bucket?endpoint=localhost:9000", "localhost:9000"),
            ("s3://bucket?endpoint=ftp://localhost", "ftp://localhost"),
            ("s3://bucket?endpoint=http://", "http://"),
            ("s3://bucket?endpoint=http://a%20b", "a b"),
            ("s3://bucket?regoin=x", "regoin"),
            ("s3://bucket?access_key=x", "access_key"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            // The switch's own text already says what it may be.
            assert!(!error.help().is_empty() || url.contains("path_style"), "{url}: {error:?}");
        }
        let long = format!("s3://bucket/{}", "x".repeat(251));
        assert!(read(&long).unwrap_err().to_string().contains("250"));
        let help = read("s3://bucket?endpoint=localhost:9000").unwrap_err().help().join(" ");
        assert!(help.contains("endpoint=http://localhost:9000"), "{help}");
    }

    #[test]
    fn passwords_are_refused_and_not_repeated() {
        for url in [
            "s3://AKIA:hunter2@bucket",
            "s3://bucket?endpoint=http://u:hunter2@host",
            "s3://bucket?endpoint=u:hunter2@host",
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
