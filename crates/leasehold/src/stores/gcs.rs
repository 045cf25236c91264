//! Google Cloud Storage: a register of objects, with the generation preconditions of the JSON API.
//!
//! `docs/stores/gcs.md` has the layout, the roles and the limits.

mod config;
mod credentials;
mod errors;
mod examine;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod wire;
#[cfg(test)]
mod wire_tests;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::future::join;
use futures_util::stream::BoxStream;
use reqwest::StatusCode;

use self::config::{Location, Target};
use self::credentials::{Credentials, Identity, Impersonated};
use self::errors::{is_throttled, meaning};
use self::wire::{Listing, Request, Resource, Written};
use super::buckets::{Keys, Page, deleted, found, listing, written};
use super::contents::Contents;
use super::over_http::answer::Failure;
use super::over_http::exchange::{DATE_RESOLUTION, Expected, exchange};
use super::over_http::https::{self, failure, is_page, refusal};
use super::over_http::{Meaning, Operation, failed};
use crate::clock::{StoreClock, StoreTime};
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{Id, LeaseStore, PollInterval, StoreOptions};
use crate::register::{
    Body, Deleted, Head, Metadata, Precondition, Register, RegisterCapabilities, Version, VersionedValue,
    Write,
};
use crate::url::StoreUrl;

/// GCS does not limit reads of one object as it limits writes, and a thousand reads cost $0.0004. But GCS accepts only
/// about one write per second for an object, so a lock changes hands every two seconds at best, and more frequent reads
/// would find nothing new.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(500), max: Duration::from_secs(2) };

/// The pause after which a throttled write is retried. GCS accepts about one write per second for one object, and short
/// bursts. Faster retries would themselves keep the object busy.
const BETWEEN_WRITES: Duration = Duration::from_secs(1);

/// The maximum total length of the names and values of an object's user metadata, in bytes.
const METADATA_BYTES: usize = 8_192;

/// Opens leases on the bucket and prefix that `url` names:
/// `gs://bucket/prefix?endpoint=&credentials=&impersonate=&user_project=&kms_key=&proxy=&ca=&protocol=lease|existence&store_clock=&margin=`.
///
/// Sends no request. Credentials are loaded with the first request.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::gcs, url::StoreUrl};
///
/// let url = StoreUrl::parse("gs://my-bucket/locks")?;
/// let locker = Locker::new(gcs::open(url, StoreOptions::default()).await?);
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
    let protocol = location.protocol;
    let register = Arc::new(GcsRegister::new(location, Contents::Records, options.env.clone())?);
    Ok(protocol.leases(register, options))
}

/// Opens the folder of the object that `url` names, and returns the object's key in it:
/// `gs://bucket/path/counter.json?endpoint=&credentials=`.
///
/// # Errors
/// See [`open`].
pub(super) async fn open_object(url: StoreUrl, env: Env) -> Result<(Arc<dyn Register>, String), Error> {
    let (location, key) = Location::of_object(url, environment)?;
    Ok((Arc::new(GcsRegister::new(location, Contents::Objects, env)?), key))
}

/// The objects below one prefix of a bucket, as a [`Register`].
///
/// ```no_run
/// # use leasehold::{env::Env, register::Register, stores::gcs::GcsRegister, url::StoreUrl};
/// # async fn example() -> leasehold::Result<()> {
/// let register = GcsRegister::open(StoreUrl::parse("gs://my-bucket/settings")?, Env::system())?;
/// let current = register.read("limits.json").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct GcsRegister {
    client: https::Client,
    target: Target,
    keys: Keys,
    credentials: Credentials,
    env: Env,
    clock: StoreClock,
    contents: Contents,
}

impl GcsRegister {
    /// Opens the bucket and prefix that `url` names; see [`open`] for its options.
    ///
    /// # Errors
    /// See [`open`].
    pub fn open(url: StoreUrl, env: Env) -> Result<Self, Error> {
        let mut options = StoreOptions { env, ..StoreOptions::default() };
        let location = Location::from_url(url, &mut options, environment)?;
        Self::new(location, Contents::Objects, options.env)
    }

    fn new(location: Location, contents: Contents, env: Env) -> Result<Self, Error> {
        let access = location.access;
        let impersonated = access.impersonate.map(Impersonated::new);
        let identity = Identity { source: access.source, impersonated };
        Ok(Self {
            client: https::Client::of(&access.transport)?,
            keys: location.protocol.keys(&location.prefix),
            credentials: Credentials::new(identity, env.clone()),
            target: access.target,
            env,
            clock: StoreClock::default(),
            contents,
        })
    }
}

#[async_trait]
impl Register for GcsRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        let object = self.keys.object(key);
        match self.contents {
            Contents::Records => self.content_of(&object, None).await,
            Contents::Objects => self.whole(&object).await,
        }
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        self.head_of(&self.keys.object(key)).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let object = self.keys.object(key);
        let (operation, generation) = match expect {
            Precondition::Absent => (Operation::Create, "0"),
            Precondition::Version(version) => (Operation::Replace, known_generation(version)?),
        };
        let boundary = Id::random(&self.env.random);
        let request = wire::write(&self.target, &object, generation, body, boundary);
        written(self.ask(operation, &object, request).await, |(_, body)| {
            let answer = serde_json::from_slice(&body).ok();
            self.version(answer.and_then(|Written { generation }| generation).as_deref())
        })
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let object = self.keys.object(key);
        let request = wire::delete(&self.target, &object, known_generation(version)?);
        deleted(self.ask(Operation::Delete, &object, request).await)
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
        format!("{}/{}", self.target.endpoint, self.target.bucket)
    }

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            store: "GCS",
            trusted: self.target.is_trusted(),
            generations: true,
            // Only the content of a record is read, because its metadata would cost another request.
            metadata: (self.contents == Contents::Objects).then_some(METADATA_BYTES),
            poll_interval: POLL_INTERVAL,
        }
    }
}

impl GcsRegister {
    /// Reads the content of `generation`, or of the current generation if it is `None`. Does not read the metadata.
    async fn content_of(
        &self,
        object: &str,
        generation: Option<&str>,
    ) -> Result<Option<VersionedValue>, StoreError> {
        let as_stored = self.contents == Contents::Objects;
        let mut request = Request { as_stored, ..wire::read(&self.target, object) };
        if let Some(generation) = generation {
            request.url.push_str("&generation=");
            request.url.push_str(generation);
        }
        found(self.ask(Operation::Read, object, request).await, |(version, value)| {
            let version = self.version(version.as_deref())?;
            Ok(VersionedValue { value, version, metadata: Metadata::default() })
        })
    }

    async fn head_of(&self, object: &str) -> Result<Option<Head>, StoreError> {
        let result = self.ask(Operation::Read, object, wire::head(&self.target, object)).await;
        found(result, |(_, body)| {
            let resource: Resource = serde_json::from_slice(&body).map_err(|_| no_resource(object))?;
            let version = self.version(resource.generation.as_deref())?;
            let size = resource.size.as_ref().and_then(|size| size.parse().ok()).unwrap_or(0);
            Ok(Head { version, metadata: resource.into_metadata(), size })
        })
    }

    /// Reads the content and the metadata of one generation. The JSON API needs two requests for this, which are sent
    /// at the same time. If the object was written between them, or a cache returned old content, the content is
    /// requested again with the generation of the metadata.
    async fn whole(&self, object: &str) -> Result<Option<VersionedValue>, StoreError> {
        let (content, head) = join(self.content_of(object, None), self.head_of(object)).await;
        let (mut content, mut head) = (content?, head?);
        for _ in 1..MAX_READS {
            let Some(Head { version, metadata, size }) = head else { return Ok(None) };
            if content.as_ref().is_none_or(|cell| cell.version != version) {
                content = self.content_of(object, Some(version.as_str())).await?;
            }
            match content {
                Some(cell) if cell.version == version => {
                    check_size(object, size, cell.value.len())?;
                    return Ok(Some(VersionedValue { metadata, ..cell }));
                }
                // That generation no longer exists.
                _ => head = self.head_of(object).await?,
            }
            content = None;
        }
        Err(Fault::unavailable(format!("the object {object:?} kept changing while it was read"))
            .not_applied())
    }

    /// Sends one request. Returns the generation in the headers of the response and the body, or the meaning of a
    /// failure.
    async fn ask(
        &self,
        operation: Operation,
        object: &str,
        request: Request,
    ) -> Result<(Option<String>, Bytes), Meaning> {
        let explain = |failure| meaning(operation, object, &self.target, failure);
        let signed =
            self.credentials.proof().await.map_err(|error| {
                explain(Failure::Credentials { detail: error.detail, before: error.before })
            })?;
        let uploaded = request.content.as_ref().map_or(0, |(_, body)| body.len());
        let mut headers = signed.proof;
        if self.target.user_project.is_some() {
            // With this header, GCS would use the project of the credentials or of GOOGLE_CLOUD_QUOTA_PROJECT instead.
            headers.remove("x-goog-user-project");
        }
        let request = request.paid(&self.target);
        let mut builder = self.client.request(request.method, request.url).headers(headers);
        if request.as_stored {
            builder = builder.header(reqwest::header::ACCEPT_ENCODING, "gzip");
        }
        if let Some((kind, body)) = request.content {
            builder = builder.header(reqwest::header::CONTENT_TYPE, kind).body(body);
        }
        let answer = async {
            let sent = self.env.now();
            let response = self.client.send(builder).await.map_err(explain)?;
            let date = wire::Dated::of(&response, sent, self.env.now());
            let signed_before = match response.status() {
                StatusCode::UNAUTHORIZED => self.credentials.refused(signed.load),
                status if !status.is_server_error() => self.credentials.accepted(),
                _ => true,
            };
            let is_page = is_page(response.headers()) && self.contents == Contents::Records;
            if response.status().is_success() && !is_page {
                self.observe_clock(date, None);
                return Ok(response);
            }
            let mut answer =
                refusal(response, wire::explanation).await.map_err(|error| explain(failure(error)))?;
            answer.signed_before = signed_before;
            self.observe_clock(date, answer.code.as_deref());
            if is_throttled(&answer) {
                let pause = self.env.random.jittered(BETWEEN_WRITES.mul_f64(0.75), 1.0 / 3.0);
                answer.retry_after.get_or_insert(pause);
            }
            Err(explain(Failure::Answered(answer)))
        };
        let expected = match operation {
            Operation::Read => Expected::Contents(self.contents, object),
            _ => Expected::Answer(MAX_ANSWER_BYTES),
        };
        let (headers, body) = exchange(&self.env, uploaded, answer, expected, explain).await?;
        Ok((wire::generation(&headers).map(str::to_owned), body))
    }

    /// Observes the store's clock if the response certainly comes from the store. `reason` is the reason in an error.
    fn observe_clock(&self, date: Option<wire::Dated>, reason: Option<&str>) {
        let is_emulator = !self.target.is_trusted();
        if let Some(date) = date.filter(|date| date.is_the_stores(reason, is_emulator)) {
            self.clock.observe(date.us, DATE_RESOLUTION, date.sent, date.received);
        }
    }

    /// Returns the version in a response.
    fn version(&self, generation: Option<&str>) -> Result<Version, Fault> {
        match generation {
            Some(generation) if is_generation(generation) => Ok(Version::new(generation)),
            _ => Err(Fault::new(
                ErrorKind::Unsupported,
                "the store responded without a generation, so the object has no version to compare",
            )
            .with_help(format!(
                "check that {} is an endpoint of Google Cloud Storage",
                self.target.endpoint
            ))),
        }
    }

    async fn page(&self, prefix: &str, token: Option<String>) -> Result<Page, StoreError> {
        let request = wire::list(&self.target, prefix, token.as_deref());
        let (_, body) = self.ask(Operation::List, prefix, request).await.map_err(failed)?;
        let listing: Listing = serde_json::from_slice(&body).map_err(|_| no_listing().not_applied())?;
        Ok(Page {
            items: listing.items.into_iter().map(|item| item.name).collect(),
            next: listing.next_page_token.filter(|token| !token.is_empty()),
        })
    }
}

/// The maximum length of a response, in bytes. A page has at most 1,000 names of 1,024 bytes, and JSON escapes can make
/// them six times as long.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The maximum number of attempts to read an object that is written at the same time.
const MAX_READS: usize = 8;

/// Checks that the content arrived as it is stored. Otherwise decompressed content could be written back with metadata
/// that says gzip, and the object could no longer be read. An emulator that reports no size passes the check.
fn check_size(object: &str, stored: u64, received: usize) -> Result<(), StoreError> {
    if stored == 0 || stored == received as u64 {
        return Ok(());
    }
    Err(Fault::new(
        ErrorKind::Unsupported,
        format!(
            "the object {object:?} has {stored} bytes, and {received} arrived: an intermediary changed them"
        ),
    )
    .with_help("a proxy must pass objects on as they are stored, not decompressed")
    .not_applied())
}

fn no_resource(object: &str) -> Fault {
    Fault::new(ErrorKind::Corrupt, format!("the store's description of {object:?} cannot be read"))
        .with_help("check that the endpoint is one of Google Cloud Storage")
}

fn no_listing() -> Fault {
    Fault::new(ErrorKind::Corrupt, "the store's listing cannot be read")
        .with_help("check that the endpoint is one of Google Cloud Storage")
}

/// Returns `version` as a generation. Refuses zero, which would stand for a missing object, and any text that is not a
/// number.
fn known_generation(version: &Version) -> Result<&str, StoreError> {
    Some(version.as_str()).filter(|text| is_generation(text)).ok_or_else(|| {
        let version = version.as_str();
        Fault::new(ErrorKind::Invalid, format!("{version:?} is not the generation of a GCS object"))
            .not_applied()
    })
}

/// Whether the text can be the generation of an existing object.
fn is_generation(text: &str) -> bool {
    text.parse::<u64>().is_ok_and(|generation| generation > 0)
}

fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
