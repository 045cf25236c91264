//! What a good register refuses, asked of one key. The [probe](super::probe) asks it of its marker, and the doctor of a
//! key of its own.
//!
//! None of it is misled by others who write the same key meanwhile: a precondition counts as ignored only when two
//! writes of ours were accepted of which a good store accepts at most one.

use std::collections::BTreeMap;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::super::{Body, Expect, Metadata, Register, Version, Write};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;

/// What lies under the key that is asked about.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Marker {
    /// For people who find the object.
    pub(super) about: String,
    /// Which examination was passed; 0 for none.
    pub(super) passed: u32,
    /// A version that the marker had and will never have again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) outdated: Option<String>,
    /// Makes every write differ, and so every version.
    pub(super) nonce: Id,
}

/// Of two creates in a row, a good store refuses at least the second.
pub(crate) async fn refuses_second_create(register: &dyn Register, key: &str) -> Result<(), StoreError> {
    for _ in 0..2 {
        let fresh = marker(register, 0, None);
        if register.write(key, Expect::Absent, fresh).await? == Write::Conflict {
            return Ok(());
        }
    }
    Err(refusal(
        "this store ignores the precondition that nothing be there (If-None-Match: *)",
        "two clients could be granted the same lock",
    ))
}

/// How a race went that showed nothing bad.
#[derive(Debug)]
pub(crate) struct Race {
    /// The version of ours that was accepted, if one is known to be.
    pub(crate) winner: Option<Version>,
    /// How many were answered that the version is not current. The others got no definite answer.
    pub(crate) refused: usize,
}

/// Of any number of writes that expect one version, a good store accepts at most one.
pub(crate) async fn race(
    register: &dyn Register,
    key: &str,
    version: &Version,
    racers: usize,
) -> Result<Race, StoreError> {
    let writes = (0..racers).map(|_| {
        let value = marker(register, 0, None);
        register.write(key, Expect::Version(version), value)
    });
    let mut winners = Vec::new();
    let (mut refused, mut trouble) = (0, None);
    for outcome in join_all(writes).await {
        match outcome {
            Ok(Write::Committed(version)) => winners.push(version),
            Ok(Write::Conflict) => refused += 1,
            // Busy stores refuse racers (409); one that was accepted is enough.
            Err(error) => trouble = Some(error),
        }
    }
    match (winners.len(), trouble) {
        (0, Some(error)) => Err(error),
        (0 | 1, _) => Ok(Race { winner: winners.pop(), refused }),
        (accepted, _) => Err(refusal(
            &format!(
                "this store ignores the precondition that the version be current (If-Match), or does not check it \
                 atomically: of {racers} writes that raced for one version, it accepted {accepted}"
            ),
            "two clients that ask at the same moment could be granted the same lock",
        )),
    }
}

/// A version that was replaced is none to write over.
pub(crate) async fn refuses_outdated(
    register: &dyn Register,
    key: &str,
    outdated: &Version,
) -> Result<(), StoreError> {
    // Where this is accepted after all, it leaves a marker that makes every process examine the store again.
    let value = marker(register, 0, None);
    match register.write(key, Expect::Version(outdated), value).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => Err(refusal(
            "this store ignores the precondition that the version be current (If-Match)",
            "a stale client could overwrite the lock of another",
        )),
    }
}

/// Some stores check a version only where there is an object (minio#21526): the renewal of a lock whose record was
/// deleted by hand would bring it back. There must be nothing at `key`.
pub(crate) async fn refuses_version_of_nothing(
    register: &dyn Register,
    key: &str,
    version: &Version,
) -> Result<(), StoreError> {
    let value = marker(register, 0, None);
    match register.write(key, Expect::Version(version), value).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => Err(refusal(
            "this store ignores the precondition that the version be current (If-Match) where there is no object",
            "a lock that was deleted by hand could come back",
        )),
    }
}

/// Metadata comes back as it was written with `key`: fences and the nonces of updates stand there.
pub(crate) async fn keeps_metadata(register: &dyn Register, key: &str) -> Result<(), StoreError> {
    let user = BTreeMap::from([("leasehold-kept".to_owned(), "yes".to_owned())]);
    let metadata = Metadata { user, ..Metadata::default() };
    // There, now or already: either will do.
    let body = Body { bytes: Bytes::from_static(b"{}"), metadata: metadata.clone() };
    register.write(key, Expect::Absent, body).await?;
    match register.stat(key).await? {
        Some(found) if found.metadata.user == metadata.user => Ok(()),
        Some(_) => Err(Fault::new(
            ErrorKind::Unsupported,
            format!("this store does not keep the metadata of {key}, or somebody else wrote that"),
        )
        .with_help("updates and fenced writes keep their marks in metadata (x-amz-meta-*): use a store that keeps it")
        .not_applied()),
        None => Err(vanished(key)),
    }
}

/// What is written to ask: never the same twice.
pub(crate) fn marker(register: &dyn Register, passed: u32, outdated: Option<&Version>) -> Body {
    let marker = Marker {
        about: "leasehold checks with this object that the store honours preconditions".to_owned(),
        passed,
        outdated: outdated.map(|version| version.as_str().to_owned()),
        nonce: Id::random(&register.env().random),
    };
    // A struct of strings and numbers always serializes; should it not, an empty marker is examined anew.
    serde_json::to_vec(&marker).map(Bytes::from).unwrap_or_default().into()
}

/// This store is not to be used: `what` it does, and what the `danger` is.
pub(crate) fn refusal(what: &str, danger: &str) -> StoreError {
    Fault::new(ErrorKind::Unsupported, what)
        .with_help(format!(
            "{danger}: use a store that honours conditional writes (Amazon S3 does; of others, see the store's page in the \
             documentation), or a newer version of this one"
        ))
        .not_applied()
}

/// Somebody else deleted what was just there.
pub(crate) fn vanished(key: &str) -> StoreError {
    Fault::unavailable(format!("the object {key} was deleted while the store's preconditions were checked"))
        .not_applied()
}
