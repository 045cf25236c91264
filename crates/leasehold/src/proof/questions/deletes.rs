//! Deletes, one by one.

use super::{Questions, Step};
use crate::diagnosis::Finding;
use crate::error::StoreError;
use crate::proof::checks::{absent_after_delete, accepts_delete, no_deletes, vanished};
use crate::register::{Deleted, Version, Write};
use crate::retry::{RetryBudget, retry};

impl Questions<'_> {
    /// Checks that deletes are conditional and that a deleted object is missing. Returns whether deletes work at all.
    pub(super) async fn deletion(&mut self, stale: &Version, current: &Version) -> Step<bool> {
        const CHECK: &str = "conditional-delete";
        let ignored = format!("this store ignores the precondition of deletes ({})", self.profile.delete);
        match self.deleted(stale).await {
            Ok(Deleted::Conflict) => {
                self.conditional_deletes = true;
                self.pass(CHECK, "a delete that expects an outdated version is refused");
            }
            Ok(Deleted::Deleted) => {
                self.unsafe_deletes = Some(ignored.clone());
                self.unsafe_delete(CHECK, no_deletes(ignored))?;
            }
            Err(error) if error.is_transient() || self.needs_deletes() => {
                return self.end("permission-delete", error);
            }
            Err(error) => {
                let seen = format!("deletes are refused, and locks do not need them: {error}");
                self.found.push(Finding::not_applicable("permission-delete", seen));
                return Ok(false);
            }
        }
        if self.is_first_use() {
            let (cells, key) = (self.cells, self.key.clone());
            self.judge("permission-delete", "", accepts_delete(cells, &key, current).await)?;
            self.written.retain(|written| *written != key);
        } else {
            self.deleted_is_absent().await?;
        }
        Ok(true)
    }

    /// Deletes the version `stale` of the key, which a good store refuses.
    async fn deleted(&mut self, stale: &Version) -> Result<Deleted, StoreError> {
        let (cells, key) = (self.cells, &self.key);
        let mut budget = RetryBudget::of_question(cells.env());
        let mut unknown = false;
        loop {
            match budget.request(cells.delete(key, stale)).await {
                // An earlier request without a response may have deleted the object.
                Ok(Deleted::Conflict) if unknown => {
                    let left = retry(cells.env(), || cells.read(key)).await?;
                    return Ok(if left.is_some() { Deleted::Conflict } else { Deleted::Deleted });
                }
                Ok(deleted) => return Ok(deleted),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await?;
                }
            }
        }
    }

    /// Reports that deletes are unsafe, which only matters if a release deletes.
    pub(super) fn unsafe_delete(&mut self, check: &'static str, error: StoreError) -> Step<()> {
        if self.needs_deletes() {
            return self.fail(check, error);
        }
        let seen = format!(
            "{}: leasehold deletes records only in a sweep, which it refuses here",
            error.fault().message
        );
        self.found.push(Finding::not_applicable(check, seen));
        Ok(())
    }

    /// Checks that a deleted object counts as missing. In a versioned bucket, a delete leaves a marker. Uses another key
    /// after each lost response.
    async fn deleted_is_absent(&mut self) -> Step<()> {
        let cells = self.cells;
        let mut budget = RetryBudget::of_question(cells.env());
        let result = loop {
            let asked = match self.created().await {
                Ok(Write::Committed(version)) => absent_after_delete(cells, &self.key, &version).await,
                Ok(Write::Conflict) => Err(vanished(&self.key)),
                Err(error) => Err(error),
            };
            let Err(error) = asked else { break Ok(()) };
            if let Err(error) = budget.pause_after(error).await {
                break Err(error);
            }
        };
        self.judge("delete-marker", "a deleted object counts as missing and can be created again", result)
    }
}
