//! Azure Blob Storage: a register of block blobs, with preconditions on entity tags.
//!
//! With `?protocol=lease`, locks are Azure's own leases of blobs (`leases`).
//!
//! `docs/stores/azure.md` has the layout, the roles and the limits.

mod config;
mod credentials;
mod errors;
mod examine;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
#[cfg(test)]
mod lease_tests;
mod leases;
mod sign;
mod signature;
mod wire;
#[cfg(test)]
mod wire_tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use reqwest::Response;
use reqwest::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderMap, HeaderValue};

use self::config::{Access, Location, Target};
use self::credentials::{Credentials, Proof};
use self::errors::{Requested, meaning};
use self::leases::AzureLeases;
use self::wire::Request;
use super::buckets::{Keys, Page, deleted, found, listing, written};
use super::contents::Contents;
use super::over_http::answer::Failure;
use super::over_http::exchange::{DATE_RESOLUTION, Expected, exchange};
use super::over_http::https::{self, date_us, failure, is_page, refusal};
use super::over_http::{Meaning, Operation, failed};
use crate::clock::{self, Moment, StoreClock, StoreTime};
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{LeaseStore, PollInterval, StoreOptions};
use crate::native::NativeStore;
use crate::protocol::RegisterLeases;
use crate::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use crate::url::StoreUrl;

/// A thousand reads cost about $0.0004, and Azure serves 500 requests per second for one blob.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(2) };

/// The maximum total length of the names and values of a blob's metadata, in bytes.
const METADATA_BYTES: usize = 8_192;

/// Azure refuses requests whose date differs from its clock by more than 15 minutes.
const MAX_SKEW: Duration = Duration::from_secs(15 * 60);

/// Opens leases on the container and prefix that `url` names:
/// `azblob://account/container/prefix?protocol=&endpoint=&credentials=&key_file=&sas_file=&proxy=&ca=&store_clock=&margin=`.
///
/// Sends no request. Credentials are loaded with the first request.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::azure, url::StoreUrl};
///
/// let url = StoreUrl::parse("azblob://myaccount/locks")?;
/// let locker = Locker::new(azure::open(url, StoreOptions::default()).await?);
/// let guard = locker.lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bad URL or a bad `ca` file; [`ErrorKind::Unavailable`] on a machine without root
/// certificates.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options, environment)?;
    let (keys, by_lease) = (location.keys(), location.by_lease);
    let register = AzureRegister::new(location.access, keys, Contents::Records, options.env.clone())?;
    Ok(match by_lease {
        true => Arc::new(NativeStore::new(AzureLeases::new(register))),
        false => Arc::new(RegisterLeases::new(Arc::new(register), options)),
    })
}

/// Opens the folder of the blob that `url` names, and returns the blob's key in it:
/// `azblob://account/container/path/counter.json?credentials=`.
///
/// # Errors
/// See [`open`].
pub(super) async fn open_object(url: StoreUrl, env: Env) -> Result<(Arc<dyn Register>, String), Error> {
    let (location, key) = Location::of_object(url, environment)?;
    // The keys of objects are not encoded.
    let keys = Keys::verbatim(&location.prefix);
    Ok((Arc::new(AzureRegister::new(location.access, keys, Contents::Objects, env)?), key))
}

/// The blobs below one prefix of a container, as a [`Register`].
///
/// ```no_run
/// # use leasehold::{env::Env, register::Register, stores::azure::AzureRegister, url::StoreUrl};
/// # async fn example() -> leasehold::Result<()> {
/// let register = AzureRegister::open(StoreUrl::parse("azblob://myaccount/settings")?, Env::system())?;
/// let current = register.read("limits.json").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct AzureRegister {
    client: https::Client,
    target: Target,
    keys: Keys,
    credentials: Credentials,
    env: Env,
    clock: StoreClock,
    contents: Contents,
}

impl AzureRegister {
    /// Opens the container and prefix that `url` names; see [`open`] for its options.
    ///
    /// # Errors
    /// See [`open`].
    pub fn open(url: StoreUrl, env: Env) -> Result<Self, Error> {
        let mut options = StoreOptions { env, ..StoreOptions::default() };
        let location = Location::from_url(url, &mut options, environment)?;
        let keys = location.keys();
        Self::new(location.access, keys, Contents::Objects, options.env)
    }

    fn new(access: Access, keys: Keys, contents: Contents, env: Env) -> Result<Self, Error> {
        Ok(Self {
            client: https::Client::of(&access.transport)?,
            keys,
            credentials: Credentials::new(access.source, env.clone(), environment),
            target: access.target,
            env,
            clock: StoreClock::default(),
            contents,
        })
    }
}

#[async_trait]
impl Register for AzureRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        let blob = self.keys.object(key);
        let result = self.ask(Operation::Read, &blob, wire::read(&self.target, &blob)).await;
        found(result, |(headers, value)| {
            let (version, metadata) = (self.version(&headers)?, wire::metadata(&headers)?);
            Ok(VersionedValue { value, version, metadata })
        })
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        let blob = self.keys.object(key);
        let result = self.ask(Operation::Head, &blob, wire::head(&self.target, &blob)).await;
        found(result, |(headers, _)| {
            let (version, metadata) = (self.version(&headers)?, wire::metadata(&headers)?);
            let size = headers.get(CONTENT_LENGTH).and_then(|text| text.to_str().ok()?.parse().ok());
            Ok(Head { version, metadata, size: size.unwrap_or(0) })
        })
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let blob = self.keys.object(key);
        let operation = match expect {
            Precondition::Absent => Operation::Create,
            Precondition::Version(_) => Operation::Replace,
        };
        let request = wire::write(&self.target, &blob, expect, body).map_err(Fault::not_applied)?;
        written(self.ask(operation, &blob, request).await, |(headers, _)| self.version(&headers))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let blob = self.keys.object(key);
        let request = wire::delete(&self.target, &blob, version.as_str()).map_err(Fault::not_applied)?;
        deleted(self.ask(Operation::Delete, &blob, request).await)
    }

    async fn examine(&self) -> Examined {
        self.examined().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        listing(self.env(), &self.keys, prefix, async |prefix, token| self.page(&prefix, token).await)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn identity(&self) -> String {
        format!("{}/{}", self.target.base, self.target.container)
    }

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            store: "Azure Blob Storage",
            trusted: self.target.is_trusted(),
            generations: false,
            metadata: Some(METADATA_BYTES),
            poll_interval: POLL_INTERVAL,
        }
    }
}

impl AzureRegister {
    /// Sends one request. Returns the headers and the body of the response, or the meaning of a failure.
    async fn ask(
        &self,
        requested: impl Into<Requested>,
        blob: &str,
        request: Request,
    ) -> Result<(HeaderMap, Bytes), Meaning> {
        let requested = requested.into();
        let explain = |failure| meaning(requested, blob, &self.target, failure);
        let signed =
            self.credentials.proof().await.map_err(|error| {
                explain(Failure::Credentials { detail: error.detail, before: error.before })
            })?;
        let uploaded = request.content.as_ref().map_or(0, Bytes::len);
        let dated_us = self.now_us();
        let builder = self
            .signed(request, &signed.proof, dated_us)
            .map_err(|detail| explain(Failure::NotMade { detail }))?;
        let answer = async {
            let sent = self.env.now();
            let response = self.client.send(builder).await.map_err(explain)?;
            let date = self.observe_clock(&response, sent);
            let status = response.status();
            let is_page = is_page(response.headers()) && self.contents == Contents::Records;
            if status.is_success() && !is_page {
                self.credentials.accepted();
                return Ok(response);
            }
            let headers = response.headers().clone();
            let mut answer = refusal(response, |body| wire::explanation(&headers, body))
                .await
                .map_err(|error| explain(failure(error)))?;
            answer.signed_before = match (status.as_u16(), answer.code.as_deref()) {
                (401, _) | (403, Some("AuthenticationFailed") | None) => {
                    self.credentials.refused(signed.load)
                }
                // Azure authenticated the request before it refused it.
                (400..=499, _) => self.credentials.accepted(),
                _ => true,
            };
            answer.clock_is_off = matches!(signed.proof, Proof::Key(_))
                && date.is_some_and(|date| date.abs_diff(dated_us) > clock::micros(MAX_SKEW));
            Err(explain(Failure::Answered(answer)))
        };
        let expected = match requested {
            Requested::Object(Operation::Read) => Expected::Contents(self.contents, blob),
            _ => Expected::Answer(MAX_ANSWER_BYTES),
        };
        exchange(&self.env, uploaded, answer, expected, explain).await
    }

    /// Returns `request` with its headers and the proof of the sender's identity.
    fn signed(
        &self,
        mut request: Request,
        proof: &Proof,
        dated_us: u64,
    ) -> Result<reqwest::RequestBuilder, String> {
        let mut headers = std::mem::take(&mut request.headers);
        headers.insert("x-ms-version", HeaderValue::from_static(wire::API));
        headers.insert("x-ms-date", date(dated_us)?);
        let mut query = "";
        match proof {
            Proof::None => {}
            Proof::Sas(sas) => query = sas,
            Proof::Bearer(token) => {
                headers.insert(AUTHORIZATION, secret_header(token)?);
            }
            Proof::Key(key) => {
                let path =
                    self.target.base.splitn(4, '/').nth(3).map_or(String::new(), |path| format!("/{path}"));
                let path = format!("{path}{}", request.path);
                let signature = key.sign(&self.target.account, &path, &request, &headers);
                headers.insert(AUTHORIZATION, secret_header(&signature)?);
            }
        }
        let url = request.url(&self.target.base, query);
        let builder = self.client.request(request.method, url).headers(headers);
        Ok(match request.content {
            // Azure requires the length even of an empty body, which the HTTP library omits.
            Some(body) => builder.header(CONTENT_LENGTH, body.len()).body(body),
            None => builder,
        })
    }

    /// Returns the time for the date of a request. Uses the store's clock as soon as it is known, because Azure refuses
    /// a request that is dated by a wrong clock.
    fn now_us(&self) -> u64 {
        let now = self.env.now();
        self.clock.bounds(now).map_or(now.wall_us(), |bounds| bounds.lo_us)
    }

    /// Observes the store's clock if the response certainly comes from the store, and returns the response's date. An
    /// intermediary has another clock.
    fn observe_clock(&self, response: &Response, sent: Moment) -> Option<u64> {
        let headers = response.headers();
        let us = date_us(headers).filter(|_| headers.contains_key("x-ms-request-id"))?;
        self.clock.observe(us, DATE_RESOLUTION, sent, self.env.now());
        Some(us)
    }

    /// Returns the version in a response.
    fn version(&self, headers: &HeaderMap) -> Result<Version, Fault> {
        wire::etag(headers).map(Version::new).ok_or_else(|| {
            Fault::new(
                ErrorKind::Unsupported,
                "the store responded without an entity tag, so the blob has no version to compare",
            )
            .with_help(format!("check that {} is an endpoint of Azure Blob Storage", self.target.base))
        })
    }

    async fn page(&self, prefix: &str, token: Option<String>) -> Result<Page, StoreError> {
        let request = wire::list(&self.target, prefix, token.as_deref());
        let (_, body) = self.ask(Operation::List, prefix, request).await.map_err(failed)?;
        let listing = wire::Listing::of(&body).ok_or_else(|| {
            Fault::new(ErrorKind::Corrupt, "the store's listing cannot be read")
                .with_help("check that the endpoint is one of Azure Blob Storage")
                .not_applied()
        })?;
        let (items, next) = listing.into_page();
        Ok(Page { items, next })
    }
}

/// The maximum length of a response, in bytes. A page has at most 5,000 names of 1,024 bytes, each with its properties.
const MAX_ANSWER_BYTES: usize = 32 << 20;

fn date(us: u64) -> Result<HeaderValue, String> {
    let at = i64::try_from(us).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    at.and_then(|at| jiff::fmt::rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&at).ok())
        .and_then(|text| HeaderValue::from_str(&text).ok())
        .ok_or_else(|| "this machine's wall clock does not show a valid date".to_owned())
}

/// Returns a header value that `Debug` does not show.
fn secret_header(text: &str) -> Result<HeaderValue, String> {
    let mut value =
        HeaderValue::from_str(text).map_err(|_| "the credentials cannot be sent in a header".to_owned())?;
    value.set_sensitive(true);
    Ok(value)
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
