//! The doctor's checks of deletes, one by one.

use super::{Patient, Step};
use crate::diagnosis::{CheckStatus, Finding};
use crate::error::StoreError;
use crate::register::probe::checks::{fresh, refusal, vanished};
use crate::register::probe::races::no_deletes;
use crate::register::{Deleted, Precondition, Register, Version, Write};
use crate::retry::{RetryBudget, retry};

impl Patient<'_> {
    /// Checks that deletes are conditional and that a deleted object is missing. Returns whether deletes work at all.
    pub(super) async fn deletion(&mut self, stale: &Version) -> Step<bool> {
        const CHECK: &str = "conditional-delete";
        const IGNORED: &str = "this store ignores the precondition of deletes (If-Match on DeleteObject)";
        let (register, key) = (self.register, self.key.clone());
        let current = self.current(CHECK, &key).await?;
        let mut budget = RetryBudget::of_question(register.env());
        let mut unknown = false;
        let deleted = loop {
            match budget.request(register.delete(&key, stale)).await {
                // An earlier request without a response may have deleted the object.
                Ok(Deleted::Conflict) if unknown => {
                    match retry(register.env(), || register.read(&key)).await {
                        Ok(None) => break Ok(Deleted::Deleted),
                        Ok(Some(_)) => break Ok(Deleted::Conflict),
                        Err(error) => break Err(error),
                    }
                }
                Ok(deleted) => break Ok(deleted),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    if let Err(error) = budget.pause_after(error).await {
                        break Err(error);
                    }
                }
            }
        };
        match deleted {
            Ok(Deleted::Conflict) => {
                self.conditional_deletes = true;
                self.pass(CHECK, "a delete that expects an outdated version is refused");
            }
            Ok(Deleted::Deleted) if self.deletes => {
                let error = no_deletes(IGNORED);
                self.unsafe_deletes = Some(IGNORED.to_owned());
                self.found.push(Finding::of_error(CHECK, CheckStatus::Failed, &error));
            }
            Ok(Deleted::Deleted) => {
                self.unsafe_deletes = Some(IGNORED.to_owned());
                self.found.push(Finding::not_applicable(
                    CHECK,
                    "the store ignores the preconditions of deletes: leasehold deletes records only in a sweep, \
                     which it refuses here",
                ));
            }
            Err(error) if error.is_transient() || self.deletes => {
                return Err(Finding::stopped("permission-delete", &error));
            }
            Err(error) => {
                let seen = format!("deletes are refused, and locks do not need them: {error}");
                self.found.push(Finding::not_applicable("permission-delete", seen));
                return Ok(false);
            }
        }
        self.deleted_is_absent(current).await?;
        Ok(true)
    }

    /// Checks that a deleted object counts as missing. In a versioned bucket, a delete leaves a marker.
    async fn deleted_is_absent(&mut self, mut current: Version) -> Step<()> {
        const CHECK: &str = "delete-marker";
        let mut budget = RetryBudget::of_question(self.register.env());
        let mut key = self.key.clone();
        let trouble = loop {
            match trouble_with_deleted(self.register, &key, &current).await {
                Ok(trouble) => break trouble,
                Err(error) => {
                    budget.pause_after(error).await.map_err(|error| Finding::stopped(CHECK, &error))?;
                }
            }
            // The outcome of the write is unknown, so the whole check is repeated with another key.
            match self.created().await.map_err(|error| Finding::stopped(CHECK, &error))? {
                (another, Write::Committed(version)) => (key, current) = (another, version),
                (another, Write::Conflict) => return Err(Finding::stopped(CHECK, &vanished(&another))),
            }
        };
        self.found.push(match trouble {
            None => Finding::passed(CHECK, "a deleted object counts as missing and can be created again"),
            Some(trouble) => Finding::of_error(
                CHECK,
                CheckStatus::Failed,
                &refusal(trouble, "it would not be safe to delete a record by hand"),
            ),
        });
        Ok(())
    }
}

/// Returns what the store does wrong with a deleted object. `key` has the version `current` and is deleted first.
async fn trouble_with_deleted(
    register: &dyn Register,
    key: &str,
    current: &Version,
) -> Result<Option<&'static str>, StoreError> {
    // If the precondition was ignored, the object is already deleted.
    register.delete(key, current).await?;
    if register.read(key).await?.is_some() {
        return Ok(Some("a deleted object can still be read"));
    }
    let over = register.write(key, Precondition::Version(current), fresh(register)).await?;
    if over != Write::Conflict {
        return Ok(Some("a write that expects the version before a delete is accepted after it"));
    }
    let anew = register.write(key, Precondition::Absent, fresh(register)).await?;
    Ok((anew == Write::Conflict).then_some("a deleted object cannot be created again"))
}
