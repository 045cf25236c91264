//! NATS: the records are keys of a key-value bucket of JetStream. Each write expects the revision of the key.
//!
//! `docs/stores/nats.md` describes the layout, the permissions and the limits.

mod bucket;
mod carrier;
mod config;
mod connect;
mod errors;
mod examine;
mod keys;
mod link;
mod links;
mod message;
#[doc(hidden)]
pub mod simulated;

use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use serde::Deserialize;
use serde_json::{Value, json};

use self::bucket::{Bucket, api};
use self::config::Location;
use self::connect::options;
use self::keys::Keys;
use self::links::Links;
use self::message::{Last, OPERATION, answer, renewed_when_stored};
use super::pages::{self, Page};
use crate::clock::StoreTime;
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{LeaseStore, PollInterval, StoreOptions};
use crate::protocol::RegisterLeases;
use crate::register::{
    Body, Deleted, MAX_VALUE_BYTES, Metadata, Precondition, Register, RegisterCapabilities, Version,
    VersionedValue, Write,
};
use crate::retry::retry;
use crate::url::StoreUrl;
use crate::worker::OnWorker;

/// A poll is one request to the leader of the stream, which serves it from memory or its disk.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(20), max: Duration::from_millis(500) };

/// The header of a write with the revision that the key must have. Zero stands for no message.
const EXPECTED: &str = "Nats-Expected-Last-Subject-Sequence";

/// How many values of a listing are read at the same time.
const READS: usize = 16;

/// Opens leases in the bucket that `url` names: `nats://host:4222/bucket?prefix=locks`.
/// `docs/stores/nats.md` lists all options.
///
/// Sends no request.
///
/// ```no_run
/// # async fn example() -> leasehold::Result<()> {
/// use leasehold::{Locker, lease::StoreOptions, stores::nats, url::StoreUrl};
///
/// let url = StoreUrl::parse("nats://nats.example.com/locks?tls=on&creds_file=/etc/locks.creds")?;
/// let store = nats::open(url, StoreOptions::default()).await?;
/// store.init().await?; // once for each bucket
/// let guard = Locker::new(store).lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`] for a bad URL and for files that cannot be read. The first request reports a bucket that does
/// not exist or can lose locks.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let location = Location::from_url(url, &mut options)?;
    let register = Bucketed::open(location, options.env.clone()).await?;
    Ok(Arc::new(RegisterLeases::new(Arc::new(register), options)))
}

/// The keys with one prefix in a bucket. The thread of the store sends the requests, so that they do not depend on the
/// runtime of a caller.
#[derive(Debug)]
struct Bucketed {
    worker: OnWorker<Links>,
    keys: Keys,
    env: Env,
}

impl Bucketed {
    /// Starts the store's thread. Sends no request.
    async fn open(location: Location, env: Env) -> Result<Self, Error> {
        let (own_env, keys) = (env.clone(), location.keys.clone());
        // One that cannot be read is an error before anything is locked.
        let connect = move || options(&location).map(|_| Links::new(location, own_env));
        Ok(Self { worker: OnWorker::open("NATS", connect).await?, keys, env })
    }

    fn links(&self) -> &Arc<Links> {
        &self.worker.leases
    }

    /// Sends a request on the store's thread. Returns the payload of the response.
    async fn ask(&self, subject: String, headers: HeaderMap, payload: Bytes) -> Result<Bytes, StoreError> {
        let asked = |links: Arc<Links>| async move { links.ask(subject, headers, payload).await };
        self.worker.run(asked).await?
    }

    /// Sends a question to JetStream's API.
    async fn question(&self, operation: &str, question: Value) -> Result<Bytes, StoreError> {
        self.ask(api(operation, &self.keys), HeaderMap::new(), question.to_string().into()).await
    }

    /// Reads the last message with the subject of `key` from the leader of the stream. With `allow_direct`, any replica
    /// would answer a direct request, also one that lags behind.
    async fn last(&self, key: &str) -> Result<Option<Last>, StoreError> {
        let response = self.question("MSG.GET", json!({ "last_by_subj": self.keys.subject(key) })).await;
        Last::of(&response.map_err(StoreError::of_read)?, &self.keys)
    }

    /// Writes a message if the last one with the subject has the revision `expected`. Returns the new revision, or
    /// `None` after a conflict.
    async fn put(
        &self,
        key: &str,
        expected: &str,
        marker: Option<&str>,
        value: Bytes,
    ) -> Result<Option<u64>, StoreError> {
        #[derive(Deserialize)]
        struct Stored {
            stream: String,
            seq: u64,
        }
        let mut headers = HeaderMap::new();
        headers.insert(EXPECTED, expected);
        if let Some(marker) = marker {
            headers.insert(OPERATION, marker);
        }
        let payload = self.ask(self.keys.subject(key), headers, value).await?;
        match answer(&payload, &self.keys).map_err(Fault::maybe_applied)? {
            Ok(Stored { stream, seq }) if stream == self.keys.stream() => Ok(Some(seq)),
            // The bucket may have refused the write, because another client holds the lock.
            Ok(Stored { stream, .. }) => {
                Err(errors::stored_elsewhere(&self.keys.bucket, &stream).maybe_applied())
            }
            Err(refusal) if refusal.is_conflict() => Ok(None),
            Err(refusal) => Err(refusal.error(&self.keys.bucket)),
        }
    }

    /// Returns a page of the keys that begin with `prefix`, from the subject with the number `from`. It also contains
    /// keys that were deleted.
    async fn page(&self, prefix: &str, from: Option<u64>) -> Result<Page<String, u64>, StoreError> {
        let from = from.unwrap_or(0);
        let question = json!({ "subjects_filter": self.keys.all(), "offset": from });
        let answer: Result<Bucket, _> =
            answer(&self.question("INFO", question).await?, &self.keys).map_err(Fault::not_applied)?;
        let bucket = answer.map_err(|refusal| refusal.error(&self.keys.bucket))?;
        let total = bucket.total;
        let subjects = bucket.subjects();
        let next = from + subjects.len() as u64;
        let keys = subjects.iter().filter_map(|subject| self.keys.register(subject));
        Ok(Page {
            items: keys.filter(|key| key.starts_with(prefix)).collect(),
            next: (next < total && next > from).then_some(next),
        })
    }
}

impl Drop for Bucketed {
    fn drop(&mut self) {
        let links = self.links().clone();
        self.worker.finish(async move { links.close() });
    }
}

#[async_trait]
impl Register for Bucketed {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        let Some(Last { revision, stored_us, value: Some(value) }) = self.last(key).await? else {
            return Ok(None);
        };
        if value.len() > MAX_VALUE_BYTES {
            let message =
                format!("the value of a key has more than {MAX_VALUE_BYTES} bytes, so it is no lock");
            return Err(Fault::new(ErrorKind::Corrupt, message).not_applied());
        }
        let value = match stored_us {
            Some(stored_us) => renewed_when_stored(value, stored_us),
            None => value,
        };
        Ok(Some(VersionedValue { value, version: version(revision), metadata: Metadata::default() }))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let written = match expect {
            Precondition::Version(version) => self.put(key, version.as_str(), None, body.bytes).await?,
            Precondition::Absent => match self.put(key, "0", None, body.bytes.clone()).await? {
                Some(revision) => Some(revision),
                // The key was deleted, which left a marker, or it exists. The first write certainly had no effect.
                None => match self.last(key).await? {
                    Some(Last { revision, value: None, .. }) => {
                        self.put(key, &revision.to_string(), None, body.bytes).await?
                    }
                    _ => None,
                },
            },
        };
        Ok(written.map_or(Write::Conflict, |revision| Write::Committed(version(revision))))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        let deleted = self.put(key, version.as_str(), Some("DEL"), Bytes::new()).await?;
        Ok(if deleted.is_some() { Deleted::Deleted } else { Deleted::Conflict })
    }

    async fn examine(&self) -> Examined {
        self.examined().await
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.worker.run(|links| async move { links.init().await }).await?
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let prefix = prefix.to_owned();
        let fetch = move |from| {
            let prefix = prefix.clone();
            async move { self.page(&prefix, from).await }
        };
        let endless = || errors::unreadable("").not_applied();
        let keys = pages::items(&self.env, fetch, endless);
        let with_value = move |key: Result<String, StoreError>| async move {
            let key = key?;
            let value = retry(&self.env, || self.last(&key)).await?.and_then(|last| last.value);
            // A longer value is no lock.
            Ok(value.is_some_and(|value| value.len() <= MAX_VALUE_BYTES).then_some(key))
        };
        keys.map(with_value).buffered(READS).try_filter_map(|key| std::future::ready(Ok(key))).boxed()
    }

    fn watch(&self, key: &str) -> BoxStream<'_, Bytes> {
        let subject = self.keys.subject(key);
        let watched = async move {
            let watch = |links: Arc<Links>| async move { links.watch(&subject).await };
            // Without a connection, the next read opens one.
            self.worker.run(watch).await.flatten().unwrap_or_else(|_| stream::empty().boxed())
        };
        watched.flatten_stream().boxed()
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.links().clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            store: "NATS",
            trusted: true,
            generations: true,
            metadata: None,
            poll_interval: POLL_INTERVAL,
        }
    }
}

fn version(revision: u64) -> Version {
    Version::new(revision.to_string())
}
