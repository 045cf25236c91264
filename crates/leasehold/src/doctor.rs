//! Is *this* store safe? [`Locker::examine`](crate::Locker::examine) asks it, and reports each answer with what to do.
//!
//! In three layers: what only one kind of store can be asked (its own `examine`: permissions, settings, preconditions of
//! its writes), what every store of locks must do, and what follows from what was measured (times to live,
//! costs).

mod cost;
mod leases;
mod measured;

use std::time::Duration;

use serde::Serialize;

pub use self::cost::Cost;
pub use self::measured::RoundTrips;
use crate::error::{Error, ErrorKind, StoreError};
use crate::lease::{Id, LeaseStore, Ttl};
use crate::name::LockName;

/// What the names of all locks begin with that an examination takes; a random part follows.
pub const RESERVED: &str = "leasehold-doctor-";

/// The first check.
const REACHABLE: &str = "reachable";

/// What stands for all that could not be asked: nothing is known then, neither good nor bad.
pub(crate) const UNANSWERED: &str = "unanswered";

/// What to examine a store for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Examination {
    /// The time to live that locks will have.
    pub ttl: Ttl,
    /// How many locks will be held all the time: for the costs.
    pub locks: u32,
    /// How often locks will be acquired and released, all together, per day: for the costs.
    pub acquisitions_per_day: u32,
    /// Whether to race longer and to measure more: some minutes instead of a few seconds.
    pub thorough: bool,
    /// Other endpoints of the same store, which are asked in turn with its own: several front ends may be atomic each for
    /// itself, and not together. S3 only.
    pub endpoints: Vec<String>,
}

impl Default for Examination {
    /// One lock of 30 s that is held all the time, and a thousand acquisitions a day.
    fn default() -> Self {
        Self {
            ttl: Ttl::DEFAULT,
            locks: 1,
            acquisitions_per_day: 1_000,
            thorough: false,
            endpoints: Vec::new(),
        }
    }
}

/// What an examination found.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// The store's kind, as [`Capabilities`](crate::lease::Capabilities) says it; `None` where it could not be opened.
    pub kind: Option<&'static str>,
    /// In the order in which they were asked.
    pub findings: Vec<Finding>,
    /// How long requests took, for each operation that was measured.
    pub round_trips: Vec<RoundTrips>,
    /// The shortest time to live that is safe by what was measured, in milliseconds; `None` when too little was.
    pub smallest_ttl_ms: Option<u64>,
    /// What the store's provider charges; `None` where nobody does, or nobody knows.
    pub cost: Option<Cost>,
}

impl Report {
    /// Of a store that could not even be opened, as `error` says.
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

    /// Whether nothing failed. Warnings do not count.
    pub fn is_safe(&self) -> bool {
        !self.findings.iter().any(|finding| finding.verdict == Verdict::Failed)
    }

    /// What was found for `check`.
    pub fn finding(&self, check: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.check == check)
    }
}

/// One question to a store, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was asked: a name for programs, which stays the same from release to release.
    pub check: &'static str,
    /// How the store did.
    pub verdict: Verdict,
    /// What was seen, for people.
    pub seen: String,
    /// What to do about it, a line each.
    pub help: Vec<String>,
}

/// How a store did in one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// As it must be.
    Passed,
    /// Locks are safe, and something else is not as it should be.
    Warning,
    /// Locks are not safe on this store, or not possible.
    Failed,
    /// Not asked, or of no importance here.
    NotApplicable,
}

impl Finding {
    /// What was `seen` in `check`.
    pub fn new(check: &'static str, verdict: Verdict, seen: impl Into<String>) -> Self {
        Self { check, verdict, seen: seen.into(), help: Vec::new() }
    }

    /// As it must be.
    pub fn passed(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Verdict::Passed, seen)
    }

    /// Safe, and worth a look.
    pub fn warning(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Verdict::Warning, seen)
    }

    /// Not safe.
    pub fn failed(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Verdict::Failed, seen)
    }

    /// Not asked.
    pub fn not_applicable(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, Verdict::NotApplicable, seen)
    }

    /// With the words of `error`, and its help.
    pub fn of_error(check: &'static str, verdict: Verdict, error: &StoreError) -> Self {
        let fault = error.fault();
        Self {
            help: fault.help.iter().cloned().collect(),
            ..Self::new(check, verdict, fault.message.clone())
        }
    }

    /// Of `error`, which came instead of an answer to `check`: one that passes says nothing of what was asked.
    pub(crate) fn stopped(check: &'static str, error: &StoreError) -> Self {
        if !error.is_transient() {
            return Self::of_error(check, Verdict::Failed, error);
        }
        let fault = error.fault();
        let mut finding =
            Self::failed(UNANSWERED, format!("the store could not be asked ({check}): {}", fault.message));
        finding.help.extend(fault.help.clone());
        finding.with_help(
            "nothing is known of whether it is safe: try again when it answers in time, and is less busy",
        )
    }

    /// Adds a line that says what to do.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// What nobody foresaw has at least this.
    fn never_without_help(&mut self) {
        if self.verdict == Verdict::Failed && self.help.is_empty() {
            self.help.push("try again; if it stays so, do not use this store for locks".to_owned());
        }
    }
}

/// What a store finds when it examines itself.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Examined {
    /// What it found.
    pub findings: Vec<Finding>,
    /// The least permissions that leasehold needs here, as the store's administrators write them, a line each: shown when
    /// one is missing.
    pub least_permissions: Vec<String>,
    /// A time to live below which the store itself is the obstacle, and why.
    pub least_ttl: Option<(Duration, &'static str)>,
    /// Whether this is the endpoint of the provider whose list prices leasehold knows.
    pub listed_prices: bool,
    /// Whether a release deletes the record.
    pub releases_delete: bool,
    /// What was written and could not be deleted.
    pub left: Vec<String>,
}

impl Examined {
    /// Adds what was found. That the store cannot be asked is said once.
    pub fn push(&mut self, finding: Finding) {
        let told = |before: &Finding| before.check == UNANSWERED;
        if finding.check != UNANSWERED || !self.findings.iter().any(told) {
            self.findings.push(finding);
        }
    }

    /// Adds what another layer found.
    pub fn extend(&mut self, other: Self) {
        self.findings.extend(other.findings);
        if !other.least_permissions.is_empty() {
            self.least_permissions = other.least_permissions;
        }
        self.least_ttl = other.least_ttl.or(self.least_ttl);
        self.listed_prices |= other.listed_prices;
        self.releases_delete |= other.releases_delete;
        self.left.extend(other.left);
    }

    /// Says that `what` was written and could not be deleted.
    pub fn leave(&mut self, what: String) {
        self.left.push(what);
    }

    /// Whether `check` was asked, and passed.
    pub(crate) fn passed(&self, check: &str) -> bool {
        self.findings.iter().any(|finding| finding.check == check && finding.verdict == Verdict::Passed)
    }

    /// Whether nothing failed so far.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(|finding| finding.verdict == Verdict::Failed)
    }
}

/// Examines `store`. Not cancel safe in so far as a dropped examination leaves what it has written.
pub(crate) async fn examine(store: &dyn LeaseStore, examination: &Examination) -> Report {
    let kind = store.capabilities().store;
    let mut report = Report {
        kind: Some(kind),
        findings: Vec::new(),
        round_trips: Vec::new(),
        smallest_ttl_ms: None,
        cost: cost::estimate(kind, false, examination),
    };
    let place = format!("{RESERVED}{}", &Id::random(&store.env().random).to_string()[..12]);
    let (mut reachable, answers) = reach(store, &place).await;
    reachable.never_without_help();
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
        let seen = "not examined, because of what failed above";
        report.findings.push(Finding::not_applicable("leases", seen));
    } else {
        let mut leases = leases::examine(store, &place, examination).await;
        // Who was told of the permission need not be told again of what it is for.
        if report.finding("permission-list").is_some_and(|finding| finding.verdict == Verdict::Warning) {
            leases.findings.retain(|finding| finding.check != "listing");
        }
        report.findings.extend(leases.findings);
        left.extend(leases.left);
        let ttl = measured::smallest_ttl(&leases.trips, examined.least_ttl);
        if let Some(finding) = measured::round_trips_finding(&leases.trips) {
            report.findings.extend([finding, measured::ttl_finding(ttl, examination.ttl)]);
        }
        report.smallest_ttl_ms = ttl.map(|ttl| ttl.smallest.as_millis());
        report.round_trips = leases.trips;
    }
    report.findings.push(cost::finding(kind, report.cost.as_ref(), examined.listed_prices, examination));
    let versioned = report
        .finding("versioning")
        .is_some_and(|finding| finding.verdict == Verdict::Warning || finding.seen.starts_with("on"));
    report.findings.push(left_behind(&left, versioned));
    report.findings.iter_mut().for_each(Finding::never_without_help);
    report
}

fn left_behind(left: &[String], versioned: bool) -> Finding {
    const CHECK: &str = "clean-up";
    if left.is_empty() && versioned {
        let seen =
            "what this examination wrote is deleted; the bucket keeps the old versions as it keeps all";
        return Finding::passed(CHECK, seen);
    }
    if left.is_empty() {
        return Finding::passed(CHECK, "what this examination wrote is deleted");
    }
    Finding::not_applicable(
        CHECK,
        format!("these stay, since deleting is not allowed or not known: {}", left.join(", ")),
    )
    .with_help("they are in nobody's way: delete them with the store's own tools, or let them be")
}

/// Whether the store answers at all. Who is refused has been answered: what is missing, the permissions tell.
async fn reach(store: &dyn LeaseStore, place: &str) -> (Finding, bool) {
    let Ok(name) = LockName::new(format!("{place}/reach")) else {
        return (Finding::failed(REACHABLE, "no name can be made"), false);
    };
    let sent = store.env().now();
    let asked = store.inspect(&name).await;
    let took = store.env().now().longest_since(sent);
    match asked {
        Ok(_) => (Finding::passed(REACHABLE, format!("answered in {}", measured::shown(took))), true),
        Err(error) if error.fault().kind == ErrorKind::Denied => {
            (Finding::passed(REACHABLE, "answers, and refuses a read"), true)
        }
        Err(error) => (Finding::of_error(REACHABLE, Verdict::Failed, &error), false),
    }
}

/// Whoever lacks one permission is told all that are needed.
fn name_least_permissions(examined: &mut Examined) {
    let least = std::mem::take(&mut examined.least_permissions);
    let missing = |finding: &&mut Finding| {
        finding.verdict == Verdict::Failed && finding.check.starts_with("permission-")
    };
    if let Some(first) = examined.findings.iter_mut().find(missing) {
        first.help.extend(least);
    }
}

#[cfg(test)]
mod tests;
