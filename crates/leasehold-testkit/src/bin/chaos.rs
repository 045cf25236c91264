//! Chaos on real servers. `./chaos --help` says how to run it: the script starts this program, which starts all others,
//! itself again among them.

// A panic is how a worker fails.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::process::ExitCode;
use std::time::Duration;

use leasehold_testkit::chaos::checker::judge;
use leasehold_testkit::chaos::conductor::{Outcome, Settings, run};
use leasehold_testkit::chaos::report;
use leasehold_testkit::chaos::scenario::{SCENARIOS, Scenario};
use leasehold_testkit::chaos::worker::{Orders, work};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("worker") => work(Orders::read(&arguments[1..]).expect("a worker's orders")).await,
        Some("check") => check(&arguments[1]),
        _ => tokio::select! {
            code = conduct(&arguments) => code,
            // Everything that was started is killed as it is dropped.
            _ = tokio::signal::ctrl_c() => ExitCode::from(130),
        },
    }
}

/// Judges a history that was kept.
fn check(file: &str) -> ExitCode {
    let verdict = judge(&std::fs::read_to_string(file).unwrap());
    println!("{:#?}", verdict.counts);
    for finding in verdict.broken.iter().chain(&verdict.observed) {
        println!("{finding}");
    }
    if verdict.broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// `NAMES SECONDS SEED`
async fn conduct(arguments: &[String]) -> ExitCode {
    let [names, seconds, seed] = arguments else { panic!("NAMES SECONDS SEED") };
    let chosen: Vec<&Scenario> = SCENARIOS.iter().filter(|scenario| names.split(',').any(|name| scenario.name.starts_with(name))).collect();
    let settings = Settings {
        seed: seed.parse().unwrap(),
        duration: Duration::from_secs(seconds.parse().unwrap()),
        faketime: std::env::var("LEASEHOLD_TEST_FAKETIME").unwrap(),
    };
    println!("seed {seed}");
    let mut outcomes: Vec<Outcome> = Vec::new();
    for scenario in chosen {
        let outcome = run(scenario, &settings).await.unwrap();
        println!("{}", report::told(&outcome));
        outcomes.push(outcome);
    }
    println!("{:#?}", report::faults(&outcomes));
    if outcomes.iter().all(|outcome| outcome.wrong.is_empty()) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
