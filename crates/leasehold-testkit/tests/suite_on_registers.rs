//! Checks that the flaws of a register are found: by the conformance suite, although it only sees locks, or by the probe,
//! which authors of stores run too (docs/own-stores.md). A flawed register here says that it is trusted, so no lock is refused
//! because of the probe.

use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, StreamExt};
use leasehold::clock::{StoreTime, TestClock};
use leasehold::doctor::{probe, probe_deletes};
use leasehold::env::Env;
use leasehold::error::{ErrorKind, Fault, StoreError};
use leasehold::lease::{LeaseStore, PollInterval, StoreOptions};
use leasehold::register::{
    Body, Deleted, Precondition, RegisterCapabilities, Version, VersionedValue, Write,
};
use leasehold::{LockName, Locker, Register, RegisterLeases};
use leasehold_testkit::conformance::{CASES, Case, Harness};
use leasehold_testkit::harness::OnRegister;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    IgnoresAbsent,
    IgnoresVersion,
    /// Compares and writes in two steps.
    ComparesAndWritesApart,
    /// A read may return what was there before the latest write, as from a replica or a cache.
    ReadsStale,
    /// The version is the second of the write, like the modification time of some file systems.
    VersionIsTime,
    /// The versions of a key start again after it was deleted.
    VersionsRestart,
    /// Reports success although it has not written.
    WritesNothing,
    DeleteIgnoresVersion,
    DeletesNothing,
    ListsAThousand,
    ListIgnoresPrefix,
    IgnoresCase,
    /// Each client takes its own clock for that of the store. They are an hour apart.
    ClockOfTheClient,
    ClockInMilliseconds,
    /// A client sends one request at a time, and a caller that is not polled keeps its place.
    SharesAConnection,
    // What is not a flaw.
    HasNoClock,
    HasNoDeletes,
    /// Its locks wait for the probe.
    IsNotTrusted,
}

use Flaw::*;

/// The flaws that a case finds.
const FOUND_BY_THE_SUITE: &[Flaw] = &[
    IgnoresAbsent,
    IgnoresVersion,
    ComparesAndWritesApart,
    ReadsStale,
    VersionIsTime,
    VersionsRestart,
    WritesNothing,
    DeletesNothing,
    ListsAThousand,
    ListIgnoresPrefix,
    IgnoresCase,
    ClockOfTheClient,
    ClockInMilliseconds,
    SharesAConnection,
];

/// The flaws that only the probe finds, because no case deletes a record that another client replaces.
const FOUND_BY_THE_PROBE: &[Flaw] = &[DeleteIgnoresVersion];

#[derive(Debug)]
struct Server {
    flaw: Option<Flaw>,
    env: Env,
    clients: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cells: BTreeMap<String, VersionedValue>,
    /// The values before the latest writes.
    before: BTreeMap<String, Option<VersionedValue>>,
    writes: u64,
    reads: u64,
}

#[derive(Debug)]
struct Client {
    server: Arc<Server>,
    number: u64,
    connection: tokio::sync::Mutex<()>,
}

impl Client {
    fn open(server: &Arc<Server>) -> Self {
        let number = server.clients.fetch_add(1, Ordering::SeqCst);
        Self { server: server.clone(), number, connection: tokio::sync::Mutex::default() }
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.server.flaw == Some(flaw)
    }

    fn with<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        step(&mut self.server.state.lock().unwrap())
    }

    fn key(&self, key: &str) -> String {
        if self.is(IgnoresCase) { key.to_lowercase() } else { key.to_owned() }
    }

    fn is_expected(&self, state: &State, key: &str, expect: Precondition<'_>) -> bool {
        let found = state.cells.get(key).map(|cell| &cell.version);
        match expect {
            Precondition::Absent => found.is_none() || self.is(IgnoresAbsent),
            Precondition::Version(version) => found == Some(version) || self.is(IgnoresVersion),
        }
    }

    fn now_us(&self) -> u64 {
        self.server.env.now().wall_us()
    }
}

#[async_trait]
impl Register for Client {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        if self.is(SharesAConnection) {
            let _connection = self.connection.lock().await;
            self.server.env.sleep(Duration::from_millis(1)).await;
        }
        let key = self.key(key);
        Ok(self.with(|state| {
            state.reads += 1;
            let stale = state.before.get(&key).filter(|_| self.is(ReadsStale) && state.reads % 2 == 0);
            stale.cloned().unwrap_or_else(|| state.cells.get(&key).cloned())
        }))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        let key = self.key(key);
        if self.is(ComparesAndWritesApart) {
            if !self.with(|state| self.is_expected(state, &key, expect)) {
                return Ok(Write::Conflict);
            }
            tokio::task::yield_now().await;
        }
        Ok(self.with(|state| {
            if !self.is(ComparesAndWritesApart) && !self.is_expected(state, &key, expect) {
                return Write::Conflict;
            }
            state.writes += 1;
            let replaced = state.cells.get(&key).cloned();
            let version = match self.server.flaw {
                Some(VersionIsTime) => self.now_us() / 1_000_000,
                Some(VersionsRestart) => {
                    replaced.as_ref().map_or(0, |cell| cell.version.as_str().parse::<u64>().unwrap()) + 1
                }
                _ => state.writes,
            };
            let version = Version::new(version.to_string());
            if !self.is(WritesNothing) {
                let Body { bytes: value, metadata } = body;
                state.cells.insert(key.clone(), VersionedValue { value, version: version.clone(), metadata });
                state.before.insert(key, replaced);
            }
            Write::Committed(version)
        }))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        if self.is(HasNoDeletes) {
            return Err(Fault::new(ErrorKind::Unsupported, "there are no deletes").not_applied());
        }
        let key = self.key(key);
        Ok(self.with(|state| match state.cells.get(&key) {
            Some(_) if self.is(DeletesNothing) => Deleted::Deleted,
            Some(cell) if cell.version == *version || self.is(DeleteIgnoresVersion) => {
                let deleted = state.cells.remove(&key);
                state.before.insert(key, deleted);
                Deleted::Deleted
            }
            _ => Deleted::Conflict,
        }))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let prefix = if self.is(ListIgnoresPrefix) { "" } else { prefix };
        let most = if self.is(ListsAThousand) { 1_000 } else { usize::MAX };
        let keys: Vec<_> = self.with(|state| {
            state.cells.keys().filter(|key| key.starts_with(prefix)).take(most).cloned().collect()
        });
        stream::iter(keys).map(Ok).boxed()
    }

    fn store_time(&self) -> Option<StoreTime> {
        let now_us = self.now_us();
        let now_us = match self.server.flaw {
            Some(HasNoClock) => return None,
            Some(ClockOfTheClient) => now_us + self.number * 3_600_000_000,
            Some(ClockInMilliseconds) => now_us / 1_000,
            _ => now_us,
        };
        Some(StoreTime::exactly(now_us))
    }

    fn env(&self) -> &Env {
        &self.server.env
    }

    fn identity(&self) -> String {
        "test".to_owned()
    }

    fn capabilities(&self) -> RegisterCapabilities {
        let poll_interval = PollInterval { min: Duration::from_millis(5), max: Duration::from_millis(50) };
        let mut capabilities = RegisterCapabilities::new("flawed", poll_interval);
        capabilities.trusted = !self.is(IsNotTrusted);
        capabilities
    }
}

/// The storage of a case. A register without deletes needs its own way to delete a record by hand.
struct Storage {
    server: Arc<Server>,
    harness: OnRegister,
}

impl Storage {
    fn new(flaw: Option<Flaw>) -> Self {
        let server = server(flaw);
        let clients = server.clone();
        let open = move || -> Arc<dyn Register> { Arc::new(Client::open(&clients)) };
        Self { server, harness: OnRegister::of_clients(open, StoreOptions::default()) }
    }
}

#[async_trait]
impl Harness for Storage {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        self.harness.open().await
    }

    async fn delete_record(&self, name: &LockName) {
        match self.server.flaw {
            Some(HasNoDeletes) => {
                let removed = self.server.state.lock().unwrap().cells.remove(&format!("{name}.lock"));
                assert!(removed.is_some());
            }
            _ => self.harness.delete_record(name).await,
        }
    }
}

fn server(flaw: Option<Flaw>) -> Arc<Server> {
    let env = Env::seeded(Arc::new(TestClock::default()), 1);
    Arc::new(Server { flaw, env, clients: AtomicU64::new(0), state: Mutex::default() })
}

/// Runs `body` on paused time. Returns `None` if it panics.
fn paused<T>(body: impl Future<Output = T>) -> Option<T> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(AssertUnwindSafe(body).catch_unwind()).ok()
}

/// Returns the names of the cases that a register with `flaw` fails.
fn failed(flaw: Option<Flaw>) -> impl Iterator<Item = &'static str> {
    let fails = move |case: &&Case| paused((case.run)(&Storage::new(flaw))).is_none();
    CASES.iter().filter(fails).map(|case| case.name)
}

/// Returns whether the probe refuses a register with `flaw`.
fn is_refused(flaw: Flaw) -> bool {
    let probed = paused(async {
        let client = Client::open(&server(Some(flaw)));
        probe(&client).await.and(probe_deletes(&client).await)
    });
    probed.unwrap().is_err_and(|error| error.fault().kind == ErrorKind::Unsupported)
}

#[test]
fn each_flaw_of_a_register_is_found() {
    let missed: Vec<_> =
        FOUND_BY_THE_SUITE.iter().filter(|flaw| failed(Some(**flaw)).next().is_none()).collect();
    assert!(missed.is_empty(), "no case notices {missed:?}");
    for flaw in FOUND_BY_THE_PROBE {
        assert!(is_refused(*flaw), "{flaw:?}");
        assert_eq!(failed(Some(*flaw)).next(), None, "{flaw:?} belongs into the other list");
    }
}

#[test]
fn a_register_without_a_flaw_passes() {
    for register in [None, Some(HasNoDeletes), Some(IsNotTrusted)] {
        assert_eq!(failed(register).collect::<Vec<_>>(), [""; 0], "{register:?}");
    }
}

#[tokio::test]
async fn a_register_without_a_clock_grants_no_lock() {
    let register = Client::open(&server(Some(HasNoClock)));
    let locker = Locker::new(Arc::new(RegisterLeases::new(Arc::new(register), StoreOptions::default())));
    let error = locker.lock("lock").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}
