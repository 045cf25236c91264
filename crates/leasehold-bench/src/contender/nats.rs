//! Contenders on NATS without leasehold: the plain loop that people write by hand, and a baseline of the two writes
//! that any lock needs.

use std::time::Duration;

use async_nats::header::NATS_EXPECTED_LAST_SUBJECT_SEQUENCE;
use async_nats::{Client, HeaderMap, Request};
use leasehold::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use super::Options;
use super::conditional::{Replace, record};

/// The pause of the plain loop.
const PAUSE: Duration = Duration::from_millis(50);

/// A key-value bucket. As a client, it creates a key. If the key exists, it sleeps for 50 ms and retries. A release
/// deletes the key. It has no lease, so if a holder dies, the lock stays held.
///
/// It sends the requests of the key-value module of NATS's clients.
pub(super) struct Bucket {
    client: Client,
    name: String,
}

impl Bucket {
    pub(super) async fn open(options: &Options) -> Result<Self, String> {
        let (server, name) = options.store()?.rsplit_once('/').ok_or("the store is not a bucket")?;
        let client = async_nats::connect(server).await.map_err(|error| error.to_string())?;
        Ok(Self { client, name: name.to_owned() })
    }

    fn subject(&self, lock: &str) -> String {
        format!("$KV.{}.{lock}", self.name)
    }

    async fn ask(&self, subject: String, headers: HeaderMap, payload: String) -> Result<Value, String> {
        let request = Request::new().headers(headers).payload(payload.into());
        let answer = self.client.send_request(subject, request).await.map_err(|error| error.to_string())?;
        serde_json::from_slice(&answer.payload).map_err(|error| error.to_string())
    }

    /// Writes a value, or the mark of a deletion if it is empty. Returns the new revision, or `None` if `seen` is not
    /// the current one.
    async fn put(&self, lock: &str, seen: Option<u64>, value: String) -> Result<Option<u64>, String> {
        let mut headers = HeaderMap::new();
        if let Some(seen) = seen {
            headers.insert(NATS_EXPECTED_LAST_SUBJECT_SEQUENCE, seen.to_string());
        }
        if value.is_empty() {
            headers.insert("KV-Operation", "DEL");
        }
        let answer = self.ask(self.subject(lock), headers, value).await?;
        match (answer["seq"].as_u64(), answer["error"]["err_code"].as_u64()) {
            (Some(revision), None) => Ok(Some(revision)),
            // Another write came first, or is in progress.
            (_, Some(10_071 | 10_164)) => Ok(None),
            _ => Err(answer.to_string()),
        }
    }

    /// Creates the key, also after a deletion, of which the mark stays.
    async fn create(&self, lock: &str) -> Result<Option<u64>, String> {
        if let Some(revision) = self.put(lock, Some(0), "locked".to_owned()).await? {
            return Ok(Some(revision));
        }
        let question = json!({"last_by_subj": self.subject(lock)}).to_string();
        let subject = format!("$JS.API.STREAM.MSG.GET.KV_{}", self.name);
        let last = &self.ask(subject, HeaderMap::new(), question).await?["message"];
        match last["data"].as_str() {
            None | Some("") => self.put(lock, last["seq"].as_u64(), "locked".to_owned()).await,
            Some(_) => Ok(None),
        }
    }
}

impl super::Client for Bucket {
    type Held = (String, u64);

    async fn acquire(&self, lock: &str) -> Result<Self::Held, String> {
        loop {
            if let Some(revision) = self.create(lock).await? {
                return Ok((lock.to_owned(), revision));
            }
            SystemClock.sleep(PAUSE).await;
        }
    }

    async fn release(&self, (lock, revision): Self::Held) -> Result<(), String> {
        let deleted = self.put(&lock, Some(revision), String::new()).await?;
        deleted.map(drop).ok_or_else(|| "another process has written".to_owned())
    }

    fn is_held(&self, _: &Self::Held) -> Option<bool> {
        None
    }
}

impl Replace for Bucket {
    type Version = u64;

    async fn replace(&self, lock: &str, _held: bool, seen: Option<u64>) -> Result<u64, String> {
        let written = self.put(lock, seen, record()).await?;
        written.ok_or_else(|| "another process has written".to_owned())
    }
}
