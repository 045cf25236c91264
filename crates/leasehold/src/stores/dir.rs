//! The store in a shared directory: a folder for each key, and a numbered file for each write. Machines that mount the
//! directory share its locks. No server has to run.
//!
//! `docs/stores/dir.md` describes the layout, the permissions and the limits, and `docs/rfcs/0003-directory.md` why it
//! is safe.

mod errors;
mod examine;
mod files;
mod generations;
mod location;
mod names;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};
use tokio::sync::Semaphore;

use self::files::{Directory, KeyFolder};
use self::generations::{LIMITS, Outcome};
use crate::clock::{StoreTime, timeout};
use crate::diagnosis::{Examined, RESERVED};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{Id, LeaseStore, PollInterval, StoreOptions};
use crate::proof;
use crate::protocol::RegisterLeases;
use crate::register::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use crate::retry::retry;
use crate::stores::contents::Contents;
use crate::url::StoreUrl;
use crate::worker::OnWorker;

/// A poll is a listing and a small file, which a file server answers within milliseconds.
const POLL_INTERVAL: PollInterval =
    PollInterval { min: Duration::from_millis(20), max: Duration::from_millis(1_000) };

/// The time limit for a request with a record. A file server that does not respond within it is unavailable.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// The number of threads for requests. Others wait without a thread, so that a file server that hangs does not take all
/// threads of the process.
const THREADS: usize = 64;

/// The maximum total length of the names and values of a user's metadata, in bytes. The same as on S3.
const MAX_METADATA_BYTES: usize = 2_048;

/// The beginnings of the keys that one examination uses, and no other process. Nothing of them is kept.
const OF_EXAMINATIONS: [&str; 3] = [RESERVED, proof::questions::PREFIX, proof::races::PREFIX];

/// Opens `dir:/mnt/efs/locks`, a directory that `leasehold init` or [`LeaseStore::init`] has prepared. A relative path
/// starts at the working directory.
///
/// Leases end by observation only, because the clocks of machines and file servers may be wrong. So only a process that
/// waits takes over from a dead holder.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, lease::StoreOptions, stores::dir, url::StoreUrl};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("locks");
/// let url = StoreUrl::parse(&format!("dir:{}", path.display()))?;
/// let store = dir::open(url.clone(), StoreOptions::default()).await?;
/// store.init().await?; // once for each directory
///
/// let one = Locker::new(store);
/// let two = Locker::new(dir::open(url, StoreOptions::default()).await?); // as another machine would
/// let guard = one.lock("backup").acquire().await?;
/// assert!(two.lock("backup").try_acquire().await.is_err());
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Invalid for a URL without a path, or with a host, and for a directory inside a prepared one. Unsupported for SMB and
/// for a file system without hard links. The first request reports a directory that was not prepared, unless that
/// request is `init`.
pub async fn open(url: StoreUrl, mut options: StoreOptions) -> Result<Arc<dyn LeaseStore>, Error> {
    let path = location::path_of(&url.checked(&mut options)?)?;
    // The time stamps of files may come from wrong clocks, so they end no lease.
    options.store_clock = false;
    let register = DirectoryRegister::new(path, Contents::Records, options.env.clone())?;
    register.touch().await?;
    Ok(Arc::new(RegisterLeases::new(Arc::new(register), options)))
}

/// Opens the prepared directory that has the object of `url`, and returns the object's key in it: the rest of the path.
///
/// # Errors
/// See [`open`].
pub(super) async fn open_object(url: StoreUrl, env: Env) -> Result<(Arc<dyn Register>, String), Error> {
    let path = location::object_of(url)?;
    let parent = path.parent().unwrap_or(&path).to_owned();
    let register = DirectoryRegister::new(parent.clone(), Contents::Objects, env.clone())?;
    let from = path.clone();
    let found = register.run(move |_| {
        let found = Directory::above_object(&from).map(|found| found.map(Path::to_owned));
        found.map_err(Fault::not_applied)
    });
    // Without a prepared directory, the first request reports the parent.
    let directory = found.await.map_err(StoreError::of_read)?.unwrap_or(parent);
    let key = path.strip_prefix(&directory).unwrap_or(&path).to_string_lossy().into_owned();
    let register = DirectoryRegister::new(directory, Contents::Objects, env)?;
    register.touch().await?;
    Ok((Arc::new(register), key))
}

/// The keys in one directory.
#[derive(Debug)]
struct DirectoryRegister {
    directory: Arc<Directory>,
    worker: OnWorker<Directory>,
    threads: Arc<Semaphore>,
}

impl DirectoryRegister {
    fn new(path: PathBuf, contents: Contents, env: Env) -> Result<Self, Error> {
        let worker = OnWorker::start("dir", Directory { path, env, clock: Arc::default(), contents })?;
        let threads = Arc::new(Semaphore::new(THREADS));
        Ok(Self { directory: worker.leases.clone(), worker, threads })
    }

    /// Runs `work` on the directory, on a thread for blocking work. Cancel safe: work that has begun is finished, and
    /// work that has not begun is dropped.
    async fn run<T, F>(&self, work: F) -> Result<T, StoreError>
    where
        F: FnOnce(&Directory) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let threads = self.threads.clone();
        let job = self.worker.run(|directory| async move {
            let thread = threads.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                let _thread = thread;
                work(&directory)
            })
            .await
        });
        let unanswered = |why: String| Err(Fault::unavailable(why).maybe_applied());
        let limit = match self.directory.contents {
            Contents::Records => REQUEST_LIMIT,
            Contents::Objects => LIMITS.longest_write,
        };
        match timeout(&*self.env().clock, limit, job).await {
            Some(done) => done?.unwrap_or_else(|error| unanswered(error.to_string())),
            None => unanswered(format!("{} did not respond within {limit:.0?}", self.identity())),
        }
    }

    /// Runs `work` on the folder of `key`.
    async fn on_key<T, F>(&self, key: &str, work: F) -> Result<T, StoreError>
    where
        F: FnOnce(&KeyFolder<'_>) -> Result<T, StoreError> + Send + 'static,
        T: Send + 'static,
    {
        let key = key.to_owned();
        self.run(move |directory| work(&directory.key(&key))).await
    }

    /// Tries out hard links, and reads the file server's clock, which the tokens of new locks are taken from. Reports
    /// only what makes locks impossible: hard links are missing, or the directory is inside another one. The next
    /// request reports other errors, unless it is `init`.
    async fn touch(&self) -> Result<(), StoreError> {
        let nonce = self.nonce();
        let tried = self.run(move |directory| {
            Ok([directory.refuse_nested(), examine::links(&directory.marker(), nonce)])
        });
        let [nested, links] = tried.await.unwrap_or([Ok(()), Ok(())]);
        let counts = |tried: Result<(), Fault>, kind| {
            tried.or_else(|fault| if fault.kind == kind { Err(fault.not_applied()) } else { Ok(()) })
        };
        counts(nested, ErrorKind::Invalid)?;
        counts(links, ErrorKind::Unsupported)
    }

    /// Writes the value of `key`, or deletes it if `value` is `None`.
    async fn put(
        &self,
        key: &str,
        expect: Option<&Version>,
        value: Option<Body>,
    ) -> Result<Outcome, StoreError> {
        let (nonce, expect) = (self.nonce(), expect.cloned());
        self.on_key(key, move |folder| generations::write(folder, &LIMITS, expect.as_ref(), nonce, value))
            .await
    }

    fn nonce(&self) -> Id {
        // Copies of a running machine may draw the same random numbers, but not at the same nanosecond.
        Id::random(&self.directory.env.random).at(self.directory.env.now())
    }
}

#[async_trait]
impl Register for DirectoryRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        let current = self.on_key(key, |folder| generations::read(folder).map_err(Fault::not_applied)).await;
        Ok(current.map_err(StoreError::of_read)?.and_then(|(found, value)| {
            found.length?;
            Some(VersionedValue { value, version: found.version(), metadata: found.metadata })
        }))
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        let current = self.on_key(key, |folder| generations::head(folder).map_err(Fault::not_applied)).await;
        Ok(current.map_err(StoreError::of_read)?.and_then(|found| {
            Some(Head { version: found.version(), size: found.length?, metadata: found.metadata })
        }))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        Ok(match self.put(key, expect.version(), Some(body)).await? {
            Outcome::Written(version) => Write::Committed(version),
            Outcome::Conflict => Write::Conflict,
        })
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        if self.put(key, Some(version), None).await? == Outcome::Conflict {
            return Ok(Deleted::Conflict);
        }
        if OF_EXAMINATIONS.iter().any(|beginning| key.starts_with(beginning)) {
            // The next examination uses other keys, so what stays is only untidy.
            let away = self.nonce().to_string();
            let _ = self.on_key(key, move |folder| Ok(folder.discard(&away))).await;
        }
        Ok(Deleted::Deleted)
    }

    async fn examine(&self) -> Examined {
        self.examined().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let prefix = prefix.to_owned();
        let keys = async move {
            let all = || self.run(|directory| directory.keys().map_err(Fault::not_applied));
            let mut keys = retry(self.env(), all).await.map_err(StoreError::of_read)?;
            keys.retain(|key| key.starts_with(&prefix));
            keys.sort_unstable();
            Ok(stream::iter(keys.into_iter().map(Ok)))
        };
        // A key that was deleted keeps its folder.
        let with_value = move |key: String| async move {
            match retry(self.env(), || self.head(&key)).await {
                Ok(head) => Ok(head.is_some().then_some(key)),
                // Only the requests for this key report it.
                Err(error) if error.fault().kind == ErrorKind::Corrupt => Ok(Some(key)),
                Err(error) => Err(error),
            }
        };
        stream::once(keys).try_flatten().try_filter_map(with_value).boxed()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.run(|directory| directory.init().map_err(Fault::not_applied)).await?;
        self.touch().await
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.directory.clock.bounds(self.env().now())
    }

    fn env(&self) -> &Env {
        &self.directory.env
    }

    fn identity(&self) -> String {
        self.directory.path.display().to_string()
    }

    fn through(&self, endpoint: &str) -> Result<Arc<dyn Register>, Error> {
        let path = location::absolute(endpoint)?;
        Ok(Arc::new(Self::new(path, self.directory.contents, self.env().clone())?))
    }

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            store: "a directory",
            trusted: true,
            generations: true,
            metadata: Some(MAX_METADATA_BYTES),
            poll_interval: POLL_INTERVAL,
        }
    }
}
