//! Parses the settings in a store URL and the environment: where requests go, and with which credentials.

use std::path::PathBuf;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::buckets::{MAX_PREFIX_BYTES, Protocol, checked_object};
use crate::stores::over_http::transport::Transport;
use crate::url::{CheckedUrl, StoreUrl, checked_url};

const GOOGLE: &str = "https://storage.googleapis.com";

/// The variable from which Google's own clients read the address of an emulator.
const EMULATOR: &str = "STORAGE_EMULATOR_HOST";

/// The source of credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Application Default Credentials: `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's file, the metadata server.
    Default,
    /// A key file of a service account, a user or a workload identity.
    File(PathBuf),
    /// No credentials, for emulators.
    Anonymous,
}

/// The bucket to which requests go, and the settings for all requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Target {
    pub(super) bucket: String,
    /// The endpoint, without `/` at the end.
    pub(super) endpoint: String,
    /// The project that pays for requests, if the bucket is a requester-pays bucket.
    pub(super) user_project: Option<String>,
    /// The Cloud KMS key that encrypts objects, instead of the bucket's key.
    pub(super) kms_key: Option<String>,
}

impl Target {
    /// Whether the endpoint is known to honour preconditions. Google documents this for its own endpoints.
    pub(super) fn is_trusted(&self) -> bool {
        let host = self.endpoint.strip_prefix("https://").unwrap_or("");
        host == "storage.googleapis.com" || (host.ends_with(".googleapis.com") && !host.contains('/'))
    }
}

/// Where and how requests are sent, and with which credentials.
#[derive(Clone, Debug)]
pub(super) struct Access {
    pub(super) target: Target,
    pub(super) transport: Transport,
    pub(super) source: Source,
    /// The service account to impersonate with the credentials of `source`.
    pub(super) impersonate: Option<String>,
}

/// The settings in a store URL and the environment.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) access: Access,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
    pub(super) protocol: Protocol,
}

impl Location {
    /// Parses `url`, and applies its common settings to `options`. `environment` returns the value of a variable.
    pub(super) fn from_url(
        url: StoreUrl,
        options: &mut StoreOptions,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let url = url.checked(options)?;
        let prefix = url.prefix(url.url.path(), MAX_PREFIX_BYTES)?;
        Ok(Self { access: Access::of(&url, environment)?, prefix, protocol: Protocol::of(&url) })
    }

    /// Parses `url` as the URL of an object. Returns the location of its folder, and its key there.
    pub(super) fn of_object(
        url: StoreUrl,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, String), Error> {
        let url = url.checked_object()?;
        let (prefix, key) = checked_object(url.url.path())?;
        // This protocol does not encode keys.
        let protocol = Protocol::Existence;
        Ok((Self { access: Access::of(&url, environment)?, prefix, protocol }, key))
    }
}

impl Access {
    fn of(url: &CheckedUrl, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let bucket = url.name();
        let named = url.text("credentials").map(|text| match text.as_str() {
            "anonymous" => Source::Anonymous,
            path => Source::File(PathBuf::from(path)),
        });
        let emulator = environment(EMULATOR).filter(|host| !host.is_empty());
        let (endpoint, default) = match (url.location("endpoint"), emulator) {
            (Some(endpoint), _) => (endpoint, Source::Default),
            (None, Some(host)) => {
                let host = if host.contains("://") { host } else { format!("http://{host}") };
                (checked_url(&host, "the environment variable STORAGE_EMULATOR_HOST")?, Source::Anonymous)
            }
            (None, None) => (GOOGLE.to_owned(), Source::Default),
        };
        let (source, transport) = (named.unwrap_or(default), Transport::of(url));
        let impersonate = url.text("impersonate");
        match (&source, &impersonate) {
            (Source::Anonymous, Some(_)) => {
                return Err(Error::invalid("without credentials no service account can be impersonated").with_help(
                    "leave out `impersonate`, or credentials=anonymous (STORAGE_EMULATOR_HOST implies it)",
                ));
            }
            (Source::Anonymous, None) => {}
            _ => transport.check_secrecy(&endpoint, "access tokens").map_err(|error| {
                error.with_help("with an emulator, add credentials=anonymous to the store URL")
            })?,
        }
        let (user_project, kms_key) = (url.text("user_project"), url.text("kms_key"));
        Ok(Self {
            target: Target { bucket, endpoint, user_project, kms_key },
            transport,
            source,
            impersonate,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::stores::over_http::transport::Proxy;

    fn read_with(url: &str, emulator: Option<&str>) -> Result<Location, Error> {
        let environment = |name: &str| (name == EMULATOR).then(|| emulator.map(str::to_owned)).flatten();
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default(), environment)
    }

    fn read(url: &str) -> Result<Location, Error> {
        read_with(url, None)
    }

    #[test]
    fn a_url_names_the_store_and_its_options() {
        let mut options = StoreOptions::default();
        let url = "gs://my_bucket.example.com/team/locks/?endpoint=https%3A%2F%2F127.0.0.1:4443%2F\
                   &credentials=/etc/key.json&protocol=existence&store_clock=off&margin=9s";
        let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut options, |_| None).unwrap();
        assert_eq!(location.access.target.bucket, "my_bucket.example.com");
        assert_eq!(location.access.target.endpoint, "https://127.0.0.1:4443");
        assert_eq!(location.prefix, "team/locks");
        assert_eq!(location.access.source, Source::File("/etc/key.json".into()));
        assert_eq!(location.protocol, Protocol::Existence);
        assert!(!options.store_clock && options.margin == Duration::from_secs(9));
        for url in ["gs://my-bucket", "gs://my-bucket/"] {
            let location = read(url).unwrap();
            assert_eq!((location.prefix.as_str(), location.access.source), ("", Source::Default), "{url}");
            assert_eq!(location.access.target.endpoint, GOOGLE);
            assert_eq!(location.protocol, Protocol::Lease);
        }
    }

    #[test]
    fn a_url_sets_payer_key_proxy_ca_and_impersonation() {
        let key = "projects/p-1/locations/eu/keyRings/r/cryptoKeys/k_1";
        let url = format!(
            "gs://bucket?user_project=example.com:p-1&kms_key={key}&proxy=http://proxy:3128/&ca=/etc/ca.pem\
             &impersonate=locks@p-1.iam.gserviceaccount.com"
        );
        let Access { target, transport, source, impersonate } = read(&url).unwrap().access;
        assert_eq!(target.user_project.as_deref(), Some("example.com:p-1"));
        assert_eq!(target.kms_key.as_deref(), Some(key));
        assert_eq!(transport.proxy, Proxy::At("http://proxy:3128".into()));
        assert_eq!(transport.authorities, Some("/etc/ca.pem".into()));
        assert_eq!(impersonate.as_deref(), Some("locks@p-1.iam.gserviceaccount.com"));
        assert_eq!(source, Source::Default);
        assert_eq!(read("gs://bucket?proxy=env").unwrap().access.transport.proxy, Proxy::Environment);
        assert_eq!(read("gs://bucket").unwrap().access.transport, Transport::default());
        // The URL is displayed in messages, and parsed again from LEASEHOLD_STORE.
        assert!(StoreUrl::parse(&url).unwrap().to_string().contains(key));
    }

    #[test]
    fn the_emulator_variable_works_as_in_googles_own_clients() {
        for (variable, endpoint) in
            [("localhost:9", "http://localhost:9"), ("http://localhost:9/", "http://localhost:9")]
        {
            let location = read_with("gs://bucket", Some(variable)).unwrap();
            assert_eq!(
                (location.access.target.endpoint.as_str(), location.access.source),
                (endpoint, Source::Anonymous)
            );
        }
        let location =
            read_with("gs://bucket?endpoint=http://localhost:1&credentials=anonymous", Some("x:2"));
        assert_eq!(
            location.unwrap().access.target.endpoint,
            "http://localhost:1",
            "the URL overrides the environment"
        );
        assert_eq!(read_with("gs://bucket", Some("")).unwrap().access.target.endpoint, GOOGLE);
        assert!(read_with("gs://bucket", Some("u:hunter2@host")).is_err());
    }

    #[test]
    fn access_tokens_are_not_sent_in_the_clear() {
        let url = "gs://bucket?endpoint=http://example.com";
        let error = read(url).unwrap_err();
        assert!(error.to_string().contains("unencrypted"), "{error:?}");
        assert!(error.help().join(" ").contains("credentials=anonymous"), "{error:?}");
        for allowed in ["plaintext=on", "credentials=anonymous", "credentials=anonymous&proxy=env"] {
            read(&format!("{url}&{allowed}")).unwrap();
        }
    }

    #[test]
    fn a_bad_url_is_an_error_that_says_what_to_do() {
        for (url, named) in [
            ("gs:", "no bucket"),
            ("gs:bucket/prefix", "no bucket"),
            ("gs:///prefix", "no bucket"),
            ("gs://My-Bucket", "My-Bucket"),
            ("gs://ab", "\"ab\""),
            ("gs://-abc", "-abc"),
            ("gs://a..b", "a..b"),
            ("gs://bucket/a//b", "segment"),
            ("gs://bucket/../b", "segment"),
            ("gs://bucket/a%0Ab", "control"),
            ("gs://bucket?impersonate=a@b.c&credentials=anonymous", "impersonated"),
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{url}: {error:?}");
            assert!(error.to_string().contains(named), "{url}: {error:?}");
            assert!(!error.help().is_empty(), "{url}: {error:?}");
        }
        let long = format!("gs://bucket/{}", "x".repeat(251));
        assert!(read(&long).unwrap_err().to_string().contains("250"));
    }

    #[test]
    fn only_googles_own_endpoints_are_trusted() {
        let target = |endpoint: &str| Target { endpoint: endpoint.into(), ..Target::default() };
        for trusted in [
            "https://storage.googleapis.com",
            "https://storage.europe-west3.rep.googleapis.com",
            "https://www.googleapis.com",
        ] {
            assert!(target(trusted).is_trusted(), "{trusted}");
        }
        for other in [
            "http://storage.googleapis.com",
            "http://127.0.0.1:4443",
            "https://gcs.example.com",
            "https://evilgoogleapis.com",
            "https://example.com/.googleapis.com",
            "https://storage.googleapis.com.example.com",
        ] {
            assert!(!target(other).is_trusted(), "{other}");
        }
    }
}
