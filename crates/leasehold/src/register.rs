//! A register: keys with atomic conditional writes. Every object store offers these, and leases need nothing else.
//!
//! A store implements the trait [`Register`], also a store outside this crate (`docs/own-stores.md`).
//! [`RegisterLeases`](crate::RegisterLeases) runs the lease protocol on it.
//! Before the first write, [`probe`](crate::doctor::probe) checks whether the store honours the preconditions of
//! writes, and [`probe_deletes`](crate::doctor::probe_deletes) those of deletes.

mod body;

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};

pub use self::body::{Body, Head, Metadata};
use crate::clock::StoreTime;
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::PollInterval;

/// The maximum length of a record, in bytes, for registers that are opened for locks. Lock records are about 1 KiB.
pub const MAX_VALUE_BYTES: usize = 1 << 20;

/// The maximum length of an object, in bytes (256 MiB), for registers that are opened for objects. The object is held
/// in memory twice: as it was read and as it is written.
pub const MAX_OBJECT_BYTES: usize = 256 << 20;

/// A key-value store with conditional writes.
///
/// A conflict is a value, not an error. A [`StoreError`] says whether the request may have been applied. An
/// implementation must not retry conditional writes itself: if the response to an applied write is lost, a retry would
/// report a conflict.
///
/// Several tasks, threads and runtimes call the methods at the same time. leasehold limits the time of each read, write
/// and delete, and drops the future when that time is over. So a method must not block the thread. While it waits, it
/// must not hold what other requests need, such as the only connection: the caller may keep a future for long without
/// polling it.
///
/// A key is text. It has at most 261 bytes: the name of a lock ([`LockName`](crate::LockName)) and `.lock` or `.line`.
/// Other keys begin with `.leasehold-probe`. Keys are the same only if all their bytes are: encode them if the store
/// ignores upper and lower case, composes characters, trims spaces, or does not allow all characters.
///
/// ```
/// # use leasehold::{env::Env, register::{Precondition, Register, Write}, stores::memory::MemoryRegister};
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let register = MemoryRegister::new(Env::system());
/// let created = register.write("limit", Precondition::Absent, "10".into()).await?;
/// let Write::Committed(first) = created else { panic!("the key exists") };
/// let replaced = register.write("limit", Precondition::Version(&first), "20".into()).await?;
/// assert!(matches!(replaced, Write::Committed(_)));
///
/// let late = register.write("limit", Precondition::Version(&first), "30".into()).await?;
/// assert_eq!(late, Write::Conflict); // the version is outdated
/// assert_eq!(register.read("limit").await?.unwrap().value, "20");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[async_trait]
pub trait Register: fmt::Debug + Send + Sync + 'static {
    /// Reads `key`. Returns `None` if there is no value (a delete marker counts as no value). Strongly consistent:
    /// returns the latest write or delete, of any client, whose response was sent before this read began, or a later
    /// one. So it asks no cache and no replica that may be behind.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// Returns an error if the store's response is neither a value nor its absence, or if the value is longer than
    /// [`MAX_VALUE_BYTES`], or [`MAX_OBJECT_BYTES`] if the register was opened for objects. It is always
    /// [`NotApplied`](StoreError::NotApplied), because a read has no effect.
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError>;

    /// Reads `key` without its bytes. Calls [`read`](Self::read) by default.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// Returns the same errors as [`read`](Self::read).
    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        Ok(self.read(key).await?.map(|cell| Head {
            version: cell.version,
            metadata: cell.metadata,
            size: cell.value.len() as u64,
        }))
    }

    /// Writes `body`, the bytes and all metadata, atomically and only if `key` is as expected. The store compares and
    /// writes in one step: no other write comes in between. An outdated version and a missing value are conflicts.
    ///
    /// Dropping the future leaves the outcome unknown, as [`StoreError::MaybeApplied`] does.
    ///
    /// # Errors
    /// Returns [`StoreError::NotApplied`] only if the write certainly has no effect, now or later: the request was not
    /// sent, or the store refused it. In all other cases, such as a time limit, a lost connection or the response of a
    /// proxy, returns [`StoreError::MaybeApplied`]. leasehold then reads `key` to find out.
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError>;

    /// Deletes `key` if its version is still `version`. Used by sweeps, by locks that are objects, and by probes and
    /// examinations. Some stores ignore the version, so the caller must first make sure that this store compares it
    /// ([`probe_deletes`](crate::doctor::probe_deletes)), unless no other client knows of the object.
    ///
    /// # Errors
    /// Returns the same errors as [`write`](Self::write), and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the store has no conditional deletes. Locks do not
    /// need them. Their records can then not be swept.
    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError>;

    /// Runs the checks of an [examination](crate::Locker::examine) that only this store has, such as checks of its
    /// settings. The checks that apply to every register are not included. By default there are none.
    async fn examine(&self) -> Examined {
        Examined::default()
    }

    /// Creates what the store needs before its first use. Only [`Locker::init`](crate::Locker::init) calls it, not the
    /// first write. Does nothing by default.
    ///
    /// # Errors
    /// Returns an error if it cannot be created.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Lists the keys that start with `prefix`, in the store's order, page by page. A key that exists all the time is
    /// listed exactly once. `prefix` is text, which need not end at a `/`.
    ///
    /// Limits the time of its requests, and retries a failed page for a while, because the caller does neither. An
    /// error ends the listing.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>>;

    /// Returns the values that are written to `key` from now on, each after a read returns it, so that a waiter learns
    /// of a release at once. A deleted key counts as an empty value. Values may be missing, because waiters poll too.
    /// The stream ends when it may have missed some, such as after a lost connection. Reports none by default.
    ///
    /// The stream must not hold what requests need, because the caller may keep it for long without polling it.
    fn watch(&self, key: &str) -> BoxStream<'_, Bytes> {
        let _ = key;
        stream::pending().boxed()
    }

    /// Returns the version that a write of these bytes gives, if it depends only on the bytes, so that another write of
    /// the same bytes gives the same version. Returns `None` by default.
    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        let _ = bytes;
        None
    }

    /// Returns the current bounds of the store's clock, according to its latest response, in microseconds since the
    /// Unix epoch. [`StoreClock`](crate::clock::StoreClock) computes them from the time in each response. Sends no
    /// request.
    ///
    /// The first token of a lock comes from this clock, and by it the lease of a dead holder may end. So all clients
    /// must see the same clock, never that of their own machine, and it must not go back, also when the store is
    /// restarted.
    ///
    /// Returns `None` before the first response, or if the store has no clock. On a store without a clock, no lock can
    /// be created: [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported).
    fn store_time(&self) -> Option<StoreTime>;

    /// Returns the clock and the source of randomness of this register, and of the leases on it. Outside tests, this is
    /// [`Env::system`]: with equal seeds, two processes would write equal nonces.
    fn env(&self) -> &Env;

    /// Returns a register of the same objects through another endpoint, to examine several front ends together. Fails
    /// by default.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a bad endpoint, and
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) if the register has no endpoints.
    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        let message = format!(
            "{} cannot be examined through another endpoint, {endpoint:?}",
            self.capabilities().store
        );
        Err(Error::unsupported(message).with_help("leave out --endpoint: it is for S3-compatible stores"))
    }

    /// Returns a register of the same objects for each address of the endpoint's name, if there are several.
    /// Probes and examinations use them in turn. By default there are none.
    ///
    /// Cancel safe.
    ///
    /// # Errors
    /// Returns an error if no client can be created for an address.
    async fn fronts(&self) -> Result<FrontEnds, Error> {
        Ok(FrontEnds::default())
    }

    /// Returns the properties of this register.
    fn capabilities(&self) -> RegisterCapabilities;

    /// Returns the text that identifies the store: the endpoint and the bucket, without secrets. Empty by default.
    ///
    /// A register that is not [trusted](RegisterCapabilities::trusted) must implement this method. The result of a
    /// [probe](crate::doctor::probe) is recorded in the store together with this text, and is valid only for a store
    /// with the same text. With an empty text, a copy of the objects at an unsafe store would count as probed.
    fn identity(&self) -> String {
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
    async fn examine(&self) -> Examined {
        (**self).examine().await
    }
    async fn init(&self) -> Result<(), StoreError> {
        (**self).init().await
    }
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        (**self).list(prefix)
    }
    fn watch(&self, key: &str) -> BoxStream<'_, Bytes> {
        (**self).watch(key)
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
    fn identity(&self) -> String {
        (**self).identity()
    }
    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        (**self).through(endpoint)
    }
    async fn fronts(&self) -> Result<FrontEnds, Error> {
        (**self).fronts().await
    }
}

/// The addresses of an endpoint's name. Each may be a separate front end.
///
/// ```
/// # use leasehold::{Register, env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let fronts = register.fronts().await?;
/// for (address, front) in &fronts.answering {
///     let head = front.head("limit").await?; // through this address alone
///     println!("{address}: {:?}", head.map(|head| head.version));
/// }
/// for (address, why) in &fronts.silent {
///     println!("{address} accepts no connection: {why}");
/// }
/// assert!(fronts.answering.is_empty()); // memory has no addresses
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct FrontEnds {
    /// The same objects at the addresses that accept connections, at most eight of them. Empty if fewer than two do.
    /// The name is then used as usual.
    pub answering: Vec<(IpAddr, Arc<dyn Register>)>,
    /// How many further addresses accept connections.
    pub more: usize,
    /// The addresses that accept none, and why.
    pub silent: Vec<(IpAddr, String)>,
}

/// A value and the version it was read at.
///
/// ```
/// # use leasehold::{env::Env, register::{Body, Precondition, Register, Write}, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// # register.write("greeting", Precondition::Absent, "hello".into()).await?;
/// let read = register.read("greeting").await?.expect("it was written");
/// let bytes = read.value.to_ascii_uppercase().into();
/// let body = Body { bytes, metadata: read.metadata };
/// let written = register.write("greeting", Precondition::Version(&read.version), body).await?;
/// assert!(matches!(written, Write::Committed(_)));
/// assert_eq!(register.read("greeting").await?.unwrap().value, "HELLO");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionedValue {
    /// The bytes.
    pub value: Bytes,
    /// The store's identifier of this state of the key.
    pub version: Version,
    /// The metadata, if the register [stores](RegisterCapabilities::metadata) it.
    pub metadata: Metadata,
}

/// An opaque version of a key: an ETag, a generation, a revision. Two writes of different bytes never have the same
/// version, even if the key was deleted in between. So a time is no version, and a counter must not start again. Two
/// writes of the same bytes may, unless versions are [generations](RegisterCapabilities::generations).
///
/// ```
/// # use leasehold::{env::Env, register::{Precondition, Register, Version, Write}, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let created = register.write("limit", Precondition::Absent, "10".into()).await?;
/// let Write::Committed(version) = created else { panic!("the key exists") };
///
/// let kept = version.as_str().to_owned(); // in a file, for example
/// let version = Version::new(kept);
/// assert_eq!(register.read("limit").await?.unwrap().version, version); // not changed since
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Version(Arc<str>);

impl Version {
    /// Creates a version from the store's notation of it.
    pub fn new(version: impl Into<Arc<str>>) -> Self {
        Self(version.into())
    }

    /// Returns the store's notation of the version.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a conditional write expects to find.
///
/// ```
/// # use leasehold::{env::Env, register::{Precondition, Register, Write}, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// for value in ["10", "20"] {
///     let found = register.read("limit").await?;
///     let expect = match &found {
///         None => Precondition::Absent, // creates it
///         Some(found) => Precondition::Version(&found.version), // replaces it
///     };
///     assert!(matches!(register.write("limit", expect, value.into()).await?, Write::Committed(_)));
/// }
/// assert_eq!(register.write("limit", Precondition::Absent, "30".into()).await?, Write::Conflict);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition<'a> {
    /// The key does not exist.
    Absent,
    /// The key has exactly this version.
    Version(&'a Version),
}

impl<'a> Precondition<'a> {
    /// Returns the expected version, or `None` if the key must not exist.
    #[allow(dead_code, reason = "not every build has a store that uses it")]
    pub(crate) fn version(self) -> Option<&'a Version> {
        match self {
            Self::Absent => None,
            Self::Version(version) => Some(version),
        }
    }
}

/// The response to a conditional write.
///
/// ```
/// # use leasehold::{env::Env, register::{Precondition, Register, Write}, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// match register.write("limit", Precondition::Absent, "10".into()).await? {
///     Write::Committed(version) => println!("written; the version is {}", version.as_str()),
///     Write::Conflict => println!("another client wrote first: read, and decide again"),
/// }
/// let second = register.write("limit", Precondition::Absent, "20".into()).await?;
/// assert_eq!(second, Write::Conflict);
/// assert_eq!(register.read("limit").await?.unwrap().value, "10");
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Written. The key now has this version.
    Committed(Version),
    /// The key was not as expected, and this request changed nothing. (An earlier copy of the same request may have.)
    Conflict,
}

/// The response to a conditional delete.
///
/// ```
/// # use leasehold::{env::Env, register::{Deleted, Precondition, Register, Write}, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let created = register.write("limit", Precondition::Absent, "10".into()).await?;
/// let Write::Committed(version) = created else { panic!("the key exists") };
/// assert_eq!(register.delete("limit", &version).await?, Deleted::Deleted);
/// assert_eq!(register.delete("limit", &version).await?, Deleted::Conflict); // it no longer exists
/// assert_eq!(register.read("limit").await?, None);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// Deleted.
    Deleted,
    /// The key does not exist or has another version.
    Conflict,
}

/// The properties of a register.
///
/// ```
/// # use leasehold::{Register, doctor::probe, env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let capabilities = register.capabilities();
/// if !capabilities.trusted {
///     probe(&register).await?; // before the first write
/// }
/// // A fence keeps its token in the metadata.
/// assert!(capabilities.metadata.is_some_and(|bytes| bytes >= 1_024));
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RegisterCapabilities {
    /// The store's kind, for people: `S3`, `memory`.
    pub store: &'static str,
    /// Whether it is known to enforce preconditions. Otherwise they are [probed](crate::doctor::probe) before the first
    /// write. If this is `true` by mistake, a lock is granted to several holders and nothing reports it. If in doubt,
    /// it is `false`, and [`identity`](Register::identity) is implemented.
    pub trusted: bool,
    /// Whether versions are decimal numbers that rise with every write of a key, even if it was deleted in between. A
    /// `-` and anything after it may follow the number.
    pub generations: bool,
    /// How many bytes of [`Metadata::user`] it stores with an object, names and values together. `None` if it stores no
    /// metadata. Records of locks have none. A [fenced write](crate::fence) needs it.
    pub metadata: Option<usize>,
    /// How often a waiter may read. Longer than zero.
    pub poll_interval: PollInterval,
}

impl RegisterCapabilities {
    /// Creates the capabilities of a register that is not trusted, and has no generations and no metadata.
    pub const fn new(store: &'static str, poll_interval: PollInterval) -> Self {
        Self { store, trusted: false, generations: false, metadata: None, poll_interval }
    }
}
