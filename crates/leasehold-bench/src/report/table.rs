//! Tables for terminals and for Markdown, and the numbers in them.

use crate::stats::Spread;

/// A table. Each row has as many cells as the head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Table {
    pub(crate) head: Vec<String>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns the table aligned with spaces.
    pub(crate) fn plain(&self) -> String {
        let mut widths: Vec<usize> = self.head.iter().map(|cell| cell.chars().count()).collect();
        for row in &self.rows {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = (*width).max(cell.chars().count());
            }
        }
        let line = |cells: &[String]| {
            let padded: Vec<String> =
                cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            format!("{}\n", padded.join("  ").trim_end())
        };
        std::iter::once(&self.head).chain(&self.rows).map(|cells| line(cells)).collect()
    }

    /// Returns the table in Markdown, with one row per line.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<String> =
                cells.iter().map(|cell| cell.replace('|', "\\|").replace(['\n', '\r'], " ")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = format!("|{}\n", "---|".repeat(self.head.len()));
        line(&self.head) + &rule + &self.rows.iter().map(|row| line(row)).collect::<String>()
    }
}

/// Formats a number with three significant digits.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    let digits = match size {
        0.0 => 0,
        size if size >= 100.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text.starts_with("-0") && text.parse() == Ok(0.0) { "0".to_owned() } else { text.to_owned() }
}

/// Formats a spread as `median [least..most]`, or only the median if all values are equal.
pub(crate) fn spread(spread: Spread) -> String {
    let [median, least, most] = [spread.median, spread.least, spread.most].map(number);
    if least == most { median } else { format!("{median} [{least}..{most}]") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells(cells: &[&str]) -> Vec<String> {
        cells.iter().map(|cell| (*cell).to_owned()).collect()
    }

    #[test]
    fn tables_are_aligned_and_markdown_is_escaped() {
        let table =
            Table { head: cells(&["store", "n"]), rows: vec![cells(&["é", "10"]), cells(&["a|b\nc", ""])] };
        assert_eq!(table.plain(), "store  n\né      10\na|b\nc\n");
        assert_eq!(table.markdown(), "| store | n |\n|---|---|\n| é | 10 |\n| a\\|b c |  |\n");
    }

    #[test]
    fn numbers_have_three_significant_digits() {
        for (value, text) in [
            (0.0, "0"),
            (12_345.6, "12346"),
            (123.4, "123"),
            (12.34, "12.3"),
            (2.0, "2"),
            (1.234, "1.23"),
            (0.012_34, "0.012"),
            (-0.000_1, "0"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(spread(Spread { median: 2.0, least: 1.5, most: 3.0 }), "2 [1.5..3]");
        assert_eq!(spread(Spread { median: 2.0, least: 2.0, most: 2.0 }), "2");
    }
}
