//! Updates docs/performance.md and the page of each scenario: the text between their markers is generated from the
//! results, and the rest is written by hand.

use std::fs;
use std::path::{Path, PathBuf};

use super::targets::judge;
use super::{blocks, chart, settings, table};
use crate::results::{Results, write};
use crate::scenario::Scenario;

/// The page with the targets.
pub(crate) const DOCUMENT: &str = "docs/performance.md";
/// The pages of the scenarios, their plots, and the results from which everything is generated.
pub(crate) const FOLDER: &str = "docs/performance";

/// Updates the pages and their plots.
pub(crate) fn update(results: &Results) -> Result<(), String> {
    for (page, text) in pages(results, Path::new(""))? {
        write(&page, &text)?;
    }
    plots(results, Path::new(FOLDER))
}

/// Returns the pages below `root`, with the text that is generated from `results`.
fn pages(results: &Results, root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let sections = Scenario::ALL.iter().map(|scenario| {
        let page = Path::new(FOLDER).join(format!("{}.md", scenario.name()));
        (page, scenario.name(), section(results, *scenario))
    });
    let targets = (PathBuf::from(DOCUMENT), "targets", targets(results));
    let updated = sections.chain([targets]).map(|(page, name, content)| {
        let page = root.join(page);
        let in_page = |error: String| format!("{}: {error}", page.display());
        let text = fs::read_to_string(&page).map_err(|error| in_page(error.to_string()))?;
        let text = replaced(&text, name, &content).map_err(in_page)?;
        Ok((page, text))
    });
    updated.collect()
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
    let mut text = format!("![{}]({}.svg)\n", scenario.title(), scenario.name());
    let mut above: Vec<String> = Vec::new();
    for block in &blocks {
        // Name the scenario, because fairness uses the runs of two others.
        let run = Scenario::named(&block.scenario).filter(|run| *run != scenario);
        let mut heading: Vec<_> = run.map(|run| run.title().to_owned()).into_iter().collect();
        heading.extend([format!("`{}` on {}", block.command, block.date), settings(block)]);
        // What is the same as above the previous table is not repeated.
        let same = heading.iter().zip(&above).take_while(|(line, above)| line == above).count();
        for line in &heading[same..] {
            text.push_str(&format!("\n{line}\n"));
        }
        text.push_str(&format!("\n{}", table(block, scenario).markdown()));
        above = heading;
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
    let (before, after) =
        parts.ok_or_else(|| format!("there is no place for `{name}`: no line `{}`", begin.trim_end()))?;
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

    // Without them, the titles of their tables are not known.
    #[cfg(feature = "servers")]
    #[test]
    fn the_pages_show_the_results() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let results = Results::load(&root.join(FOLDER).join("results.json")).unwrap();
        for (page, text) in pages(&results, &root).unwrap() {
            let outdated = fs::read_to_string(&page).unwrap() != text;
            assert!(!outdated, "{}: run ./bench report --write", page.display());
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
        assert_eq!(section.matches("`./bench` on 2026-01-02\n").count(), 1, "{section}");
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
