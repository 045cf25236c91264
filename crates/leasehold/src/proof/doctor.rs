//! Examines whether *this* store is safe. [`Locker::examine`](crate::Locker::examine) sends the requests and reports
//! each finding with advice.
//!
//! There are three layers: checks that only one kind of store has (its own `examine`: permissions, settings,
//! preconditions of its writes), checks for every store of locks, and conclusions from the measurements (ttls, costs).

mod cost;
mod latency;
mod leases;

use serde::Serialize;

pub use self::cost::Cost;
pub use self::latency::RoundTrips;
pub use super::{probe, probe_deletes};
pub use crate::diagnosis::{CheckStatus, Diagnose, Examination, Examined, Finding, RESERVED};
use crate::error::{Error, ErrorKind};
use crate::lease::{Capabilities, Id, LeaseStore};
use crate::types::LockName;

/// The name of the first check.
const REACHABLE: &str = "reachable";

/// The result of an examination.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, doctor::{CheckStatus, Examination, Report}};
///
/// let report = match Locker::open("mem:").await {
///     Ok(locker) => locker.examine(&Examination::default()).await,
///     Err(error) => Report::unopened(&error),
/// };
/// assert!(report.is_safe());
/// let tokens = report.finding("tokens").expect("tokens are checked on every store");
/// assert_eq!(tokens.verdict, CheckStatus::Passed);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The kind of store, as in [`Capabilities`]; `None` if it could not be opened.
    pub kind: Option<&'static str>,
    /// The findings, in the order of the checks.
    pub findings: Vec<Finding>,
    /// How long requests took, for each operation that was measured.
    pub round_trips: Vec<RoundTrips>,
    /// The shortest ttl that is safe according to the measurements, in milliseconds; `None` if too little was measured.
    pub smallest_ttl_ms: Option<u64>,
    /// What the store's provider charges; `None` if it charges nothing, or its prices are not known.
    pub cost: Option<Cost>,
}

impl Report {
    /// Returns the report for a store that could not be opened because of `error`.
    pub fn unopened(error: &Error) -> Self {
        let help = error.help().to_vec();
        let finding = Finding { help, ..Finding::failed(REACHABLE, error.to_string()) };
        Self {
            kind: None,
            findings: vec![finding],
            round_trips: Vec::new(),
            smallest_ttl_ms: None,
            cost: None,
        }
    }

    /// Returns whether no check failed. Warnings do not count as failures.
    pub fn is_safe(&self) -> bool {
        !self.findings.iter().any(|finding| finding.verdict == CheckStatus::Failed)
    }

    /// Returns the finding for `check`.
    pub fn finding(&self, check: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.check == check)
    }
}

/// Examines `store`. Not cancel safe: a dropped examination leaves the objects that it has written.
pub(crate) async fn examine(store: &dyn LeaseStore, examination: &Examination) -> Report {
    let kind = store.capabilities().store;
    let mut report = Report {
        kind: Some(kind),
        findings: Vec::new(),
        round_trips: Vec::new(),
        smallest_ttl_ms: None,
        cost: cost::estimate(kind, false, examination),
    };
    let prefix = format!("{RESERVED}{}", &Id::random(&store.env().random).to_string()[..12]);
    let (mut reachable, answers) = reach(store, &prefix).await;
    reachable.add_default_help();
    report.findings.push(reachable);
    if !answers {
        return report;
    }
    let mut examined = store.examine(examination).await;
    report.cost = cost::estimate(kind, examined.releases_delete, examination);
    let sound = examined.is_sound();
    let mut left = std::mem::take(&mut examined.left);
    name_least_permissions(&mut examined);
    report.findings.append(&mut examined.findings);
    if !sound {
        let seen = "not examined, because a check above failed";
        report.findings.push(Finding::not_applicable("leases", seen));
    } else {
        let mut leases = leases::examine(store, &prefix, examination).await;
        // The finding on the permission to list already covers this.
        if report.finding("permission-list").is_some_and(|finding| finding.verdict == CheckStatus::Warning) {
            leases.findings.retain(|finding| finding.check != "listing");
        }
        report.findings.extend(leases.findings);
        left.extend(leases.left);
        let ttl = latency::smallest_ttl(&leases.trips, examined.least_ttl);
        if let Some(finding) = latency::round_trips_finding(&leases.trips) {
            report.findings.extend([finding, latency::ttl_finding(ttl, examination.ttl)]);
        }
        report.smallest_ttl_ms = ttl.map(|ttl| ttl.smallest.as_millis());
        report.round_trips = leases.trips;
    }
    report.findings.push(order(&store.capabilities()));
    report.findings.push(cost::finding(kind, report.cost.as_ref(), examined.listed_prices, examination));
    let versioned = report
        .finding("versioning")
        .is_some_and(|finding| finding.verdict == CheckStatus::Warning || finding.seen.starts_with("on"));
    report.findings.push(left_behind(&left, versioned));
    report.findings.iter_mut().for_each(Finding::add_default_help);
    report
}

/// Returns the finding on the order in which waiters get a lock. It reports what the store declares. The order is not
/// tested.
fn order(capabilities: &Capabilities) -> Finding {
    const CHECK: &str = "order";
    match capabilities.line {
        Some(line) => {
            let seen =
                format!("waiting processes get a lock in the order of their arrival, recorded in {line}");
            Finding::passed(CHECK, seen)
        }
        None => Finding::not_applicable(CHECK, "waiting processes get a lock in no particular order"),
    }
}

fn left_behind(left: &[String], versioned: bool) -> Finding {
    const CHECK: &str = "clean-up";
    if left.is_empty() && versioned {
        let seen = "everything that this examination wrote was deleted; old versions remain, because the bucket keeps versions";
        return Finding::passed(CHECK, seen);
    }
    if left.is_empty() {
        return Finding::passed(CHECK, "everything that this examination wrote was deleted");
    }
    Finding::not_applicable(
        CHECK,
        format!("not deleted, because deletes are not allowed or not known to be safe: {}", left.join(", ")),
    )
    .with_help("they are harmless: delete them with the store's own tools, or keep them")
}

/// Checks whether the store responds at all. A refusal counts as a response, because the checks of permissions report
/// what is missing.
async fn reach(store: &dyn LeaseStore, prefix: &str) -> (Finding, bool) {
    let Ok(name) = LockName::new(format!("{prefix}/reach")) else {
        return (Finding::failed(REACHABLE, "no lock name could be generated"), false);
    };
    let sent = store.env().now();
    let status = store.inspect(&name).await;
    let took = store.env().now().longest_since(sent);
    match status {
        Ok(_) => (Finding::passed(REACHABLE, format!("responded in {}", latency::shown(took))), true),
        Err(error) if error.fault().kind == ErrorKind::Denied => {
            (Finding::passed(REACHABLE, "responds, and refuses a read"), true)
        }
        Err(error) => (Finding::of_error(REACHABLE, CheckStatus::Failed, &error), false),
    }
}

/// Adds the list of all needed permissions to the first finding of a missing permission.
fn name_least_permissions(examined: &mut Examined) {
    let least = std::mem::take(&mut examined.least_permissions);
    let missing = |finding: &&mut Finding| {
        finding.verdict == CheckStatus::Failed && finding.check.starts_with("permission-")
    };
    if let Some(first) = examined.findings.iter_mut().find(missing) {
        first.help.extend(least);
    }
}

#[cfg(test)]
mod tests;
