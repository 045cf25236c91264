//! Single requests that a good store refuses. No verdict depends on the writes of other clients: a precondition counts as
//! ignored only if the store accepted two writes of this process of which a good store accepts at most one.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::cells::Cells;
use super::marker::Marker;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;
use crate::register::{Body, Deleted, Metadata, Precondition, Register, Version, Write};

/// Checks that the store refuses at least the second of two creates in a row.
pub(super) async fn refuses_second_create(cells: &dyn Cells, key: &str) -> Result<(), StoreError> {
    match cells.write(key, Precondition::Absent, fresh(cells)).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => {
            let profile = cells.profile();
            let what = format!(
                "this store ignores the precondition that the {} does not exist ({})",
                profile.cell, profile.absent
            );
            Err(refusal(cells, what, "two clients could be granted the same lock"))
        }
    }
}

/// Checks that the store refuses a write that expects a version that is `outdated`, and not current or, if `absent`, of
/// nothing. Some stores check the version only if there is an object (minio#21526). A renewal would then bring back a
/// lock whose record was deleted by hand.
pub(super) async fn refuses_outdated(
    cells: &dyn Cells,
    key: &str,
    outdated: &Version,
    absent: bool,
) -> Result<(), StoreError> {
    accepted_outdated(cells, cells.write(key, Precondition::Version(outdated), fresh(cells)).await?, absent)
}

/// Judges the response to a write that expected an outdated version.
pub(super) fn accepted_outdated(cells: &dyn Cells, write: Write, absent: bool) -> Result<(), StoreError> {
    if write == Write::Conflict {
        return Ok(());
    }
    let profile = cells.profile();
    let (at, danger) = match absent {
        true => {
            (format!(" if there is no {}", profile.cell), "a lock that was deleted by hand could come back")
        }
        false => (String::new(), "a stale client could overwrite another client's lock"),
    };
    let what =
        format!("this store ignores the precondition that the version is current ({}){at}", profile.current);
    Err(refusal(cells, what, danger))
}

/// Returns why `key` cannot be replaced although it still has the version `current`. Ceph 16 compares the version
/// including the quotes that HTTP requires, and stores it without them.
pub(super) async fn cause_of_conflict(cells: &dyn Cells, key: &str, current: &Version) -> StoreError {
    let what =
        format!("this store refuses writes that expect the current version ({})", cells.profile().current);
    let bare = current.as_str().trim_matches('"');
    if bare != current.as_str()
        && let Ok(Write::Committed(_)) =
            cells.write(key, Precondition::Version(&Version::new(bare)), fresh(cells)).await
    {
        return Fault::new(
            ErrorKind::Unsupported,
            format!("{what}: it does not understand the quotes of an ETag, and accepts If-Match without them"),
        )
        .with_help(
            "the quotes are the cause (Ceph 16 is known for it): use a newer version of this store, or a proxy in \
             front of it that removes the quotes from If-Match",
        )
        .not_applied();
    }
    refusal(cells, what, "no lock could ever be renewed or released")
}

/// Checks that `key`, which has the version `current`, is missing once it is deleted.
pub(super) async fn absent_after_delete(
    cells: &dyn Cells,
    key: &str,
    current: &Version,
) -> Result<(), StoreError> {
    let wrong = |what| Err(refusal(cells, what, "it would not be safe to delete a record by hand"));
    // If the precondition was ignored, the object is deleted all the same.
    cells.delete(key, current).await?;
    if cells.read(key).await?.is_some() {
        return wrong("a deleted object can still be read");
    }
    if cells.write(key, Precondition::Version(current), fresh(cells)).await? != Write::Conflict {
        return wrong("a write that expects the version before a delete is accepted after it");
    }
    match cells.write(key, Precondition::Absent, fresh(cells)).await? {
        Write::Conflict => wrong("a deleted object cannot be created again"),
        Write::Committed(_) => Ok(()),
    }
}

/// Checks that a delete of the current version succeeds.
pub(super) async fn accepts_delete(
    cells: &dyn Cells,
    key: &str,
    current: &Version,
) -> Result<(), StoreError> {
    match cells.delete(key, current).await? {
        Deleted::Deleted => Ok(()),
        Deleted::Conflict => Err(no_deletes("this store refuses deletes that expect the current version")),
    }
}

/// Checks that the metadata of `key` reads back as it was written, because fences and the nonces of updates are stored
/// in metadata.
pub(super) async fn keeps_metadata(register: &dyn Register, key: &str) -> Result<(), StoreError> {
    let user = BTreeMap::from([("leasehold-kept".to_owned(), "yes".to_owned())]);
    let metadata = Metadata { user, ..Metadata::default() };
    // Both outcomes are fine: the object was created, or it already existed.
    let body = Body { bytes: Bytes::from_static(b"{}"), metadata: metadata.clone() };
    register.write(key, Precondition::Absent, body).await?;
    match register.head(key).await? {
        Some(found) if found.metadata.user == metadata.user => Ok(()),
        Some(_) => Err(Fault::new(
            ErrorKind::Unsupported,
            format!("this store does not keep the metadata of {key}, or another client wrote the object"),
        )
        .with_help("updates and fenced writes keep their marks in metadata (x-amz-meta-*): use a store that keeps it")
        .not_applied()),
        None => Err(vanished(key)),
    }
}

/// Returns bytes for a check. No two of them are equal.
pub(super) fn fresh(cells: &dyn Cells) -> Bytes {
    Marker::blank(Id::random(&cells.env().random)).to_bytes()
}

/// Returns the error for a store that must not be used. `what` says what the store does, and `danger` why that is
/// unsafe.
pub(super) fn refusal(cells: &dyn Cells, what: impl Into<String>, danger: &str) -> StoreError {
    let help = format!("{danger}: {}", cells.profile().instead);
    Fault::new(ErrorKind::Unsupported, what).with_help(help).not_applied()
}

/// The help text for stores on which leasehold cannot delete.
pub(super) const NO_DELETES_HELP: &str = "with protocol=existence a release deletes an object, which might by then \
    belong to another client: use the default protocol (leave out ?protocol), or Amazon S3 or Google Cloud Storage; \
    and do not sweep this store";

/// Returns the error for a store on which leasehold must not delete.
pub(super) fn no_deletes(message: impl Into<String>) -> StoreError {
    Fault::new(ErrorKind::Unsupported, message).with_help(NO_DELETES_HELP).not_applied()
}

/// Returns the error for an object that another client deleted during the check.
pub(super) fn vanished(key: &str) -> StoreError {
    Fault::unavailable(format!("the object {key} was deleted while the store's preconditions were checked"))
        .not_applied()
}

/// Returns the error that says more: of a flaw, or else one that a retry does not change, or else the first.
pub(super) fn worse(one: Option<StoreError>, other: Option<StoreError>) -> Option<StoreError> {
    let weight = |error: &StoreError| match error.fault().kind {
        ErrorKind::Unsupported => 2,
        _ => u8::from(!error.is_transient()),
    };
    match (one, other) {
        (Some(one), Some(other)) if weight(&other) > weight(&one) => Some(other),
        (one, other) => one.or(other),
    }
}
