//! The types that the [`doctor`](crate::doctor) and the stores share: what to examine, and the findings.

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::types::{LockName, Ttl};

/// The prefix of all lock names that an examination uses. A random part follows.
pub const RESERVED: &str = "leasehold-doctor-";

/// The check to report if the store did not respond. It is then unknown whether the store is safe.
pub(crate) const UNANSWERED: &str = "unanswered";

/// What a store reports about itself when it is examined, in addition to the checks for every store.
///
/// ```
/// # use leasehold::doctor::{Diagnose, Examination, Examined, Finding};
/// struct Disk;
///
/// #[async_trait::async_trait]
/// impl Diagnose for Disk {
///     async fn examine(&self, _examination: &Examination) -> Examined {
///         let mut examined = Examined::default();
///         examined.push(Finding::warning("space", "2 % are free").with_help("delete old files"));
///         examined
///     }
/// }
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// assert!(Disk.examine(&Examination::default()).await.is_sound()); // a warning is not a failure
/// # });
/// ```
#[async_trait]
pub trait Diagnose: Send + Sync {
    /// Runs the checks that apply only to this store: its permissions, its settings, the preconditions of its writes.
    /// The doctor itself checks leases. Checks nothing by default.
    async fn examine(&self, examination: &Examination) -> Examined {
        let _ = examination;
        Examined::default()
    }

    /// Deletes the record that an examination left under `name`. The lock must be free, and no other client may use
    /// this name. Returns `false` if the record stays. Deletes nothing by default.
    ///
    /// The delete is not conditional on every store, so never call this for a lock that others use.
    ///
    /// # Errors
    /// Returns an error if the store did not respond, or if a permission is missing that possibly only this call needs.
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let _ = name;
        Ok(false)
    }
}

/// The settings of an examination.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, doctor::Examination, lease::Ttl};
///
/// let mut examination = Examination::default();
/// examination.ttl = Ttl::new(Duration::from_secs(10))?;
/// examination.locks = 20; // held all the time
/// let report = Locker::open("mem:").await?.examine(&examination).await;
/// assert!(report.is_safe());
/// println!("the shortest safe ttl in ms: {:?}", report.smallest_ttl_ms);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Examination {
    /// The time to live that locks will have.
    pub ttl: Ttl,
    /// How many locks will be held all the time. Used to estimate the cost.
    pub locks: u32,
    /// How often all locks together will be acquired and released per day. Used to estimate the cost.
    pub acquisitions_per_day: u32,
    /// Whether to race longer and measure more: some minutes instead of a few seconds.
    pub thorough: bool,
    /// Other endpoints of the same store. Requests go to them and to the store's own endpoint in turn. Each front end
    /// may be atomic on its own, but not together with the others. S3 only.
    pub endpoints: Vec<String>,
}

impl Default for Examination {
    /// Returns the settings for one lock with a ttl of 30 s that is held all the time, and a thousand acquisitions a
    /// day.
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

/// The result of one check.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, doctor::{CheckStatus, Examination, Finding}};
///
/// let report = Locker::open("mem:").await?.examine(&Examination::default()).await;
/// let failed = |finding: &&Finding| finding.verdict == CheckStatus::Failed;
/// for finding in report.findings.iter().filter(failed) {
///     eprintln!("{}: {}", finding.check, finding.seen);
///     finding.help.iter().for_each(|line| eprintln!("  help: {line}"));
/// }
/// assert_eq!(report.findings.iter().filter(failed).count(), 0);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The name of the check, for programs. It does not change from release to release.
    pub check: &'static str,
    /// The outcome.
    pub verdict: CheckStatus,
    /// What was observed, for people.
    pub seen: String,
    /// What to do about it, one line each.
    pub help: Vec<String>,
}

/// The outcome of one check.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{Locker, doctor::{CheckStatus, Examination}};
///
/// let report = Locker::open("mem:").await?.examine(&Examination::default()).await;
/// let count = |status: CheckStatus| report.findings.iter().filter(|finding| finding.verdict == status).count();
/// println!("{} passed, {} warnings", count(CheckStatus::Passed), count(CheckStatus::Warning));
/// assert_eq!(count(CheckStatus::Failed), 0);
/// assert!(count(CheckStatus::NotApplicable) > 0); // memory has no price per request
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// The store behaves as it must.
    Passed,
    /// Locks are safe, but something else needs attention.
    Warning,
    /// Locks are not safe on this store, or not possible.
    Failed,
    /// Not checked, or not relevant for this store.
    NotApplicable,
}

impl Finding {
    /// Creates a finding for `check` with this verdict.
    pub fn new(check: &'static str, verdict: CheckStatus, seen: impl Into<String>) -> Self {
        Self { check, verdict, seen: seen.into(), help: Vec::new() }
    }

    /// Creates a finding that the store behaves as it must.
    pub fn passed(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Passed, seen)
    }

    /// Creates a finding that locks are safe, but something needs attention.
    pub fn warning(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Warning, seen)
    }

    /// Creates a finding that locks are not safe.
    pub fn failed(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Failed, seen)
    }

    /// Creates a finding for a check that was not made or is not relevant.
    pub fn not_applicable(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::NotApplicable, seen)
    }

    /// Creates a finding with the message and the help of `error`.
    pub fn of_error(check: &'static str, verdict: CheckStatus, error: &StoreError) -> Self {
        let fault = error.fault();
        Self {
            help: fault.help.iter().cloned().collect(),
            ..Self::new(check, verdict, fault.message.clone())
        }
    }

    /// Creates the finding for a `check` that failed with `error`. If the error is transient, the finding is that the
    /// store could not be checked.
    pub(crate) fn stopped(check: &'static str, error: &StoreError) -> Self {
        if !error.is_transient() {
            return Self::of_error(check, CheckStatus::Failed, error);
        }
        let fault = error.fault();
        let mut finding =
            Self::failed(UNANSWERED, format!("the store could not be checked ({check}): {}", fault.message));
        finding.help.extend(fault.help.clone());
        finding.with_help(
            "it is unknown whether the store is safe: try again when it responds in time and is less busy",
        )
    }

    /// Creates the finding that locks cannot be listed because of `error`.
    pub(crate) fn unlisted(check: &'static str, error: &StoreError) -> Self {
        Self::of_error(check, CheckStatus::Warning, error)
            .with_help("locks work without it; `leasehold ls` does not")
    }

    /// Creates the finding that the result of an examination could not be recorded in the store because of `error`.
    pub(crate) fn not_recorded(error: &StoreError) -> Self {
        Self::warning("record", format!("the result could not be recorded in the store: {error}"))
            .with_help("an earlier result in the store stays valid: try again when the store is less busy")
    }

    /// Adds a line of advice.
    #[must_use]
    pub fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help.push(help.into());
        self
    }

    /// Adds general advice to a failure that has none.
    pub(crate) fn add_default_help(&mut self) {
        if self.verdict == CheckStatus::Failed && self.help.is_empty() {
            self.help.push("try again; if the check fails again, do not use this store for locks".to_owned());
        }
    }
}

/// For the stores.
#[allow(dead_code, reason = "used by stores that are cargo features")]
impl Finding {
    /// Creates the finding for a request of `check` that must succeed. `good` says what that means.
    pub(crate) fn asked(check: &'static str, good: &str, result: Result<(), StoreError>) -> Self {
        Self::settled(check, result.map(|()| Self::passed(check, good)))
    }

    /// Returns the finding of `check`, or the one for its error.
    pub(crate) fn settled(check: &'static str, found: Result<Self, StoreError>) -> Self {
        found.unwrap_or_else(|error| Self::stopped(check, &error))
    }

    /// Creates the finding for what locks require of the store.
    pub(crate) fn required(check: &'static str, result: Result<impl Into<String>, Fault>) -> Self {
        match result {
            Ok(seen) => Self::passed(check, seen),
            Err(fault) => Self::of_error(check, CheckStatus::Failed, &fault.not_applied()),
        }
    }

    /// Creates the finding that a setting could not be read because of `error`. Locks do not need the permission
    /// `needed`.
    pub(crate) fn unread(check: &'static str, needed: &str, error: &StoreError) -> Self {
        let why = match error.fault().kind {
            // The bucket does not exist, or the server is another one.
            ErrorKind::Invalid => return Self::of_error(check, CheckStatus::Failed, error),
            ErrorKind::Denied => format!("this needs {needed}, which locks do not need"),
            _ => error.to_string(),
        };
        Self::not_applicable(check, format!("not checked: {why}"))
    }
}

/// The result of a store's examination of itself.
///
/// ```
/// use leasehold::doctor::{Examined, Finding};
///
/// let mut examined = Examined::default();
/// examined.push(Finding::warning("encryption", "off").with_help("switch it on"));
/// assert!(examined.is_sound()); // warnings do not count
///
/// examined.push(Finding::failed("permission-write", "a write was refused"));
/// examined.least_permissions.push("s3:PutObject".to_owned());
/// assert!(!examined.is_sound());
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Examined {
    /// The findings.
    pub findings: Vec<Finding>,
    /// The least permissions that leasehold needs on this store, in the notation of its administrators, one line each.
    /// Shown if a permission is missing.
    pub least_permissions: Vec<String>,
    /// The shortest ttl that the limits of the store itself allow, and the reason.
    pub least_ttl: Option<(Duration, &'static str)>,
    /// Whether this is the endpoint of the provider whose list prices leasehold knows.
    pub listed_prices: bool,
    /// Whether a release deletes the record.
    pub releases_delete: bool,
    /// The objects or records that were written and could not be deleted.
    pub left: Vec<String>,
}

impl Examined {
    /// Adds a finding. A missing response of the store is reported only once.
    pub fn push(&mut self, finding: Finding) {
        let told = |before: &Finding| before.check == UNANSWERED;
        if finding.check != UNANSWERED || !self.findings.iter().any(told) {
            self.findings.push(finding);
        }
    }

    /// Adds the findings of another layer.
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

    /// Records that `what` was written and could not be deleted.
    pub fn leave(&mut self, what: String) {
        self.left.push(what);
    }

    /// Returns whether `check` was made and passed.
    pub(crate) fn passed(&self, check: &str) -> bool {
        self.findings.iter().any(|finding| finding.check == check && finding.verdict == CheckStatus::Passed)
    }

    /// Returns whether no check has failed so far.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(|finding| finding.verdict == CheckStatus::Failed)
    }
}
