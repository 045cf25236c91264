//! Durations as text.

use std::time::Duration;

/// Formats a duration for people in its two largest units, such as `3m12s`, or in milliseconds below one second.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(leasehold::view::span(Duration::from_secs(90_061)), "1d1h");
/// assert_eq!(leasehold::view::span(Duration::from_millis(999)), "999ms");
/// ```
pub fn span(duration: Duration) -> String {
    if duration < Duration::from_secs(1) {
        return format!("{}ms", duration.as_millis());
    }
    let seconds = duration.as_secs();
    let units =
        [("d", seconds / 86_400), ("h", seconds / 3_600 % 24), ("m", seconds / 60 % 60), ("s", seconds % 60)];
    let first = units.iter().position(|(_, count)| *count > 0).unwrap_or(3);
    let shown = units.iter().skip(first).take(2).filter(|(_, count)| *count > 0);
    shown.fold(String::new(), |text, (unit, count)| format!("{text}{count}{unit}"))
}

/// Formats an upper bound like [`span`], rounded up to whole seconds.
///
/// ```
/// assert_eq!(leasehold::view::span_up(std::time::Duration::from_millis(17_001)), "18s");
/// ```
pub fn span_up(duration: Duration) -> String {
    span(Duration::from_secs(duration.as_millis().div_ceil(1_000) as u64))
}

/// Formats a duration that somebody has set: exactly below one minute.
pub(crate) fn set_span(duration: Duration) -> String {
    if duration < Duration::from_secs(60) { format!("{duration:?}") } else { span(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        for (seconds, shown) in [
            (1, "1s"),
            (18, "18s"),
            (60, "1m"),
            (192, "3m12s"),
            (3_600, "1h"),
            (90_061, "1d1h"),
            (86_461, "1d"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), shown);
        }
        assert_eq!(span_up(Duration::ZERO), "0ms");
        assert_eq!(set_span(Duration::from_millis(1_500)), "1.5s");
        assert_eq!(set_span(Duration::from_secs(900)), "15m");
    }
}
