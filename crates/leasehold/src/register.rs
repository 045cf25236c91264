//! A register: keys with atomic conditional writes. Every object store offers this, and leases need no more.
//!
//! A store implements the trait [`Register`]. [`RegisterLeases`](crate::RegisterLeases) runs the lease protocol on it.
//! [`probe()`] finds out, before the first write, whether a store honours its preconditions.

mod body;
pub(crate) mod examine;
#[cfg(test)]
pub(crate) mod flawed;
mod fronts;
pub(crate) mod probe;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;

pub use self::body::{Body, Head, Metadata};
pub use self::probe::probe;
use crate::clock::StoreTime;
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::PollInterval;

/// The longest record, in bytes: what registers read that are opened for locks. Lock records are about 1 KiB.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// The longest object, in bytes (256 MiB): what registers read that are opened for objects. It is held in memory, once as it
/// was read and once as it is written.
pub const MAX_OBJECT_BYTES: usize = 256 << 20;

/// A key-value store with conditional writes.
///
/// A conflict is a value, not an error; a [`StoreError`] says whether the request may have had its effect. An
/// implementation does not retry conditional writes by itself: with a retry inside, an applied write whose answer was
/// lost comes back as a conflict.
#[async_trait]
pub trait Register: fmt::Debug + Send + Sync + 'static {
    /// Reads `key`; `None` when there is nothing (a delete marker counts as nothing). Strongly consistent.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When the store did not answer with a value or its absence, or the value is longer than [`MAX_VALUE_BYTES`], or
    /// [`MAX_OBJECT_BYTES`] where the register was opened for objects.
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError>;

    /// What [`read`](Self::read) tells, without the bytes. By default it reads.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        Ok(self.read(key).await?.map(|cell| Head {
            version: cell.version,
            metadata: cell.metadata,
            size: cell.value.len() as u64,
        }))
    }

    /// Writes `body` if `key` is as expected, atomically: the bytes, and all of the metadata with them.
    ///
    /// Dropping the future leaves the outcome unknown, as [`StoreError::MaybeApplied`] does.
    ///
    /// # Errors
    /// [`StoreError::NotApplied`] only when the write certainly has no effect, now or later.
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError>;

    /// Deletes `key` if its version is still `version`. For sweeping and probing only; a lock is never released so.
    ///
    /// # Errors
    /// As [`write`](Self::write); [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where the store cannot.
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError>;

    /// [`delete`](Self::delete), without making sure first that this store checks the version: for objects that nobody else
    /// knows of. By default it is the same.
    ///
    /// # Errors
    /// As [`delete`](Self::delete).
    async fn delete_unexamined(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.delete(key, version).await
    }

    /// What only this store can be asked when it is [examined](crate::Locker::examine): its settings. What every register has
    /// to do is not asked here. By default nothing is.
    async fn examine(&self) -> Examined {
        Examined::default()
    }

    /// The keys that start with `prefix`, in the store's order, page by page. A page that could not be had for now is asked for
    /// again, for a while.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>>;

    /// The version that a write of these bytes gives, where that follows from the bytes: writing the same again gives the
    /// same version then. By default it does not follow.
    fn version_of(&self, _bytes: &[u8]) -> Option<Version> {
        None
    }

    /// Bounds on the store's own clock now, from its latest answer; `None` before one, or when it has no clock.
    fn store_time(&self) -> Option<StoreTime>;

    /// The clock and the randomness that this register runs on.
    fn env(&self) -> &Env;

    /// The same objects through another endpoint, for an examination of several front ends together. By default there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad endpoint,
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) where a register has no endpoints.
    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        let message =
            format!("{} cannot be asked through another endpoint, {endpoint:?}", self.capabilities().store);
        Err(Error::unsupported(message).with_help("leave out --endpoint: it is for S3-compatible stores"))
    }

    /// The same objects at each address that the endpoint's name stands for, where those are several: for an examination, which
    /// asks them in turn. By default there is none.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// When no client can be made for one.
    async fn fronts(&self) -> Result<FrontEnds, Error> {
        Ok(FrontEnds::default())
    }

    /// What this register is, and how it wants to be treated.
    fn capabilities(&self) -> RegisterCapabilities;

    /// The endpoint and the bucket, without secrets: of which place it is recorded that it was [probed](probe). By default a
    /// register names none, and a copy of what is recorded counts wherever it is found.
    fn place(&self) -> String {
        String::new()
    }
}

#[async_trait]
impl<R: Register + ?Sized> Register for Arc<R> {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        (**self).read(key).await
    }
    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        (**self).head(key).await
    }
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        (**self).write(key, expect, body).await
    }
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        (**self).delete(key, version).await
    }
    async fn delete_unexamined(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        (**self).delete_unexamined(key, version).await
    }
    async fn examine(&self) -> Examined {
        (**self).examine().await
    }
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        (**self).list(prefix)
    }
    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        (**self).version_of(bytes)
    }
    fn store_time(&self) -> Option<StoreTime> {
        (**self).store_time()
    }
    fn env(&self) -> &Env {
        (**self).env()
    }
    fn capabilities(&self) -> RegisterCapabilities {
        (**self).capabilities()
    }
    fn place(&self) -> String {
        (**self).place()
    }
    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        (**self).through(endpoint)
    }
    async fn fronts(&self) -> Result<FrontEnds, Error> {
        (**self).fronts().await
    }
}

/// The addresses that an endpoint's name stands for: each may be a front end of its own.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct FrontEnds {
    /// The same objects at the addresses that take connections, at eight of them at most. Empty where fewer than two do: the
    /// name is asked as always then.
    pub answering: Vec<(IpAddr, Arc<dyn Register>)>,
    /// How many more take connections.
    pub more: usize,
    /// Those that take none, and why.
    pub silent: Vec<(IpAddr, String)>,
}

/// A value and the version it was read at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    /// The bytes.
    pub value: Bytes,
    /// What the store calls this state of the key.
    pub version: Version,
    /// What is said about the bytes, where the register [carries](RegisterCapabilities::metadata) it.
    pub metadata: Metadata,
}

/// An opaque version of a key: an ETag, a generation, a revision. Never equal for two writes of different bytes; for two
/// writes of the same bytes it may be, but where versions are [generations](RegisterCapabilities::generations).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// A version as the store spells it.
    pub fn new(version: impl Into<Arc<str>>) -> Self {
        Self(version.into())
    }

    /// The store's spelling.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a conditional write expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition<'a> {
    /// Nothing there.
    Absent,
    /// Exactly this version.
    Version(&'a Version),
}

/// The answer to a conditional write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Written; the key now has this version.
    Committed(Version),
    /// The key was not as expected, and this request changed nothing. (An earlier copy of it may have.)
    Conflict,
}

/// The answer to a conditional delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Gone.
    Deleted,
    /// The key was not as expected, or not there.
    Conflict,
}

/// What a register is, and how it wants to be treated.
#[derive(Clone, Debug)]
pub struct RegisterCapabilities {
    /// The store's kind, for people: `S3`, `memory`.
    pub store: &'static str,
    /// Whether its preconditions are known to be enforced. Otherwise they are [probed](probe) before the first write.
    pub trusted: bool,
    /// Whether versions are numbers that rise with every write of a key, also when it was deleted in between.
    pub generations: bool,
    /// How many bytes of [`Metadata::user`] it keeps beside an object, names and values together; `None` where it keeps no
    /// metadata at all.
    pub metadata: Option<usize>,
    /// How often a waiter may read.
    pub poll_interval: PollInterval,
}
