//! Kubernetes: one Lease object for each lock. It uses the same fields as client-go's leader election, so that
//! leasehold and client-go exclude each other.
//!
//! `docs/stores/kubernetes.md` describes the layout, the permissions and the limits.

mod access;
mod config;
mod credentials;
mod errors;
mod examine;
mod kubeconfig;
mod lease;
mod names;
mod wire;
#[cfg(test)]
mod wire_tests;

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderValue};
use reqwest::{Certificate, Identity, Response};
use serde_json::{Value, json};

use self::access::{Access, Source};
use self::config::{Location, Target};
use self::credentials::Credentials;
use self::errors::meaning;
use self::lease::{LINE, Lease, NAME, Revision};
use self::wire::{Event, Listing, Request};
use super::over_http::answer::Failure;
use super::over_http::exchange::{DATE_RESOLUTION, Expected, exchange};
#[doc(hidden)]
pub use super::over_http::https::Carrier;
use super::over_http::https::{self, date_us, failure, is_page, refusal};
use super::over_http::{Meaning, Operation, failed};
use super::pages::{self, Page};
use crate::clock::{Moment, StoreClock, StoreTime};
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{Capabilities, Id, LeaseStore, PollInterval, StoreOptions};
use crate::protocol::RegisterLeases;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Found, Records, Refusal, Written};
use crate::register::{Precondition, Version};
use crate::types::LockName;
use crate::url::StoreUrl;

/// Reads go to the cluster's etcd, which the whole cluster shares. client-go polls every two seconds.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(200), max: Duration::from_secs(2) };

/// A page of a listing has the annotations of 500 Leases.
const MAX_ANSWER_BYTES: usize = 64 << 20;

/// An event has one Lease.
const MAX_EVENT_BYTES: usize = 4 << 20;

/// Opens leases in the namespace that `url` names:
/// `k8s://namespace?kubeconfig=&context=&endpoint=&token_file=&ca=&proxy=&store_clock=&margin=`.
///
/// Sends no request. The first request loads the credentials.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::kubernetes, url::StoreUrl};
///
/// let url = StoreUrl::parse("k8s://jobs")?;
/// let locker = Locker::new(kubernetes::open(url, StoreOptions::default()).await?);
/// let guard = locker.lock("nightly").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bad URL, a bad kubeconfig, or if no server is known.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let read = |url, options: &mut _| Location::from_url(url, options, |name| std::env::var(name).ok());
    let location = read(url.clone(), &mut options)?;
    let again = move || Ok(read(url.clone(), &mut StoreOptions::default())?.access);
    let store = Kubernetes::new(location, again, options.env.clone())?;
    Ok(Arc::new(RegisterLeases::on(Arc::new(store), options)))
}

/// Opens leases on an API server that `carrier` reaches. For the simulation.
///
/// # Errors
/// If no client can be created.
#[doc(hidden)]
pub fn simulated(carrier: Carrier, options: StoreOptions) -> Result<RegisterLeases, Error> {
    let env = options.env.clone();
    let store = Kubernetes {
        client: https::Client::carried(carrier)?,
        credentials: Credentials::new(Source::Connection, env.clone()),
        target: Target { namespace: "jobs".to_owned(), server: "http://simulated".to_owned() },
        env,
        clock: StoreClock::default(),
    };
    Ok(RegisterLeases::on(Arc::new(store), options))
}

/// Returns the lock that a Lease, in JSON, stands for, and its record, also in JSON. `None` if the Lease has none. For
/// the simulation.
#[doc(hidden)]
pub fn recorded(lease: &[u8]) -> Option<(LockName, Bytes)> {
    let lease = Lease::of(lease).ok()?;
    match lease.found().ok()?.content {
        Content::Record(record) => Some((lock_of(&lease)?, record.to_bytes().ok()?)),
        Content::Foreign { .. } => None,
    }
}

/// The Leases of one namespace.
#[derive(Debug)]
struct Kubernetes {
    client: https::Client,
    target: Target,
    credentials: Credentials,
    env: Env,
    clock: StoreClock,
}

impl Kubernetes {
    /// Creates the store at `location`. `again` reads how to reach the server again, because a kubeconfig and the files
    /// that it names may be replaced while the store is open.
    fn new(
        location: Location,
        again: impl Fn() -> Result<Access, Error> + Send + Sync + 'static,
        env: Env,
    ) -> Result<Self, Error> {
        let Location { access, namespace } = location;
        let server = access.server.clone();
        let again = Arc::new(move || {
            let access = again()?;
            if access.server == server {
                return Ok(access);
            }
            Err(Error::invalid(format!("the kubeconfig names {} now, and {server} before", access.server)))
        });
        let for_client = again.clone();
        Ok(Self {
            client: https::Client::new(&access.transport.proxy, move || client(&for_client()?))?,
            credentials: Credentials::new(access.source, env.clone())
                .reading(move || again().map(|access| access.source)),
            target: Target { namespace, server: access.server },
            env,
            clock: StoreClock::default(),
        })
    }
}

fn client(access: &Access) -> Result<reqwest::Client, Error> {
    let invalid = |what: &str| {
        // The parser's error could contain a key.
        Error::invalid(format!("{what} of the cluster cannot be read as PEM"))
            .with_help("check the kubeconfig with `kubectl config view`, or the service account of the pod")
    };
    let mut builder = https::builder(&access.transport)?;
    if let Some(pem) = &access.authorities {
        let authorities = Certificate::from_pem_bundle(pem).ok().filter(|found| !found.is_empty());
        builder = builder.tls_certs_only(authorities.ok_or_else(|| invalid("the authority"))?);
    }
    if let Some(pem) = &access.identity {
        builder =
            builder.identity(Identity::from_pem(&pem.0).map_err(|_| invalid("the client certificate"))?);
    }
    https::built(builder)
}

#[async_trait]
impl Records for Kubernetes {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let object = names::lease(name);
        let lease = self.read_lease(&object).await?;
        lease.map(|lease| self.found(&object, &lease)).transpose().map_err(Fault::not_applied)
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let object = names::lease(name);
        let revision = revision(expect).map_err(Fault::not_applied)?;
        let over = revision.as_ref().map(|revision| (revision, before));
        let spec = lease::spec(record, over).map_err(Fault::not_applied)?;
        let mut annotations = lease::annotations(record, Some(&spec)).map_err(Fault::not_applied)?;
        if names::is_encoded(&object) {
            annotations[NAME] = json!(name.as_str());
        }
        let spec = Some(json!(spec));
        self.written(&object, revision, annotations, spec, record).await
    }

    /// Changes only the annotation with the record, because the rest may be another client's.
    async fn mark_awaited(
        &self,
        name: &LockName,
        version: &Version,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let revision = version.as_str().parse().map_err(Fault::not_applied)?;
        let record = Record { awaited: true, ..record.clone() };
        let annotations = lease::annotations(&record, None).map_err(Fault::not_applied)?;
        self.written(&names::lease(name), Some(revision), annotations, None, &record).await
    }

    async fn freed(&self, name: &LockName, _claim: Option<Id>) {
        if self.watched(&names::lease(name)).await.is_none() {
            std::future::pending().await
        }
    }

    fn has_lines(&self) -> bool {
        true
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let lease = self.read_lease(&names::line(name)).await?;
        Ok(lease.map(|lease| {
            let line = lease.annotation(LINE).unwrap_or_default().to_owned();
            (line.into(), lease.version())
        }))
    }

    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let revision = revision(expect).map_err(Fault::not_applied)?;
        let annotations = json!({ LINE: String::from_utf8_lossy(&line) });
        let put = self.put(&names::line(name), revision, annotations, None).await?;
        Ok(matches!(put, Put::Done(_)))
    }

    async fn delete_line(&self, name: &LockName, version: &Version) -> Result<(), StoreError> {
        self.delete(&names::line(name), version).await.map(drop)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        pages::items(&self.env, async |token| self.page(token).await, endless_listing)
            .try_filter_map(move |lease| {
                ready(Ok(lock_of(&lease).filter(|name| name.as_str().starts_with(&prefix))))
            })
            .boxed()
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.delete(&names::lease(name), version).await
    }

    /// client-go keeps the annotations of a Lease. Other clients replace the whole Lease.
    fn others_drop_tokens(&self) -> bool {
        true
    }

    /// Succeeds without a check, because Kubernetes itself depends on the API server comparing versions.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn examine(&self, _examination: &Examination) -> Examined {
        self.examined().await
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("Kubernetes", POLL_INTERVAL);
        capabilities.sizes = true;
        capabilities.line = Some("the Lease `lh--line.NAME`");
        (capabilities.permits_in_order, capabilities.queues_permits) = (true, true);
        capabilities
    }
}

/// The result of a conditional write.
enum Put {
    Done(Lease),
    /// The Lease exists already, or has another version.
    Conflict,
    /// There is no Lease.
    Absent,
}

impl Kubernetes {
    async fn read_lease(&self, object: &str) -> Result<Option<Lease>, StoreError> {
        match self.ask(Operation::Read, object, wire::read(&self.target.namespace, object)).await {
            Ok(body) => Lease::of(&body).map(Some).map_err(Fault::not_applied),
            Err(Meaning::Absent) => Ok(None),
            Err(other) => Err(failed(other)),
        }
    }

    fn found(&self, object: &str, lease: &Lease) -> Result<Found, Fault> {
        lease.found().map_err(|mut fault| {
            fault.message = format!("the Lease {}/{object}: {}", self.target.namespace, fault.message);
            fault
        })
    }

    /// Writes `record` as these annotations and this `spec`.
    async fn written(
        &self,
        object: &str,
        revision: Option<Revision>,
        annotations: Value,
        spec: Option<Value>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        Ok(match self.put(object, revision, annotations, spec).await? {
            Put::Done(lease) => {
                Written::Committed { record: Box::new(record.clone()), version: lease.version() }
            }
            Put::Conflict => Written::Conflict(Refusal::Unexplained),
            Put::Absent => Written::Conflict(Refusal::Absent),
        })
    }

    /// Changes the Lease at `revision`, or creates it if that is `None`.
    async fn put(
        &self,
        object: &str,
        revision: Option<Revision>,
        annotations: Value,
        spec: Option<Value>,
    ) -> Result<Put, StoreError> {
        let namespace = &self.target.namespace;
        let answer = match revision {
            Some(Revision { resource_version, .. }) => {
                let request = wire::patch(namespace, object, &resource_version, annotations, spec);
                self.ask(Operation::Replace, object, request).await
            }
            None => {
                let request = wire::create(namespace, object, annotations, spec.unwrap_or_else(|| json!({})));
                self.ask(Operation::Create, object, request).await
            }
        };
        match answer {
            // The Lease was written, even if the response cannot be read.
            Ok(body) => Lease::of(&body).map(Put::Done).map_err(Fault::maybe_applied),
            Err(Meaning::Conflict) => Ok(Put::Conflict),
            Err(Meaning::Absent) => Ok(Put::Absent),
            Err(other) => Err(failed(other)),
        }
    }

    /// Returns whether the Lease was deleted.
    async fn delete(&self, object: &str, version: &Version) -> Result<bool, StoreError> {
        let revision: Revision = version.as_str().parse().map_err(Fault::not_applied)?;
        let request = wire::delete(&self.target.namespace, object, &revision.resource_version);
        match self.ask(Operation::Delete, object, request).await {
            Ok(_) => Ok(true),
            Err(Meaning::Conflict | Meaning::Absent) => Ok(false),
            Err(other) => Err(failed(other)),
        }
    }

    async fn page(&self, token: Option<String>) -> Result<Page<Lease, String>, StoreError> {
        let request = wire::list(&self.target.namespace, token.as_deref());
        let body = self.ask(Operation::List, "*", request).await.map_err(failed)?;
        let (items, next) = Listing::of(&body).map_err(Fault::not_applied)?.into_page();
        Ok(Page { items, next })
    }

    /// Sends one request and returns the body of the response, or the meaning of the failure.
    async fn ask(&self, operation: Operation, object: &str, request: Request) -> Result<Bytes, Meaning> {
        let explain = |failure| meaning(operation, object, &self.target, failure);
        let uploaded = request.content.as_ref().map_or(0, |(_, body)| body.len());
        let (builder, load) = self.signed(request).await.map_err(explain)?;
        let answer = async {
            let sent = self.env.now();
            let response = self.client.send(builder).await.map_err(explain)?;
            self.observe_clock(&response, sent);
            if response.status().is_success() && !is_page(response.headers()) {
                self.credentials.accepted();
                return Ok(response);
            }
            let mut answer =
                refusal(response, wire::explanation).await.map_err(|error| explain(failure(error)))?;
            answer.signed_before = match answer.status {
                401 => {
                    // The client certificate may be the credential.
                    self.client.renew();
                    self.credentials.refused(load)
                }
                // The server authenticated the request.
                400..=499 => self.credentials.accepted(),
                _ => true,
            };
            Err(explain(Failure::Answered(answer)))
        };
        let expected = Expected::Answer(MAX_ANSWER_BYTES);
        let (_, body) = exchange(&self.env, uploaded, answer, expected, explain).await?;
        Ok(body)
    }

    /// Returns `request` with the credentials, and the number of their load.
    async fn signed(&self, request: Request) -> Result<(reqwest::RequestBuilder, u64), Failure> {
        let signed = self
            .credentials
            .proof()
            .await
            .map_err(|error| Failure::Credentials { detail: error.detail, before: error.before })?;
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(request.accept));
        if let Some(bearer) = &signed.proof {
            let mut value = HeaderValue::from_str(bearer).map_err(|_| Failure::NotMade {
                detail: "the token cannot be sent in a header".to_owned(),
            })?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let url = format!("{}{}", self.target.server, request.path_and_query);
        let builder = self.client.request(request.method, url).headers(headers);
        let builder = match request.content {
            Some((media_type, body)) => builder.header(CONTENT_TYPE, media_type).body(body),
            None => builder,
        };
        Ok((builder, signed.load))
    }

    /// Waits until an event of a watch shows that the lock may be free, or the watch ends. Returns `None` if there is
    /// no watch, for example because this user lacks the permission.
    async fn watched(&self, object: &str) -> Option<()> {
        let (builder, _) = self.signed(wire::watch(&self.target.namespace, object)).await.ok()?;
        let mut response =
            self.client.send(builder).await.ok().filter(|response| response.status().is_success())?;
        let mut line = Vec::new();
        while let Ok(Some(chunk)) = response.chunk().await {
            for part in chunk.split_inclusive(|byte| *byte == b'\n') {
                line.extend_from_slice(part);
                if part.ends_with(b"\n") && Event::of(&std::mem::take(&mut line)) == Event::ReadAgain {
                    return Some(());
                }
            }
            if line.len() > MAX_EVENT_BYTES {
                return None;
            }
        }
        Some(())
    }

    /// Reads the server's time, but only from a response that certainly comes from an API server, because an
    /// intermediary has another clock.
    fn observe_clock(&self, response: &Response, sent: Moment) {
        let headers = response.headers();
        if let Some(us) = date_us(headers).filter(|_| headers.contains_key("audit-id")) {
            self.clock.observe(us, DATE_RESOLUTION, sent, self.env.now());
        }
    }
}

/// Returns the revision that a write expects, or `None` if it expects no Lease.
fn revision(expect: Precondition<'_>) -> Result<Option<Revision>, Fault> {
    match expect {
        Precondition::Absent => Ok(None),
        Precondition::Version(version) => version.as_str().parse().map(Some),
    }
}

/// Returns the lock that a Lease stands for, or `None` for a line of waiters.
fn lock_of(lease: &Lease) -> Option<LockName> {
    let object = lease.metadata.name.as_str();
    let name = if names::is_encoded(object) { lease.annotation(NAME)? } else { object };
    LockName::new(name).ok()
}

fn endless_listing() -> StoreError {
    Fault::new(ErrorKind::Corrupt, "the listing has more pages, but the position of the next one is missing")
        .with_help("check that the endpoint is a Kubernetes API server")
        .not_applied()
}
