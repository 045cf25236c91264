//! The command line of `./bench`.

use std::path::PathBuf;
use std::time::Duration;

use crate::scenario::{Load, Scenario, Store, USUAL_LOCKS, USUAL_TTL};

/// The arguments.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    /// The scenarios, in the order in which they run.
    pub(crate) scenarios: Vec<Scenario>,
    /// The stores. `None` means the default stores of each scenario.
    pub(crate) stores: Option<Vec<Store>>,
    /// If not empty, only contenders whose name contains one of these texts are measured.
    pub(crate) only: Vec<String>,
    /// How many times each contender is measured. `None` means the scenario's default.
    pub(crate) rounds: Option<u32>,
    /// How long each contender is measured in each round. `None` means the scenario's default.
    pub(crate) seconds: Option<f64>,
    /// The round trips to add, in milliseconds. `None` means the scenario's default.
    pub(crate) round_trips_ms: Option<Vec<f64>>,
    /// How many locks one process holds in scenario f.
    pub(crate) locks: u64,
    /// The time to live of these locks.
    pub(crate) ttl: Duration,
    /// The numbers of processes in scenario i.
    pub(crate) processes: Vec<u32>,
    /// How long each process holds the lock in scenario i.
    pub(crate) hold: Duration,
    /// How often each process acquires the lock in scenario i. `None` means as often as it can during the measurement.
    pub(crate) turns: Option<u32>,
    /// The folder for the results.
    pub(crate) out: PathBuf,
    /// Whether to update docs/performance.md and the pages of the scenarios.
    pub(crate) write: bool,
    /// Whether to measure nothing and only show the existing results.
    pub(crate) report_only: bool,
    /// The arguments as typed.
    pub(crate) typed: Vec<String>,
}

const DEFAULT_OUT: &str = "target/bench";

impl Options {
    /// Parses the arguments.
    pub(crate) fn read(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            scenarios: Vec::new(),
            stores: None,
            only: Vec::new(),
            rounds: None,
            seconds: None,
            round_trips_ms: None,
            locks: USUAL_LOCKS,
            ttl: USUAL_TTL,
            processes: vec![2, 5, 17],
            hold: Duration::from_millis(500),
            turns: None,
            out: DEFAULT_OUT.into(),
            write: false,
            report_only: false,
            typed: arguments.to_vec(),
        };
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or_else(|| format!("`{argument}` needs a value"));
            match argument.as_str() {
                "--rounds" => options.rounds = Some(whole(argument, value()?, 1..=1_000)?),
                "--processes" => options.processes = processes(argument, value()?)?,
                "--hold" => options.hold = Duration::from_secs_f64(seconds(value()?)?),
                "--turns" => options.turns = Some(whole(argument, value()?, 1..=1_000)?),
                "--locks" => options.locks = whole(argument, value()?, 1..=1_000_000)?.into(),
                "--ttl" => options.ttl = Duration::from_secs_f64(seconds(value()?)?),
                "--seconds" => options.seconds = Some(seconds(value()?)?),
                "--rtt" => options.round_trips_ms = Some(round_trips(value()?)?),
                "--out" => options.out = value()?.into(),
                "--only" => options.only.extend(value()?.split(',').map(str::to_owned)),
                "--write" => options.write = true,
                "report" => options.report_only = true,
                option if option.starts_with('-') => {
                    return Err(format!("unknown option `{option}`; see ./bench --help"));
                }
                name => options.add(name)?,
            }
        }
        if options.scenarios.is_empty() {
            options.scenarios = Scenario::ALL.to_vec();
        }
        options.scenarios.sort_unstable();
        options.scenarios.dedup();
        Ok(options)
    }

    fn add(&mut self, name: &str) -> Result<(), String> {
        if let Some(scenario) = Scenario::named(name) {
            self.scenarios.push(scenario);
        } else if let Some(store) = Store::named(name) {
            self.stores.get_or_insert_default().push(store);
        } else {
            let scenarios =
                Scenario::ALL.iter().map(|scenario| format!("{} or {}", scenario.letter(), scenario.name()));
            let stores = Store::all().map(|store| store.name().to_owned());
            let known: Vec<String> = scenarios.chain(stores).collect();
            let more = if cfg!(feature = "servers") { "" } else { "; --all-features adds more stores" };
            return Err(format!(
                "unknown scenario or store `{name}`; choose from: {}{more}",
                known.join(", ")
            ));
        }
        Ok(())
    }

    /// Returns the runs: each scenario on each of its stores, with each round trip and each number of processes.
    pub(crate) fn plan(&self) -> Vec<(Scenario, Store, f64, Load)> {
        let mut plan = Vec::new();
        for scenario in self.scenarios.iter().copied() {
            for store in scenario.stores() {
                if self.stores.as_ref().is_some_and(|stores| !stores.contains(&store)) {
                    continue;
                }
                for round_trip in self.round_trips(scenario, store) {
                    let loads = self.loads(scenario).into_iter();
                    plan.extend(loads.map(|load| (scenario, store, round_trip, load)));
                }
            }
        }
        plan
    }

    fn loads(&self, scenario: Scenario) -> Vec<Load> {
        let load = scenario.load();
        if scenario != Scenario::Waiters {
            return vec![load];
        }
        let (hold, turns) = (self.hold, self.turns);
        self.processes.iter().map(|processes| Load { processes: *processes, hold, turns, ..load }).collect()
    }

    fn round_trips(&self, scenario: Scenario, store: Store) -> Vec<f64> {
        if !store.has_server() || !scenario.has_distances() {
            return vec![0.0];
        }
        self.round_trips_ms.clone().unwrap_or_else(|| vec![0.0, 5.0, 50.0])
    }

    /// Returns how many times each contender is measured.
    pub(crate) fn rounds(&self, scenario: Scenario) -> u32 {
        // One round of this scenario already measures for a long time.
        let usual = if scenario == Scenario::Many { 2 } else { 5 };
        self.rounds.unwrap_or(usual)
    }

    /// Returns how long a contender is measured in a round.
    pub(crate) fn measured(&self, scenario: Scenario) -> Duration {
        let usual = match scenario {
            Scenario::Uncontended => 3.0,
            Scenario::Many | Scenario::Waiters => 40.0,
            _ => 5.0,
        };
        Duration::from_secs_f64(self.seconds.unwrap_or(usual))
    }
}

fn whole(option: &str, text: &str, range: std::ops::RangeInclusive<u32>) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| range.contains(number));
    number.ok_or_else(|| {
        format!("`{text}` for `{option}` is not a number from {} to {}", range.start(), range.end())
    })
}

fn processes(option: &str, text: &str) -> Result<Vec<u32>, String> {
    text.split(',').map(|number| whole(option, number, 1..=1_000)).collect()
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.05..=3_600.0).contains(seconds));
    seconds.ok_or_else(|| format!("`{text}` is not a number of seconds from 0.05 to 3600"))
}

fn round_trips(text: &str) -> Result<Vec<f64>, String> {
    let read = |part: &str| part.parse::<f64>().ok().filter(|ms| (0.0..=10_000.0).contains(ms));
    let all: Option<Vec<f64>> = text.split(',').map(read).collect();
    let mut all =
        all.ok_or_else(|| format!("`{text}` is not a list of round trips in milliseconds, such as 0,5,50"))?;
    all.sort_by(f64::total_cmp);
    all.dedup();
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(arguments: &[&str]) -> Result<Options, String> {
        Options::read(&arguments.iter().map(|argument| (*argument).to_owned()).collect::<Vec<_>>())
    }

    #[cfg(feature = "servers")]
    fn store(name: &str) -> Store {
        Store::named(name).unwrap()
    }

    #[cfg(feature = "servers")]
    #[test]
    fn names_are_scenarios_or_stores() {
        let options = read(&["etcd", "d", "a", "uncontended", "--rtt", "5,0,5"]).unwrap();
        assert_eq!(options.scenarios, [Scenario::Uncontended, Scenario::HandOff]);
        assert_eq!(options.stores, Some(vec![store("etcd")]));
        let plan: Vec<_> =
            options.plan().into_iter().map(|(scenario, store, ms, _)| (scenario, store, ms)).collect();
        let expected = [Scenario::Uncontended, Scenario::HandOff]
            .map(|scenario| [(scenario, store("etcd"), 0.0), (scenario, store("etcd"), 5.0)]);
        assert_eq!(plan, expected.concat());
    }

    #[cfg(feature = "servers")]
    #[test]
    fn delays_are_added_only_to_stores_with_a_server() {
        assert!(read(&["a", "sqlite", "mem"]).unwrap().plan().iter().all(|(_, _, ms, _)| *ms == 0.0));
        assert_eq!(read(&["a", "s3"]).unwrap().plan().len(), 3);
        assert_eq!(
            read(&["e", "s3", "--rtt", "5"]).unwrap().plan(),
            [(Scenario::Recovery, store("s3"), 0.0, Scenario::Recovery.load())]
        );
        assert_eq!(read(&["c", "mem"]).unwrap().plan(), [], "no two processes share one memory");
    }

    #[test]
    fn waiters_are_measured_with_each_number_of_processes() {
        let options = read(&["i", "sqlite", "--processes", "3,100", "--hold", "2", "--turns", "1"]).unwrap();
        let loads: Vec<_> = options.plan().into_iter().map(|(.., load)| load).collect();
        let load = Load { processes: 3, tasks: 1, hold: Duration::from_secs(2), turns: Some(1) };
        assert_eq!(loads, [load, Load { processes: 100, ..load }]);
    }

    #[test]
    fn wrong_arguments_are_named() {
        for (wrong, says) in [
            (&["x"][..], "`x`"),
            (&["--rounds"], "`--rounds` needs a value"),
            (&["--rounds", "0"], "`0`"),
            (&["--seconds", "-1"], "`-1`"),
            (&["--seconds", "inf"], "`inf`"),
            (&["--rtt", "0,x"], "`0,x`"),
            (&["--processes", "2,0"], "`0`"),
            (&["--loud"], "`--loud`"),
        ] {
            let error = read(wrong).unwrap_err();
            assert!(error.contains(says), "{wrong:?}: {error}");
        }
    }
}
