//! The questions that a store must answer before its conditional writes count as safe. Before the first use, a short
//! selection is asked, until one answer is wrong. The doctor asks all of them.

mod deletes;
mod permissions;
mod races;

use bytes::Bytes;

use super::cells::{Cells, Profile};
use super::checks::{
    cause_of_conflict, fresh, refusal, refuses_outdated, refuses_second_create, vanished, worse,
};
use super::marker::Subject;
use crate::diagnosis::{CheckStatus, Examined, Finding};
use crate::error::{ErrorKind, StoreError};
use crate::lease::Id;
use crate::proof::races::Kind;
use crate::register::{Deleted, Precondition, Version, Write};
use crate::retry::{RetryBudget, retry};

/// The prefix of the keys. They are not the keys of locks and are never listed as locks.
pub(crate) const PREFIX: &str = ".leasehold-probe-check-";

/// The checks whose failure makes a store unsafe instead of only unusable. Such a failure is recorded in the store, so
/// that no process uses it.
const UNSAFE: [&str; 9] = [
    "read-after-write",
    "create-if-absent",
    "current-version",
    "new-version",
    "stale-version",
    "missing-key",
    "create-race",
    "atomic-race",
    "delete-marker",
];

/// Which questions to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Selection {
    FirstUse(Subject),
    /// `deletes` means that a release deletes objects, so conditional deletes matter.
    Doctor {
        thorough: bool,
        deletes: bool,
    },
}

pub(super) struct Questions<'a> {
    cells: &'a dyn Cells,
    profile: Profile,
    selection: Selection,
    /// The prefix of all keys.
    prefix: String,
    /// The key that most questions use.
    key: String,
    /// All keys that may exist.
    written: Vec<String>,
    count: usize,
    /// Whether a delete that expects an outdated version was refused.
    conditional_deletes: bool,
    /// What is wrong with deletes, even if they do not matter here.
    unsafe_deletes: Option<String>,
    found: Examined,
    /// The error that says most about what the store did wrong.
    failed: Option<StoreError>,
}

/// No further question can be asked, or needs to be.
struct Ended;

type Step<T> = Result<T, Ended>;

impl<'a> Questions<'a> {
    /// `found` contains the findings of the store's own checks.
    pub(super) fn new(cells: &'a dyn Cells, selection: Selection, found: Examined) -> Self {
        let id = Id::random(&cells.env().random).to_string();
        let prefix = format!("{PREFIX}{}", &id[..12]);
        Self {
            cells,
            profile: cells.profile(),
            selection,
            key: prefix.clone(),
            prefix,
            written: Vec::new(),
            count: 0,
            conditional_deletes: false,
            unsafe_deletes: None,
            found,
            failed: None,
        }
    }

    /// Asks the questions, and deletes what they wrote.
    pub(super) async fn ask(&mut self) {
        if self.found.is_sound() {
            // An answer that ended the questions is among the findings.
            let _ = self.asked().await;
        } else {
            // The failed check may mean that objects cannot be deleted. A race would then leave its objects.
            self.skipped("not examined, because a check above failed");
        }
        self.clean_up().await;
    }

    /// Returns the findings.
    pub(super) fn found(self) -> Examined {
        self.found
    }

    /// Returns whether all answers were right.
    pub(super) fn outcome(self) -> Result<(), StoreError> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Returns the verdicts to record: that the store passed, or what it did wrong.
    pub(super) fn verdicts(&self) -> Vec<(Subject, Result<(), String>)> {
        let unsafe_ =
            |finding: &&Finding| finding.verdict == CheckStatus::Failed && UNSAFE.contains(&finding.check);
        let unsafe_ = self.found.findings.iter().find(unsafe_).map(|finding| finding.seen.clone());
        let passed = |kind: Kind| self.found.passed(kind.check());
        let raced = passed(Kind::Creates) && passed(Kind::Replaces);
        let writes = unsafe_.map(Err).or((raced && self.found.is_sound()).then_some(Ok(())));
        let deletes = match &self.unsafe_deletes {
            Some(what) => Some(Err(what.clone())),
            None => (writes == Some(Ok(())) && passed(Kind::Deletes)).then_some(Ok(())),
        };
        let deletes = deletes.filter(|_| self.profile.races_deletes);
        let all = [(Subject::Writes, writes), (Subject::Deletes, deletes)];
        all.into_iter().filter_map(|(subject, verdict)| Some((subject, verdict?))).collect()
    }

    async fn asked(&mut self) -> Step<()> {
        let cells = self.cells;
        let first = match self.profile.permissions && !self.is_first_use() {
            true => self.permissions().await?,
            false => {
                let written = self.created().await;
                self.first_version(written)?
            }
        };
        let permitted = self.found.is_sound();
        let key = self.key.clone();
        let result = retry(cells.env(), || refuses_second_create(cells, &key)).await;
        self.judge("create-if-absent", "a second create is refused", result)?;
        if !permitted {
            self.skipped("not examined further, because a check above failed");
            return Err(Ended);
        }
        let current = self.new_version(first.clone()).await?;
        let result = retry(cells.env(), || refuses_outdated(cells, &key, &first, false)).await;
        self.judge("stale-version", "a write that expects an outdated version is refused", result)?;
        if self.selection != Selection::FirstUse(Subject::Deletes) {
            let result = self.version_of_nothing(&first).await;
            let good = "a write that expects a version of a missing object is refused";
            self.judge("missing-key", good, result)?;
        }
        let deletes = match self.selection {
            Selection::FirstUse(Subject::Writes) => {
                // Without the permission, an object is left, as in races.
                let _ = cells.delete(&key, &current).await;
                self.written.retain(|written| *written != key);
                false
            }
            _ => self.deletion(&first, &current).await?,
        };
        self.races().await;
        if deletes && !self.is_first_use() {
            self.metadata().await;
        }
        Ok(())
    }

    fn is_first_use(&self) -> bool {
        matches!(self.selection, Selection::FirstUse(_))
    }

    /// Returns whether unsafe deletes are a failure.
    fn needs_deletes(&self) -> bool {
        matches!(
            self.selection,
            Selection::FirstUse(Subject::Deletes) | Selection::Doctor { deletes: true, .. }
        )
    }

    fn pass(&mut self, check: &'static str, seen: impl Into<String>) {
        self.found.push(Finding::passed(check, seen));
    }

    fn skipped(&mut self, why: &str) {
        self.found.push(Finding::not_applicable("preconditions", why));
    }

    fn judge(&mut self, check: &'static str, good: &str, result: Result<(), StoreError>) -> Step<()> {
        match result {
            Ok(()) => {
                self.pass(check, good);
                Ok(())
            }
            Err(error) => self.fail(check, error),
        }
    }

    /// Reports that `check` failed with `error`. The doctor goes on with the next question if the store answered.
    fn fail(&mut self, check: &'static str, error: StoreError) -> Step<()> {
        let ends = self.is_first_use() || error.is_transient();
        self.found.push(Finding::stopped(check, &error));
        self.failed = worse(self.failed.take(), Some(error));
        if ends { Err(Ended) } else { Ok(()) }
    }

    /// Reports that `check` failed with `error`, and that the next questions depend on it.
    fn end<T>(&mut self, check: &'static str, error: StoreError) -> Step<T> {
        let _ = self.fail(check, error);
        Err(Ended)
    }

    /// Returns a new key, at which there is no object.
    fn another(&mut self) -> String {
        self.count += 1;
        let key = format!("{}-{}", self.prefix, self.count);
        self.written.push(key.clone());
        key
    }

    /// Creates a key. Uses another key after each lost response, because the object may exist.
    async fn created(&mut self) -> Result<Write, StoreError> {
        let cells = self.cells;
        let mut budget = RetryBudget::of_question(cells.env());
        loop {
            self.key = self.another();
            let written = cells.write(&self.key, Precondition::Absent, fresh(cells));
            let error = match budget.request(written).await {
                Ok(write) => return Ok(write),
                Err(error) => error,
            };
            if !matches!(error, StoreError::MaybeApplied(_)) {
                self.written.pop();
            }
            budget.pause_after(error).await?;
        }
    }

    /// Returns the version of the first write.
    fn first_version(&mut self, written: Result<Write, StoreError>) -> Step<Version> {
        match written {
            Ok(Write::Committed(version)) => {
                if self.profile.permissions {
                    self.pass("permission-write", "objects can be written");
                }
                Ok(version)
            }
            Ok(Write::Conflict) => {
                let Profile { cell, absent, .. } = self.profile;
                let what = format!("this store refuses to create the {cell} that does not exist ({absent})");
                let error = refusal(self.cells, what, "no lock could ever be acquired");
                self.end("create-if-absent", error)
            }
            Err(error) => {
                // An operation that the store does not support is not a missing permission.
                let check = if is_denied(&error) { "permission-write" } else { "create-if-absent" };
                self.end(check, error)
            }
        }
    }

    /// Returns the current version of the key.
    async fn current(&self) -> Result<Version, StoreError> {
        let found = retry(self.cells.env(), || self.cells.read(&self.key)).await?;
        found.map(|(_, version)| version).ok_or_else(|| vanished(&self.key))
    }

    /// Checks that a write over the version `first` is accepted and gives a new version. Returns the current version.
    async fn new_version(&mut self, first: Version) -> Step<Version> {
        const CHECK: &str = "new-version";
        let (before, second, bytes) = self.replaced(first.clone(), None).await?;
        if second == first || second == before {
            let what = format!(
                "two writes of different contents returned the same version, so writes that expect it ({}) prove nothing",
                self.profile.current
            );
            let error = refusal(self.cells, what, "a stale client could overwrite another client's lock");
            self.fail(CHECK, error)?;
            return Ok(second);
        }
        if self.is_first_use() {
            return Ok(second);
        }
        let (second, third, _) = self.replaced(second, Some(bytes)).await?;
        self.found.push(match third == second {
            false => Finding::passed(CHECK, "each write has a new version, even if its content is the same"),
            true if self.profile.generations => {
                Finding::failed(CHECK, "a write of the same content has the same generation")
            }
            true => Finding::passed(
                CHECK,
                "each write has a new version, unless its content is the same; leasehold never writes the same content \
                 twice",
            ),
        });
        Ok(third)
    }

    /// Writes `bytes`, or new bytes in each attempt, over the version `current`. Returns the versions before and after,
    /// and the bytes.
    async fn replaced(&mut self, current: Version, bytes: Option<Bytes>) -> Step<(Version, Version, Bytes)> {
        match self.try_replaced(current, bytes).await {
            Ok(replaced) => Ok(replaced),
            Err(error) if is_denied(&error) => self.end("permission-replace", error),
            Err(error) => self.end("current-version", error),
        }
    }

    async fn try_replaced(
        &self,
        mut current: Version,
        bytes: Option<Bytes>,
    ) -> Result<(Version, Version, Bytes), StoreError> {
        let (cells, key) = (self.cells, &self.key);
        let mut budget = RetryBudget::of_question(cells.env());
        loop {
            let bytes = bytes.clone().unwrap_or_else(|| fresh(cells));
            let write = cells.write(key, Precondition::Version(&current), bytes.clone());
            match budget.request(write).await {
                Ok(Write::Committed(version)) => return Ok((current, version, bytes)),
                Ok(Write::Conflict) => {
                    let before = std::mem::replace(&mut current, self.current().await?);
                    if before == current {
                        return Err(cause_of_conflict(cells, key, &current).await);
                    }
                    // An earlier write of ours was applied late.
                    budget.pause_after_conflict().await?;
                }
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Checks that a write that expects a version of a missing object is refused. Uses another key for each attempt,
    /// because an earlier request without a response may have created an object.
    async fn version_of_nothing(&mut self, version: &Version) -> Result<(), StoreError> {
        let cells = self.cells;
        let mut budget = RetryBudget::of_question(cells.env());
        loop {
            let key = self.another();
            match budget.request(refuses_outdated(cells, &key, version, true)).await {
                Ok(()) => {
                    self.written.pop();
                    return Ok(());
                }
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Checks that metadata is stored. Only updates and fenced writes need it.
    async fn metadata(&mut self) {
        const CHECK: &str = "metadata";
        let (cells, key) = (self.cells, self.another());
        let kept = retry(cells.env(), || async { cells.keeps_metadata(&key).await.transpose() }).await;
        match kept {
            Ok(None) => {}
            Ok(Some(())) => self.pass(CHECK, "metadata is kept: updates and fenced writes work"),
            Err(error) if error.is_transient() => self.found.push(
                Finding::warning(CHECK, format!("could not be checked: {error}")).with_help("try again"),
            ),
            Err(error) => self.found.push(Finding::of_error(CHECK, CheckStatus::Warning, &error)),
        }
    }

    async fn clean_up(&mut self) {
        for key in std::mem::take(&mut self.written) {
            if !self.erased(&key).await {
                self.found.leave(key);
            }
        }
    }

    /// Deletes `key`. Returns whether it no longer exists.
    async fn erased(&self, key: &str) -> bool {
        let cells = self.cells;
        let gone = retry(cells.env(), || async {
            Ok(match cells.read(key).await? {
                None => true,
                Some((_, version)) => cells.delete(key, &version).await? == Deleted::Deleted,
            })
        });
        matches!(gone.await, Ok(true))
    }
}

fn is_denied(error: &StoreError) -> bool {
    error.fault().kind == ErrorKind::Denied
}

#[cfg(test)]
mod tests;
