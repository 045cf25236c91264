//! Wraps a register to change some of its methods. A [`Layer`] defines the changed methods; [`Layered`] forwards the
//! rest. [`LeaseLayer`] and [`LeaseLayered`] do the same for a store of leases.
//!
//! ```
//! # use leasehold::register::RegisterCapabilities;
//! # use leasehold::stores::memory::MemoryRegister;
//! # use leasehold::{Register, env::Env};
//! # use leasehold_testkit::layer::{Layer, Layered};
//! /// A store whose preconditions are not trusted.
//! #[derive(Debug)]
//! struct Untrusted(MemoryRegister);
//!
//! impl Layer for Untrusted {
//!     fn inner(&self) -> &dyn Register {
//!         &self.0
//!     }
//!     fn capabilities(&self) -> RegisterCapabilities {
//!         let mut capabilities = self.0.capabilities();
//!         capabilities.trusted = false;
//!         capabilities
//!     }
//! }
//!
//! let register = Layered(Untrusted(MemoryRegister::new(Env::system())));
//! assert!(!Register::capabilities(&register).trusted);
//! ```

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use leasehold::LockName;
use leasehold::clock::StoreTime;
use leasehold::doctor::{Diagnose, Examined};
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, LeaseStore, Released, Renewal,
    Status, Token, Watch,
};
use leasehold::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};

/// The methods of a wrapped register. Each corresponds to a method of [`Register`] and by default forwards to
/// [`inner`](Self::inner).
///
/// A layer that changes what is read may also have to change [`head`](Self::head), because `head` does not call
/// [`read`](Self::read).
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// Returns the wrapped register.
    fn inner(&self) -> &dyn Register;

    /// See [`Register::read`].
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.inner().read(key).await
    }

    /// See [`Register::head`].
    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        self.inner().head(key).await
    }

    /// See [`Register::write`].
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.inner().write(key, expect, body).await
    }

    /// See [`Register::delete`].
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.inner().delete(key, version).await
    }

    /// See [`Register::capabilities`].
    fn capabilities(&self) -> RegisterCapabilities {
        self.inner().capabilities()
    }

    /// See [`Register::version_of`].
    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.inner().version_of(bytes)
    }

    /// See [`Register::store_time`].
    fn store_time(&self) -> Option<StoreTime> {
        self.inner().store_time()
    }
}

/// A register that consists of a [`Layer`] and its inner register.
#[derive(Debug)]
pub struct Layered<L>(pub L);

#[async_trait]
impl<L: Layer> Register for Layered<L> {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.0.read(key).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        self.0.head(key).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.0.write(key, expect, body).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.0.delete(key, version).await
    }

    async fn examine(&self) -> Examined {
        self.0.inner().examine().await
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.0.inner().init().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.0.inner().list(prefix)
    }

    fn watch(&self, key: &str) -> BoxStream<'_, Bytes> {
        self.0.inner().watch(key)
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.0.version_of(bytes)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.0.store_time()
    }

    fn identity(&self) -> String {
        self.0.inner().identity()
    }

    fn env(&self) -> &Env {
        self.0.inner().env()
    }

    fn capabilities(&self) -> RegisterCapabilities {
        self.0.capabilities()
    }
}

/// The methods of a wrapped store of leases. Each corresponds to a method of [`LeaseStore`] or [`Watch`] and by default
/// forwards to [`inner`](Self::inner). The methods of `LeaseStore` that have a default there keep it.
#[async_trait]
pub trait LeaseLayer: fmt::Debug + Send + Sync + 'static {
    /// Returns the wrapped store.
    fn inner(&self) -> &dyn LeaseStore;

    /// See [`LeaseStore::try_acquire`].
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        self.inner().try_acquire(claim).await
    }

    /// See [`LeaseStore::renew`].
    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.inner().renew(grant).await
    }

    /// See [`LeaseStore::release`].
    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        self.inner().release(grant, cooldown).await
    }

    /// See [`LeaseStore::inspect`].
    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        self.inner().inspect(name).await
    }

    /// See [`LeaseStore::capabilities`].
    fn capabilities(&self) -> Capabilities {
        self.inner().capabilities()
    }

    /// See [`LeaseStore::env`].
    fn env(&self) -> &Env {
        self.inner().env()
    }

    /// See [`Watch::changed`].
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        self.inner().changed(name, seen).await
    }

    /// See [`Watch::turn`].
    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        self.inner().turn(claim, seen).await
    }

    /// See [`Watch::ended`].
    async fn ended(&self, grant: &Grant) {
        self.inner().ended(grant).await;
    }
}

/// A store that consists of a [`LeaseLayer`] and its inner store.
#[derive(Debug)]
pub struct LeaseLayered<L>(pub L);

impl<L> Deref for LeaseLayered<L> {
    type Target = L;

    fn deref(&self) -> &L {
        &self.0
    }
}

#[async_trait]
impl<L: LeaseLayer> LeaseStore for LeaseLayered<L> {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        self.0.try_acquire(claim).await
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        self.0.renew(grant).await
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        self.0.release(grant, cooldown).await
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        self.0.inner().evict(name, token, why).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        self.0.inspect(name).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        self.0.inner().list(prefix)
    }

    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn env(&self) -> &Env {
        self.0.env()
    }
}

#[async_trait]
impl<L: LeaseLayer> Watch for LeaseLayered<L> {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        self.0.changed(name, seen).await
    }

    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        self.0.turn(claim, seen).await
    }

    async fn ended(&self, grant: &Grant) {
        self.0.ended(grant).await;
    }
}

impl<L: LeaseLayer> Diagnose for LeaseLayered<L> {}
