//! The cost of locking for a month, at list prices. This is the only place with prices.

use serde::Serialize;

use super::{Examination, Finding};
use crate::types::set_span;

/// A provider's prices for requests. Compared with these, storage and traffic are negligible for locks.
struct Prices {
    /// As in [`Capabilities::store`](crate::lease::Capabilities::store).
    store: &'static str,
    /// The service, the region and the date of the prices.
    source: &'static str,
    /// US dollars for a million writes of a record.
    writes: f64,
    /// US dollars for a million reads of a record.
    reads: f64,
    /// The number of reads and writes of an acquisition and its release.
    reads_per_acquisition: u32,
    writes_per_acquisition: u32,
}

const PRICES: &[Prices] = &[
    Prices {
        store: "S3",
        source: "Amazon S3 Standard in us-east-1, November 2026",
        writes: 5.0,
        reads: 0.4,
        reads_per_acquisition: 1,
        writes_per_acquisition: 2,
    },
    Prices {
        store: "GCS",
        source: "Google Cloud Storage, Standard, single region, September 2026",
        writes: 5.0,
        reads: 0.4,
        reads_per_acquisition: 1,
        writes_per_acquisition: 2,
    },
    Prices {
        store: "DynamoDB",
        source: "Amazon DynamoDB on demand in us-east-1, November 2026",
        writes: 0.625,
        reads: 0.125,
        reads_per_acquisition: 0,
        writes_per_acquisition: 2,
    },
];

const DAYS: u64 = 30;
const SECONDS: f64 = (DAYS * 86_400) as f64;

/// The requests of a month of 30 days, and their cost at list prices.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, doctor::Examination};
///
/// let mut examination = Examination::default();
/// examination.acquisitions_per_day = 50_000;
/// let report = Locker::open("mem:").await?.examine(&examination).await; // or s3://my-bucket/locks
/// match &report.cost {
///     Some(cost) => println!("{:.2} USD a month, by {}", cost.usd_per_month, cost.prices),
///     None => println!("requests are free, or their prices are not known"),
/// }
/// assert_eq!(report.cost, None); // memory
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Cost {
    /// The source of the list prices, with their date.
    pub prices: &'static str,
    /// Renewals, acquisitions and releases.
    pub writes_per_month: u64,
    /// Reads before acquisitions. The reads of waiters are not included.
    pub reads_per_month: u64,
    /// In US dollars.
    pub usd_per_month: f64,
}

/// Returns the estimated cost. `None` if requests to the store are free.
///
/// `deletes` says whether releases delete the record. Deletes cost nothing on object stores.
pub(super) fn estimate(store: &str, deletes: bool, examination: &Examination) -> Option<Cost> {
    let prices = PRICES.iter().find(|prices| prices.store == store)?;
    let acquisitions = u64::from(examination.acquisitions_per_day) * DAYS;
    // The renewal task renews after a third of the ttl.
    let renewals = SECONDS / (examination.ttl.get().as_secs_f64() / 3.0) * f64::from(examination.locks);
    let writes_per_acquisition = prices.writes_per_acquisition - u32::from(deletes);
    let writes = renewals as u64 + acquisitions * u64::from(writes_per_acquisition);
    let reads = acquisitions * u64::from(prices.reads_per_acquisition);
    let millions = |requests: u64| requests as f64 / 1e6;
    Some(Cost {
        prices: prices.source,
        writes_per_month: writes,
        reads_per_month: reads,
        usd_per_month: millions(writes) * prices.writes + millions(reads) * prices.reads,
    })
}

pub(super) fn finding(store: &str, cost: Option<&Cost>, listed: bool, examination: &Examination) -> Finding {
    const CHECK: &str = "cost";
    let Some(cost) = cost else {
        return Finding::not_applicable(CHECK, format!("leasehold knows no price per request of {store}"));
    };
    let Examination { locks, acquisitions_per_day, ttl, .. } = examination;
    let what = format!(
        "{} writes and {} reads a month, for {locks} held all the time with a ttl of {} and {acquisitions_per_day} \
         acquisitions a day",
        cost.writes_per_month,
        cost.reads_per_month,
        set_span(ttl.get()),
    );
    if listed {
        let seen = format!("${:.2} a month at list prices of {}: {what}", cost.usd_per_month, cost.prices);
        return Finding::passed(CHECK, seen);
    }
    let elsewhere = format!("${:.2} at list prices of {}", cost.usd_per_month, cost.prices);
    Finding::not_applicable(CHECK, format!("{what}; the prices of this endpoint are unknown ({elsewhere})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks the figures on the stores' documentation pages.
    #[test]
    fn a_lock_held_for_a_month_costs_what_the_pages_say() {
        let examination = Examination { acquisitions_per_day: 0, ..Examination::default() };
        let s3 = estimate("S3", false, &examination).unwrap();
        assert_eq!((s3.writes_per_month, s3.reads_per_month), (259_200, 0));
        assert!((s3.usd_per_month - 1.296).abs() < 1e-9, "{s3:?}");
        let dynamodb = estimate("DynamoDB", false, &examination).unwrap();
        assert!((dynamodb.usd_per_month - 0.162).abs() < 1e-9, "{dynamodb:?}");
        let two = Examination { locks: 2, acquisitions_per_day: 1_000, ..Examination::default() };
        let s3 = estimate("S3", false, &two).unwrap();
        assert_eq!((s3.writes_per_month, s3.reads_per_month), (518_400 + 60_000, 30_000));
        assert_eq!(estimate("SQLite", false, &examination), None);
        let deleted = estimate("S3", true, &two).unwrap();
        assert_eq!(deleted.writes_per_month, 518_400 + 30_000);
    }
}
