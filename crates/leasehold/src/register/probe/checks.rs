//! The checks of a register on one key. The [probe](super::probe) runs them on its marker, and the doctor on a key that
//! it creates.
//!
//! Other clients that write the same key at the same time do not mislead these checks. A precondition counts as ignored
//! only if the store accepted two writes of this process of which a good store accepts at most one.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::super::{Body, Metadata, Precondition, Register, Version, Write};
use super::evidence::Marker;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;

/// Checks that the store refuses at least the second of two creates in a row.
pub(crate) async fn refuses_second_create(
    register: &dyn Register,
    key: &str,
    body: Body,
) -> Result<(), StoreError> {
    for _ in 0..2 {
        if register.write(key, Precondition::Absent, body.clone()).await? == Write::Conflict {
            return Ok(());
        }
    }
    Err(refusal(
        "this store ignores the precondition that the object does not exist (If-None-Match: *)",
        "two clients could be granted the same lock",
    ))
}

/// Checks that the store refuses a write that expects a replaced version.
pub(crate) async fn refuses_outdated(
    register: &dyn Register,
    key: &str,
    outdated: &Version,
    body: Body,
) -> Result<(), StoreError> {
    match register.write(key, Precondition::Version(outdated), body).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => Err(refusal(
            "this store ignores the precondition that the version is current (If-Match)",
            "a stale client could overwrite another client's lock",
        )),
    }
}

/// Checks that the store refuses a write that expects a version if there is no object. Some stores check the version
/// only if there is an object (minio#21526). A renewal would then bring back a lock whose record was deleted by hand.
/// There must be no object at `key`.
pub(crate) async fn refuses_version_of_nothing(
    register: &dyn Register,
    key: &str,
    version: &Version,
) -> Result<(), StoreError> {
    match register.write(key, Precondition::Version(version), fresh(register)).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => Err(refusal(
            "this store ignores the precondition that the version is current (If-Match) if there is no object",
            "a lock that was deleted by hand could come back",
        )),
    }
}

/// Returns why `key` cannot be replaced although it still has the version `current`. Ceph 16 compares the version
/// including the quotes that HTTP requires, and stores it without them.
pub(crate) async fn cause_of_conflict(register: &dyn Register, key: &str, current: &Version) -> StoreError {
    let what = "this store refuses writes that expect the current version (If-Match)";
    let bare = current.as_str().trim_matches('"');
    if bare != current.as_str()
        && let Ok(Write::Committed(_)) =
            register.write(key, Precondition::Version(&Version::new(bare)), fresh(register)).await
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
    refusal(what, "no lock could ever be renewed or released")
}

/// Checks that the metadata of `key` reads back as it was written, because fences and the nonces of updates are stored
/// in metadata.
pub(crate) async fn keeps_metadata(register: &dyn Register, key: &str) -> Result<(), StoreError> {
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

/// Returns a body for a check. No two of these bodies are equal.
pub(crate) fn fresh(register: &dyn Register) -> Body {
    Marker::blank(Id::random(&register.env().random)).to_bytes().into()
}

/// Returns the error for a store that must not be used. `what` says what the store does, and `danger` why that is
/// unsafe.
pub(crate) fn refusal(what: &str, danger: &str) -> StoreError {
    Fault::new(ErrorKind::Unsupported, what)
        .with_help(format!(
            "{danger}: use a store that honours conditional writes (Amazon S3 does; for others, see the store's page in \
             the documentation), or a newer version of this one"
        ))
        .not_applied()
}

/// Returns the error for an object that another client deleted during the check.
pub(crate) fn vanished(key: &str) -> StoreError {
    Fault::unavailable(format!("the object {key} was deleted while the store's preconditions were checked"))
        .not_applied()
}
