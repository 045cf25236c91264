//! What a store is examined for, and what it answers: the vocabulary of the [`doctor`](crate::doctor), which stores speak too.

use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;

use crate::error::StoreError;
use crate::types::{LockName, Ttl};

/// What the names of all locks begin with that an examination takes; a random part follows.
pub const RESERVED: &str = "leasehold-doctor-";

/// What stands for all that could not be asked: nothing is known then, neither good nor bad.
pub(crate) const UNANSWERED: &str = "unanswered";

/// What a store reports about itself when it is examined, beyond what every store is asked.
#[async_trait]
pub trait Diagnose: Send + Sync {
    /// Checks what only this store can be asked: its permissions, its settings, the preconditions of its writes. The
    /// doctor itself checks leases. By default nothing is checked.
    async fn examine(&self, examination: &Examination) -> Examined {
        let _ = examination;
        Examined::default()
    }

    /// Deletes the record that an examination left under `name`, a name that nothing else uses, and whose lock is free.
    /// Returns `false` if the record stays. By default nothing is deleted.
    ///
    /// Not conditional on every store: never call it for a lock that others use.
    ///
    /// # Errors
    /// If the store did not answer, or a permission is missing that nothing else may need.
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let _ = name;
        Ok(false)
    }
}

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

/// One question to a store, and its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What was asked: a name for programs, which stays the same from release to release.
    pub check: &'static str,
    /// How the store did.
    pub verdict: CheckStatus,
    /// What was seen, for people.
    pub seen: String,
    /// What to do about it, a line each.
    pub help: Vec<String>,
}

/// How a store did in one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
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
    pub fn new(check: &'static str, verdict: CheckStatus, seen: impl Into<String>) -> Self {
        Self { check, verdict, seen: seen.into(), help: Vec::new() }
    }

    /// As it must be.
    pub fn passed(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Passed, seen)
    }

    /// Safe, and worth a look.
    pub fn warning(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Warning, seen)
    }

    /// Not safe.
    pub fn failed(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::Failed, seen)
    }

    /// Not asked.
    pub fn not_applicable(check: &'static str, seen: impl Into<String>) -> Self {
        Self::new(check, CheckStatus::NotApplicable, seen)
    }

    /// With the words of `error`, and its help.
    pub fn of_error(check: &'static str, verdict: CheckStatus, error: &StoreError) -> Self {
        let fault = error.fault();
        Self {
            help: fault.help.iter().cloned().collect(),
            ..Self::new(check, verdict, fault.message.clone())
        }
    }

    /// Of `error`, which came instead of an answer to `check`: one that passes says nothing of what was asked.
    pub(crate) fn stopped(check: &'static str, error: &StoreError) -> Self {
        if !error.is_transient() {
            return Self::of_error(check, CheckStatus::Failed, error);
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
    pub(crate) fn never_without_help(&mut self) {
        if self.verdict == CheckStatus::Failed && self.help.is_empty() {
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
        self.findings.iter().any(|finding| finding.check == check && finding.verdict == CheckStatus::Passed)
    }

    /// Whether nothing failed so far.
    pub fn is_sound(&self) -> bool {
        !self.findings.iter().any(|finding| finding.verdict == CheckStatus::Failed)
    }
}
