//! The stores of a simulated history. The checker observes what they commit, and in which order.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use leasehold::clock::StoreTime;
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::PollInterval;
use leasehold::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use leasehold::stores::memory::MemoryRegister;
use serde::Deserialize;

use super::checker::{self, Checker};
use super::plan::LONGEST_POLL;
use super::{LOCK, RESOURCE};

/// A register that the checker observes.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) inner: MemoryRegister,
    pub(super) checker: Arc<Checker>,
    pub(super) requests: AtomicUsize,
    /// Whether records may be deleted. A late copy of a create may then succeed, because it finds no record.
    deletes: bool,
}

/// The fields of a lock's record that the checker needs.
#[derive(Deserialize)]
struct Record<'a> {
    state: &'a str,
    #[serde(default)]
    token: u64,
    grant: &'a str,
    nonce: &'a str,
    ttl_ms: u64,
    #[serde(default)]
    unconfirmed: bool,
    #[serde(default)]
    awaited: bool,
    #[serde(borrow)]
    holder: Holder<'a>,
}

#[derive(Deserialize)]
struct Holder<'a> {
    #[serde(default, borrow)]
    note: Option<Cow<'a, str>>,
    #[serde(default, borrow)]
    value: Option<Cow<'a, str>>,
}

impl Record<'_> {
    fn write(&self, token: u64) -> checker::Write<'_> {
        checker::Write {
            token,
            grant: self.grant,
            nonce: self.nonce,
            ttl_ms: self.ttl_ms,
            unconfirmed: self.unconfirmed,
            note: self.holder.note.as_deref(),
            value: self.holder.value.as_deref(),
        }
    }
}

/// Reports to the checker that a process sends `value` at `now`, in true time, to be written to `key`.
pub(super) fn sends(checker: &Checker, key: &str, value: &[u8], now: Duration) {
    if let Some(name) = lock_name(key)
        && let Ok(record) = serde_json::from_slice::<Record<'_>>(value)
        && record.state == "held"
        // A waiter sends the holder's record with the mark that processes wait.
        && !(record.awaited && checker.was_sent(record.nonce))
    {
        checker.sends(name, &record.write(record.token), now);
    }
}

/// Returns the lock whose record has this key.
fn lock_name(key: &str) -> Option<&str> {
    let name = key.strip_suffix(".lock").unwrap_or(key);
    (name == LOCK || name.strip_prefix(LOCK).is_some_and(|part| part.starts_with('/'))).then_some(name)
}

/// Returns a record without the mark that processes wait.
fn unmarked(bytes: &[u8]) -> serde_json::Value {
    let mut record: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
    if let Some(fields) = record.as_object_mut() {
        // A field that is false may be left out.
        fields.retain(|name, value| name != "awaited" && *value != false);
    }
    record
}

impl Recorder {
    pub(super) fn new(inner: MemoryRegister, checker: Arc<Checker>, deletes: bool) -> Self {
        Self { inner, checker, requests: AtomicUsize::new(0), deletes }
    }

    pub(super) fn true_time(&self) -> Duration {
        self.inner.env().now().since_boot()
    }

    fn written(&self, key: &str, version: &Version, before: Option<Bytes>, Body { bytes, metadata }: &Body) {
        if key == RESOURCE {
            let token = metadata.user.get("leasehold-token").and_then(|token| token.parse().ok());
            // Writers to a resource that does not check tokens put the token into the content.
            let content = String::from_utf8_lossy(bytes);
            let in_content = content.split(' ').next().and_then(|token| token.parse().ok());
            self.checker.accepted(token.or(in_content).unwrap_or(0), &content);
        } else if let Some(name) = lock_name(key)
            && let Ok(record) = serde_json::from_slice::<Record<'_>>(bytes)
        {
            let creates = before.is_none();
            let is_mark = record.awaited && before.is_some_and(|before| unmarked(&before) == unmarked(bytes));
            if !((creates || is_mark) && self.deletes) {
                self.checker
                    .applied(key, &format!("{}{}", record.nonce, if is_mark { " awaited" } else { "" }));
            }
            if is_mark {
                return;
            }
            // The grant that created an object has the object's generation as its token.
            let generation = || version.as_str().parse().unwrap_or(0);
            let token = if record.token == 0 { generation() } else { record.token };
            if record.state == "held" {
                self.checker.committed(name, &record.write(token), self.true_time());
            }
        }
    }

    /// Reports a record that a server has written to `key`. A server that can lose writes may get one a second time.
    pub(super) fn commits(&self, key: &str, record: &[u8], forgets: bool) {
        let (body, before) = (Body::from(Bytes::copy_from_slice(record)), Bytes::new());
        if forgets && let Some(name) = lock_name(key) {
            let Ok(record) = serde_json::from_slice::<Record<'_>>(record) else { return };
            if record.state == "held" {
                self.checker.committed(name, &record.write(record.token), self.true_time());
            }
        } else {
            self.written(key, &Version::new(""), Some(before), &body);
        }
    }

    pub(super) fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Register for Recorder {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.count();
        self.inner.read(key).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        self.count();
        self.inner.head(key).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.count();
        let before = self.inner.read(key).await?.map(|there| there.value);
        let written = self.inner.write(key, expect, body.clone()).await;
        if let Ok(Write::Committed(version)) = &written {
            self.written(key, version, before, &body);
        }
        written
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.count();
        self.inner.delete(key, version).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.inner.list(prefix)
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.inner.version_of(bytes)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.inner.store_time()
    }

    fn env(&self) -> &Env {
        self.inner.env()
    }

    fn capabilities(&self) -> RegisterCapabilities {
        // Polls like a store behind a network. With the memory store's interval, a history would consist of polls.
        let mut capabilities = self.inner.capabilities();
        capabilities.poll_interval = PollInterval { min: Duration::from_millis(50), max: LONGEST_POLL };
        capabilities
    }
}
