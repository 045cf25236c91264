//! Durations, times and links as text.

use std::time::{Duration, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

/// The characters that a link escapes: all except those that are plain in a path and in a query, and the `/` between
/// segments.
const IN_LINK: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

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
    format!("/ui/{page}/{}", utf8_percent_encode(name, IN_LINK))
}

/// Escapes a value for a query.
pub(super) fn in_query(value: &str) -> String {
    utf8_percent_encode(value, IN_LINK).to_string()
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

/// Returns a word of the API and the command, as a word of a page.
pub(super) fn capitalized(word: &str) -> String {
    let mut chars = word.chars();
    chars.next().map(|first| first.to_uppercase().chain(chars).collect()).unwrap_or_default()
}

/// Returns a number with its unit: `1 process`, `2 processes`.
pub(super) fn count(of: usize, one: &str, many: &str) -> String {
    format!("{} {}", number(of), if of == 1 { one } else { many })
}

/// Formats a number with a comma between thousands: `20,000`.
pub(super) fn number(number: usize) -> String {
    let digits = number.to_string();
    let mut shown = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_times_are_short() {
        let spans = [999, 59_999, 60_000, 3_725_000, 266_400_000].map(span);
        assert_eq!(spans, ["0 s", "59 s", "1 min 00 s", "1 h 02 min", "3 d 2 h"]);
        assert_eq!([capitalized("held"), capitalized("")], ["Held", ""]);
        assert_eq!([40, 9_999, 10_000].map(took), ["0.0 s", "9.9 s", "10 s"]);
        assert_eq!(time(1_700_000_000_000_000), "2023-11-14 22:13:20");
        assert_eq!(stamp(u64::MAX), "9999-12-31T23:59:59Z");
        assert_eq!([7, 999, 1_000, 1_234_567].map(number), ["7", "999", "1,000", "1,234,567"]);
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
