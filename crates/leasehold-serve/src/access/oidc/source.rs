//! The source of an issuer's keys: the issuer, another server, or a file.

use std::error::Error as StdError;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use reqwest::{Certificate, Url, redirect};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Mutex;
use tokio::task::{self, JoinHandle};

/// Maximum size of an issuer's document, in bytes.
const MAX_DOCUMENT: usize = 1 << 20;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of an issuer's keys.
#[derive(Debug)]
pub(super) enum Source {
    /// A file, which is read at each fetch.
    File(KeyFile),
    Http(Endpoint),
}

/// A file that contains the keys.
#[derive(Debug)]
pub(super) struct KeyFile {
    path: PathBuf,
    /// The read in progress. A read on a network that is down may never end, and each read occupies a thread.
    reading: Mutex<Option<Reading>>,
}

/// A read of a whole file.
type Reading = JoinHandle<Result<Vec<u8>, String>>;

/// A server that offers the keys.
#[derive(Debug)]
pub(super) struct Endpoint {
    client: reqwest::Client,
    issuer: String,
    /// The URL of the keys. Without it, the configuration of the issuer names the URL.
    keys: Option<Url>,
}

/// A set of keys (RFC 7517).
#[derive(Deserialize)]
pub(super) struct Set {
    /// Each key is parsed separately, because an issuer may add keys of a new kind.
    pub(super) keys: Vec<Value>,
}

/// The configuration of an issuer (OpenID Connect Discovery).
#[derive(Deserialize)]
struct Configuration {
    issuer: String,
    jwks_uri: String,
}

impl Source {
    /// Creates the source of the keys of `issuer`. If `jwks` is given, the keys are at this URL or file path. The file
    /// `ca` contains additional certificate authorities for servers, in PEM format.
    pub(super) fn new(issuer: &str, jwks: Option<&str>, ca: Option<&Path>) -> Result<Self, String> {
        let of_issuer = checked(issuer, true)?;
        let keys = match jwks {
            Some(file) if file.starts_with('/') => return Ok(Self::file(file)),
            Some(url) => Some(checked(url, true)?),
            None => None,
        };
        let is_plain = keys.as_ref().unwrap_or(&of_issuer).scheme() == "http";
        let client = client(is_plain, ca)?;
        Ok(Self::Http(Endpoint { client, issuer: issuer.to_owned(), keys }))
    }

    /// Creates a source that reads the file `path`.
    pub(super) fn file(path: impl Into<PathBuf>) -> Self {
        Self::File(KeyFile { path: path.into(), reading: Mutex::default() })
    }

    /// Fetches the keys. The caller must limit the time. Cancel safe: the next call continues the read of a file.
    pub(super) async fn fetch(&self) -> Result<Set, String> {
        match self {
            Self::File(file) => {
                file.fetch().await.map_err(|error| format!("{}: {error}", file.path.display()))
            }
            Self::Http(endpoint) => endpoint.fetch().await,
        }
    }
}

impl KeyFile {
    async fn fetch(&self) -> Result<Set, String> {
        let mut reading = self.reading.lock().await;
        let path = self.path.clone();
        let text = reading.get_or_insert_with(|| task::spawn_blocking(move || read(&path))).await;
        *reading = None;
        parse(&text.map_err(|error| format!("it could not be read: {error}"))??)
    }
}

impl Endpoint {
    async fn fetch(&self) -> Result<Set, String> {
        if let Some(url) = &self.keys {
            return self.get(url.clone()).await;
        }
        let url = format!("{}/.well-known/openid-configuration", self.issuer.trim_end_matches('/'));
        let url = checked(&url, true)?;
        let is_plain = url.scheme() == "http";
        let configuration: Configuration = self.get(url.clone()).await?;
        if configuration.issuer != self.issuer {
            return Err(format!(
                "{url} is the configuration of another issuer: `{}`",
                shown(&configuration.issuer)
            ));
        }
        // Keys over plain HTTP could be replaced in transit.
        let keys = checked(&configuration.jwks_uri, is_plain)
            .map_err(|flaw| format!("the `jwks_uri` in {url}: {flaw}"))?;
        self.get(keys).await
    }

    async fn get<T: DeserializeOwned>(&self, url: Url) -> Result<T, String> {
        let failed = |error: reqwest::Error| format!("{url}: {}", chain(&error.without_url()));
        let mut response = self.client.get(url.clone()).send().await.map_err(failed)?;
        if response.status() != reqwest::StatusCode::OK {
            return Err(format!("{url} responded with {}", response.status().as_u16()));
        }
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(failed)? {
            if body.len() + chunk.len() > MAX_DOCUMENT {
                return Err(format!("{url} responded with more than {MAX_DOCUMENT} bytes"));
            }
            body.extend_from_slice(&chunk);
        }
        parse(&body).map_err(|flaw| format!("{url}: {flaw}"))
    }
}

/// Parses an absolute URL whose responses cannot be forged in transit: with `https` or, if `plain` is true, with `http`
/// on this machine.
fn checked(url: &str, plain: bool) -> Result<Url, String> {
    let flaw = |flaw: &str| format!("the URL `{}` {flaw}", shown(url));
    let parsed = Url::parse(url).map_err(|error| flaw(&format!("is not valid: {error}")))?;
    let is_here = match parsed.host_str() {
        Some("localhost" | "[::1]") => true,
        Some(host) => host.parse().is_ok_and(|address: std::net::Ipv4Addr| address.is_loopback()),
        None => return Err(flaw("has no host name")),
    };
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err("a URL contains a user name or a password".to_owned());
    }
    match parsed.scheme() {
        "https" => Ok(parsed),
        "http" if is_here && plain => Ok(parsed),
        _ => Err(flaw("does not begin with https://")),
    }
}

fn client(is_plain: bool, ca: Option<&Path>) -> Result<reqwest::Client, String> {
    let mut builder = reqwest::Client::builder()
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .http1_only()
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
    // A proxy from the environment cannot change responses over TLS, but a plain request must not leave this machine.
    if is_plain {
        builder = builder.no_proxy();
    }
    if let Some(file) = ca {
        let flaw = |flaw: String| format!("the `ca` file `{}` {flaw}", file.display());
        let pem = read(file).map_err(|error| flaw(format!("cannot be read: {error}")))?;
        match Certificate::from_pem_bundle(&pem) {
            Ok(authorities) if !authorities.is_empty() => builder = builder.tls_certs_merge(authorities),
            // Drop the error of the parser, because it could repeat a key that is in the file.
            _ => return Err(flaw("contains no certificate that can be read".to_owned())),
        }
    }
    builder.build().map_err(|error| format!("cannot create an HTTPS client: {}", chain(&error)))
}

/// Reads a file of at most 1 MiB.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let mut text = Vec::new();
    let most = MAX_DOCUMENT as u64 + 1;
    file.take(most).read_to_end(&mut text).map_err(|error| error.to_string())?;
    if text.len() > MAX_DOCUMENT {
        return Err(format!("it has more than {MAX_DOCUMENT} bytes"));
    }
    Ok(text)
}

/// Parses a document. The error does not quote it.
fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, String> {
    serde_json::from_slice(text).map_err(|error| {
        format!("the document cannot be read (line {}, column {})", error.line(), error.column())
    })
}

fn shown(text: &str) -> String {
    leasehold::lease::printable(text, 200)
}

/// Returns an error and its causes in one line.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = causes.map(|cause| shown(&cause.to_string())).collect();
    texts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_asked_without_tls() {
        for good in ["https://issuer.example", "http://127.0.0.1:1/x", "http://localhost", "http://[::1]:1"] {
            assert!(checked(good, true).is_ok(), "{good}");
        }
        for bad in [
            "http://issuer.example",
            "http://127.0.0.1.example",
            "http://10.0.0.1",
            "ftp://127.0.0.1",
            "file:///etc/passwd",
            "https://user:hunter2@issuer.example",
            "issuer.example",
            "",
        ] {
            let error = checked(bad, true).unwrap_err();
            assert!(!error.contains("hunter2"), "{error}");
        }
        assert!(checked("http://127.0.0.1", false).is_err());
    }
}
