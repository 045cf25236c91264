//! Requests of stores on HTTPS: the client, its limits, and what every response says.

use std::error::Error as StdError;
use std::path::Path;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use reqwest::header::{DATE, HeaderMap, RETRY_AFTER};
use reqwest::{Certificate, Response, redirect};

use super::answer::Trouble;
use super::objects::{Contents, Meaning, request_limit};
use super::transport::{Proxy, Transport};
use crate::clock;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault};

/// A `Date` header is rounded down to whole seconds.
pub(super) const DATE_RESOLUTION: Duration = Duration::from_secs(1);

/// The limit of one request. Several requests fit into the shortest usual lease. The layers above reduce it further.
const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// A lost SYN is sent again after one second and after three.
const CONNECT_LIMIT: Duration = Duration::from_millis(3_100);

/// The stores close idle connections after some minutes (Google after four). A request on a connection that is just being closed would be
/// lost.
const IDLE_LIMIT: Duration = Duration::from_secs(60);

/// Creates a client that sends each request once.
#[cfg(any(feature = "azure", feature = "gcs"))]
pub(super) fn client(transport: &Transport) -> Result<reqwest::Client, Error> {
    built(builder(transport)?)
}

/// A client that sends each request once, to be made by [`built`].
pub(super) fn builder(transport: &Transport) -> Result<reqwest::ClientBuilder, Error> {
    let mut builder = reqwest::Client::builder()
        // A retry inside would turn an applied write whose answer was lost into a conflict.
        .retry(reqwest::retry::never())
        // leasehold must not repeat a redirected write.
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_LIMIT)
        .pool_idle_timeout(IDLE_LIMIT)
        .tcp_nodelay(true)
        .http1_only()
        .user_agent(concat!("leasehold/", env!("CARGO_PKG_VERSION")));
    builder = match &transport.proxy {
        // Plain requests to this machine, including access tokens, must not leave it.
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

/// Makes the client.
pub(super) fn built(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, Error> {
    builder.build().map_err(|error| {
        Error::new(ErrorKind::Unavailable, format!("no HTTPS client could be made: {error}"))
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
        // The parser's error could repeat a key that is in the file.
        _ => Err(invalid("has no certificate that can be read".to_owned())),
    }
}

/// Returns the `Date` of a response in microseconds since the Unix epoch. `None` if it has none that shows the store's
/// current time.
pub(super) fn date_us(headers: &HeaderMap) -> Option<u64> {
    // With `Age` the response comes from a cache, and its date from the past.
    if headers.contains_key("age") {
        return None;
    }
    let date =
        jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(headers.get(DATE)?.to_str().ok()?).ok()?;
    u64::try_from(date.as_second()).ok()?.checked_mul(1_000_000)
}

/// One exchange with an object store: awaits `answer`, the response to a request of `uploaded` bytes, and reads its body.
/// Each has a limit by its size. `explain` returns the meaning of a failure.
pub(super) async fn exchange(
    env: &Env,
    uploaded: usize,
    answer: impl Future<Output = Result<Response, Meaning>>,
    expected: Expected<'_>,
    explain: impl Fn(Trouble) -> Meaning,
) -> Result<(HeaderMap, Bytes), Meaning> {
    let late = |limit| explain(Trouble::NoAnswer { detail: format!("within {limit:?}") });
    let limit = request_limit(REQUEST_LIMIT, uploaded);
    let sent = env.now();
    let response = clock::timeout(&*env.clock, limit, answer).await.ok_or_else(|| late(limit))??;
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    let limit = limit.max(request_limit(REQUEST_LIMIT, announced.unwrap_or(0)));
    let left = limit.saturating_sub(env.now().longest_since(sent));
    let headers = response.headers().clone();
    let body = clock::timeout(&*env.clock, left, expected.read(response, announced, &explain)).await;
    Ok((headers, body.ok_or_else(|| late(limit))??))
}

/// What the body of a response is.
pub(super) enum Expected<'a> {
    /// The contents of this object.
    #[cfg_attr(
        not(any(feature = "azure", feature = "gcs")),
        allow(dead_code, reason = "Kubernetes keeps no objects")
    )]
    Contents(Contents, &'a str),
    /// Something that the store says, of at most this many bytes.
    Answer(usize),
}

impl Expected<'_> {
    async fn read(
        &self,
        response: Response,
        announced: Option<usize>,
        explain: impl Fn(Trouble) -> Meaning,
    ) -> Result<Bytes, Meaning> {
        let most = match self {
            Self::Contents(contents, _) => contents.most_bytes(),
            Self::Answer(most) => *most,
        };
        if let Self::Contents(contents, object) = self
            && announced.is_some_and(|length| length > most)
        {
            return Err(Meaning::Failed(contents.too_large(object, announced)));
        }
        let read = body(response, most).await.map_err(|error| explain(trouble(error)))?;
        read.ok_or_else(|| {
            Meaning::Failed(match self {
                Self::Contents(contents, object) => contents.too_large(object, None),
                Self::Answer(_) => {
                    Fault::new(ErrorKind::Corrupt, "the store's answer has no end").maybe_applied()
                }
            })
        })
    }
}

/// Reads the body of a response, up to `most` bytes. `None` if it is longer.
pub(super) async fn body(mut response: Response, most: usize) -> Result<Option<Bytes>, reqwest::Error> {
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await? {
        if body.len() + chunk.len() > most {
            return Ok(None);
        }
        body.extend_from_slice(&chunk);
    }
    Ok(Some(body.freeze()))
}

/// Returns how long the store asks to wait.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    // The form with a date is for pages under maintenance; no store throttles with it.
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}

/// Returns why a request has no response.
pub(super) fn trouble(error: reqwest::Error) -> Trouble {
    // Without the URL, because messages name the object themselves.
    let error = error.without_url();
    let detail = chain(&error);
    if error.is_builder() {
        Trouble::NotMade { detail }
    } else if error.is_connect() {
        Trouble::NotConnected { detail }
    } else {
        Trouble::NoAnswer { detail }
    }
}

/// An error and its causes in one line.
fn chain(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |&error| error.source());
    let texts: Vec<String> = causes.map(|cause| cause.to_string().replace('\n', " ")).collect();
    texts.join(": ").chars().take(400).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
    }

    #[test]
    fn a_date_is_read_unless_the_answer_is_from_a_cache() {
        let date = ("date", "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date_us(&headers(&[date])), Some(784_111_777_000_000));
        assert_eq!(date_us(&headers(&[date, ("age", "0")])), None);
        assert_eq!(date_us(&headers(&[])), None);
        for bad in ["", "yesterday", "1994-11-06T08:49:37Z", "Tue, 06 Nov 1894 08:49:37 GMT"] {
            assert_eq!(date_us(&headers(&[("date", bad)])), None, "{bad}");
        }
    }
}
