//! [`TestStore`] describes a store to the suites, chaos and the benchmark. The [stores](crate::stores) implement it.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use async_trait::async_trait;
use leasehold::LockName;
use leasehold::lease::Ttl;

#[cfg(feature = "chaos")]
use crate::chaos::scenario::Scenario;
use crate::conformance::Harness;
use crate::launch::StartMeasured;
use crate::proxy::Seen;
use crate::servers::{Server, with_option};

/// A store, as the tests and the benchmark see it.
#[async_trait]
pub trait TestStore: fmt::Debug + Send + Sync {
    /// Returns the name of the store's feature, which the benchmark also uses.
    fn name(&self) -> &'static str;

    /// Returns the storages that the suites run on. Tests that need only one use the first one.
    fn storages(&self) -> &'static [Storage];

    /// Returns the URL of empty storage. A store that uses files keeps them in `folder`.
    ///
    /// # Panics
    /// When `./test` has not started the server.
    fn fresh_url(&self, storage: &Storage, _folder: &Path) -> String {
        let url = storage.server.expect("storage on a server").fresh_url();
        if storage.options.is_empty() { url } else { with_option(&url, storage.options) }
    }

    /// Returns empty storage for a conformance case.
    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness>;

    /// Deletes the record of `name` at `url`, as an operator would with the store's own tools.
    async fn delete_record(&self, url: &str, name: &LockName);

    /// Returns everything that a reader of the store at `url` can read about `name`, with the store's own tools.
    async fn read_record(&self, url: &str, name: &LockName) -> String;

    /// Records at `url` that its server has passed the examination, which would take seconds in each test. The tests
    /// in `refused.rs` and those of the doctor do examine servers.
    async fn vouch_for(&self, _url: &str) {}

    /// Returns what ends the lease of a holder that died.
    fn reaper(&self) -> Reaper {
        Reaper::Contenders
    }

    /// Returns the requests that each step of a lock costs, if a proxy can count them.
    fn budget(&self) -> Option<Budget> {
        None
    }

    /// Returns the chaos scenarios of the store.
    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        &[]
    }

    /// Returns how the benchmark measures the store.
    fn bench(&self) -> Bench;

    /// Returns other servers of the store on which the benchmark measures it, and the names by which it calls them.
    fn other_benches(&self) -> &'static [(&'static str, Bench)] {
        &[]
    }
}

/// Storage that the suites run on: a server, and options of the store URL.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    /// The name of the storage, which is also the name of its tests.
    pub name: &'static str,
    /// The server; `None` for files and memory.
    pub server: Option<Server>,
    /// Options of its store URL.
    pub options: &'static str,
    /// The suites that run on it.
    pub kind: Kind,
    /// The ttl of leases that must lapse or be renewed in a test.
    pub ttl: Duration,
    /// The longest ttl that it supports.
    pub longest_ttl: Duration,
}

impl Storage {
    /// Describes storage on `server`, without options.
    pub const fn at(name: &'static str, server: Server, kind: Kind) -> Self {
        Self { server: Some(server), ..Self::local(name, kind) }
    }

    /// Describes storage in a file or in the memory of this process.
    pub const fn local(name: &'static str, kind: Kind) -> Self {
        Self { name, server: None, options: "", kind, ttl: Duration::from_secs(2), longest_ttl: Ttl::MAX }
    }

    /// Sets the ttl: the shortest one that the storage supports, or a longer one for a slow server, whose response
    /// must arrive while the lease is valid.
    #[must_use]
    pub const fn with_ttl(self, ttl: Duration) -> Self {
        Self { ttl, ..self }
    }

    /// Sets the longest ttl that the storage supports.
    #[must_use]
    pub const fn with_longest_ttl(self, longest_ttl: Duration) -> Self {
        Self { longest_ttl, ..self }
    }

    /// Sets the options of the store URL.
    #[must_use]
    pub const fn with(self, options: &'static str) -> Self {
        Self { options, ..self }
    }
}

/// Which suites run on a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Only the conformance suite, for example because the storage belongs to one process or has no tokens.
    Alone,
    /// Also the suites with several processes.
    Shared,
    /// Also the suites that harm HTTP requests, but neither those that count them nor the tests with many processes,
    /// because the server handles one request at a time.
    Serial,
    /// All suites.
    Http,
}

/// What ends the lease of a holder that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaper {
    /// The death of its process, immediately.
    Death,
    /// Contenders, by observation or by the store's clock.
    Contenders,
    /// Contenders that wait, by observation alone.
    Waiters,
    /// Contenders, by the store's clock alone.
    StoreClock,
    /// The store itself.
    Server,
}

/// The requests to the lock's record that each step costs.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Returns the kind of a request if it concerns the record of the lock named `lock`.
    pub request: fn(&Seen) -> Option<String>,
    /// Whether each client must acquire another lock first. Otherwise, the requests of its examination of the server
    /// would be counted too.
    pub examines_first: bool,
    /// The first acquisition ever.
    pub first: &'static [&'static str],
    /// An acquisition by a client that has not seen the lock before.
    pub cold: &'static [&'static str],
    /// A refused acquisition by such a client.
    pub refusal: &'static [&'static str],
    /// A waiter's read.
    pub read: &'static str,
    /// An acquisition by a client that knows the record, a renewal, or a release.
    pub write: &'static str,
    /// How many such writes a waiter sends to join the line.
    pub joins: usize,
    /// The HTTP method of `write`.
    pub write_method: &'static str,
}

/// How the benchmark measures a store.
#[derive(Clone, Copy)]
pub struct Bench {
    /// Its title: the store, and the server that stands in for it.
    pub title: &'static str,
    /// The letters of the benchmark scenarios that run by default.
    pub scenarios: &'static str,
    /// Starts the server. `None` if there is no server; the location then comes from [`TestStore::fresh_url`].
    pub server: Option<StartMeasured>,
}
