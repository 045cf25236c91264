//! Runs chaos on real servers. `./chaos` starts this program; see `./chaos --help`. The program starts the servers,
//! and starts itself again for each worker.

// A worker fails by panicking.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;

use leasehold_testkit::chaos::checker::judge;
use leasehold_testkit::chaos::options::Options;
use leasehold_testkit::chaos::report;
use leasehold_testkit::chaos::worker::{Orders, work};
use leasehold_testkit::process::end_at_panics;
use leasehold_testkit::stores::scenarios;
use tokio::signal::unix::{SignalKind, signal};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("worker") => {
            end_at_panics();
            work(Orders::read(&arguments[1..]).expect("a worker's orders")).await
        }
        Some("check") => check(&arguments[1..]),
        Some("list") => list(),
        _ => match Options::read(&arguments, &scenarios()) {
            Ok(options) => run(&options).await,
            Err(error) => {
                eprintln!("chaos: {error}");
                ExitCode::from(2)
            }
        },
    }
}

/// Runs the scenarios until they are done or the user interrupts them. Dropping the scenarios kills the processes
/// that they started.
async fn run(options: &Options) -> ExitCode {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt()).unwrap(), signal(SignalKind::terminate()).unwrap());
    tokio::select! {
        fine = report::run_and_report(options) => if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE },
        _ = interrupt.recv() => ExitCode::from(130),
        _ = terminate.recv() => ExitCode::from(143),
    }
}

/// Judges histories that were kept.
fn check(files: &[String]) -> ExitCode {
    if files.is_empty() {
        eprintln!("chaos: `check` needs a history");
        return ExitCode::from(2);
    }
    let mut fine = true;
    for file in files {
        let history = match std::fs::read_to_string(file) {
            Ok(history) => history,
            Err(error) => {
                eprintln!("chaos: {file}: {error}");
                return ExitCode::from(2);
            }
        };
        let verdict = judge(&history);
        println!("{file}: {:#?}", verdict.counts);
        for finding in &verdict.broken {
            println!("broken: {finding}");
        }
        for finding in &verdict.observed {
            println!("found, not promised: {finding}");
        }
        fine &= verdict.broken.is_empty();
    }
    if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn list() -> ExitCode {
    scenarios().into_iter().for_each(|scenario| println!("{}", scenario.name));
    ExitCode::SUCCESS
}
