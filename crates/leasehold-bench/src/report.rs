//! Shows results to people: tables, plots, and the pages in docs.

pub(crate) mod chart;
pub(crate) mod document;
pub(crate) mod table;
pub(crate) mod targets;

use crate::metrics::{Metric, REQUESTS};
use crate::results::{Block, Row};
use crate::roster::Role;
use crate::scenario::Scenario;

use self::table::{Table, number, spread};

/// Returns the table of a block.
pub(crate) fn table(block: &Block, scenario: Scenario) -> Table {
    let metrics: Vec<&Metric> = scenario
        .metrics()
        .iter()
        .filter(|metric| block.rows.iter().any(|row| row.spread(metric.name).is_some()))
        .collect();
    let mut head = vec![block.place()];
    for metric in &metrics {
        head.push(metric.title.to_owned());
        if metric.compared {
            head.push("ours, times better".to_owned());
        }
    }
    head.push("notes".to_owned());
    let mut rows = Vec::new();
    for row in &block.rows {
        let mut cells = vec![row.title.clone()];
        for metric in &metrics {
            cells.push(row.spread(metric.name).map_or_else(|| "-".to_owned(), spread));
            if metric.compared {
                let times = block
                    .ours()
                    .filter(|_| !row.is(Role::Ours))
                    .and_then(|ours| targets::times_better(ours, row, metric));
                cells.push(times.map_or_else(String::new, spread));
            }
        }
        cells.push(notes(row, scenario));
        rows.push(cells);
    }
    Table { head, rows }
}

/// Returns the requests by kind, and errors. The scenario `Waiters` is about reads and writes, so it shows the requests
/// for each lock instead of percentages.
fn notes(row: &Row, scenario: Scenario) -> String {
    let mut notes = Vec::new();
    let (requests, all) = (row.requests(), row.requests().values().sum::<u64>());
    let for_each = row.spread(REQUESTS.name).filter(|_| scenario == Scenario::Waiters);
    if all > 0 {
        let (whole, unit) = for_each.map_or((100.0, " %"), |spread| (spread.median, ""));
        let share = |count: &u64| number(*count as f64 / all as f64 * whole);
        let mut kinds: Vec<(&&str, &u64)> = requests.iter().collect();
        kinds.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let kinds: Vec<String> =
            kinds.iter().take(4).map(|(kind, count)| format!("{}{unit} {kind}", share(count))).collect();
        let of = if for_each.is_some() { " for each lock" } else { "" };
        notes.push(kinds.join(", ") + of);
    }
    if row.violations() > 0 {
        notes.push(format!("**two held it at once, {} times**", row.violations()));
    }
    if let Some(trouble) = &row.trouble {
        notes.push(trouble.clone());
    }
    let measured = row.samples.iter().flatten().count();
    if measured > 0 && measured < row.samples.len() {
        notes.push(format!("{measured} of {} rounds", row.samples.len()));
    }
    notes.join("; ")
}

/// Returns the settings of a block, such as `rounds: 5, seconds: 3`.
pub(crate) fn settings(block: &Block) -> String {
    let parts: Vec<String> =
        block.settings.iter().map(|(name, value)| format!("{name}: {}", number(*value))).collect();
    parts.join(", ")
}
