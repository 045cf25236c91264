//! Deletes, one by one.

use super::{Questions, Step};
use crate::diagnosis::Finding;
use crate::error::StoreError;
use crate::proof::checks::{accepts_delete, no_deletes, refusal, trouble_with_deleted, vanished};
use crate::register::{Deleted, Version, Write};
use crate::retry::{RetryBudget, retry};

impl Questions<'_> {
    /// Checks that deletes are conditional and that a deleted object is missing. Returns whether deletes work at all.
    pub(super) async fn deletion(&mut self, stale: &Version) -> Step<bool> {
        const CHECK: &str = "conditional-delete";
        let ignored = format!("this store ignores the precondition of deletes ({})", self.profile.delete);
        let current = self.current(CHECK).await?;
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
            self.judge("permission-delete", "", accepts_delete(cells, &key, &current).await)?;
            self.written.retain(|written| *written != key);
        } else {
            self.deleted_is_absent(current).await?;
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

    /// Checks that a deleted object counts as missing. In a versioned bucket, a delete leaves a marker.
    async fn deleted_is_absent(&mut self, mut current: Version) -> Step<()> {
        const CHECK: &str = "delete-marker";
        let cells = self.cells;
        let mut budget = RetryBudget::of_question(cells.env());
        let trouble = loop {
            match trouble_with_deleted(cells, &self.key, &current).await {
                Ok(trouble) => break trouble,
                Err(error) => {
                    if let Err(error) = budget.pause_after(error).await {
                        return self.end(CHECK, error);
                    }
                }
            }
            // The outcome of the write is unknown, so the whole check is repeated with another key.
            current = match self.created().await {
                Ok(Write::Committed(version)) => version,
                Ok(Write::Conflict) => {
                    let error = vanished(&self.key);
                    return self.end(CHECK, error);
                }
                Err(error) => return self.end(CHECK, error),
            };
        };
        let refused = |what| Err(refusal(cells, what, "it would not be safe to delete a record by hand"));
        self.judge(
            CHECK,
            "a deleted object counts as missing and can be created again",
            trouble.map_or(Ok(()), refused),
        )
    }
}
