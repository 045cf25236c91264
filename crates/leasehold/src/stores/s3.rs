//! Amazon S3 and compatible stores: a register of objects, with conditional writes by `If-None-Match` and `If-Match`.
//!
//! `docs/stores/s3.md` has the permissions and the limits, `s3-safety.md` the layout.

mod addresses;
mod bodies;
mod config;
mod connect;
mod errors;
mod examine;
#[cfg(any(test, fuzzing))]
pub(super) mod fuzzing;
mod requests;
mod settings;
#[cfg(test)]
mod wire_tests;

use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::http::Response;
use futures_util::stream::BoxStream;

use self::addresses::{Addresses, Lookup};
use self::config::{Location, Target};
use self::errors::meaning;
use self::settings::Settings;
use super::aws::access::{Access, checked_endpoint};
use super::aws::config::REQUEST_LIMIT;
use super::aws::http;
use super::aws::requests::Requests;
use super::aws::watch::Watch;
use super::buckets::{Keys, Page, deleted, found, listing, written};
use super::contents::Contents;
use super::over_http::{Meaning, Operation, failed, request_limit};
use crate::clock::StoreTime;
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{LeaseStore, PollInterval, StoreOptions};
use crate::proof::cells::RACERS;
use crate::register::{
    Body, Deleted, FrontEnds, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue,
    Write,
};
use crate::url::StoreUrl;

/// A thousand reads cost $0.0004, and a read takes 10 to 30 ms. So polling every tenth of a second notices a release
/// soon at little cost. Pauses above two seconds would delay the user and save only cents a day.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(2) };

/// The maximum total length of the names and values of `x-amz-meta-*`, in bytes.
const METADATA_BYTES: usize = 2_048;

/// Opens leases on the bucket and prefix that `url` names:
/// `s3://bucket/prefix?region=&endpoint=&path_style=on|off&profile=&protocol=lease|existence&store_clock=&margin=`, and the
/// options in `docs/stores/s3.md`.
///
/// Sends no request to S3. Credentials are loaded with the first request.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::s3, url::StoreUrl};
///
/// let url = StoreUrl::parse("s3://my-bucket/locks?region=eu-west-1")?;
/// let locker = Locker::new(s3::open(url, StoreOptions::default()).await?);
/// let guard = locker.lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bad URL or a missing region; [`ErrorKind::Unavailable`] if the machine's metadata
/// service was asked for the region and did not respond.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let protocol = location.protocol;
    let register = Arc::new(S3Register::connect(location, Contents::Records, &options).await?);
    Ok(protocol.leases(register, options))
}

/// Opens the folder of the object that `url` names, and returns the object's key in it:
/// `s3://bucket/path/counter.json?region=&endpoint=&path_style=on|off&profile=`.
///
/// # Errors
/// See [`open`].
pub(super) async fn open_object(url: StoreUrl, env: Env) -> Result<(Arc<dyn Register>, String), Error> {
    let (location, key) = Location::of_object(url)?;
    let options = StoreOptions { env, ..StoreOptions::default() };
    let register = S3Register::connect(location, Contents::Objects, &options).await?;
    Ok((Arc::new(register), key))
}

/// The objects below one prefix of a bucket, as a [`Register`].
///
/// ```no_run
/// # use leasehold::{env::Env, register::Register, stores::s3::S3Register, url::StoreUrl};
/// # async fn example() -> leasehold::Result<()> {
/// let url = StoreUrl::parse("s3://my-bucket/settings?region=eu-west-1")?;
/// let register = S3Register::open(url, Env::system()).await?;
/// let current = register.read("limits.json").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct S3Register {
    client: Client,
    target: Target,
    settings: Settings,
    access: Access,
    /// Whether request URLs name the bucket in the path and not in the host.
    path_style: bool,
    lookup: Lookup,
    keys: Keys,
    requests: Requests,
    contents: Contents,
}

impl S3Register {
    /// Opens the bucket and prefix that `url` names; see [`open`] for its options.
    ///
    /// # Errors
    /// See [`open`].
    pub async fn open(url: StoreUrl, env: Env) -> Result<Self, Error> {
        let mut options = StoreOptions { env, ..StoreOptions::default() };
        let location = Location::from_url(url, &mut options)?;
        Self::connect(location, Contents::Objects, &options).await
    }

    async fn connect(location: Location, contents: Contents, options: &StoreOptions) -> Result<Self, Error> {
        let (client, requests, target) = location.connect(&options.env, options.open_timeout).await?;
        Ok(Self::new(client, requests, target, &location, contents))
    }

    fn new(
        client: Client,
        requests: Requests,
        target: Target,
        location: &Location,
        contents: Contents,
    ) -> Self {
        Self {
            client,
            settings: location.settings.clone(),
            access: location.access.clone(),
            path_style: location.has_path_style(target.endpoint.as_deref()),
            lookup: addresses::system,
            target,
            keys: location.protocol.keys(&location.prefix),
            requests,
            contents,
        }
    }

    /// Returns a register of the same objects that uses another client.
    fn elsewhere(&self, client: Client, target: Target) -> Arc<dyn Register> {
        Arc::new(Self {
            client,
            target,
            settings: self.settings.clone(),
            access: self.access.clone(),
            path_style: self.path_style,
            lookup: self.lookup,
            keys: self.keys.clone(),
            // Shares the store's clock, so that a difference between the clocks of front ends is noticed.
            requests: self.requests.clone(),
            contents: self.contents,
        })
    }
}

#[async_trait]
impl Register for S3Register {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        let object = self.keys.object(key);
        let watch = self.requests.watch();
        let request = self.get_object(&object);
        let result = request.customize().interceptor(watch.clone()).send().await;
        match self.settle(Operation::Read, &object, &watch, result) {
            Ok(output) => bodies::cell(&object, output, self.contents, self.env()).await.map(Some),
            Err(Meaning::Absent) => Ok(None),
            Err(other) => Err(failed(other)),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        let object = self.keys.object(key);
        let watch = self.requests.watch();
        let request = self.head_object(&object);
        let result = request.customize().interceptor(watch.clone()).send().await;
        found(self.settle(Operation::Head, &object, &watch, result), |output| bodies::head(&object, output))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let object = self.keys.object(key);
        let watch = self.requests.watch();
        let limit = request_limit(REQUEST_LIMIT, body.bytes.len());
        let request = self.put_object(&object, body);
        let (operation, request) = match expect {
            Precondition::Absent => (Operation::Create, request.if_none_match("*")),
            Precondition::Version(version) => (Operation::Replace, request.if_match(version.as_str())),
        };
        let mut request = request.customize().interceptor(watch.clone());
        if limit > REQUEST_LIMIT {
            request = request.config_override(connect::limited(limit));
        }
        let result = request.send().await;
        written(self.settle(operation, &object, &watch, result), |output| bodies::version(output.e_tag()))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let object = self.keys.object(key);
        let watch = self.requests.watch();
        let request = self.delete_object(&object).if_match(version.as_str());
        let result = request.customize().interceptor(watch.clone()).send().await;
        deleted(self.settle(Operation::Delete, &object, &watch, result))
    }

    async fn examine(&self) -> Examined {
        self.examined().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        listing(self.env(), &self.keys, prefix, async |prefix, token| self.page(&prefix, token).await)
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.settings.has_md5_etags().then(|| bodies::etag_of(bytes))
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.requests.store_time()
    }

    fn env(&self) -> &Env {
        self.requests.env()
    }

    fn identity(&self) -> String {
        self.target.identity()
    }

    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        let endpoint = checked_endpoint(endpoint, "the option `--endpoint`", self.access.plaintext)?;
        let config = self.client.config().to_builder().endpoint_url(&endpoint).build();
        let target = Target { endpoint: Some(endpoint), ..self.target.clone() };
        Ok(self.elsewhere(Client::from_conf(config), target))
    }

    async fn fronts(&self) -> Result<FrontEnds, Error> {
        let Some(endpoint) = &self.target.endpoint else { return Ok(FrontEnds::default()) };
        // A proxy resolves names itself, and a single address needs no choice.
        if self.access.proxy.is_some() || self.target.address.is_some() {
            return Ok(FrontEnds::default());
        }
        let url = match self.path_style {
            true => endpoint.clone(),
            false => endpoint.replacen("://", &format!("://{}.", self.target.bucket), 1),
        };
        let Addresses { mut answering, silent } = addresses::of(&url, self.lookup, self.env()).await;
        let more = answering.len().saturating_sub(RACERS);
        answering.truncate(RACERS);
        let front = |address| {
            let client = http::pinned(self.requests.authorities(), address)?;
            let config = self.client.config().to_builder().http_client(client).build();
            let target = Target { address: Some(address), ..self.target.clone() };
            Ok((address, self.elsewhere(Client::from_conf(config), target)))
        };
        let answering = answering.into_iter().map(front).collect::<Result<_, Error>>()?;
        Ok(FrontEnds { answering, more, silent })
    }

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            store: "S3",
            trusted: self.target.is_trusted(),
            generations: false,
            metadata: Some(METADATA_BYTES),
            poll_interval: POLL_INTERVAL,
        }
    }
}

impl S3Register {
    async fn page(&self, prefix: &str, token: Option<String>) -> Result<Page, StoreError> {
        let watch = self.requests.watch();
        // A directory bucket lists whole folders only.
        let asked = match self.target.is_directory() {
            true => prefix.rsplit_once('/').map(|(folder, _)| format!("{folder}/")),
            false => Some(prefix.to_owned()),
        };
        let request = self.list_objects().set_prefix(asked).set_continuation_token(token);
        let result = request.customize().interceptor(watch.clone()).send().await;
        let output = self.settle(Operation::List, prefix, &watch, result).map_err(failed)?;
        let next = output.next_continuation_token.filter(|_| output.is_truncated == Some(true));
        if output.is_truncated == Some(true) && next.is_none() {
            return Err(unfinished());
        }
        let objects = output.contents.unwrap_or_default().into_iter().filter_map(|object| object.key);
        let objects = objects.filter(|object| object.starts_with(prefix));
        Ok(Page { items: objects.collect(), next })
    }

    /// Returns the result of a request, with the meaning of a failure.
    fn settle<T, E>(
        &self,
        operation: Operation,
        object: &str,
        watch: &Watch,
        result: Result<T, SdkError<E, Response>>,
    ) -> Result<T, Meaning>
    where
        E: ProvideErrorMetadata + StdError + 'static,
    {
        self.requests
            .settle(watch, result)
            .map_err(|failure| meaning(operation, object, &self.target, failure))
    }
}

fn unfinished() -> StoreError {
    Fault::new(
        ErrorKind::Corrupt,
        "the store's listing has more pages, but the position of the next one is missing",
    )
    .with_help("check that the endpoint is an S3 endpoint")
    .not_applied()
}
