//! `failover_grace`: after a failover or a restart that may have lost grants, the server grants no lock until the lost
//! leases must have ended.

use std::time::Duration;

use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::HolderInfo;
use crate::url::StoreUrl;

/// The longest grace.
const LONGEST: Duration = Duration::from_secs(48 * 60 * 60);

/// How much longer than the lease the suggested grace is. Covers replicas that lag by default, with a reserve.
const RESERVE: Duration = Duration::from_secs(15);

/// Takes the option from a store URL.
pub(in super::super) fn take(url: &mut StoreUrl, default: Duration) -> Result<Duration, Error> {
    match url.take_duration("failover_grace")? {
        None => Ok(default),
        Some(grace) if grace <= LONGEST => Ok(grace),
        Some(_) => Err(Error::invalid("the option `failover_grace` is longer than 48 hours")
            .with_help("it must be longer than the longest lease; leases last at most 24 hours")),
    }
}

/// Fails if a lease of `span` could outlast the grace. A replaced server may still renew leases for `lag`.
pub(in super::super) fn check(grace: Duration, span: Duration, lag: Duration) -> Result<(), StoreError> {
    if grace.is_zero() || span + lag <= grace {
        return Ok(());
    }
    let lagging =
        if lag.is_zero() { String::new() } else { format!(" and {lag:.0?} for the lag of replicas") };
    let message = format!(
        "a lease of {:.0}s{lagging} is longer than failover_grace ({:.0}s): it could outlast a failover",
        span.as_secs_f64().ceil(),
        grace.as_secs_f64()
    );
    let help = format!(
        "use a shorter ttl, or add failover_grace={}s to the store URL of every process",
        (span + RESERVE.max(lag + Duration::from_secs(3))).as_secs()
    );
    Err(Fault::new(ErrorKind::Invalid, message).with_help(help).not_applied())
}

/// Returns the holder to report for a lock that a lost grant may still hold.
pub(in super::super) fn withheld(server: &str, left: Duration) -> HolderInfo {
    let what = format!(
        "{server} was restarted or promoted and may have lost a grant, so it grants nothing until failover_grace is over"
    );
    HolderInfo { foreign: Some(what), lapses_within: Some(left), ..HolderInfo::default() }
}
