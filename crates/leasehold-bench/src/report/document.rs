//! Updates docs/performance.md: the text between its markers is generated from the results, and the rest is written by
//! hand.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::chart;
use super::table::{Table, number};
use super::targets::{judge, times_better};
use crate::metrics::{Better, Metric};
use crate::results::{Block, Results, Row, write};
use crate::roster::Role;
use crate::scenario::Scenario;

/// The page.
pub(crate) const DOCUMENT: &str = "docs/performance.md";
/// The plots, and the results from which everything is generated.
pub(crate) const FOLDER: &str = "docs/performance";

/// Updates the page and its plots.
pub(crate) fn update(results: &Results) -> Result<(), String> {
    write(Path::new(DOCUMENT), &page(results, Path::new(DOCUMENT))?)?;
    plots(results, Path::new(FOLDER))
}

/// Returns the page, with the text that is generated from `results`.
fn page(results: &Results, page: &Path) -> Result<String, String> {
    let in_page = |error: String| format!("{}: {error}", page.display());
    let text = fs::read_to_string(page).map_err(|error| in_page(error.to_string()))?;
    let sections = Scenario::ALL.iter().map(|scenario| (scenario.name(), section(results, *scenario)));
    sections
        .chain([("targets", targets(results))])
        .try_fold(text, |text, (name, content)| replaced(&text, name, &content))
        .map_err(in_page)
}

/// Plots the results.
pub(crate) fn plots(results: &Results, folder: &Path) -> Result<(), String> {
    for scenario in Scenario::ALL {
        let blocks = results.of(*scenario);
        if let (false, Some(metric)) = (blocks.is_empty(), scenario.metrics().first()) {
            let svg = chart::chart(scenario.title(), metric, &blocks);
            write(&folder.join(format!("{}.svg", scenario.name())), &svg)?;
        }
    }
    Ok(())
}

/// Returns all targets, and whether they are reached. A target that several places reach is one line.
fn targets(results: &Results) -> String {
    let mut text = "| | where | target | measured | |\n|---|---|---|---|---|\n".to_owned();
    for scenario in Scenario::ALL {
        let verdicts = judge(*scenario, &results.of(*scenario));
        let (reached, missed): (Vec<_>, Vec<_>) = verdicts.into_iter().partition(|verdict| verdict.reached);
        let mut by_target = BTreeMap::<_, Vec<_>>::new();
        for verdict in reached {
            by_target.entry(verdict.target).or_default().push((verdict.place, verdict.measured));
        }
        let reached = by_target.into_iter().map(|(target, places)| {
            let measured: BTreeSet<_> = places.iter().map(|(_, measured)| measured.as_str()).collect();
            let measured = measured.into_iter().collect::<Vec<_>>().join("; ");
            let place = match &places[..] {
                [(place, _)] => place.clone(),
                more => format!("{} places", more.len()),
            };
            (place, target, measured, "reached")
        });
        let missed =
            missed.into_iter().map(|verdict| (verdict.place, verdict.target, verdict.measured, "**missed**"));
        for (place, target, measured, end) in reached.chain(missed) {
            text.push_str(&format!("| {} | {place} | {target} | {measured} | {end} |\n", scenario.letter()));
        }
    }
    text
}

/// Returns the section of a scenario: its plot, one table, and how it was measured.
fn section(results: &Results, scenario: Scenario) -> String {
    let blocks = results.of(scenario);
    if blocks.is_empty() {
        return "Not measured yet.\n".to_owned();
    }
    let table = summary(scenario, &blocks);
    let runs: BTreeSet<String> = blocks.iter().map(|block| run_of(block)).collect();
    let runs = runs.into_iter().collect::<Vec<_>>().join("; ");
    format!(
        "![{}](performance/{}.svg)\n\n{}\nMeasured on {runs}.\n",
        scenario.title(),
        scenario.name(),
        table.markdown()
    )
}

/// Returns when a block was measured, and which commit. results.json has the command.
fn run_of(block: &Block) -> String {
    let rounds = block.settings.get("rounds").copied().unwrap_or_default();
    let rounds = format!("{rounds} {}", if rounds == 1.0 { "round" } else { "rounds" });
    let commit = block.commit.get(..10).unwrap_or("an unknown commit");
    format!("{} ({commit}, {rounds})", block.date)
}

/// The page leaves out servers that are farther away, in milliseconds. The plot and results.json have them.
const FARTHEST: f64 = 5.0;

/// Returns a table with one line for each place: leasehold beside the best other client by the first metric.
fn summary(scenario: Scenario, blocks: &[&Block]) -> Table {
    let metrics = scenario.summary();
    let main = &metrics[0];
    let near = |block: &Block| block.rows.iter().any(|row| row.is(Role::Conditional));
    let has_calls = blocks.iter().any(|block| near(block));
    let mut head = vec!["store".to_owned()];
    head.extend(metrics.iter().map(|metric| metric.title.to_owned()));
    head.extend(["best other client".to_owned(), main.title.to_owned(), "ours, times better".to_owned()]);
    head.extend(has_calls.then(|| "ours, times the conditional calls".to_owned()));
    let lines = blocks.iter().filter(|block| block.rtt_ms <= FARTHEST).map(|block| {
        let median = |row: Option<&Row>, metric: &Metric| {
            let spread = row.and_then(|row| row.spread(metric.name));
            spread.map_or_else(|| "-".to_owned(), |spread| number(spread.median))
        };
        let (ours, best) = (block.ours(), best(block, main));
        let against = |other: Option<&Row>| {
            let times = ours.zip(other).and_then(|(ours, other)| times_better(ours, other, main));
            times.map_or_else(String::new, |times| number(times.median))
        };
        let mut line = vec![block.place()];
        line.extend(metrics.iter().map(|metric| median(ours, metric)));
        line.extend([
            best.map_or_else(String::new, |best| best.title.clone()),
            best.map_or_else(String::new, |best| median(Some(best), main)),
            against(best),
        ]);
        let calls = block.rows.iter().find(|row| row.is(Role::Conditional));
        line.extend(has_calls.then(|| against(calls)));
        line
    });
    let rows = lines.collect();
    Table { head, rows }
}

/// Returns the other client with the best median.
fn best<'a>(block: &'a Block, metric: &Metric) -> Option<&'a Row> {
    let peers = block.rows.iter().filter(|row| row.is(Role::Peer));
    let measured = peers.filter_map(|row| Some((row, row.spread(metric.name)?.median)));
    let best = match metric.better {
        Better::More => measured.max_by(|(_, one), (_, other)| one.total_cmp(other)),
        Better::Less => measured.min_by(|(_, one), (_, other)| one.total_cmp(other)),
    };
    best.map(|(row, _)| row)
}

/// Replaces the text between the markers of `name` with `content`.
fn replaced(text: &str, name: &str, content: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- measured: {name} -->\n"), format!("<!-- end: {name} -->"));
    let parts = text.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let (before, after) =
        parts.ok_or_else(|| format!("there is no place for `{name}`: no line `{}`", begin.trim_end()))?;
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    use super::*;
    use crate::measure::git;
    use crate::metrics::OPS;
    use crate::results::tests::{block, row};
    use crate::roster::Role;

    #[test]
    fn only_what_is_between_the_markers_changes() {
        let text = "before\n<!-- measured: x -->\nold\n<!-- end: x -->\nafter\n";
        let once = replaced(text, "x", "new\n").unwrap();
        assert_eq!(once, "before\n<!-- measured: x -->\nnew\n<!-- end: x -->\nafter\n");
        assert_eq!(replaced(&once, "x", "new\n").unwrap(), once);
        assert!(replaced(text, "y", "new\n").unwrap_err().contains("measured: y"));
    }

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    fn published() -> Results {
        Results::load(&root().join(FOLDER).join("results.json")).unwrap()
    }

    // Without them, the titles of their tables are not known.
    #[cfg(feature = "servers")]
    #[test]
    fn the_page_shows_the_results() {
        let document = root().join(DOCUMENT);
        let outdated = fs::read_to_string(&document).unwrap() != page(&published(), &document).unwrap();
        assert!(!outdated, "{}: run ./bench report --write", document.display());
    }

    /// The figures are of the code as it is: since they were measured, not much of what they depend on has changed. The
    /// figures of one store do not depend on the folders of the others.
    #[test]
    fn the_figures_are_not_older_than_the_code() {
        /// How many lines may change before a scenario must be measured again.
        const MOST: u64 = 3_000;
        let root = root().canonicalize().unwrap();
        let in_root = |arguments: &[&str]| git(&[&["-C", root.to_str().unwrap()], arguments].concat());
        let results = published();
        let stores: BTreeSet<&str> = results.blocks.iter().map(|block| &*block.store).collect();
        let mut changed: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for block in &results.blocks {
            let lines = *changed.entry((&block.commit, &block.store)).or_insert_with(|| {
                let rooms = ["runtime", "protocol", "lease", "native", "stores"];
                let others = stores.iter().filter(|other| !block.store.starts_with(**other));
                let paths = rooms.iter().map(|room| format!("crates/leasehold/src/{room}"));
                let others = others.map(|other| format!(":(exclude)crates/leasehold/src/stores/{other}"));
                let paths: Vec<_> = paths.chain(others).collect();
                let mut arguments = vec!["diff", "--numstat", block.commit.as_str(), "HEAD", "--"];
                arguments.extend(paths.iter().map(String::as_str));
                arguments.extend([":(exclude)*test*"]);
                // An archive of the sources and a shallow clone do not have the commit.
                let changes = in_root(&arguments).unwrap_or_default();
                changes.lines().filter_map(|line| line.split('\t').next()?.parse::<u64>().ok()).sum()
            });
            assert!(
                lines <= MOST,
                "({}) on {}: {lines} lines have changed since {}; run {} --write",
                block.scenario,
                block.store,
                block.commit,
                block.command
            );
        }
    }

    #[test]
    fn a_section_has_a_plot_a_line_for_each_place_and_the_command() {
        let rows = vec![
            row("leasehold", Role::Ours, OPS.name, &[100.0]),
            row("slow", Role::Peer, OPS.name, &[10.0]),
            row("fast", Role::Peer, OPS.name, &[50.0]),
            row("calls", Role::Conditional, OPS.name, &[125.0]),
        ];
        let mut results = Results::default();
        for ms in [0.0, 5.0] {
            results.put(block(Scenario::Uncontended, "sqlite", ms, rows.clone()));
        }
        let section = section(&results, Scenario::Uncontended);
        assert!(section.starts_with("!["), "{section}");
        assert!(section.contains("| SQLite (a file) | 100 | - | - | fast | 50 | 2 | 0.8 |\n"), "{section}");
        assert_eq!(section.matches("| fast | 50 | 2 | 0.8 |").count(), 2, "{section}");
        assert!(section.contains("5 ms away"), "{section}");
        assert_eq!(section.matches("2026-01-02 (0123456789, 3 rounds)").count(), 1, "{section}");
        assert!(targets(&results).contains("| a | SQLite (a file) | 0.9 of"), "{}", targets(&results));
        let folder = tempfile::tempdir().unwrap();
        plots(&results, folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
