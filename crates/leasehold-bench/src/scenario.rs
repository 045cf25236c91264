//! The scenarios, and the stores that they run on.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use leasehold_testkit::stores::STORES;
use leasehold_testkit::test_store::{Bench, TestStore};

/// The default ttl of leasehold.
pub(crate) const USUAL_TTL: Duration = Duration::from_secs(30);

/// How many locks one process holds in [`Scenario::Many`], if `--locks` does not say it.
pub(crate) const USUAL_LOCKS: u64 = 10_000;

/// A scenario that is measured for every contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scenario {
    Uncontended,
    Tasks,
    Processes,
    HandOff,
    Recovery,
    Many,
    Run,
    Waiters,
    First,
}

/// How many tasks contend for one lock, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    pub(crate) processes: u32,
    /// The number of tasks in each process.
    pub(crate) tasks: u32,
    /// How long each task holds the lock.
    pub(crate) hold: Duration,
    /// How often each task acquires the lock. `None` means as often as it can during the measurement.
    pub(crate) turns: Option<u32>,
}

impl Scenario {
    pub(crate) const ALL: &[Self] = &[
        Self::Uncontended,
        Self::Tasks,
        Self::Processes,
        Self::HandOff,
        Self::Recovery,
        Self::Many,
        Self::Run,
        Self::Waiters,
        Self::First,
    ];

    /// Returns its letter on the command line.
    pub(crate) fn letter(self) -> &'static str {
        match self {
            Self::Uncontended => "a",
            Self::Tasks => "b",
            Self::Processes => "c",
            Self::HandOff => "d",
            Self::Recovery => "e",
            Self::Many => "f",
            Self::Run => "g",
            Self::Waiters => "i",
            Self::First => "j",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Uncontended => "uncontended",
            Self::Tasks => "tasks",
            Self::Processes => "processes",
            Self::HandOff => "hand-off",
            Self::Recovery => "recovery",
            Self::Many => "many",
            Self::Run => "run",
            Self::Waiters => "waiters",
            Self::First => "first",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Uncontended => "One task takes and releases an uncontended lock",
            Self::Tasks => "100 tasks of one process want one lock",
            Self::Processes => "16 processes with 8 tasks each want one lock",
            Self::HandOff => "From a release to the grant of another process",
            Self::Recovery => "A holder is killed (-9) while another process waits",
            Self::Many => "One process holds many locks",
            Self::Run => "A command under a lock",
            Self::Waiters => "Processes wait for one lock and hold it in turn",
            Self::First => "The first grant of a lock",
        }
    }

    /// Returns how many tasks contend for the lock, and how. Scenario i has further options.
    pub(crate) fn load(self) -> Load {
        let (processes, tasks, hold_ms) = match self {
            Self::Tasks => (1, 100, 0),
            Self::Processes => (16, 8, 2),
            Self::HandOff => (4, 1, 5),
            _ => (1, 1, 0),
        };
        Load { processes, tasks, hold: Duration::from_millis(hold_ms), turns: None }
    }

    /// Returns the stores that it runs on by default.
    pub(crate) fn stores(self) -> Vec<Store> {
        Store::all().filter(|store| store.bench().scenarios.contains(self.letter())).collect()
    }

    /// Returns whether the distance of the server matters.
    pub(crate) fn has_distances(self) -> bool {
        matches!(self, Self::Uncontended | Self::Tasks | Self::Processes | Self::HandOff | Self::First)
    }

    /// Returns how many rounds come first and do not count. A server with a just-in-time compiler (DynamoDB Local) gets
    /// faster for minutes. That matters for [`Uncontended`](Self::Uncontended), which measures nothing but requests.
    pub(crate) fn warm_up_rounds(self) -> u32 {
        u32::from(self == Self::Uncontended)
    }

    /// Returns the scenario with this letter or name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|scenario| scenario.letter() == name || scenario.name() == name)
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "({}) {}", self.letter(), self.name())
    }
}

/// A store that the testkit knows, on one of the servers on which it is measured.
#[derive(Clone, Copy)]
pub(crate) struct Store {
    name: &'static str,
    bench: Bench,
    store: &'static dyn TestStore,
}

impl Store {
    pub(crate) fn all() -> impl Iterator<Item = Self> {
        STORES.iter().flat_map(|&store| {
            let others = store.other_benches().iter().copied();
            let all = std::iter::once((store.name(), store.bench())).chain(others);
            all.map(move |(name, bench)| Self { name, bench, store })
        })
    }

    pub(crate) fn name(self) -> &'static str {
        self.name
    }

    /// Returns its title: the store, and the server that stands in for it.
    pub(crate) fn title(self) -> &'static str {
        self.bench().title
    }

    pub(crate) fn bench(self) -> Bench {
        self.bench
    }

    /// Returns whether it has a server, so that requests go through the network.
    pub(crate) fn has_server(self) -> bool {
        self.bench().server.is_some()
    }

    /// Returns the URL of a store without a server, with files in `folder`.
    pub(crate) fn url_in(self, folder: &Path) -> String {
        self.store.fresh_url(&self.store.storages()[0], folder)
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::all().find(|store| store.name == name)
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for Store {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_among_scenarios_and_stores() {
        let scenarios = Scenario::ALL.iter().flat_map(|scenario| [scenario.letter(), scenario.name()]);
        let names: Vec<&str> = scenarios.chain(Store::all().map(Store::name)).collect();
        for (n, name) in names.iter().enumerate() {
            assert!(!names[..n].contains(name), "{name}");
        }
        for scenario in Scenario::ALL {
            assert_eq!(Scenario::named(scenario.letter()), Some(*scenario));
            assert_eq!(Scenario::named(scenario.name()), Some(*scenario));
        }
    }

    #[test]
    fn stores_are_measured_in_scenarios_that_there_are() {
        for store in Store::all() {
            let letters = store.bench().scenarios.chars().map(|letter| letter.to_string());
            assert!(letters.clone().count() > 0, "{store:?}");
            assert!(letters.into_iter().all(|letter| Scenario::named(&letter).is_some()), "{store:?}");
        }
    }
}
