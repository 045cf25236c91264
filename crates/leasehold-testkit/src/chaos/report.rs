//! What is said of outcomes.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::conductor::Outcome;

/// A line about one scenario, and what is wrong with it below.
pub fn told(outcome: &Outcome) -> String {
    let counts = &outcome.verdict.counts;
    let verdict = if outcome.wrong.is_empty() { "ok" } else { "WRONG" };
    let mut text = format!(
        "{:<22} {verdict:<5} {:>3} s  {} grants, {} takeovers, {} losses ({} of {} told before the successor), {} checks, {} writes, {} refused, {} failed acquisitions, {} granted again",
        outcome.scenario.name,
        outcome.took.as_secs(),
        counts.grants,
        counts.takeovers,
        counts.losses,
        counts.known_first,
        counts.succeeded,
        counts.checks,
        counts.writes,
        counts.refused,
        counts.failures,
        counts.granted_again,
    );
    for wrong in outcome.wrong.iter().take(10) {
        let _ = write!(text, "\n    {wrong}");
    }
    for (rule, findings) in by_rule(outcome) {
        let _ = write!(text, "\n    found {findings} times, as it may be: {rule}");
    }
    if let Some(kept) = &outcome.kept {
        let _ = write!(text, "\n    histories: {}", kept.display());
    }
    text
}

/// How often each rule that was not promised was broken.
fn by_rule(outcome: &Outcome) -> BTreeMap<&'static str, usize> {
    let mut rules = BTreeMap::new();
    for finding in &outcome.verdict.observed {
        *rules.entry(finding.rule.name()).or_default() += 1;
    }
    rules
}

/// How often each fault came, over all outcomes.
pub fn faults(outcomes: &[Outcome]) -> BTreeMap<&str, u64> {
    let mut all = BTreeMap::new();
    for (kind, count) in outcomes.iter().flat_map(|outcome| &outcome.verdict.counts.faults) {
        *all.entry(kind.as_str()).or_default() += count;
    }
    all
}
