//! Measures leasehold and other lock clients in turn, on the same servers. `./bench` starts this program; see
//! `./bench --help`. It starts the servers and the contenders. Some of the contenders are this program, started again.
//! docs/performance.md describes the method and the results.
//!
//! - [`scenario`], [`roster`], [`metrics`]: the scenarios, the contenders and the metrics.
//! - [`measure`]: the rounds, and the measurement in each round.
//! - [`environment`]: the servers. [`wire`]: the proxy in front of them, which counts requests.
//! - [`program`]: a running contender. [`contender`]: the contenders that are built into this program.
//! - [`events`], [`stats`]: the figures that are computed from reported events.
//! - [`results`], [`report`]: the stored results, and how they are shown.
//! - [`options`]: the command line.

mod contender;
mod environment;
mod events;
mod measure;
mod metrics;
mod options;
mod program;
mod report;
mod results;
mod roster;
mod scenario;
mod stats;
mod wire;

use std::path::Path;
use std::process::ExitCode;

use tokio::signal::unix::{SignalKind, signal};

use crate::environment::Environment;
use crate::measure::Run;
use crate::options::Options;
use crate::results::{Block, Results};
use crate::roster::CONTENDERS;
use crate::scenario::{Scenario, Store};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("contender") => return contender::run(&arguments[1..]).await,
        Some("list") => return list(),
        _ => {}
    }
    let options = match Options::read(&arguments) {
        Ok(options) => options,
        Err(error) => return wrong(&error),
    };
    if options.plan().is_empty() && !options.report_only {
        return wrong(
            "there is nothing to measure: this scenario is not measured on this store; see ./bench list",
        );
    }
    let done = async {
        // A signal drops the measurement, which kills all running programs.
        let (mut interrupt, mut terminate) =
            match (signal(SignalKind::interrupt()), signal(SignalKind::terminate())) {
                (Ok(interrupt), Ok(terminate)) => (interrupt, terminate),
                (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
            };
        tokio::select! {
            done = run(&options) => done,
            _ = interrupt.recv() => Ok(ExitCode::from(130)),
            _ = terminate.recv() => Ok(ExitCode::from(143)),
        }
    };
    done.await.unwrap_or_else(|error| {
        eprintln!("bench: {error}");
        ExitCode::FAILURE
    })
}

fn wrong(error: &str) -> ExitCode {
    eprintln!("bench: {error}");
    ExitCode::from(2)
}

/// Runs the selected measurements and reports them.
async fn run(options: &Options) -> Result<ExitCode, String> {
    let file = Path::new(if options.write { report::document::FOLDER } else { "" });
    let file = if options.write { file.to_owned() } else { options.out.clone() }.join("results.json");
    let mut results = Results::load(&file)?;
    let mut fine = true;
    if !options.report_only {
        let plan = options.plan();
        for store in Store::all() {
            let runs: Vec<_> = plan.iter().filter(|(_, of, ..)| *of == store).collect();
            if runs.is_empty() {
                continue;
            }
            let environment = match Environment::start(store).await {
                Ok(environment) => environment,
                Err(error) => {
                    eprintln!("{}: not measured: {error}", store.title());
                    fine = false;
                    continue;
                }
            };
            for &(scenario, _, round_trip_ms, load) in runs {
                eprintln!("{scenario} on {}, {round_trip_ms} ms away", store.title());
                let environment = &environment;
                let block =
                    Run { scenario, environment, store, round_trip_ms, load, options }.measure().await;
                show(&block, scenario);
                fine &= block.ours().is_some_and(|ours| ours.trouble.is_none() && ours.violations() == 0);
                // Save after each block, so that an interrupted run keeps its results.
                results.put(block);
                results.save(&file)?;
            }
        }
    }
    for scenario in &options.scenarios {
        if options.report_only {
            results.of(*scenario).into_iter().for_each(|block| show(block, *scenario));
        }
    }
    if options.write {
        report::document::update(&results)?;
        println!("{} is up to date", report::document::DOCUMENT);
    } else {
        report::document::plots(&results, &options.out)?;
        println!("results.json and plots are in {}", options.out.display());
    }
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(block: &Block, scenario: Scenario) {
    println!("\n{scenario}: {} ({})", scenario.title(), report::settings(block));
    print!("{}", report::table(block, scenario).plain());
    for verdict in report::targets::judge(scenario, &[block]) {
        let reached = if verdict.reached { "reached" } else { "MISSED" };
        println!("target: {}: {}: {reached}", verdict.target, verdict.measured);
    }
    println!();
}

fn list() -> ExitCode {
    println!("scenarios, and the stores that they are measured on:");
    for scenario in Scenario::ALL {
        let stores: Vec<&str> = scenario.stores().into_iter().map(Store::name).collect();
        let stores = if stores.is_empty() { "computed from b and c".to_owned() } else { stores.join(" ") };
        println!("  {}  {:<12} {} [{stores}]", scenario.letter(), scenario.name(), scenario.title());
    }
    println!("contenders:");
    for one in CONTENDERS {
        let stores: Vec<&str> = Store::all().filter(|store| one.works_on(*store)).map(Store::name).collect();
        let missing = match one.command() {
            Err(why) if !one.scenarios.contains(&Scenario::Run) => format!(": {why}"),
            _ => String::new(),
        };
        println!("  {:<14} {} [{}]{missing}", one.name, one.title, stores.join(" "));
    }
    ExitCode::SUCCESS
}
