//! `failover_grace`: after a failover or a restart that may have lost grants, the server grants no lock until the lost
//! leases must have ended.

use std::time::Duration;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::HolderInfo;

/// How much longer than the lease the suggested grace is. Covers replicas that lag by default, with a reserve.
const RESERVE: Duration = Duration::from_secs(15);

/// Fails if a lease of `span` could outlast the grace. A replaced server may still renew leases for `lag`.
pub(super) fn check(grace: Duration, span: Duration, lag: Duration) -> Result<(), StoreError> {
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
pub(super) fn withheld(server: &str, left: Duration) -> HolderInfo {
    let what = format!(
        "{server} was restarted or promoted and may have lost a grant, so it grants nothing until failover_grace is over"
    );
    HolderInfo { foreign: Some(what), lapses_within: Some(left), withheld: true, ..HolderInfo::default() }
}
