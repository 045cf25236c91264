//! A register that accepts every write over an object, whatever version it expects.

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use crate::clock::StoreTime;
use crate::env::Env;
use crate::error::StoreError;
use crate::register::{
    Body, Deleted, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use crate::stores::memory::MemoryRegister;

#[derive(Debug)]
pub(super) struct Careless(pub(super) MemoryRegister);

#[async_trait]
impl Register for Careless {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.0.read(key).await
    }
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        match (expect, self.0.read(key).await?) {
            (Precondition::Version(_), Some(cell)) => {
                self.0.write(key, Precondition::Version(&cell.version), body).await
            }
            (Precondition::Version(_), None) => self.0.write(key, Precondition::Absent, body).await,
            (Precondition::Absent, _) => self.0.write(key, expect, body).await,
        }
    }
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.0.delete(key, version).await
    }
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.0.list(prefix)
    }
    fn store_time(&self) -> Option<StoreTime> {
        self.0.store_time()
    }
    fn env(&self) -> &Env {
        self.0.env()
    }
    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities { trusted: false, ..self.0.capabilities() }
    }
}
