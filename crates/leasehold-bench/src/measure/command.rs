//! The cost of running a command under a lock, from start to end: scenario g.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock, timeout};
use leasehold_testkit::launch::leasehold;
use tokio::process::Command;

use super::Run;
use crate::environment::Connection;
use crate::metrics::{RUN_P50, RUN_P90};
use crate::program::{MeasureError, file_name};
use crate::results::Sample;
use crate::roster::Contender;
use crate::stats::percentile;

/// The time limit of a command.
const LIMIT: Duration = Duration::from_secs(60);

/// The number of first runs, which do not count because they load programs into memory.
const WARM_UP: usize = 3;

/// Returns the number of runs in a round.
pub(super) fn runs(run: &Run<'_>) -> usize {
    // A run takes some milliseconds.
    (run.options.measured(run.scenario).as_secs_f64() * 20.0).ceil() as usize
}

pub(super) async fn measure(
    run: &Run<'_>,
    contender: &Contender,
    lock: &str,
    connection: &Connection<'_>,
) -> Result<Sample, MeasureError> {
    let (program, arguments) = command_line(run, contender, lock, connection)?;
    let mut times = Vec::new();
    for n in 0..WARM_UP + runs(run) {
        let mut command = Command::new(&program);
        command.args(&arguments).stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        // The user's configuration must not affect the results.
        command.env("XDG_CONFIG_HOME", run.environment.file("config"));
        let begin = SystemClock.now();
        let ended = timeout(&SystemClock, LIMIT, command.status()).await;
        let took = SystemClock.now().longest_since(begin);
        match ended {
            Some(Ok(status)) if status.success() => {}
            Some(Ok(status)) => {
                return Err(MeasureError::Failed(format!("{}: {status}", file_name(&program))));
            }
            Some(Err(error)) => {
                return Err(MeasureError::Failed(format!("{}: {error}", file_name(&program))));
            }
            None => return Err(MeasureError::Failed(format!("{} did not end", file_name(&program)))),
        }
        if n >= WARM_UP {
            times.push(took.as_secs_f64() * 1e3);
        }
    }
    let mut sample = Sample::default();
    sample.record(RUN_P50.name, percentile(&mut times, 50.0));
    sample.record(RUN_P90.name, percentile(&mut times, 90.0));
    Ok(sample)
}

fn command_line(
    run: &Run<'_>,
    contender: &Contender,
    lock: &str,
    connection: &Connection<'_>,
) -> Result<(PathBuf, Vec<String>), MeasureError> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<String>>();
    Ok(match contender.name {
        "leasehold run" => (ours()?, words(&["run", "-s", &connection.url(), lock, "--", "true"])),
        "leasehold run, three locks at once" => {
            let [one, two, three] = [1, 2, 3].map(|number| format!("{lock}-{number}"));
            (ours()?, words(&["run", "-s", &connection.url(), &one, &two, &three, "--", "true"]))
        }
        "leasehold run, three nested runs" => {
            let (ours, url) = (ours()?, connection.url());
            let program = ours.display().to_string();
            let nested = |number: u8| vec![format!("{lock}-{number}"), "--".to_owned()];
            let mut line = words(&["run", "-s", &url]);
            line.extend(nested(1));
            for number in [2, 3] {
                line.extend(words(&[&program, "run", "-s", &url]));
                line.extend(nested(number));
            }
            line.push("true".to_owned());
            (ours, line)
        }
        // The build with default features, as by `cargo install`, without the clients of other stores.
        "leasehold run, SQLite alone" => {
            let program = variable("LEASEHOLD_BENCH_SQLITE_ALONE")?;
            (program, words(&["run", "-s", &connection.url(), lock, "--", "true"]))
        }
        "flock" => {
            let file = run.environment.file(&format!("{lock}.flock")).display().to_string();
            ("flock".into(), words(&[&file, "true"]))
        }
        "etcdctl lock" => {
            let etcdctl = variable("LEASEHOLD_TEST_ETCDCTL")?;
            (etcdctl, words(&["--endpoints", &connection.address(), "lock", lock, "true"]))
        }
        _ => ("true".into(), Vec::new()),
    })
}

/// Returns the path of the command that was built together with this program.
fn ours() -> Result<PathBuf, MeasureError> {
    let ours = leasehold().map_err(|error| MeasureError::Failed(error.to_string()))?;
    if ours.exists() {
        return Ok(ours);
    }
    Err(MeasureError::Failed(
        "the leasehold command is not in the folder of this program: build the whole workspace".to_owned(),
    ))
}

fn variable(name: &str) -> Result<PathBuf, MeasureError> {
    let value = std::env::var_os(name).filter(|value| !value.is_empty());
    value
        .map(PathBuf::from)
        .ok_or_else(|| MeasureError::Failed(format!("{name} is not set: start the benchmark with ./bench")))
}
