//! What the suites, chaos and the benchmark ask of a store. The [stores](crate::stores) answer.

use std::fmt;
use std::path::Path;

use async_trait::async_trait;
use leasehold::LockName;

#[cfg(feature = "chaos")]
use crate::chaos::scenario::Scenario;
use crate::conformance::Harness;
use crate::launch::StartMeasured;
use crate::proxy::Seen;
use crate::servers::{Server, with_option};

/// What tests and the benchmark know of a store.
#[async_trait]
pub trait TestStore: fmt::Debug + Send + Sync {
    /// Its name: of its feature, and in the benchmark.
    fn name(&self) -> &'static str;

    /// What the suites run on. The first one stands for the store where one is enough.
    fn storages(&self) -> &'static [Storage];

    /// A URL of empty storage; of a store that keeps files, in `folder`.
    ///
    /// # Panics
    /// When `./test` has not started the server.
    fn fresh_url(&self, storage: &Storage, _folder: &Path) -> String {
        let url = storage.server.expect("storage on a server").fresh_url();
        if storage.options.is_empty() { url } else { with_option(&url, storage.options) }
    }

    /// Empty storage for one case of the conformance suite.
    fn harness(&'static self, storage: &'static Storage) -> Box<dyn Harness>;

    /// Deletes the record of `name` at `url`, as an operator would with the store's own tools.
    async fn delete_record(&self, url: &str, name: &LockName);

    /// Records at `url` that its server passed the examination, which would take each test seconds. Other tests examine
    /// servers, these among them: `refused.rs`, the doctor's.
    async fn vouch_for(&self, _url: &str) {}

    /// Who ends the lease of a holder that died.
    fn reaper(&self) -> Reaper {
        Reaper::Contenders
    }

    /// What the steps of a lock cost, where a proxy can count that.
    fn budget(&self) -> Option<Budget> {
        None
    }

    /// What chaos is made on.
    #[cfg(feature = "chaos")]
    fn scenarios(&self) -> &'static [Scenario] {
        &[]
    }

    /// How it is measured.
    fn bench(&self) -> Bench;
}

/// Storage that the suites run on: a server, and the options of the store URL.
#[derive(Clone, Copy, Debug)]
pub struct Storage {
    /// What its tests are called.
    pub name: &'static str,
    /// Where it is; `None` for files and memory.
    pub server: Option<Server>,
    /// Options of its store URL.
    pub options: &'static str,
    /// What can be done with it.
    pub kind: Kind,
}

/// Which suites run on a storage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// The conformance suite: it is of one process, or has no tokens.
    Alone,
    /// Those with several processes too.
    Shared,
    /// And those that count and harm its requests, which are HTTP; but for crowds that want permits, since the server does
    /// one thing at a time.
    Serial,
    /// All of them.
    Http,
}

/// Who ends the lease of a holder that died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaper {
    /// The death of its process, at once.
    Death,
    /// Contenders, by observation or by the store's clock.
    Contenders,
    /// Contenders, by the store's clock alone.
    StoreClock,
    /// The store itself.
    Server,
}

/// What the steps of a lock cost, in requests to its record.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// What kind of request it is, if it is one to the record of the lock `lock`.
    pub request: fn(&Seen) -> Option<String>,
    /// Whether each client takes another lock first: its examination of the server could not be told from what is counted.
    pub examines_first: bool,
    /// The first acquisition ever.
    pub first: &'static [&'static str],
    /// An acquisition by a client that did not see the lock before.
    pub cold: &'static [&'static str],
    /// What such a client is told while somebody else holds it.
    pub refusal: &'static [&'static str],
    /// The read of a waiter.
    pub read: &'static str,
    /// An acquisition by a client that knows the record, a renewal, a release.
    pub write: &'static str,
    /// The HTTP method of that.
    pub write_method: &'static str,
}

/// How a store is measured.
#[derive(Clone, Copy)]
pub struct Bench {
    /// Its name, and the server that stands for it.
    pub title: &'static str,
    /// The letters of the benchmark's scenarios that it is measured in unless the user says otherwise.
    pub scenarios: &'static str,
    /// Starts its server; `None` where there is none, and [`TestStore::fresh_url`] says where it is.
    pub server: Option<StartMeasured>,
}
