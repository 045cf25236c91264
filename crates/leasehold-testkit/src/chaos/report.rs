//! Runs the selected scenarios and prints the results: a line for each scenario as it ends, the faults, and the
//! verdict.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::io;

use futures_util::StreamExt;

use super::checker::Counts;
use super::nemesis::{Outcome, Settings, run};
use super::options::Options;
use super::plan::Kind;
use super::scenario::Scenario;
use crate::servers::set_by_test;

/// How many findings are printed for one scenario.
const SHOWN: usize = 10;

/// Runs the scenarios. Returns whether all results are as expected.
///
/// # Panics
/// When `./chaos` or `./test` has not set the path of faketime.
pub async fn run_and_report(options: &Options) -> bool {
    let settings = Settings {
        seed: options.seed,
        duration: options.duration,
        faketime: set_by_test("LEASEHOLD_TEST_FAKETIME", "faketime"),
        keep: options.keep,
    };
    println!("seed {}, {} s of faults each", options.seed, options.duration.as_secs());
    println!("{}", heading());
    let (mut outcomes, mut fine) = (Vec::new(), true);
    let mut runs = futures_util::stream::iter(&options.scenarios)
        .map(|scenario| async { (*scenario, run(scenario, &settings).await) })
        .buffer_unordered(options.at_once);
    while let Some((scenario, result)) = runs.next().await {
        fine &= print_result(scenario, &result);
        outcomes.extend(result);
    }
    println!("\n{}", faults(&outcomes));
    let missing = if options.everything { missing(&outcomes) } else { Vec::new() };
    for what in &missing {
        println!("WRONG: in the whole run, this never happened: {what}");
    }
    fine && missing.is_empty()
}

/// The headings of the columns. Each column is as wide as its heading.
const COLUMNS: &[&str] = &[
    "grants",
    "takeovers",
    "losses",
    "detected first",
    "checks",
    "writes",
    "refused",
    "registers",
    "failed",
    "afterwards",
];

fn heading() -> String {
    format!("{:<22}         {}", "", COLUMNS.join("  "))
}

/// Prints the result of a scenario. Returns whether it is as expected.
fn print_result(scenario: &Scenario, result: &io::Result<Outcome>) -> bool {
    match result {
        Ok(outcome) => {
            println!("{}", line(outcome));
            outcome.wrong.is_empty()
        }
        Err(error) => {
            println!("{:<22} could not be run: {error}", scenario.name);
            false
        }
    }
}

/// Returns a line about one scenario, followed by what is wrong with it.
fn line(outcome: &Outcome) -> String {
    let counts = &outcome.verdict.counts;
    let verdict = if outcome.wrong.is_empty() { "ok" } else { "WRONG" };
    let mut text = format!("{:<22} {verdict:<5}", outcome.scenario.name);
    let numbers = [
        counts.grants,
        counts.takeovers,
        counts.losses,
        counts.known_first,
        counts.checks,
        counts.writes,
        counts.refused,
        counts.operations,
        counts.failures,
        counts.granted_again,
    ];
    for (column, number) in COLUMNS.iter().zip(numbers) {
        let width = column.len();
        let _ = write!(text, "  {number:>width$}");
    }
    let _ = write!(text, "  {} s", outcome.took.as_secs());
    for wrong in outcome.wrong.iter().take(SHOWN) {
        let _ = write!(text, "\n    {wrong}");
    }
    for (rule, findings) in by_rule(outcome) {
        let _ = write!(text, "\n    found, not promised: {rule} ({findings} times)");
    }
    if let Some(kept) = &outcome.kept {
        let _ = write!(text, "\n    histories: {}", kept.display());
    }
    text
}

/// Returns how often each rule that was not promised was broken.
fn by_rule(outcome: &Outcome) -> BTreeMap<&'static str, usize> {
    let mut rules = BTreeMap::new();
    for finding in &outcome.verdict.observed {
        *rules.entry(finding.rule.name()).or_default() += 1;
    }
    rules
}

/// Returns how often each fault occurred, in all scenarios together.
fn faults(outcomes: &[Outcome]) -> String {
    let mut all = BTreeMap::<&str, u64>::new();
    for (kind, count) in outcomes.iter().flat_map(|outcome| &outcome.verdict.counts.faults) {
        *all.entry(kind).or_default() += count;
    }
    let all: Vec<String> = all.iter().map(|(kind, count)| format!("{kind}: {count}")).collect();
    format!("faults: {}", all.join(", "))
}

/// Returns the kinds of fault that never occurred, and the effects that never occurred with correct locks.
fn missing(outcomes: &[Outcome]) -> Vec<&'static str> {
    let came: BTreeSet<&str> = outcomes
        .iter()
        .flat_map(|outcome| outcome.verdict.counts.faults.keys())
        .map(String::as_str)
        .collect();
    let mut missing: Vec<_> =
        Kind::ALL.iter().map(|kind| kind.name()).filter(|kind| !came.contains(kind)).collect();
    let sum = |count: fn(&Counts) -> u64| {
        let ours = outcomes.iter().filter(|outcome| outcome.scenario.must_break.is_none());
        ours.map(|outcome| count(&outcome.verdict.counts)).sum::<u64>()
    };
    let sums = [
        ("takeovers", sum(|counts| counts.takeovers)),
        ("losses", sum(|counts| counts.losses)),
        ("writes", sum(|counts| counts.writes)),
        ("refused writes", sum(|counts| counts.refused)),
        ("operations on registers", sum(|counts| counts.operations)),
    ];
    missing.extend(sums.into_iter().filter(|(_, sum)| *sum == 0).map(|(what, _)| what));
    missing
}
