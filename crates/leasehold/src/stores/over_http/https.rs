//! Requests of stores on HTTPS: the client, its limits, and the parts that all responses have in common.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::future::BoxFuture;
use reqwest::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderName, LOCATION, RETRY_AFTER};
use reqwest::{Certificate, IntoUrl, Method, RequestBuilder, Response, redirect};

use super::answer::{Answer, Failure, Impostor};
use super::causes::chain;
use super::transport::{Proxy, Transport};
use crate::error::{Error, ErrorKind};

/// The time limit for a connection. The system sends a lost SYN again after one second and after three.
const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// How long an idle connection is kept. The stores close idle connections after some minutes (Google after four), and a
/// request on a connection that is just being closed would be lost.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Carries a request to a server in this process, and returns its response. `None` if the connection breaks. For the
/// simulation.
#[allow(unreachable_pub, reason = "only some stores have a simulation that uses it")]
pub type Carrier =
    Arc<dyn Fn(http::Request<Bytes>) -> BoxFuture<'static, Option<http::Response<Bytes>>> + Send + Sync>;

/// A client that sends each request once. It is made again after a connection has failed because of a certificate, with
/// the files of certificates and keys as they are then.
pub(in crate::stores) struct Client {
    make: Box<dyn Fn() -> Result<reqwest::Client, Error> + Send + Sync>,
    current: Mutex<reqwest::Client>,
    /// Whether requests use no proxy.
    is_direct: bool,
    /// Carries the requests instead of a connection.
    carrier: Option<Carrier>,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl Client {
    /// Creates a client with the options of a store URL.
    pub(in crate::stores) fn of(transport: &Transport) -> Result<Self, Error> {
        let (proxy, transport) = (transport.proxy.clone(), transport.clone());
        Self::new(&proxy, move || built(builder(&transport)?))
    }

    /// Creates a client with `make`, which reads the files. It uses `proxy`.
    pub(in crate::stores) fn new(
        proxy: &Proxy,
        make: impl Fn() -> Result<reqwest::Client, Error> + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let is_direct = *proxy == Proxy::None;
        Ok(Self { current: Mutex::new(make()?), make: Box::new(make), is_direct, carrier: None })
    }

    /// Creates a client whose requests `carrier` carries.
    #[allow(dead_code, reason = "only some stores have a simulation that uses it")]
    pub(in crate::stores) fn carried(carrier: Carrier) -> Result<Self, Error> {
        let client = Self::new(&Proxy::None, || built(reqwest::Client::builder().tls_certs_only([])))?;
        Ok(Self { carrier: Some(carrier), ..client })
    }

    /// Begins a request.
    pub(in crate::stores) fn request(&self, method: Method, url: impl IntoUrl) -> RequestBuilder {
        self.current.lock().unwrap_or_else(PoisonError::into_inner).request(method, url)
    }

    /// Sends `request`, and returns its response.
    pub(in crate::stores) async fn send(&self, request: RequestBuilder) -> Result<Response, Failure> {
        let Some(carrier) = &self.carrier else {
            return request.send().await.map_err(|error| self.failure(error));
        };
        let request = request.build().and_then(http::Request::try_from).map_err(failure)?;
        let request = request.map(|body| body.as_bytes().map(Bytes::copy_from_slice).unwrap_or_default());
        let response = carrier(request).await;
        response.map(Response::from).ok_or(Failure::NoAnswer { detail: "the connection broke".to_owned() })
    }

    /// Converts the error of a request that has no response. The next request uses new certificates if they may be the
    /// cause.
    pub(in crate::stores) fn failure(&self, error: reqwest::Error) -> Failure {
        let mut failure = failure(error);
        if let Failure::NotConnected { detail } = &mut failure
            && self.is_direct
            && let Some(name) = proxy_variable(|name| std::env::var(name).ok())
        {
            detail.push_str(&format!(
                " ({name} is set, but this store uses it only with proxy=env in its URL)"
            ));
        }
        if let Failure::NotConnected { detail } | Failure::NoAnswer { detail } = &failure
            && ["certificate", "fatal alert"].iter().any(|words| detail.contains(words))
        {
            self.renew();
        }
        failure
    }

    /// Reads the files again, for new connections. Keeps the client if they cannot be used.
    pub(in crate::stores) fn renew(&self) {
        match (self.make)() {
            Ok(client) => *self.current.lock().unwrap_or_else(PoisonError::into_inner) = client,
            Err(error) => tracing::debug!(%error, "the certificates could not be read again"),
        }
    }
}

/// Returns the variable that names a proxy for this machine's programs.
fn proxy_variable(environment: impl Fn(&str) -> Option<String>) -> Option<&'static str> {
    let is_set = |name: &&str| environment(name).is_some_and(|url| !url.is_empty());
    ["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"].into_iter().find(is_set)
}

/// Returns the builder of a client that sends each request once. [`built`] builds the client.
pub(in crate::stores) fn builder(transport: &Transport) -> Result<reqwest::ClientBuilder, Error> {
    let mut builder = reqwest::Client::builder()
        // If the response to an applied write is lost, a retry by the client would report a conflict.
        .retry(reqwest::retry::never())
        // leasehold must not repeat a redirected write.
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .pool_idle_timeout(IDLE_LIMIT)
        .tcp_nodelay(true)
        .http1_only()
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
    builder = match &transport.proxy {
        // These requests go to this machine, unencrypted, and may contain access tokens. A proxy could be on another
        // machine.
        Proxy::None => builder.no_proxy(),
        Proxy::Environment => builder,
        Proxy::At(url) => {
            let proxy = reqwest::Proxy::all(url).map_err(|error| {
                Error::invalid(format!("the proxy {url:?} cannot be used: {error}"))
                    .with_help("a proxy is like http://proxy.example.com:3128")
            })?;
            builder.proxy(proxy)
        }
    };
    if let Some(path) = &transport.authorities {
        builder = builder.tls_certs_merge(authorities(path)?);
    }
    Ok(builder)
}

/// Builds the client.
pub(in crate::stores) fn built(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Error> {
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("no HTTPS client could be created: {error}"))
            .with_help("check that the machine has root certificates (Debian: the package ca-certificates)")
            .with_source(error)
    })
}

/// Reads the certificates in the PEM file at `path`.
fn authorities(path: &Path) -> Result<Vec<Certificate>, Error> {
    let shown = path.display();
    let invalid = |flaw: String| {
        Error::invalid(format!("the file {shown} of the option `ca` {flaw}"))
            .with_help("name a PEM file of certificate authorities: ?ca=/path/to/ca.pem")
    };
    let pem = std::fs::read(path).map_err(|error| invalid(format!("cannot be read: {error}")))?;
    match Certificate::from_pem_bundle(&pem) {
        Ok(certificates) if !certificates.is_empty() => Ok(certificates),
        // The parser's error is not shown, because it could contain a key that is in the file.
        _ => Err(invalid("contains no certificate that can be read".to_owned())),
    }
}

/// Returns the `Date` of a response in microseconds since the Unix epoch. Returns `None` if there is no `Date` that
/// shows the store's current time.
pub(in crate::stores) fn date_us(headers: &HeaderMap) -> Option<u64> {
    // A response with `Age` comes from a cache, so its date is in the past.
    if headers.contains_key("age") {
        return None;
    }
    let date =
        jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(headers.get(DATE)?.to_str().ok()?).ok()?;
    u64::try_from(date.as_second()).ok()?.checked_mul(1_000_000)
}

/// Reads the body of a response, up to `most` bytes. Returns `None` if it is longer.
pub(in crate::stores) async fn body(
    mut response: Response,
    most: usize,
) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > most {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

/// The maximum length of an error's text, in bytes. The rest is ignored.
const MAX_ERROR_BYTES: usize = 16_384;

/// The code and the message in the body of an error.
pub(in crate::stores) type Explanation = (Option<String>, Option<String>);

/// Reads an unsuccessful response, including its body. `parse` reads the store's document. The message of any other body
/// is its text. A body that ends too early is an error: without its text, a page of a proxy would look like a response
/// of the store.
pub(in crate::stores) async fn refusal(
    mut response: Response,
    parse: impl FnOnce(&[u8]) -> Option<Explanation>,
) -> Result<Answer, reqwest::Error> {
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let mut body = BytesMut::new();
    while body.len() < MAX_ERROR_BYTES
        && let Some(chunk) = response.chunk().await?
    {
        body.extend_from_slice(&chunk);
    }
    body.truncate(MAX_ERROR_BYTES);
    let (code, message) = parse(&body).unwrap_or_else(|| {
        let text = String::from_utf8_lossy(&body).trim().to_owned();
        (None, Some(text).filter(|text| !text.is_empty()))
    });
    let impostor = impostor(status, &headers, &body).filter(|_| code.is_none());
    Ok(Answer { status, code, message, retry_after: retry_after(&headers), impostor, ..Answer::default() })
}

/// Returns whether a response is a web page, which no store sends.
pub(in crate::stores) fn is_page(headers: &HeaderMap) -> bool {
    text(headers, CONTENT_TYPE).is_some_and(|kind| kind.to_ascii_lowercase().contains("html"))
}

/// Recognises a response that does not come from the store. `body` is the beginning of its body.
pub(in crate::stores) fn impostor(status: u16, headers: &HeaderMap, body: &[u8]) -> Option<Impostor> {
    Impostor::of(status, text(headers, CONTENT_TYPE), text(headers, LOCATION), body)
}

fn text(headers: &HeaderMap, name: HeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// Returns how long the store asks to wait.
pub(in crate::stores) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    // Ignores a date, because no store throttles with one. That form is for pages under maintenance.
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Converts the error of a request that has no response.
pub(in crate::stores) fn failure(error: reqwest::Error) -> Failure {
    // Removes the URL, because messages name the object themselves.
    let error = error.without_url();
    let detail = chain(&error);
    if error.is_builder() {
        Failure::NotMade { detail }
    } else if error.is_connect() {
        Failure::NotConnected { detail }
    } else {
        Failure::NoAnswer { detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn the_variable_of_an_unused_proxy_is_named() {
        let set = |name: &'static str, url: &'static str| {
            proxy_variable(move |asked| (asked == name).then(|| url.to_owned()))
        };
        assert_eq!(set("https_proxy", "http://p:3128"), Some("https_proxy"));
        assert_eq!(set("ALL_PROXY", "http://p:3128"), Some("ALL_PROXY"));
        assert_eq!(set("HTTPS_PROXY", ""), None);
        assert_eq!(set("NO_PROXY", "*"), None);
    }

    #[test]
    fn a_date_is_read_unless_the_response_is_from_a_cache() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date_us(&headers(&[date])), Some(784_111_777_000_000));
        assert_eq!(date_us(&headers(&[date, ("age", "0")])), None);
        assert_eq!(date_us(&headers(&[])), None);
        for bad in ["", "yesterday", "1994-11-06T08:49:37Z", "Tue, 06 Nov 1894 08:49:37 GMT"] {
            assert_eq!(date_us(&headers(&[("date", bad)])), None, "{bad}");
        }
    }
}
