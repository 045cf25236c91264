//! The register in the memory of this process. It is the reference implementation, for tests and experiments.

#[doc(hidden)]
pub mod server;

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{self, BoxStream, StreamExt};

use crate::clock::{Moment, StoreTime, micros};
use crate::env::Env;
use crate::error::{Error, StoreError};
use crate::lease::{LeaseStore, PollInterval, StoreOptions};
use crate::protocol::RegisterLeases;
use crate::register::{
    Body, Deleted, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use crate::url::StoreUrl;

/// The maximum size of the metadata, in bytes. It is the same as on S3, so that code that works here also works there.
const METADATA_BYTES: usize = 2_048;

/// Opens `mem:`, a new and empty store. The store ends when the last handle to it is dropped.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, lease::StoreOptions, stores::memory, url::StoreUrl};
///
/// let one = Locker::new(memory::open(StoreUrl::parse("mem:")?, StoreOptions::default())?);
/// let two = Locker::new(memory::open(StoreUrl::parse("mem:")?, StoreOptions::default())?);
/// let guard = one.lock("report").acquire().await?;
/// assert!(one.clone().lock("report").try_acquire().await.is_err());
/// assert!(two.lock("report").try_acquire().await.is_ok()); // another store
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) if the URL contains anything but `mem:` and common options.
pub fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    if url.authority().is_some() || !url.path().is_empty() {
        // Does not show the text, because it could be the URL of another store, with its password.
        return Err(Error::invalid("a `mem:` URL contains a name, but the memory store has no names")
            .with_help("write `mem:`; to share locks between processes use sqlite:PATH"));
    }
    url.checked(&mut options)?;
    let register = MemoryRegister::new(options.env.clone());
    Ok(Arc::new(RegisterLeases::new(Arc::new(register), options)))
}

/// A register that keeps its values in a map. Its clock is exact. It starts at the wall clock of the [`Env`], and later
/// steps of that clock do not change it.
///
/// ```
/// # use std::sync::Arc;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Object, Register, env::Env, stores::memory::MemoryRegister};
///
/// let register = Arc::new(MemoryRegister::new(Env::system()));
/// let object = Object::new(register.clone(), "greeting"); // code under test
/// object.update(async |_| Ok::<_, leasehold::Error>(Some("hello".into()))).await?;
/// assert_eq!(register.read("greeting").await?.unwrap().value, "hello");
///
/// let like_s3 = MemoryRegister::by_content(Env::system());
/// assert!(register.capabilities().generations && !like_s3.capabilities().generations);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct MemoryRegister {
    env: Env,
    opened: Moment,
    /// Whether a version depends only on the bytes.
    by_content: bool,
    contents: Mutex<Contents>,
}

#[derive(Debug, Default)]
struct Contents {
    cells: BTreeMap<String, VersionedValue>,
    /// The number of writes so far. Deletions do not reset it, so no version repeats.
    writes: u64,
}

impl MemoryRegister {
    /// Creates an empty register.
    pub fn new(env: Env) -> Self {
        Self { opened: env.now(), env, by_content: false, contents: Mutex::default() }
    }

    /// Creates an empty register whose versions depend only on the bytes, as on S3. For tests of code that must work on
    /// S3.
    pub fn by_content(env: Env) -> Self {
        Self { by_content: true, ..Self::new(env) }
    }

    fn with<T>(&self, body: impl FnOnce(&mut Contents) -> T) -> T {
        body(&mut self.contents.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Register for MemoryRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        Ok(self.with(|contents| contents.cells.get(key).cloned()))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        Ok(self.with(|contents| {
            let found = contents.cells.get(key).map(|cell| &cell.version);
            let as_expected = match expect {
                Precondition::Absent => found.is_none(),
                Precondition::Version(version) => found == Some(version),
            };
            if !as_expected {
                return Write::Conflict;
            }
            contents.writes += 1;
            let Body { bytes, metadata } = body;
            // Copies the bytes, because the value is kept for a long time and its buffer may have unused capacity.
            let bytes = Bytes::copy_from_slice(&bytes);
            let counted = Version::new(contents.writes.to_string());
            let version = self.version_of(&bytes).unwrap_or(counted);
            contents
                .cells
                .insert(key.to_owned(), VersionedValue { value: bytes, version: version.clone(), metadata });
            Write::Committed(version)
        }))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        Ok(self.with(|contents| match contents.cells.get(key) {
            Some(cell) if cell.version == *version => {
                contents.cells.remove(key);
                Deleted::Deleted
            }
            _ => Deleted::Conflict,
        }))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let keys: Vec<_> = self.with(|contents| {
            let from = contents.cells.range(prefix.to_owned()..);
            from.map(|(key, _)| key).take_while(|key| key.starts_with(prefix)).cloned().map(Ok).collect()
        });
        stream::iter(keys).boxed()
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        let hash = || {
            let mut hasher = DefaultHasher::new();
            bytes.hash(&mut hasher);
            Version::new(format!("{:016x}", hasher.finish()))
        };
        self.by_content.then(hash)
    }

    fn store_time(&self) -> Option<StoreTime> {
        let open_for = self.env.now().since_boot().saturating_sub(self.opened.since_boot());
        Some(StoreTime::exactly(self.opened.wall_us() + micros(open_for)))
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        let poll_interval = PollInterval { min: Duration::from_millis(1), max: Duration::from_millis(20) };
        RegisterCapabilities {
            store: "memory",
            trusted: true,
            generations: !self.by_content,
            metadata: Some(METADATA_BYTES),
            poll_interval,
        }
    }
}
