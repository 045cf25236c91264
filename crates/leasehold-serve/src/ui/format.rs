//! Durations, times and links as text.

use std::time::{Duration, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that a link escapes in a lock name: all except those that are plain in a path and the `/` between
/// segments.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');
const IN_QUERY: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// Formats a duration for people: `14 s`, `3 min 20 s`, `2 h 05 min`, `4 d 3 h`. The script has the same function.
pub(super) fn span(ms: u64) -> String {
    let s = ms / 1_000;
    match s {
        0..60 => format!("{s} s"),
        60..3_600 => format!("{} min {:02} s", s / 60, s % 60),
        3_600..86_400 => format!("{} h {:02} min", s / 3_600, s / 60 % 60),
        _ => format!("{} d {} h", s / 86_400, s / 3_600 % 24),
    }
}

/// Formats how long something took, like [`span`] but with tenths of a second below ten seconds.
pub(super) fn took(ms: u64) -> String {
    if ms < 10_000 { format!("{}.{} s", ms / 1_000, ms / 100 % 10) } else { span(ms) }
}

/// Returns the length of a full bar for a lease with `ms` left: the next usual ttl, plus the margin that waiters add. A
/// status does not contain the length of the whole lease.
pub(super) fn full(ms: u64) -> u64 {
    const USUAL: [u64; 14] =
        [5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 6 * 3_600, 86_400, 7 * 86_400];
    USUAL.into_iter().map(|s| s * 1_020 + 500).find(|full| *full >= ms).unwrap_or(ms)
}

/// Formats microseconds since the Unix epoch as `2026-11-24 22:40:12`, in UTC.
pub(super) fn time(us: u64) -> String {
    stamp(us).replace('T', " ").trim_end_matches('Z').to_owned()
}

/// Formats microseconds since the Unix epoch for machines: `2026-11-24T22:40:12Z`.
pub(super) fn stamp(us: u64) -> String {
    // `humantime` panics for times after the year 9999.
    let us = us.min(253_402_300_799_000_000);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_micros(us)).to_string()
}

/// Returns the address of a page about the lock `name`, such as `/ui/lock/deploy/prod`.
pub(super) fn link(page: &str, name: &str) -> String {
    format!("/ui/{page}/{}", utf8_percent_encode(name, IN_PATH))
}

/// Escapes a value for a query.
pub(super) fn in_query(value: &str) -> String {
    utf8_percent_encode(value, IN_QUERY).to_string()
}

/// Quotes a word of a command line for a POSIX shell, if needed.
pub(super) fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the lock `name` as the last word of a command line: after `--` if it looks like an option.
pub(super) fn last_argument(name: &str) -> String {
    if name.starts_with('-') { format!("-- {}", shell(name)) } else { shell(name) }
}

/// Returns a number with its unit: `1 process`, `2 processes`.
pub(super) fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", if number == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_short() {
        let spans = [999, 59_999, 60_000, 3_725_000, 266_400_000].map(span);
        assert_eq!(spans, ["0 s", "59 s", "1 min 00 s", "1 h 02 min", "3 d 2 h"]);
        assert_eq!([40, 9_999, 10_000].map(took), ["0.0 s", "9.9 s", "10 s"]);
        assert_eq!(time(1_700_000_000_000_000), "2023-11-14 22:13:20");
        assert_eq!(stamp(u64::MAX), "9999-12-31T23:59:59Z");
        assert!(full(9_900) > 9_900 && full(10_300) < 12_000 && full(u64::MAX) == u64::MAX);
    }

    #[test]
    fn hostile_names_stay_inside_links_and_words() {
        assert_eq!(link("lock", "a b/\"<x>?#%"), "/ui/lock/a%20b/%22%3Cx%3E%3F%23%25");
        assert_eq!(in_query("a&b=c"), "a%26b%3Dc");
        assert_eq!(shell("deploy/prod"), "deploy/prod");
        assert_eq!(shell("a'; rm -rf ~; '"), r"'a'\''; rm -rf ~; '\'''");
        assert_eq!((shell(""), shell("$(x)")), ("''".into(), "'$(x)'".into()));
        assert_eq!([last_argument("-x"), last_argument("x")], ["-- -x", "x"]);
    }
}
