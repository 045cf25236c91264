//! Measures contenders in rounds, each contender once per round, so that drift affects all of them equally.

mod command;
mod contend;
mod first;
mod many;
mod recovery;

use std::collections::BTreeMap;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};

use crate::environment::{Connection, Environment};
use crate::options::Options;
use crate::program::{MeasureError, Program};
use crate::results::{Block, LOCKS, PROCESSES, Row, Sample, TTL};
use crate::roster::Contender;
use crate::scenario::{Load, Scenario, Store};

/// How long a contender may take to get ready. Starting 16 Java programs on two processors takes some seconds, and a
/// lock that was left held must lapse first.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// How long a program may take to exit.
const END_TIMEOUT: Duration = Duration::from_secs(60);

/// One scenario on one store, with one round trip.
pub(crate) struct Run<'a> {
    pub(crate) scenario: Scenario,
    pub(crate) environment: &'a Environment,
    pub(crate) store: Store,
    pub(crate) round_trip_ms: f64,
    pub(crate) load: Load,
    pub(crate) options: &'a Options,
}

impl Run<'_> {
    /// Measures all contenders and prints the progress on standard error.
    pub(crate) async fn measure(&self) -> Block {
        let settings = self.settings();
        let all = Contender::of(self.scenario, self.store);
        let is_selected = |one: &&&Contender| {
            let only = &self.options.only;
            only.is_empty() || only.iter().any(|part| one.name.contains(part.as_str()))
        };
        let all: Vec<&Contender> = all.iter().filter(is_selected).copied().collect();
        let mut rows: Vec<Row> = all.iter().map(|one| row(one)).collect();
        // Put a random number into the lock names, so that no lock is left over from an earlier measurement.
        let measurement = fastrand::u32(..);
        let warm_up_rounds = self.scenario.warm_up_rounds() as usize;
        for round in 0..warm_up_rounds + self.options.rounds(self.scenario) as usize {
            for turn in 0..all.len() {
                // A different contender comes first in each round.
                let n = (turn + round) % all.len();
                let mut sample = None;
                if rows[n].trouble.is_none() {
                    // Use a new lock in each round, because a program that ends may leave its last lock held.
                    let lock = format!("{}-{round}", self.lock(all[n], measurement));
                    match self.one(all[n], &lock, round).await {
                        Ok(measured) => sample = Some(measured),
                        Err(error) => fail(&mut rows[n], &error),
                    }
                }
                if round >= warm_up_rounds {
                    rows[n].samples.push(sample);
                }
            }
        }
        Block {
            scenario: self.scenario.letter().to_owned(),
            store: self.store.name().to_owned(),
            rtt_ms: self.round_trip_ms,
            date: today(),
            commit: git(&["rev-parse", "HEAD"]).unwrap_or_default(),
            command: format!("./bench {}", self.options.typed.join(" ")).trim_end().to_owned(),
            processors: std::thread::available_parallelism().map_or(1, usize::from),
            settings,
            rows,
        }
    }

    /// Returns the name of the lock that `contender` uses.
    fn lock(&self, contender: &Contender, measurement: u32) -> String {
        format!("{}-{}-{measurement}", self.scenario.name(), contender.name).replace(' ', "-")
    }

    async fn connect(&self) -> Result<Connection<'_>, MeasureError> {
        let round_trip = Duration::from_secs_f64(self.round_trip_ms / 1e3);
        self.environment.connect(round_trip).await.map_err(MeasureError::Failed)
    }

    async fn one(&self, contender: &Contender, lock: &str, round: usize) -> Result<Sample, MeasureError> {
        match self.scenario {
            Scenario::Uncontended
            | Scenario::Tasks
            | Scenario::Processes
            | Scenario::HandOff
            | Scenario::Waiters => {
                // Acquire the lock once before the measurement, because the first grant of a lock may be slower.
                contend::take_once(contender, lock, &self.connect().await?).await?;
                contend::measure(self, contender, lock, &mut self.connect().await?).await
            }
            Scenario::First => first::measure(contender, lock, &mut self.connect().await?).await,
            Scenario::Recovery => {
                recovery::measure(self, contender, lock, round, &self.connect().await?).await
            }
            Scenario::Many => many::measure(self, contender, lock, &mut self.connect().await?).await,
            Scenario::Run => command::measure(self, contender, lock, &self.connect().await?).await,
        }
    }

    /// Returns the settings of the contenders.
    fn settings(&self) -> BTreeMap<String, f64> {
        let mut settings =
            BTreeMap::from([("rounds".to_owned(), f64::from(self.options.rounds(self.scenario)))]);
        let mut set = |name: &str, value: f64| settings.insert(name.to_owned(), value);
        match self.scenario {
            Scenario::Run => {
                set("runs in each round", command::runs(self) as f64);
            }
            Scenario::First => {}
            Scenario::Recovery => {
                set(TTL, recovery::TTL.as_secs_f64());
            }
            Scenario::Many => {
                set(LOCKS, self.options.locks as f64);
                set(TTL, self.options.ttl.as_secs_f64());
                set("seconds", self.options.measured(self.scenario).as_secs_f64());
            }
            _ => {
                let load = self.load;
                set(PROCESSES, f64::from(load.processes));
                set("tasks in each", f64::from(load.tasks));
                set("held, ms", load.hold.as_secs_f64() * 1e3);
                match load.turns {
                    Some(turns) => set("turns of each", f64::from(turns)),
                    None => set("seconds", self.options.measured(self.scenario).as_secs_f64()),
                };
            }
        }
        settings
    }
}

fn fail(row: &mut Row, error: &MeasureError) {
    eprintln!("  {}: {error}", row.contender);
    row.trouble = Some(error.to_string());
}

fn row(contender: &Contender) -> Row {
    let trouble = if contender.scenarios.contains(&Scenario::Run) { None } else { contender.command().err() };
    if let Some(trouble) = &trouble {
        eprintln!("  {}: not measured: {trouble}", contender.name);
    }
    Row {
        contender: contender.name.to_owned(),
        title: contender.title.to_owned(),
        role: contender.role.name().to_owned(),
        samples: Vec::new(),
        trouble,
    }
}

/// Starts `contender` with `verb`. The caller must wait until it prints `ready`.
fn start(
    contender: &Contender,
    connection: &Connection<'_>,
    verb: &str,
    options: &[(&str, String)],
) -> Result<Program, MeasureError> {
    let command = contender.command().map_err(MeasureError::Failed)?;
    let mut arguments = vec![verb.to_owned()];
    arguments.extend(options.iter().flat_map(|(name, value)| [format!("--{name}"), value.clone()]));
    arguments.extend(connection.options(contender.place));
    Program::start(&command, &arguments)
}

/// Waits until `program` prints that it was granted the lock. Returns when that was, in microseconds on the wall clock.
async fn granted(program: &mut Program, within: Duration) -> Result<u64, MeasureError> {
    let when = program.expect_line("granted", within).await?;
    when.parse().map_err(|_| MeasureError::Failed(format!("{when:?} is not a time")))
}

fn now_us() -> u64 {
    SystemClock.now().wall_us()
}

/// Returns what git prints, or `None` if it fails.
pub(crate) fn git(arguments: &[&str]) -> Option<String> {
    let output = std::process::Command::new("git").args(arguments).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn today() -> String {
    let now = i64::try_from(now_us()).ok().and_then(|us| jiff::Timestamp::from_microsecond(us).ok());
    now.map_or_else(String::new, |now| now.strftime("%Y-%m-%d").to_string())
}
