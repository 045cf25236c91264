//! The results, as stored in a file. A run replaces its own part of the file and keeps the other parts.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::roster::Role;
use crate::scenario::{Scenario, Store, USUAL_TTL};
use crate::stats::Spread;

/// The setting that holds the number of contending processes.
pub(crate) const PROCESSES: &str = "processes";
/// The setting that holds the number of locks of one process.
pub(crate) const LOCKS: &str = "locks";
/// The setting that holds the time to live.
pub(crate) const TTL: &str = "ttl, s";

/// All results.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) blocks: Vec<Block>,
}

/// The results of one scenario on one store, with one round trip and one load.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Block {
    /// The scenario's letter.
    pub(crate) scenario: String,
    pub(crate) store: String,
    /// The round trip that the proxy adds.
    pub(crate) rtt_ms: f64,
    /// The date of the measurement.
    pub(crate) date: String,
    /// The commit of the working tree, as `git rev-parse HEAD` prints it. Empty without git.
    pub(crate) commit: String,
    /// The command line.
    pub(crate) command: String,
    /// The number of processors of the machine.
    pub(crate) processors: usize,
    /// The settings of the contenders.
    pub(crate) settings: BTreeMap<String, f64>,
    pub(crate) rows: Vec<Row>,
}

/// The results of one contender.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) contender: String,
    pub(crate) title: String,
    /// [`Role::name`].
    pub(crate) role: String,
    /// One sample for each round. `None` if the contender was not measured in that round.
    pub(crate) samples: Vec<Option<Sample>>,
    /// The first reason why the contender was not measured.
    pub(crate) trouble: Option<String>,
}

/// The results of one contender in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Sample {
    /// The values by name; see [`metrics`](crate::metrics).
    pub(crate) metrics: BTreeMap<String, f64>,
    /// The requests by kind.
    pub(crate) requests: BTreeMap<String, u64>,
    /// How often the lock had two holders at the same time.
    pub(crate) violations: u64,
}

impl Sample {
    /// Records `value`, if there is one.
    pub(crate) fn record(&mut self, metric: &str, value: Option<f64>) {
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.metrics.insert(metric.to_owned(), value);
        }
    }
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::OursByDefault => "ours-by-default",
            Self::OursServed => "ours-served",
            Self::AnotherBuild => "another-build",
            Self::Peer => "peer",
            Self::Limit => "limit",
            Self::Conditional => "conditional",
        }
    }
}

impl Row {
    pub(crate) fn is(&self, role: Role) -> bool {
        self.role == role.name()
    }

    /// Returns the spread over all rounds.
    pub(crate) fn spread(&self, metric: &str) -> Option<Spread> {
        Spread::of(self.samples.iter().flatten().filter_map(|sample| sample.metrics.get(metric).copied()))
    }

    /// Returns the ratio to `other`, round by round, because the state of the machine in a round affects both
    /// contenders.
    pub(crate) fn times(&self, other: &Self, metric: &str) -> Option<Spread> {
        let rounds = self.samples.iter().zip(&other.samples);
        let ratios = rounds.filter_map(|(one, other)| {
            let of = |sample: &Option<Sample>| sample.as_ref()?.metrics.get(metric).copied();
            Some(of(one)? / of(other)?)
        });
        Spread::of(ratios)
    }

    pub(crate) fn violations(&self) -> u64 {
        self.samples.iter().flatten().map(|sample| sample.violations).sum()
    }

    /// Returns the requests of all rounds, by kind.
    pub(crate) fn requests(&self) -> BTreeMap<&str, u64> {
        let mut all = BTreeMap::new();
        for (kind, count) in self.samples.iter().flatten().flat_map(|sample| &sample.requests) {
            *all.entry(kind.as_str()).or_default() += count;
        }
        all
    }
}

impl Block {
    pub(crate) fn is_of(&self, scenario: Scenario) -> bool {
        self.scenario == scenario.letter()
    }

    pub(crate) fn ours(&self) -> Option<&Row> {
        self.rows.iter().find(|row| row.is(Role::Ours))
    }

    /// Returns the store's title and its distance.
    pub(crate) fn place(&self) -> String {
        let store = Store::named(&self.store).map_or(self.store.as_str(), |store| store.title());
        let mut place = store.to_owned();
        if self.rtt_ms != 0.0 {
            place.push_str(&format!(", {} ms away", self.rtt_ms));
        }
        if self.is_of(Scenario::Waiters) {
            place.push_str(&format!(", {} processes", self.setting(PROCESSES)));
        }
        if self.is_of(Scenario::Many) {
            place.push_str(&format!(", {} locks", self.setting(LOCKS)));
            if self.setting(TTL) != USUAL_TTL.as_secs() {
                place.push_str(&format!(", ttl {} s", self.setting(TTL)));
            }
        }
        place
    }

    /// Returns a setting that is a whole number, or 0.
    pub(crate) fn setting(&self, name: &str) -> u64 {
        self.settings.get(name).map_or(0, |value| *value as u64)
    }

    fn key(&self) -> (String, usize, u64, [u64; 3]) {
        let store = Store::all().position(|store| store.name() == self.store);
        let rtt_us = (self.rtt_ms * 1_000.0) as u64;
        let load = [PROCESSES, LOCKS, TTL].map(|name| self.setting(name));
        (self.scenario.clone(), store.unwrap_or(usize::MAX), rtt_us, load)
    }
}

impl Results {
    /// Reads `file`. Returns empty results if it does not exist.
    pub(crate) fn load(file: &Path) -> Result<Self, String> {
        match fs::read_to_string(file) {
            Ok(text) => {
                let wrong = |error| format!("{}: {error}; delete the file to start again", file.display());
                serde_json::from_str(&text).map_err(wrong)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", file.display())),
        }
    }

    pub(crate) fn save(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        write(file, &(text + "\n"))
    }

    /// Adds `block`. It replaces an earlier block of the same scenario, store, round trip, number of processes, number
    /// of locks and time to live.
    pub(crate) fn put(&mut self, block: Block) {
        self.blocks.retain(|other| other.key() != block.key());
        self.blocks.push(block);
        self.blocks.sort_by_key(Block::key);
    }

    pub(crate) fn of(&self, scenario: Scenario) -> Vec<&Block> {
        self.blocks.iter().filter(|block| block.is_of(scenario)).collect()
    }
}

/// Writes a file and creates its folders.
pub(crate) fn write(file: &Path, text: &str) -> Result<(), String> {
    let written = file.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(file, text));
    written.map_err(|error| format!("{}: {error}", file.display()))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns the row of a contender with these values, one for each round.
    pub(crate) fn row(contender: &str, role: Role, metric: &str, values: &[f64]) -> Row {
        let sample = |value: &f64| {
            let mut sample = Sample::default();
            sample.record(metric, Some(*value));
            Some(sample)
        };
        Row {
            contender: contender.to_owned(),
            title: contender.to_owned(),
            role: role.name().to_owned(),
            samples: values.iter().map(sample).collect(),
            trouble: None,
        }
    }

    pub(crate) fn block(scenario: Scenario, store: &str, rtt_ms: f64, rows: Vec<Row>) -> Block {
        Block {
            scenario: scenario.letter().to_owned(),
            store: store.to_owned(),
            rtt_ms,
            date: "2026-01-02".to_owned(),
            commit: "0123456789".to_owned(),
            command: "./bench".to_owned(),
            processors: 2,
            settings: BTreeMap::from([("rounds".to_owned(), 3.0)]),
            rows,
        }
    }

    #[test]
    fn ratios_are_made_round_by_round() {
        let (ours, mut peer) = (
            row("leasehold", Role::Ours, "m", &[10.0, 40.0, 20.0]),
            row("peer", Role::Peer, "m", &[5.0, 10.0, 20.0]),
        );
        let times = ours.times(&peer, "m").unwrap();
        assert_eq!((times.median, times.least, times.most), (2.0, 1.0, 4.0));
        peer.samples[1] = None;
        assert_eq!(
            ours.times(&peer, "m").unwrap().most,
            2.0,
            "a round without one of the two does not count"
        );
        assert_eq!(ours.times(&peer, "other"), None);
    }

    #[test]
    fn a_run_replaces_its_part_and_leaves_the_others() {
        let mut results = Results::default();
        results.put(block(Scenario::Tasks, "s3", 5.0, vec![]));
        results.put(block(Scenario::Tasks, "s3", 0.0, vec![]));
        results.put(block(Scenario::Uncontended, "mem", 0.0, vec![]));
        results.put(block(Scenario::Tasks, "s3", 5.0, vec![row("x", Role::Peer, "m", &[1.0])]));
        let keys: Vec<_> = results
            .blocks
            .iter()
            .map(|block| (block.scenario.as_str(), block.rtt_ms, block.rows.len()))
            .collect();
        assert_eq!(keys, [("a", 0.0, 0), ("b", 0.0, 0), ("b", 5.0, 1)]);
    }

    #[test]
    fn runs_with_other_numbers_of_locks_remain() {
        let mut results = Results::default();
        for (locks, ttl, place) in [
            (10_000.0, 30.0, "SQLite (a file), 10000 locks"),
            (100_000.0, 30.0, "SQLite (a file), 100000 locks"),
            (100_000.0, 120.0, "SQLite (a file), 100000 locks, ttl 120 s"),
        ] {
            let mut block = block(Scenario::Many, "sqlite", 0.0, vec![]);
            block.settings.extend([(LOCKS.to_owned(), locks), (TTL.to_owned(), ttl)]);
            assert_eq!(block.place(), place);
            results.put(block.clone());
            results.put(block);
        }
        assert_eq!(results.blocks.len(), 3);
    }

    #[test]
    fn stored_results_are_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("below/results.json");
        assert_eq!(Results::load(&file), Ok(Results::default()));
        let mut results = Results::default();
        results.put(block(Scenario::Tasks, "s3", 5.0, vec![row("x", Role::Peer, "m", &[1.0, 2.5])]));
        results.save(&file).unwrap();
        assert_eq!(Results::load(&file), Ok(results));
        write(&file, "{").unwrap();
        assert!(Results::load(&file).unwrap_err().contains("results.json"));
    }
}
