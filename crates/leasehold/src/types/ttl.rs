//! [`Ttl`]: how long a lease lasts for its holder and for contenders, and the times that follow from it.

use std::time::Duration;

use super::invalid::InvalidValue;
use super::span::set_span;
use crate::clock::{Deadline, Moment, RATE_ERROR};

/// A lease's time to live, and the spans of holder and contender that follow from it.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::lease::Ttl;
///
/// let ttl = Ttl::new(Duration::from_secs(30))?;
/// assert_eq!(ttl, Ttl::DEFAULT);
/// assert!(ttl.holder_span() < ttl.get()); // the holder stops earlier
/// assert!(ttl.contender_span() > ttl.get()); // and contenders wait longer
///
/// assert!(Ttl::new(Duration::from_millis(499)).is_err());
/// assert!(Ttl::new(Duration::from_secs(7 * 86_400)).is_err());
/// # Ok::<(), leasehold::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ttl(Duration);

impl Ttl {
    /// The shortest ttl.
    pub const MIN: Duration = Duration::from_millis(500);
    /// The longest ttl.
    pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);
    /// 30 s.
    pub const DEFAULT: Ttl = Ttl(Duration::from_secs(30));

    /// Creates a time to live between [`MIN`](Self::MIN) and [`MAX`](Self::MAX). Truncates it to whole milliseconds.
    ///
    /// # Errors
    /// Returns an error if `ttl` is out of range. The error names the limits.
    pub fn new(ttl: Duration) -> Result<Self, InvalidValue> {
        if (Self::MIN..=Self::MAX).contains(&ttl) {
            return Ok(Self(Duration::from_millis(ttl.as_millis() as u64)));
        }
        Err(InvalidValue::new(format!("a ttl of {} is out of range", set_span(ttl)))
            .with_help(
                "the ttl is between 500ms and 24h; a lease is renewed for as long as it is held, so 30s is suitable \
                 for most locks",
            ))
    }

    /// Creates a time to live from the milliseconds in a record.
    ///
    /// # Errors
    /// Returns the same errors as [`new`](Self::new).
    pub fn from_millis(ms: u64) -> Result<Self, InvalidValue> {
        Self::new(Duration::from_millis(ms))
    }

    /// Returns the time to live.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Returns the time to live in milliseconds.
    pub const fn as_millis(self) -> u64 {
        self.0.as_millis() as u64
    }

    /// Returns how long a holder may rely on its lease, counted from before the first send: ttl (1 - rho) - delta.
    pub fn holder_span(self) -> Duration {
        self.0.mul_f64(1.0 - RATE_ERROR).saturating_sub(self.slack())
    }

    /// Returns how long a contender must see no sign of life, counted from after a response: ttl (1 + rho) + delta.
    pub fn contender_span(self) -> Duration {
        self.0.mul_f64(1.0 + RATE_ERROR) + self.slack()
    }

    /// Returns delta, the slack for scheduling and rounding, which the rates do not cover.
    fn slack(self) -> Duration {
        (self.0 / 100).max(Duration::from_millis(50))
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// A new lease is renewed after this fraction of its ttl, and a lease with less time left after this fraction of that
/// time. Two more renewals can then fail before the lease is in danger.
pub(crate) const RENEW_AFTER: f64 = 1.0 / 3.0;
/// The jitter of that time. It spreads the renewals of many locks that were acquired at once.
pub(crate) const RENEW_SPREAD: f64 = 0.1;

/// Returns the time limit of one request to a store. Several requests fit into a lease.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::lease::{Ttl, attempt_limit};
///
/// let ttl = Ttl::new(Duration::from_secs(8))?;
/// assert_eq!(attempt_limit(ttl), Duration::from_secs(2));
/// assert_eq!(attempt_limit(Ttl::DEFAULT), Duration::from_secs(5)); // never longer
/// # Ok::<(), leasehold::Error>(())
/// ```
pub fn attempt_limit(ttl: Ttl) -> Duration {
    (ttl.get() / 4).clamp(Duration::from_millis(250), Duration::from_secs(5))
}

/// Returns the deadline of a grant whose first request was sent at `sent`.
///
/// ```
/// # use std::time::Duration;
/// use leasehold::{clock::Moment, lease::{Ttl, deadline}};
///
/// let sent = Moment::from_raw(0, 0);
/// let end = deadline(Ttl::DEFAULT, sent); // a ttl of 30 s
/// assert_eq!(end.remaining(sent), Duration::from_millis(29_550));
/// assert!(end.passed(Moment::from_raw(30_000_000_000, 30_000_000_000)));
/// ```
pub fn deadline(ttl: Ttl, sent: Moment) -> Deadline {
    Deadline::new(sent, ttl.holder_span())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn at_the_rate_bounds_the_holder_stops_before_contenders_start() {
        for ms in [500, 1_000, 30_000, 86_400_000] {
            let ttl = Ttl::from_millis(ms).unwrap();
            // When the clock of a slow holder shows holder_span, more true time has passed. When the clock of a fast
            // contender shows contender_span, less true time has passed.
            let holder_true = ttl.holder_span().div_f64(1.0 - RATE_ERROR);
            let contender_true = ttl.contender_span().div_f64(1.0 + RATE_ERROR);
            // Each side keeps its slack even at the worst rates.
            let slack = ttl.slack().mul_f64(0.99);
            assert!(holder_true <= ttl.get() - slack, "{ttl:?}");
            assert!(contender_true >= ttl.get() + slack, "{ttl:?}");
        }
    }

    /// The numbers in `docs/protocol/time.md`.
    #[test]
    fn the_spans_have_the_figures_of_the_protocol_page() {
        for (ttl_ms, slack_ms, holder_ms, contender_ms) in
            [(500, 50, 447.5, 552.5), (5_000, 50, 4_925.0, 5_075.0), (30_000, 300, 29_550.0, 30_450.0)]
        {
            let ttl = Ttl::from_millis(ttl_ms).unwrap();
            assert_eq!(ttl.slack(), Duration::from_millis(slack_ms));
            assert_eq!(ttl.holder_span(), Duration::from_secs_f64(holder_ms / 1e3));
            assert_eq!(ttl.contender_span(), Duration::from_secs_f64(contender_ms / 1e3));
        }
    }

    #[test]
    fn a_ttl_has_limits() {
        for bad in
            [Duration::ZERO, Duration::from_millis(499), Duration::from_secs(365 * 86_400), Duration::MAX]
        {
            assert!(Ttl::new(bad).is_err());
        }
    }
}
