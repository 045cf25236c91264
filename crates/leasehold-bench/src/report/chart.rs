//! One SVG plot for each scenario: a bar for each contender, grouped by store and distance, on a logarithmic scale,
//! with the spread over the rounds. It uses no plotting library, which would add ten crates to replace these few lines.

use std::fmt::Write as _;

use super::table::number;
use crate::metrics::Metric;
use crate::results::Block;
use crate::stats::Spread;

const WIDTH: f64 = 960.0;
/// The positions where the bars begin and end.
const LEFT: f64 = 420.0;
const RIGHT: f64 = 860.0;
const BAR: f64 = 16.0;
const LINE: f64 = 22.0;
const TOP: f64 = 56.0;

/// A style that is readable on light and dark backgrounds.
const STYLE: &str = "text{font:12px sans-serif;fill:#333}.head{font-weight:bold}.note{fill:#777}\
    .ours{fill:#1f77b4}.peer{fill:#b0b7bf}.ours-served{fill:#8fbbdb}.limit,.conditional,.ours-by-default,.another-build{fill:#d8dde2}.axis{stroke:#e4e7ea}.spread{stroke:#333}";

/// Plots `metric` over `blocks`.
pub(crate) fn chart(title: &str, metric: &Metric, blocks: &[&Block]) -> String {
    let groups = blocks.iter().map(|block| {
        let bars = block.rows.iter().filter_map(|row| {
            let spread = row.spread(metric.name).filter(|spread| spread.median > 0.0)?;
            Some((row.title.as_str(), row.role.as_str(), spread))
        });
        (block, bars.collect::<Vec<_>>())
    });
    let shown: Vec<_> = groups.filter(|(_, bars)| !bars.is_empty()).collect();
    let scale = Scale::over(shown.iter().flat_map(|(_, bars)| bars.iter().map(|(.., spread)| *spread)));
    let lines: usize = shown.iter().map(|(_, bars)| bars.len() + 1).sum();
    let bottom = TOP + lines as f64 * LINE;
    let height = bottom + 34.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"12\" y=\"22\" class=\"head\">{title}</text>\n\
         <text x=\"12\" y=\"40\" class=\"note\">{}, logarithmic; the line is the spread over the rounds</text>\n",
        escaped(metric.title),
        title = escaped(title),
    );
    scale.draw(&mut svg, bottom);
    let mut y = TOP;
    for (block, bars) in &shown {
        y += LINE;
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{}\" class=\"head\">{}</text>",
            y - 6.0,
            escaped(&block.place())
        );
        for (title, role, spread) in bars {
            let (middle, end) = (y + LINE / 2.0, scale.at(spread.median));
            let _ = writeln!(
                svg,
                "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\n\
                 <rect class=\"{role}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\"/>\n\
                 <line class=\"spread\" x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                LEFT - 8.0,
                middle + 4.0,
                escaped(title),
                middle - BAR / 2.0,
                (end - LEFT).max(1.0),
                scale.at(spread.least),
                scale.at(spread.most),
                scale.at(spread.most).max(end) + 6.0,
                middle + 4.0,
                number(spread.median),
            );
            y += LINE;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// Maps values to positions on a logarithmic scale.
struct Scale {
    /// The exponents of both ends.
    from: f64,
    until: f64,
}

impl Scale {
    fn over(spreads: impl Iterator<Item = Spread>) -> Self {
        let (mut from, mut until) = (f64::INFINITY, f64::NEG_INFINITY);
        for spread in spreads {
            let least = if spread.least > 0.0 { spread.least } else { spread.median };
            from = from.min(least.log10().floor());
            until = until.max(spread.most.log10().ceil());
        }
        if !from.is_finite() || !until.is_finite() {
            return Self { from: 0.0, until: 1.0 };
        }
        Self { from, until: until.max(from + 1.0) }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value.log10() - self.from) / (self.until - self.from);
        LEFT + (RIGHT - LEFT) * part.clamp(0.0, 1.0)
    }

    /// Draws a line for each power of ten.
    fn draw(&self, svg: &mut String, bottom: f64) {
        let mut exponent = self.from;
        while exponent <= self.until {
            let x = self.at(10_f64.powf(exponent));
            let _ = writeln!(
                svg,
                "<line class=\"axis\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{bottom}\"/>\n\
                 <text class=\"note\" x=\"{x:.1}\" y=\"{}\" text-anchor=\"middle\">{}</text>",
                bottom + 18.0,
                number(10_f64.powf(exponent)),
            );
            exponent += 1.0;
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::OPS;
    use crate::results::tests::{block, row};
    use crate::roster::Role;
    use crate::scenario::Scenario;

    /// Asserts that every tag is closed in order, and that text has no bare `<` or `&`.
    fn assert_well_formed(svg: &str) {
        let mut open = Vec::new();
        for part in svg.split('<').skip(1) {
            let (tag, text) = part.split_once('>').expect("a tag ends");
            let entities = ["&amp;", "&lt;", "&gt;", "&quot;"];
            let plain = entities.iter().fold(text.to_owned(), |text, entity| text.replace(entity, ""));
            assert!(!plain.contains('&'), "{text}");
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed.to_owned()));
            } else if !tag.ends_with('/') {
                open.push(tag.split(' ').next().unwrap().to_owned());
            }
            assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        }
        assert!(open.is_empty(), "{open:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn plots_are_well_formed() {
        let rows = vec![
            row("ours & <theirs>", Role::Ours, OPS.name, &[1_000.0, 2_000.0]),
            row("peer", Role::Peer, OPS.name, &[0.0, 0.5, 3.0]),
            row("nothing", Role::Peer, "other", &[1.0]),
            row("zero", Role::Limit, OPS.name, &[0.0]),
        ];
        let block = block(Scenario::Tasks, "s3", 5.0, rows);
        let svg = chart("a \"title\"", &OPS, &[&block, &block]);
        assert_well_formed(&svg);
        assert_eq!(svg.matches("class=\"ours\"").count(), 2);
        assert!(!svg.contains(">nothing<") && !svg.contains(">zero<"));
        assert_well_formed(&chart("empty", &OPS, &[]));
    }

    #[test]
    fn positions_are_logarithmic() {
        let spread = |least, most| Spread { median: least, least, most };
        let scale = Scale::over([spread(2.0, 900.0)].into_iter());
        assert_eq!((scale.at(1.0), scale.at(1_000.0)), (LEFT, RIGHT));
        assert!((scale.at(10.0) - LEFT - (RIGHT - LEFT) / 3.0).abs() < 1e-6);
        assert_eq!(scale.at(0.0), LEFT);
    }
}
