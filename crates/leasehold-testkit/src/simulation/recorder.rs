//! The stores of a simulated history. The checker observes what they commit, and in which order.

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

use super::RESOURCE;
use super::checker::Checker;
use super::plan::LONGEST_POLL;
use super::trace::{Record, Trace, lock_name};

/// A register that the checker observes.
#[derive(Debug)]
pub(super) struct Recorder {
    pub(super) inner: MemoryRegister,
    pub(super) checker: Arc<Checker>,
    pub(super) requests: AtomicUsize,
    /// Whether records may be deleted. A late copy of a create may then succeed, because it finds no record.
    deletes: bool,
    /// The trace of the locks.
    trace: Option<Arc<Trace>>,
}

/// Returns whether `after` differs from `before` only in the mark that processes wait, and in a later time: on NATS, a
/// lease counts as renewed when it was stored.
fn marks(before: &[u8], after: &[u8]) -> bool {
    let fields = |bytes| {
        let mut fields: serde_json::Map<_, _> = serde_json::from_slice(bytes).unwrap_or_default();
        // A field that is false may be left out.
        fields.retain(|name, value| name != "awaited" && *value != false);
        let renewed_us = fields.remove("renewed_at_us").and_then(|us| us.as_u64());
        (fields, renewed_us)
    };
    let (before, after) = (fields(before), fields(after));
    before.0 == after.0 && before.1 <= after.1
}

impl Recorder {
    /// Creates the store of the locks.
    pub(super) fn of_locks(
        inner: MemoryRegister,
        trace: Arc<Trace>,
        checker: Arc<Checker>,
        deletes: bool,
    ) -> Self {
        Self { trace: Some(trace), deletes, ..Self::of_resource(inner, checker) }
    }

    /// Creates the store of the resource.
    pub(super) fn of_resource(inner: MemoryRegister, checker: Arc<Checker>) -> Self {
        Self { inner, checker, requests: AtomicUsize::new(0), deletes: false, trace: None }
    }

    pub(super) fn true_time(&self) -> Duration {
        self.inner.env().now().since_boot()
    }

    fn written(
        &self,
        key: &str,
        version: &Version,
        before: Option<(&[u8], Option<&Version>)>,
        Body { bytes, metadata }: &Body,
    ) {
        if key == RESOURCE {
            let token = metadata.user.get("leasehold-token").and_then(|token| token.parse().ok());
            // Writers to a resource that does not check tokens put the token into the content.
            let content = String::from_utf8_lossy(bytes);
            let in_content = content.split(' ').next().and_then(|token| token.parse().ok());
            self.checker.accepted(token.or(in_content).unwrap_or(0), &content);
        } else if let Some((name, record)) = lock_name(key).zip(Record::parse(bytes, Some(version))) {
            let is_mark = record.awaited && before.is_some_and(|(before, _)| marks(before, bytes));
            if !((before.is_none() || is_mark) && self.deletes) {
                self.checker
                    .applied(key, &format!("{}{}", record.nonce, if is_mark { " awaited" } else { "" }));
            }
            self.traced(name, before, &record);
            if record.is_held() && !is_mark {
                self.checker.committed(name, &record.write(), self.true_time());
            }
        }
    }

    fn traced(&self, name: &str, before: Option<(&[u8], Option<&Version>)>, record: &Record<'_>) {
        let before = before.and_then(|(before, version)| Record::parse(before, version));
        if let Some(trace) = &self.trace {
            trace.committed(name, before.as_ref(), record);
        }
    }

    /// Reports a record that a server has written to `key`. A server that can lose writes may get one a second time.
    pub(super) fn commits(&self, key: &str, before: Option<&[u8]>, record: &[u8], forgets: bool) {
        let before = before.map(|before| (before, None));
        if forgets && let Some((name, record)) = lock_name(key).zip(Record::parse(record, None)) {
            self.traced(name, before, &record);
            if record.is_held() {
                self.checker.committed(name, &record.write(), self.true_time());
            }
        } else {
            let body = Body::from(Bytes::copy_from_slice(record));
            self.written(key, &Version::new(""), before, &body);
        }
    }

    /// Reports that a server has deleted `record` at `key`.
    pub(super) fn deleted(&self, key: &str, record: &[u8]) {
        if let Some(((name, record), trace)) =
            lock_name(key).zip(Record::parse(record, None)).zip(self.trace.as_ref())
        {
            trace.deleted(name, &record);
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
        let before = self.inner.read(key).await?;
        let written = self.inner.write(key, expect, body.clone()).await;
        if let Ok(Write::Committed(version)) = &written {
            let before = before.as_ref().map(|there| (&*there.value, Some(&there.version)));
            self.written(key, version, before, &body);
        }
        written
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.count();
        let before = self.inner.read(key).await?;
        let deleted = self.inner.delete(key, version).await?;
        if let (Deleted::Deleted, Some(there), Some(trace)) = (&deleted, before, &self.trace)
            && let Some((name, before)) = lock_name(key).zip(Record::parse(&there.value, Some(version)))
        {
            trace.deleted(name, &before);
        }
        Ok(deleted)
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
