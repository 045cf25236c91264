//! Updates docs/performance.md: the text between its markers is generated from the results, and the rest is written by
//! hand.

use std::fs;
use std::path::Path;

use super::targets::judge;
use super::{blocks, chart, settings, table};
use crate::results::{Results, write};
use crate::scenario::Scenario;

pub(crate) const DOCUMENT: &str = "docs/performance.md";
/// The plots, and the results from which everything is generated.
pub(crate) const FOLDER: &str = "docs/performance";

/// Updates the document and its plots.
pub(crate) fn update(results: &Results) -> Result<(), String> {
    let text = fs::read_to_string(DOCUMENT).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let mut text = replaced(&text, "targets", &targets(results))?;
    for scenario in Scenario::ALL {
        text = replaced(&text, scenario.name(), &section(results, *scenario))?;
    }
    plots(results, Path::new(FOLDER))?;
    write(Path::new(DOCUMENT), &text)
}

/// Plots the results.
pub(crate) fn plots(results: &Results, folder: &Path) -> Result<(), String> {
    for scenario in Scenario::ALL {
        let blocks = blocks(results, *scenario);
        if let (false, Some(metric)) = (blocks.is_empty(), scenario.metrics().first()) {
            let svg = chart::chart(scenario.title(), metric, &blocks);
            write(&folder.join(format!("{}.svg", scenario.name())), &svg)?;
        }
    }
    Ok(())
}

/// Returns all targets, and whether they are reached.
fn targets(results: &Results) -> String {
    let mut text = "| | where | target | measured | |\n|---|---|---|---|---|\n".to_owned();
    for scenario in Scenario::ALL {
        for verdict in judge(*scenario, &blocks(results, *scenario)) {
            text.push_str(&format!(
                "| {} | {} | {} | {} | {} |\n",
                scenario.letter(),
                verdict.place,
                verdict.target,
                verdict.measured,
                if verdict.reached { "reached" } else { "**missed**" }
            ));
        }
    }
    text
}

/// Returns the section of a scenario, with its plot and its tables.
fn section(results: &Results, scenario: Scenario) -> String {
    let blocks = blocks(results, scenario);
    if blocks.is_empty() {
        return "Not measured yet.\n".to_owned();
    }
    let mut text = format!("![{}](performance/{}.svg)\n", scenario.title(), scenario.name());
    for block in &blocks {
        // Name the scenario, because fairness uses the runs of two others.
        let run = Scenario::named(&block.scenario).filter(|run| *run != scenario);
        if let Some(run) = run {
            text.push_str(&format!("\n{}:\n", run.title()));
        }
        text.push_str(&format!("\n{}", table(block, scenario).markdown()));
        text.push_str(&format!("\n`{}` on {}; {}\n", block.command, block.date, settings(block)));
    }
    text
}

/// Replaces the text between the markers of `name` with `content`.
fn replaced(text: &str, name: &str, content: &str) -> Result<String, String> {
    let (begin, end) = (format!("<!-- measured: {name} -->\n"), format!("<!-- end: {name} -->"));
    let parts = text.split_once(&begin).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(&end)?;
        Some((before, after))
    });
    let (before, after) = parts
        .ok_or_else(|| format!("{DOCUMENT} has no place for `{name}`: no line `{}`", begin.trim_end()))?;
    Ok(format!("{before}{begin}{content}{end}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn the_document_has_markers_for_every_section() {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(DOCUMENT);
        let text = fs::read_to_string(document).unwrap();
        for name in Scenario::ALL.iter().map(|scenario| scenario.name()).chain(["targets"]) {
            replaced(&text, name, "").unwrap();
        }
    }

    #[test]
    fn a_section_has_a_plot_a_table_for_each_place_and_the_command() {
        let rows = vec![
            row("leasehold", Role::Ours, OPS.name, &[100.0]),
            row("peer", Role::Peer, OPS.name, &[50.0]),
        ];
        let mut results = Results::default();
        for ms in [0.0, 5.0] {
            results.put(block(Scenario::Uncontended, "sqlite", ms, rows.clone()));
        }
        let section = section(&results, Scenario::Uncontended);
        assert!(
            section.starts_with("![") && section.matches("| leasehold | 100 |").count() == 2,
            "{section}"
        );
        assert!(section.contains("| peer | 50 | 2 |") && section.contains("5 ms away"), "{section}");
        assert!(section.contains("`./bench` on 2026-01-02"), "{section}");
        assert!(
            targets(&results).contains("| a | SQLite (a file) | locks/s: 1.5 times the best peer"),
            "{}",
            targets(&results)
        );
        let folder = tempfile::tempdir().unwrap();
        plots(&results, folder.path()).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
