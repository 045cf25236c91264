//! Parses the settings in a store URL and the environment: where requests go, and with which credentials.

use std::path::PathBuf;

use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::buckets::{Protocol, checked_object, checked_prefix};
use crate::stores::over_http::transport::{Transport, checked_url};
use crate::url::StoreUrl;

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
        mut url: StoreUrl,
        options: &mut StoreOptions,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let access = Access::take(&mut url, environment)?;
        let prefix = checked_prefix(url.path(), "gs://my-bucket/team/locks")?;
        let protocol = Protocol::take(&mut url)?;
        url.take_common(options)?;
        url.finish()?;
        Ok(Self { access, prefix, protocol })
    }

    /// Parses `url` as the URL of an object. Returns the location of its folder, and its key there.
    pub(super) fn of_object(
        mut url: StoreUrl,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, String), Error> {
        let access = Access::take(&mut url, environment)?;
        let (prefix, key) = checked_object(url.path(), "gs://my-bucket/path/counter.json")?;
        url.finish()?;
        // This protocol does not encode keys.
        Ok((Self { access, prefix, protocol: Protocol::Existence }, key))
    }
}

impl Access {
    /// Takes the access settings out of `url`.
    fn take(url: &mut StoreUrl, environment: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        if url.user().is_some() || url.password().is_some() {
            return Err(Error::invalid("credentials do not belong in a GCS store URL").with_help(
                "name a key file: ?credentials=/path/to/key.json, or GOOGLE_APPLICATION_CREDENTIALS",
            ));
        }
        let bucket = checked_bucket(url.authority().unwrap_or(""))?;
        let mut source = url.take("credentials").map(|text| checked_source(&text)).transpose()?;
        let endpoint = match url.take("endpoint") {
            Some(endpoint) => checked_endpoint(endpoint, "the option `endpoint`")?,
            None => match environment(EMULATOR).filter(|host| !host.is_empty()) {
                Some(host) => {
                    source.get_or_insert(Source::Anonymous);
                    let host = if host.contains("://") { host } else { format!("http://{host}") };
                    checked_endpoint(host, "the environment variable STORAGE_EMULATOR_HOST")?
                }
                None => GOOGLE.to_owned(),
            },
        };
        let transport = Transport::take(url)?;
        let source = source.unwrap_or(Source::Default);
        if source != Source::Anonymous && !transport.keeps_secrets(&endpoint) {
            return Err(Error::invalid(format!(
                "the endpoint {endpoint:?} would receive access tokens unencrypted"
            ))
            .with_help("use https://, or, with an emulator, add credentials=anonymous to the store URL"));
        }
        let impersonate = url.take("impersonate").map(checked_account).transpose()?;
        if impersonate.is_some() && source == Source::Anonymous {
            return Err(Error::invalid("without credentials no service account can be impersonated")
                .with_help(
                    "leave out `impersonate`, or credentials=anonymous (STORAGE_EMULATOR_HOST implies it)",
                ));
        }
        let target = Target {
            bucket,
            endpoint,
            user_project: url.take("user_project").map(checked_project).transpose()?,
            kms_key: url.take("kms_key").map(checked_kms_key).transpose()?,
        };
        Ok(Self { target, transport, source, impersonate })
    }
}

fn checked_bucket(bucket: &str) -> Result<String, Error> {
    let ends = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let fine = (3..=222).contains(&bucket.len())
        && bucket.split('.').all(|part| (1..=63).contains(&part.len()))
        && bucket.bytes().all(|b| ends(b) || b"-_.".contains(&b))
        && bucket.bytes().next().is_some_and(ends)
        && bucket.bytes().next_back().is_some_and(ends);
    if fine {
        return Ok(bucket.to_owned());
    }
    let error = Error::invalid(if bucket.is_empty() {
        "the GCS store URL names no bucket".to_owned()
    } else {
        format!("{bucket:?} is not a bucket name")
    });
    Err(error.with_help(
        "a GCS store is gs://bucket/prefix; a bucket name has 3 to 63 lower-case letters, digits, `-`, `_` and `.`",
    ))
}

/// Parses the option `credentials`. Accepts only values that may be displayed, because the URL appears in messages and
/// in the environment of commands.
fn checked_source(text: &str) -> Result<Source, Error> {
    match text {
        "anonymous" => Ok(Source::Anonymous),
        path if path.starts_with('/') && !path.chars().any(crate::types::is_unprintable) => {
            Ok(Source::File(PathBuf::from(path)))
        }
        // The value may be the key itself, so the error does not repeat it.
        _ => Err(Error::invalid("the option `credentials` is `anonymous` or the absolute path of a file")
            .with_help("write ?credentials=/path/to/key.json, or leave it out for the default credentials")),
    }
}

fn checked_account(account: String) -> Result<String, Error> {
    let fine = account.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._@".contains(&b));
    if fine && account.split_once('@').is_some_and(|(name, host)| !name.is_empty() && host.contains('.')) {
        return Ok(account);
    }
    Err(Error::invalid(format!("the option `impersonate` is {account:?}, which is not a service account"))
        .with_help("name it by its email address: impersonate=locks@my-project.iam.gserviceaccount.com"))
}

fn checked_project(project: String) -> Result<String, Error> {
    let fine = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b);
    if (1..=100).contains(&project.len()) && project.bytes().all(fine) {
        return Ok(project);
    }
    Err(Error::invalid(format!("the option `user_project` is {project:?}, which is not a project"))
        .with_help("name the project that pays by its id or its number: user_project=my-project"))
}

fn checked_kms_key(key: String) -> Result<String, Error> {
    let parts: Vec<_> = key.split('/').collect();
    let fine = |part: &str| {
        !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
    };
    match parts[..] {
        ["projects", project, "locations", location, "keyRings", ring, "cryptoKeys", name]
            if [project, location, ring, name].into_iter().all(fine) =>
        {
            Ok(key)
        }
        _ => Err(Error::invalid(format!("the option `kms_key` is {key:?}, which is not a Cloud KMS key"))
            .with_help("it is like projects/PROJECT/locations/LOCATION/keyRings/RING/cryptoKeys/KEY")),
    }
}

fn checked_endpoint(endpoint: String, source: &str) -> Result<String, Error> {
    // The part before `@` may be a password, so the text is displayed only if there is no `@`.
    if endpoint.contains('@') {
        return Err(Error::invalid(format!("{source} contains a login"))
            .with_help("credentials do not belong in an endpoint: name a key file with ?credentials="));
    }
    checked_url(&endpoint, source).map_err(|error| {
        error.with_help(
            "an endpoint is like http://localhost:4443 or https://storage.europe-west3.rep.googleapis.com",
        )
    })
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
        for url in [
            "gs://bucket?endpoint=http://example.com",
            "gs://bucket?endpoint=http://127.0.0.1.example.com:80",
        ] {
            let error = read(url).unwrap_err();
            assert!(error.to_string().contains("unencrypted"), "{error:?}");
            assert!(error.help()[0].contains("credentials=anonymous"));
            assert!(read(&format!("{url}&credentials=anonymous")).is_ok());
        }
        for url in ["gs://bucket?endpoint=http://127.0.0.1:9", "gs://bucket?endpoint=http://[::1]:9"] {
            read(url).unwrap();
            // With a proxy, access tokens would leave this machine.
            for proxy in ["env", "http://proxy:1"] {
                assert!(
                    read(&format!("{url}&proxy={proxy}")).unwrap_err().to_string().contains("unencrypted")
                );
                read(&format!("{url}&proxy={proxy}&credentials=anonymous")).unwrap();
            }
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
            ("gs://bucket?endpoint=localhost:4443", "localhost:4443"),
            ("gs://bucket?endpoint=ftp://localhost", "ftp://localhost"),
            ("gs://bucket?endpoint=http://", "http:"),
            ("gs://bucket?endpoint=http://a%20b", "a b"),
            ("gs://bucket?credentials=key.json", "credentials"),
            ("gs://bucket?proxy=proxy:3128", "proxy:3128"),
            ("gs://bucket?proxy=socks5://proxy", "socks5://proxy"),
            ("gs://bucket?ca=ca.pem", "ca.pem"),
            ("gs://bucket?ca=/a%0Ab", "`ca`"),
            ("gs://bucket?user_project=My%20Project", "My Project"),
            ("gs://bucket?user_project=", "user_project"),
            ("gs://bucket?kms_key=my-key", "my-key"),
            (
                "gs://bucket?kms_key=projects/p/locations/l/keyRings/r/cryptoKeys/k/cryptoKeyVersions/1",
                "kms_key",
            ),
            ("gs://bucket?kms_key=projects/p/locations/l/keyRings//cryptoKeys/k", "kms_key"),
            ("gs://bucket?impersonate=locks", "locks"),
            ("gs://bucket?impersonate=a/b@c.d", "a/b@c.d"),
            ("gs://bucket?impersonate=a@b.c&credentials=anonymous", "impersonated"),
            ("gs://bucket?protocol=exists", "exists"),
            ("gs://bucket?regoin=x", "regoin"),
            ("gs://bucket?key=x", "key"),
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
    fn secrets_are_refused_and_not_repeated() {
        for url in [
            "gs://id:hunter2@bucket",
            "gs://bucket?endpoint=http://u:hunter2@host",
            "gs://bucket?endpoint=u:hunter2@host",
            "gs://bucket?proxy=http://u:hunter2@host",
            "gs://bucket?proxy=u:hunter2@host",
            "gs://bucket?credentials={\"private_key\":\"hunter2\"}",
            "gs://bucket?credentials=hunter2",
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
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
