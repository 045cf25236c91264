//! A register for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use leasehold::Register;
use leasehold::clock::StoreTime;
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::register::{
    Body, Deleted, Precondition, RegisterCapabilities, Version, VersionedValue, Write,
};
use leasehold::stores::memory::MemoryRegister;

/// A register that answers nothing while it is down.
#[derive(Debug)]
pub(crate) struct Unreliable {
    memory: MemoryRegister,
    pub(crate) is_down: AtomicBool,
}

impl Unreliable {
    // As on S3, where a fence has the most rules.
    pub(crate) fn new(env: Env) -> Arc<Self> {
        Arc::new(Self { memory: MemoryRegister::by_content(env), is_down: AtomicBool::new(false) })
    }

    async fn up(&self) -> &MemoryRegister {
        if self.is_down.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        &self.memory
    }
}

#[async_trait]
impl Register for Unreliable {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.up().await.read(key).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.up().await.write(key, expect, body).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.up().await.delete(key, version).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.memory.list(prefix)
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.memory.version_of(bytes)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.memory.store_time()
    }

    fn env(&self) -> &Env {
        self.memory.env()
    }

    fn capabilities(&self) -> RegisterCapabilities {
        self.memory.capabilities()
    }
}
