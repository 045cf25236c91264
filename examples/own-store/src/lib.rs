//! A store that leasehold does not have: a map in memory, which all lockers of a process share. It uses only what
//! leasehold makes public. `docs/own-stores.md` explains it.
//!
//! Two types, because a real store has two sides. [`MapServer`] stands for the server: it keeps the values, decides about
//! conditional writes, and has the clock. [`MapRegister`] is a client of it, and the only part that a real store needs.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};
use leasehold::clock::{Clock, Moment, StoreClock, StoreTime};
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::{PollInterval, StoreOptions};
use leasehold::register::{
    Body, Deleted, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use leasehold::{Locker, RegisterLeases};

/// The server: a map behind a lock, and a clock.
#[derive(Debug)]
pub struct MapServer {
    clock: Arc<dyn Clock>,
    started: Moment,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    cells: BTreeMap<String, VersionedValue>,
    /// The number of writes of all keys. A delete does not reset it, so no version is ever used twice.
    writes: u64,
}

impl MapServer {
    /// Creates an empty server that runs on `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { started: clock.now(), clock, state: Mutex::default() }
    }

    /// Executes `step` while no other request is executed. Returns its result, and the server's time after it.
    fn execute<T>(&self, step: impl FnOnce(&mut State) -> T) -> (T, u64) {
        let result = step(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        (result, self.now_us())
    }

    /// Returns the microseconds since the Unix epoch. Later steps of the machine's wall clock do not change them: the
    /// clock of a store must not go back.
    fn now_us(&self) -> u64 {
        let up = self.clock.now().since_boot().saturating_sub(self.started.since_boot());
        self.started.wall_us() + u64::try_from(up.as_micros()).unwrap_or(u64::MAX)
    }
}

/// A client of a [`MapServer`].
#[derive(Debug)]
pub struct MapRegister {
    server: Arc<MapServer>,
    /// What this client knows about the server's clock.
    clock: StoreClock,
    env: Env,
}

impl MapRegister {
    /// Creates a client that runs on `env`.
    pub fn new(server: Arc<MapServer>, env: Env) -> Self {
        Self { server, clock: StoreClock::default(), env }
    }

    /// Sends a request. A request over a network would be awaited here, and could fail.
    fn request<T>(&self, step: impl FnOnce(&mut State) -> T) -> T {
        let sent = self.env.now();
        let (answer, at_us) = self.server.execute(step);
        self.clock.observe(at_us, Duration::from_micros(1), sent, self.env.now());
        answer
    }
}

#[async_trait]
impl Register for MapRegister {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        Ok(self.request(|state| state.cells.get(key).cloned()))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        Ok(self.request(|state| {
            let found = state.cells.get(key).map(|cell| &cell.version);
            let as_expected = match expect {
                Precondition::Absent => found.is_none(),
                Precondition::Version(version) => found == Some(version),
            };
            if !as_expected {
                return Write::Conflict;
            }
            state.writes += 1;
            let version = Version::new(state.writes.to_string());
            let Body { bytes: value, metadata } = body;
            state.cells.insert(key.to_owned(), VersionedValue { value, version: version.clone(), metadata });
            Write::Committed(version)
        }))
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        Ok(self.request(|state| match state.cells.get(key) {
            Some(cell) if cell.version == *version => {
                state.cells.remove(key);
                Deleted::Deleted
            }
            _ => Deleted::Conflict,
        }))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        let keys = self.request(|state| {
            let from = state.cells.range(prefix.to_owned()..);
            from.map(|(key, _)| key.clone()).take_while(|key| key.starts_with(prefix)).collect::<Vec<_>>()
        });
        stream::iter(keys).map(Ok).boxed()
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> RegisterCapabilities {
        let poll_interval = PollInterval { min: Duration::from_millis(5), max: Duration::from_millis(100) };
        let mut capabilities = RegisterCapabilities::new("map", poll_interval);
        // One lock decides about all writes. A client of a server that you do not know leaves this `false`.
        capabilities.trusted = true;
        capabilities.generations = true;
        capabilities.metadata = Some(2_048);
        capabilities
    }
}

/// Opens a locker on `server`.
pub fn open(server: &Arc<MapServer>) -> Locker {
    let register = MapRegister::new(server.clone(), Env::system());
    Locker::new(Arc::new(RegisterLeases::new(Arc::new(register), StoreOptions::default())))
}
