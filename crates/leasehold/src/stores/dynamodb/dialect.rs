//! The formats of lease durations. AWS's Java client uses decimal milliseconds, its Go port uses Go's durations, and
//! neither can read the other's format.

/// The client whose format is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Dialect {
    /// `30000`: AWS's client.
    #[default]
    Java,
    /// `30s`, `1m30.5s`: cirello.io/dynamolock.
    Go,
}

/// The longest duration: a century. Go's durations have 63 bits of nanoseconds, which is about three centuries.
const LONGEST_MS: u64 = 100 * 365 * 86_400_000;

impl Dialect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Java => "java",
            Self::Go => "go",
        }
    }

    /// Returns the name of the client that uses this format, for people.
    pub(super) fn client(self) -> &'static str {
        match self {
            Self::Java => "AWS's lock client for Java",
            Self::Go => "the Go lock client dynamolock",
        }
    }

    pub(super) fn other(self) -> Self {
        match self {
            Self::Java => Self::Go,
            Self::Go => Self::Java,
        }
    }

    /// Returns `ms` milliseconds in this format.
    pub(super) fn text(self, ms: u64) -> String {
        let ms = ms.min(LONGEST_MS);
        match self {
            Self::Java => ms.to_string(),
            Self::Go => format!("{ms}ms"),
        }
    }

    /// Parses a duration, rounded up to milliseconds. Returns `None` if the text is not in this format, is negative, or
    /// exceeds a century.
    pub(super) fn millis(self, text: &str) -> Option<u64> {
        let ms = match self {
            Self::Java if text.bytes().all(|b| b.is_ascii_digit()) => text.parse().ok()?,
            Self::Java => return None,
            Self::Go => go_millis(text)?,
        };
        (ms <= LONGEST_MS).then_some(ms)
    }
}

/// Parses a duration like Go's `time.ParseDuration`: decimal numbers, each with a unit.
fn go_millis(text: &str) -> Option<u64> {
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest == "0" {
        return Some(0);
    }
    let mut total_ns = 0_f64;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(digits);
        let unit = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit);
        total_ns += number.parse::<f64>().ok()? * unit_ns(unit)?;
        rest = tail;
    }
    // Rounds up. An f64 holds the milliseconds of a century exactly, and casts from it saturate.
    (!text.is_empty()).then_some((total_ns / 1e6).ceil() as u64)
}

fn unit_ns(unit: &str) -> Option<f64> {
    Some(match unit {
        "ns" => 1.0,
        "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3_600e9,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_dialect_reads_its_own_form_and_no_other() {
        for (text, java, go) in [
            ("30000", Some(30_000), None),
            ("0", Some(0), Some(0)),
            ("20s", None, Some(20_000)),
            ("1m30s", None, Some(90_000)),
            ("1h0m0.5s", None, Some(3_600_500)),
            ("1.5s", None, Some(1_500)),
            ("100ms", None, Some(100)),
            ("1ns", None, Some(1)),
            ("2\u{b5}s", None, Some(1)),
            ("", None, None),
            ("-1", None, None),
            ("+1", None, None),
            ("-1s", None, None),
            ("s", None, None),
            ("1.2.3s", None, None),
            ("1d", None, None),
            ("1s ", None, None),
            ("3153600000001", None, None),
            ("99999999999999999999", None, None),
            ("99999999999999h", None, None),
            ("NaN", None, None),
        ] {
            assert_eq!((Dialect::Java.millis(text), Dialect::Go.millis(text)), (java, go), "{text:?}");
        }
    }

    #[test]
    fn each_dialect_reads_what_it_writes() {
        for dialect in [Dialect::Java, Dialect::Go] {
            for ms in [0, 500, 30_000, 86_400_000] {
                assert_eq!(dialect.millis(&dialect.text(ms)), Some(ms));
            }
            assert_eq!(dialect.millis(&dialect.text(u64::MAX)), Some(3_153_600_000_000), "a century");
        }
    }
}
