//! The report of the doctor, for people and for programs.

use std::fmt::Write as _;

use leasehold::doctor::{CheckStatus, Finding, Report};
use leasehold::lease::printable;
use serde_json::{Value, json};

/// Maximum length of a text from the store.
const MAX_CHARS: usize = 400;

/// Returns `{"type":"report","store","safe","kind","findings":[{"check","verdict","seen","help"}],"round_trips",...}`
pub(crate) fn json(store: &str, report: &Report) -> Value {
    let mut document = json!({ "type": "report", "store": store, "safe": report.is_safe() });
    if let (Value::Object(document), Value::Object(report)) = (&mut document, json!(report)) {
        document.extend(report);
    }
    document
}

/// Returns a line per finding with its fix below, and a summary.
pub(crate) fn human(store: &str, report: &Report, colors: bool) -> String {
    let width = report.findings.iter().map(|finding| finding.check.len()).max().unwrap_or(0);
    let mut text = format!("{store}{}\n", report.kind.map_or_else(String::new, |kind| format!(" ({kind})")));
    for finding in &report.findings {
        line(&mut text, finding, width, colors);
    }
    text.push_str(&summary(report));
    text
}

fn line(text: &mut String, finding: &Finding, width: usize, colors: bool) {
    let (mark, color) = match finding.verdict {
        CheckStatus::Passed => ("ok", "1;32"),
        CheckStatus::Warning => ("warn", "1;33"),
        CheckStatus::Failed => ("FAIL", "1;31"),
        CheckStatus::NotApplicable => ("-", "2"),
    };
    let (on, off) = if colors { (format!("\u{1b}[{color}m"), "\u{1b}[0m") } else { (String::new(), "") };
    let _ = writeln!(
        text,
        "  {on}{mark:<4}{off}  {check:<width$}  {seen}",
        check = finding.check,
        seen = printable(&finding.seen, MAX_CHARS)
    );
    let indent = 2 + 4 + 2 + width + 2;
    for help in finding.help.iter().flat_map(|help| help.lines()) {
        let _ = writeln!(text, "{:indent$}help: {}", "", printable(help, MAX_CHARS));
    }
}

fn summary(report: &Report) -> String {
    let count = |verdict| report.findings.iter().filter(|finding| finding.verdict == verdict).count();
    let warnings = match count(CheckStatus::Warning) {
        0 => String::new(),
        1 => "; 1 warning".to_owned(),
        more => format!("; {more} warnings"),
    };
    match count(CheckStatus::Failed) {
        0 => format!("safe for locks{warnings}\n"),
        1 => format!("NOT safe for locks: 1 check failed{warnings}\n"),
        more => format!("NOT safe for locks: {more} checks failed{warnings}\n"),
    }
}
