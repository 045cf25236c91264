//! From a store URL and the environment to where requests go, and with whose credentials.

use std::path::PathBuf;

use super::errors::Place;
use crate::error::Error;
use crate::lease::StoreOptions;
use crate::stores::objects::{Protocol, checked_object, checked_prefix};
use crate::url::StoreUrl;

const GOOGLE: &str = "https://storage.googleapis.com";

/// What Google's own clients go by when they are to use an emulator.
const EMULATOR: &str = "STORAGE_EMULATOR_HOST";

/// Where credentials come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Application Default Credentials: `GOOGLE_APPLICATION_CREDENTIALS`, gcloud's file, the metadata server.
    Default,
    /// A key file: a service account's, a user's, a workload identity's.
    File(PathBuf),
    /// None, for emulators.
    Anonymous,
}

/// What a store URL and the environment say.
#[derive(Clone, Debug)]
pub(super) struct Location {
    pub(super) place: Place,
    /// Without `/` at either end; may be empty.
    pub(super) prefix: String,
    pub(super) source: Source,
    pub(super) protocol: Protocol,
}

impl Location {
    /// Reads `url`, and what it says about `options`; `environment` gives variables.
    pub(super) fn from_url(
        mut url: StoreUrl,
        options: &mut StoreOptions,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let (place, source) = take_access(&mut url, environment)?;
        let prefix = checked_prefix(url.path(), "gs://my-bucket/team/locks")?;
        let protocol = Protocol::take(&mut url)?;
        url.take_common(options)?;
        url.finish()?;
        Ok(Self { place, prefix, source, protocol })
    }

    /// Reads `url` as that of an object: where it lies, and its key there.
    pub(super) fn of_object(
        mut url: StoreUrl,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<(Self, String), Error> {
        let (place, source) = take_access(&mut url, environment)?;
        let (prefix, key) = checked_object(url.path(), "gs://my-bucket/path/counter.json")?;
        url.finish()?;
        // Keys as they are.
        Ok((Self { place, prefix, source, protocol: Protocol::Existence }, key))
    }
}

/// Takes out of `url` where requests go, and with whose credentials.
fn take_access(
    url: &mut StoreUrl,
    environment: impl Fn(&str) -> Option<String>,
) -> Result<(Place, Source), Error> {
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
    let source = source.unwrap_or(Source::Default);
    if source != Source::Anonymous && !keeps_secrets(&endpoint) {
        return Err(Error::invalid(format!(
            "the endpoint {endpoint:?} would be sent access tokens unencrypted"
        ))
        .with_help("use https://, or, with an emulator, add credentials=anonymous to the store URL"));
    }
    Ok((Place { bucket, endpoint }, source))
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
        format!("{bucket:?} is no bucket name")
    });
    Err(error.with_help(
        "a GCS store is gs://bucket/prefix; a bucket name has 3 to 63 lower-case letters, digits, `-`, `_` and `.`",
    ))
}

/// Only what may be shown: the URL stands in tickets and in messages.
fn checked_source(text: &str) -> Result<Source, Error> {
    match text {
        "anonymous" => Ok(Source::Anonymous),
        path if path.starts_with('/') && !path.chars().any(crate::name::is_unprintable) => {
            Ok(Source::File(PathBuf::from(path)))
        }
        // It may be the key itself: not repeated.
        _ => Err(Error::invalid("the option `credentials` is `anonymous` or the absolute path of a file")
            .with_help("write ?credentials=/path/to/key.json, or leave it out for the default credentials")),
    }
}

fn checked_endpoint(endpoint: String, source: &str) -> Result<String, Error> {
    // What stands before `@` may be a password, so the text is shown only without one.
    if endpoint.contains('@') {
        return Err(Error::invalid(format!("{source} contains a login"))
            .with_help("credentials do not belong in an endpoint: name a key file with ?credentials="));
    }
    let endpoint = endpoint.trim_end_matches('/');
    let host = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
    let Some(host) = host else {
        return Err(Error::invalid(format!("{source} is {endpoint:?}, without http:// or https://"))
            .with_help(format!("write endpoint=https://{endpoint} (or endpoint=http://{endpoint})")));
    };
    let fine = host.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '[')
        && host.bytes().all(|b| b.is_ascii_graphic() && !b"?#\\\"<>^`{|}".contains(&b));
    if fine {
        return Ok(endpoint.to_owned());
    }
    Err(Error::invalid(format!("{source} is {endpoint:?}, which is no URL of a host")).with_help(
        "an endpoint is like http://localhost:4443 or https://storage.europe-west3.rep.googleapis.com",
    ))
}

/// Whether nobody else can read what is sent to `endpoint`: it is encrypted, or stays on this machine.
fn keeps_secrets(endpoint: &str) -> bool {
    let Some(host) = endpoint.strip_prefix("http://") else { return true };
    let host = host.split('/').next().unwrap_or(host);
    let host = host.rsplit_once(':').map_or(host, |(host, _port)| host);
    matches!(host, "localhost" | "127.0.0.1" | "[::1]")
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    fn read_with(url: &str, emulator: Option<&str>) -> Result<Location, Error> {
        let environment = |name: &str| (name == EMULATOR).then(|| emulator.map(str::to_owned)).flatten();
        Location::from_url(StoreUrl::parse(url)?, &mut StoreOptions::default(), environment)
    }

    fn read(url: &str) -> Result<Location, Error> {
        read_with(url, None)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let mut options = StoreOptions::default();
        let url = "gs://my_bucket.example.com/team/locks/?endpoint=https%3A%2F%2F127.0.0.1:4443%2F\
                   &credentials=/etc/key.json&protocol=existence&store_clock=off&margin=9s";
        let location = Location::from_url(StoreUrl::parse(url).unwrap(), &mut options, |_| None).unwrap();
        assert_eq!(location.place.bucket, "my_bucket.example.com");
        assert_eq!(location.place.endpoint, "https://127.0.0.1:4443");
        assert_eq!(location.prefix, "team/locks");
        assert_eq!(location.source, Source::File("/etc/key.json".into()));
        assert_eq!(location.protocol, Protocol::Existence);
        assert!(!options.store_clock && options.margin == Duration::from_secs(9));
        for url in ["gs://my-bucket", "gs://my-bucket/"] {
            let location = read(url).unwrap();
            assert_eq!((location.prefix.as_str(), location.source), ("", Source::Default), "{url}");
            assert_eq!(location.place.endpoint, GOOGLE);
            assert_eq!(location.protocol, Protocol::Lease);
        }
    }

    #[test]
    fn the_variable_of_the_emulators_is_honoured_as_by_googles_clients() {
        for (variable, endpoint) in
            [("localhost:9", "http://localhost:9"), ("http://localhost:9/", "http://localhost:9")]
        {
            let location = read_with("gs://bucket", Some(variable)).unwrap();
            assert_eq!((location.place.endpoint.as_str(), location.source), (endpoint, Source::Anonymous));
        }
        let location =
            read_with("gs://bucket?endpoint=http://localhost:1&credentials=anonymous", Some("x:2"));
        assert_eq!(
            location.unwrap().place.endpoint,
            "http://localhost:1",
            "the URL says more than the environment"
        );
        assert_eq!(read_with("gs://bucket", Some("")).unwrap().place.endpoint, GOOGLE);
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
            "gs://bucket?credentials={\"private_key\":\"hunter2\"}",
            "gs://bucket?credentials=hunter2",
        ] {
            let error = read(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!format!("{error} {error:?}").contains("hunter2"), "{error:?}");
        }
    }
}
