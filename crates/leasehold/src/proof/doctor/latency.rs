//! Round trips, and the shortest ttl that they allow.

use std::time::Duration;

use serde::Serialize;

use super::{CheckStatus, Finding};
use crate::types::{RENEW_AFTER, RENEW_SPREAD, Ttl, attempt_limit, set_span};

/// How long one operation took, over several runs.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, doctor::Examination};
///
/// let report = Locker::open("mem:").await?.examine(&Examination::default()).await;
/// for trips in &report.round_trips {
///     println!("{}: p50 {} us, p99 {} us, {} runs", trips.operation, trips.p50_us, trips.p99_us, trips.count);
/// }
/// let renewals = report.round_trips.iter().find(|trips| trips.operation == "renew").unwrap();
/// assert!(renewals.p50_us <= renewals.p99_us);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct RoundTrips {
    /// `acquire`, `renew`, `inspect` or `release`, on a free lock. Each is one request on most stores.
    pub operation: &'static str,
    /// The number of runs.
    pub count: usize,
    /// The median, in microseconds: half of the runs took no longer.
    pub p50_us: u64,
    /// The 99th percentile, in microseconds: 99 of 100 runs took no longer. The maximum of fewer than 100 runs.
    pub p99_us: u64,
}

impl RoundTrips {
    /// Computes the percentiles of the runs. Returns `None` if there are no runs.
    pub(super) fn of(operation: &'static str, mut took: Vec<Duration>) -> Option<Self> {
        took.sort_unstable();
        let at = |part: usize| took.get((took.len() * part).div_ceil(100).saturating_sub(1)).copied();
        let (p50, p99) = (at(50)?, at(99)?);
        let us = |duration: Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
        Some(Self { operation, count: took.len(), p50_us: us(p50), p99_us: us(p99) })
    }

    fn p99(&self) -> Duration {
        Duration::from_micros(self.p99_us)
    }
}

pub(super) fn round_trips_finding(trips: &[RoundTrips]) -> Option<Finding> {
    if trips.is_empty() {
        return None;
    }
    let ms = |us: u64| shown(Duration::from_micros(us));
    let each: Vec<_> = trips
        .iter()
        .map(|trip| format!("{} {} / {}", trip.operation, ms(trip.p50_us), ms(trip.p99_us)))
        .collect();
    let seen =
        format!("p50 / p99 of {}: {}", trips.iter().map(|t| t.count).max().unwrap_or(0), each.join(", "));
    Some(Finding::passed("round-trips", seen))
}

/// The shortest safe ttl, and the reason for it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SmallestTtl {
    pub(super) smallest: Ttl,
    p99: Duration,
    /// The reason if the store itself requires this ttl.
    why: Option<&'static str>,
}

/// How many times longer than the slowest measured renewal a renewal may take on a bad day.
const WORSE_DAY: u32 = 5;

/// The longest pause before the first retry of a request.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Common values of a ttl.
const CANDIDATES_MS: [u64; 14] = [
    500, 1_000, 2_000, 3_000, 5_000, 10_000, 15_000, 20_000, 30_000, 60_000, 120_000, 300_000, 600_000,
    3_600_000,
];

/// Returns the shortest safe ttl. Returns `None` if no renewal was measured, or if renewals take so long that no lease
/// is safe.
pub(super) fn smallest_ttl(
    trips: &[RoundTrips],
    least: Option<(Duration, &'static str)>,
) -> Option<SmallestTtl> {
    let p99 = trips.iter().find(|trip| trip.operation == "renew")?.p99();
    let measured = CANDIDATES_MS
        .iter()
        .filter_map(|ms| Ttl::from_millis(*ms).ok())
        .find(|ttl| survives_a_lost_renewal(*ttl, p99 * WORSE_DAY))?;
    match least {
        Some((least, why)) if least > measured.get() => {
            Some(SmallestTtl { smallest: Ttl::new(least).ok()?, p99, why: Some(why) })
        }
        _ => Some(SmallestTtl { smallest: measured, p99, why: None }),
    }
}

/// Returns whether a lease of `ttl` survives a lost renewal: the first renewal is sent as late as possible and gets no
/// response, and the next requests take `trip` each. Their response must arrive before the holder has to stop.
fn survives_a_lost_renewal(ttl: Ttl, trip: Duration) -> bool {
    let latest = ttl.get().mul_f64(RENEW_AFTER * (1.0 + RENEW_SPREAD));
    let limit = attempt_limit(ttl);
    // After a lost response, the record is read and written again. A renewal has time for two requests.
    let is_repeated = RETRY_PAUSE + 2 * trip <= limit;
    if is_repeated {
        return latest + limit + RETRY_PAUSE + 2 * trip <= ttl.holder_span();
    }
    // Otherwise the next renewal finds a conflict, and then reads and writes.
    3 * trip <= 2 * limit && latest + 2 * limit + ttl.get() / 10 + 3 * trip <= ttl.holder_span()
}

pub(super) fn ttl_finding(found: Option<SmallestTtl>, ttl: Ttl) -> Finding {
    const CHECK: &str = "smallest-ttl";
    let Some(found) = found else {
        return Finding::new(CHECK, CheckStatus::Warning, "no ttl is safe if renewals take this long")
            .with_help("a request has a time limit of at most 5 s: use a store that is closer or less busy");
    };
    let because = found.why.map_or_else(
        || {
            format!(
                "one renewal can be lost, and the next can take {WORSE_DAY} times the p99 of {}",
                shown(found.p99)
            )
        },
        str::to_owned,
    );
    let seen = format!("{}: {because}", set_span(found.smallest.get()));
    if ttl >= found.smallest {
        return Finding::passed(CHECK, seen);
    }
    Finding::new(CHECK, CheckStatus::Warning, seen).with_help(format!(
        "a ttl of {} is too short here: a slow response would lose the lock; use --ttl {} or more",
        set_span(ttl.get()),
        set_span(found.smallest.get())
    ))
}

/// Formats a duration like `0.42 ms`, `17 ms`, `1.2 s`.
pub(super) fn shown(took: Duration) -> String {
    let ms = took.as_secs_f64() * 1e3;
    match ms {
        ..10.0 => format!("{ms:.2} ms"),
        ..1_000.0 => format!("{ms:.0} ms"),
        _ => format!("{:.1} s", ms / 1e3),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn renewals(p99: Duration) -> Vec<RoundTrips> {
        RoundTrips::of("renew", vec![Duration::from_millis(1), p99]).into_iter().collect()
    }

    #[test]
    fn the_p99_of_few_is_the_slowest() {
        let trips = RoundTrips::of("renew", (1..=200).map(Duration::from_millis).collect()).unwrap();
        assert_eq!((trips.count, trips.p50_us, trips.p99_us), (200, 100_000, 198_000));
        let trips = RoundTrips::of("renew", (1..=5).map(Duration::from_millis).collect()).unwrap();
        assert_eq!((trips.p50_us, trips.p99_us), (3_000, 5_000));
        assert_eq!(RoundTrips::of("renew", Vec::new()), None);
    }

    #[test]
    fn slower_stores_need_longer_leases() {
        for (p99_ms, smallest_ms) in
            [(1, 1_000), (5, 1_000), (40, 2_000), (400, 20_000), (500, 60_000), (2_000, 0)]
        {
            let found = smallest_ttl(&renewals(Duration::from_millis(p99_ms)), None);
            assert_eq!(found.map_or(0, |found| found.smallest.as_millis()), smallest_ms, "{p99_ms} ms");
        }
        let floor = Some((Duration::from_secs(10), "a write a second"));
        let found = smallest_ttl(&renewals(Duration::from_millis(1)), floor).unwrap();
        assert_eq!(found.smallest.as_millis(), 10_000);
        assert!(ttl_finding(Some(found), Ttl::DEFAULT).seen.contains("a write a second"));
        assert_eq!(ttl_finding(None, Ttl::DEFAULT).verdict, CheckStatus::Warning);
        assert_eq!(ttl_finding(Some(found), Ttl::from_millis(9_999).unwrap()).verdict, CheckStatus::Warning);
    }
}
