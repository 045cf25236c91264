//! Storage for the conformance cases: [`OnRegister`] for any register, [`Fresh`] for leasehold's own stores and for tests
//! with several processes.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::error::StoreError;
use leasehold::lease::{LeaseStore, StoreOptions};
use leasehold::register::{Body, Deleted, Precondition, Register, Version, VersionedValue, Write};
use leasehold::stores::STORES;
use leasehold::url::StoreUrl;
use leasehold::{LockName, RegisterLeases};
use tempfile::TempDir;

use crate::conformance::Harness;
use crate::layer::{Layer, Layered};
use crate::servers::{Server, with_option};
use crate::test_store::{Reaper, Storage, TestStore};

/// Fresh storage at a store URL. Its files are deleted when it is dropped.
pub struct Fresh {
    store: &'static dyn TestStore,
    storage: Storage,
    url: String,
    folder: TempDir,
}

impl fmt::Debug for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fresh").field(&self.url).finish()
    }
}

impl Fresh {
    /// Creates empty storage.
    ///
    /// # Panics
    /// When `./test` has not started the server.
    pub fn on(store: &'static dyn TestStore, storage: &Storage) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let url = store.fresh_url(storage, folder.path());
        Self { store, storage: *storage, url, folder }
    }

    /// Replaces the store URL.
    pub fn at(self, url: String) -> Self {
        Self { url, ..self }
    }

    /// Returns the store.
    pub fn store(&self) -> &'static dyn TestStore {
        self.store
    }

    /// Returns the server that the storage is on.
    ///
    /// # Panics
    /// When the storage has no server.
    pub fn server(&self) -> Server {
        self.storage.server.expect("storage on a server")
    }

    /// Returns the store URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Returns a folder that is deleted with the storage.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    /// Records in the storage that its server has passed the examination, so that other processes find the record.
    pub async fn vouch(&self) {
        self.store.vouch_for(&self.url).await;
    }

    /// Returns whether waiters notice a release only by polling, a few times a second.
    fn is_polled(&self) -> bool {
        matches!(self.store.reaper(), Reaper::Contenders | Reaper::Waiters | Reaper::StoreClock)
    }
}

#[async_trait]
impl Harness for Fresh {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        let store = if self.is_polled() {
            // Without a margin, inspection reports a lapse within a case's time limit. The servers run on this
            // machine, so no margin is needed.
            open(&with_option(&self.url, "margin=0s")).await
        } else {
            open(&self.url).await
        };
        self.vouch().await;
        store
    }

    async fn delete_record(&self, name: &LockName) {
        self.store.delete_record(&self.url, name).await;
    }

    async fn read_record(&self, name: &LockName) -> String {
        self.store.read_record(&self.url, name).await
    }

    fn ttl(&self) -> Duration {
        self.storage.ttl
    }

    fn longest_ttl(&self) -> Duration {
        self.storage.longest_ttl
    }

    fn limit(&self) -> Duration {
        // Shows only that a case hangs: slow servers may need minutes on a busy machine.
        Duration::from_secs(180).max(self.ttl() * 8)
    }

    fn rounds(&self) -> usize {
        if self.is_polled() { 2 } else { 5 }
    }
}

#[async_trait]
impl Harness for Box<dyn Harness> {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        (**self).open().await
    }

    async fn delete_record(&self, name: &LockName) {
        (**self).delete_record(name).await;
    }

    async fn read_record(&self, name: &LockName) -> String {
        (**self).read_record(name).await
    }

    fn ttl(&self) -> Duration {
        (**self).ttl()
    }

    fn longest_ttl(&self) -> Duration {
        (**self).longest_ttl()
    }

    fn limit(&self) -> Duration {
        (**self).limit()
    }

    fn rounds(&self) -> usize {
        (**self).rounds()
    }
}

/// Opens another client of the register under test.
type OpenRegister = dyn Fn() -> Arc<dyn Register> + Send + Sync;

/// A register whose requests overlap with those of other tasks, even if it never waits. Otherwise a read and the write
/// after it would be one step on a runtime with one thread, and no race would show a flaw.
#[derive(Debug)]
struct Overlapping(Arc<dyn Register>);

/// Awaits `request`, and lets other tasks have their turn before the response arrives. Not before the request too: a
/// future that is polled once, and never again, must get as far as the register, and must not keep it from others.
async fn overlapping<T>(request: impl Future<Output = T>) -> T {
    let response = request.await;
    tokio::task::yield_now().await;
    response
}

#[async_trait]
impl Layer for Overlapping {
    fn inner(&self) -> &dyn Register {
        &*self.0
    }

    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        overlapping(self.0.read(key)).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        overlapping(self.0.write(key, expect, body)).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        overlapping(self.0.delete(key, version)).await
    }
}

/// Leases on a register: the harness for every store that implements [`Register`].
///
/// Deletes and reads records through a client of the register. If the register has no deletes, implement [`Harness`]
/// instead, with a [`delete_record`](Harness::delete_record) of your own. The record of a lock is at the key `NAME.lock`.
#[derive(Clone)]
pub struct OnRegister {
    open: Arc<OpenRegister>,
    options: StoreOptions,
    by_existence: bool,
}

impl OnRegister {
    /// Creates a harness for leases on `register`, which all clients share.
    pub fn new(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self::of_clients(move || register.clone(), options)
    }

    /// Creates a harness whose clients each call `open`. Use this if a client keeps anything of its own, such as a cache,
    /// a connection or the time of the latest response.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use leasehold::{Register, env::Env, lease::StoreOptions, stores::memory::MemoryRegister};
    /// use leasehold_testkit::conformance::a_second_claimant_sees_the_holder;
    /// use leasehold_testkit::harness::OnRegister;
    ///
    /// # tokio::runtime::Runtime::new().unwrap().block_on(async {
    /// let storage = Arc::new(MemoryRegister::new(Env::system())); // your storage, empty
    /// let open = move || -> Arc<dyn Register> { storage.clone() }; // your client of it
    /// let harness = OnRegister::of_clients(open, StoreOptions::default());
    /// a_second_claimant_sees_the_holder(&harness).await; // `conformance!` runs all cases
    /// # });
    /// ```
    pub fn of_clients(
        open: impl Fn() -> Arc<dyn Register> + Send + Sync + 'static,
        options: StoreOptions,
    ) -> Self {
        Self { open: Arc::new(open), options, by_existence: false }
    }

    /// Switches to the existence protocol of simple clients, in which a lock is held while its object exists.
    pub fn by_existence(self) -> Self {
        Self { by_existence: true, ..self }
    }
}

impl fmt::Debug for OnRegister {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnRegister").field("options", &self.options).finish_non_exhaustive()
    }
}

#[async_trait]
impl Harness for OnRegister {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        let leases = if self.by_existence { RegisterLeases::by_existence } else { RegisterLeases::new };
        Arc::new(leases(Arc::new(Layered(Overlapping((self.open)()))), self.options.clone()))
    }

    async fn delete_record(&self, name: &LockName) {
        delete_record(&*(self.open)(), &object(name, self.by_existence)).await;
    }

    async fn read_record(&self, name: &LockName) -> String {
        read_record(&*(self.open)(), &object(name, self.by_existence)).await
    }
}

pub(crate) async fn delete_record(register: &dyn Register, key: &str) {
    let cell = register.read(key).await.unwrap().expect("there is a record to delete");
    assert_eq!(register.delete(key, &cell.version).await.unwrap(), Deleted::Deleted);
}

/// Returns the object `key` with its metadata, as text.
pub(crate) async fn read_record(register: &dyn Register, key: &str) -> String {
    let cell = register.read(key).await.unwrap().expect("there is a record to read");
    format!("{cell:?} {}", String::from_utf8_lossy(&cell.value))
}

/// Returns all that the files of the SQLite database at `path` contain.
#[allow(dead_code, reason = "used by stores that are cargo features")]
pub(crate) fn read_database(path: &std::path::Path) -> String {
    ["", "-wal"]
        .iter()
        .filter_map(|suffix| std::fs::read(format!("{}{suffix}", path.display())).ok())
        .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
        .collect()
}

/// Returns the key of a lock's object.
pub(crate) fn object(name: &LockName, by_existence: bool) -> String {
    if by_existence { name.to_string() } else { format!("{name}.lock") }
}

/// Asserts that the store at `url` has the capabilities that `help stores` describes.
pub async fn assert_described(url: &str) {
    let parsed = StoreUrl::parse(url).unwrap();
    let scheme = STORES.iter().find(|scheme| scheme.scheme == parsed.scheme()).unwrap();
    assert_eq!(scheme.can, open(url).await.capabilities().to_string());
}

async fn open(url: &str) -> Arc<dyn LeaseStore> {
    leasehold::stores::open(StoreUrl::parse(url).unwrap(), StoreOptions::default()).await.unwrap()
}
