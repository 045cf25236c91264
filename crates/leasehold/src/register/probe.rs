//! Does this register enforce its preconditions? Asked once per process and prefix, before the first write.
//!
//! A store that ignores `If-Match` grants one lock to everybody, and one that checks it but not atomically does so in
//! every race. Both answer like good ones until it matters. So a marker object is written to under preconditions that
//! must fail, and raced for, before any lock is.
//!
//! The marker's value says which version of it is known to be outdated, and that the whole examination was passed. As
//! long as it says so, a process reads it and makes sure that a write with that outdated version is refused: two
//! requests. Where it does not, the process examines the store itself: [`RACERS`] + 5 requests, once per prefix.
//!
//! Any number of processes may do this at once. No verdict rests on what another may have written in between: a
//! precondition counts as ignored only when two of our own writes were accepted of which a good store accepts at most
//! one, whatever the others do.

use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use serde::{Deserialize, Serialize};

use super::{Cell, Expect, Register, Version, Write};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;

/// Not the name of a lock's record, so it is never listed as one.
const MARKER: &str = ".leasehold-probe";

/// Raised when the examination asks for more; markers of another number are examined anew.
const EXAMINATION: u32 = 1;

/// How many writes race for one version. A store that checks and writes in two steps accepts several of them.
const RACERS: usize = 8;

/// How often the probe is tried when the store is busy, and the pause before the second try.
const TRIES: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The marker's value.
#[derive(Debug, Serialize, Deserialize)]
struct Marker {
    /// For people who find the object.
    about: String,
    /// Which examination was passed; 0 for none.
    passed: u32,
    /// A version that the marker had and will never have again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    outdated: Option<String>,
    /// Makes every write differ, and so every version.
    nonce: Id,
}

/// Checks that `register` enforces its preconditions, by writing to an object of its own.
///
/// Dropping the future leaves the marker as it is, which the next probe copes with.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when the store ignores preconditions or does not check them atomically; what the store
/// says when it cannot be read from or written to; the last trouble when it stays busy.
pub async fn probe(register: &dyn Register) -> Result<(), StoreError> {
    let env = register.env();
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match probe_once(register).await {
            Err(error) if error.is_transient() => {
                let wait = env.random.jittered(pause, 0.5).max(error.fault().retry_after.unwrap_or_default());
                env.sleep(wait).await;
                pause *= 2;
            }
            outcome => return outcome.map_err(explained),
        }
    }
    probe_once(register).await.map_err(explained)
}

async fn probe_once(register: &dyn Register) -> Result<(), StoreError> {
    let cell = register.read(MARKER).await?;
    match cell.as_ref().and_then(outdated_version) {
        Some(outdated) => refuses_outdated(register, &outdated).await,
        None => examine(register).await,
    }
}

/// The version that a marker of a passed examination knows to be outdated. Anything else there (an unfinished
/// examination, another format, garbage) is examined anew: it is nobody's lock.
fn outdated_version(cell: &Cell) -> Option<Version> {
    let marker: Marker = serde_json::from_slice(&cell.value).ok()?;
    let outdated = marker.outdated.filter(|_| marker.passed == EXAMINATION)?;
    // The current version cannot be outdated: the marker was copied or edited.
    (outdated != cell.version.as_str()).then(|| Version::new(outdated))
}

async fn examine(register: &dyn Register) -> Result<(), StoreError> {
    refuses_second_create(register).await?;
    // Of nobody knows what state: the create just now may have been another's.
    let Some(Cell { version: raced, .. }) = register.read(MARKER).await? else {
        return Err(vanished());
    };
    let Some(winner) = race(register, &raced).await? else {
        return Err(all_refused(register, &raced).await?);
    };
    if winner == raced {
        return Err(refusal(
            "this store gives different contents the same version",
            "a stale writer could not be told from the current one",
        ));
    }
    refuses_outdated(register, &raced).await?;
    // A conflict means that another process is at the same work and has come further.
    let passed = marker(register, EXAMINATION, Some(&raced));
    register.write(MARKER, Expect::Version(&winner), passed).await.map(|_| ())
}

/// Of two creates in a row, a good store refuses at least the second.
async fn refuses_second_create(register: &dyn Register) -> Result<(), StoreError> {
    for _ in 0..2 {
        let fresh = marker(register, 0, None);
        if register.write(MARKER, Expect::Absent, fresh).await? == Write::Conflict {
            return Ok(());
        }
    }
    Err(refusal(
        "this store ignores the precondition that nothing be there (If-None-Match: *)",
        "two clients could be granted the same lock",
    ))
}

/// Of any number of writes that expect one version, a good store accepts at most one. Returns the version of ours that
/// was accepted, if one was.
async fn race(register: &dyn Register, version: &Version) -> Result<Option<Version>, StoreError> {
    let racers = (0..RACERS).map(|_| {
        let value = marker(register, 0, None);
        register.write(MARKER, Expect::Version(version), value)
    });
    let mut winner = None;
    let mut trouble = None;
    for outcome in join_all(racers).await {
        match outcome {
            Ok(Write::Committed(_)) if winner.is_some() => {
                return Err(refusal(
                    "this store does not check preconditions atomically: several of the writes that raced for one \
                     version were accepted",
                    "two clients that ask at the same moment could be granted the same lock",
                ));
            }
            Ok(Write::Committed(version)) => winner = Some(version),
            Ok(Write::Conflict) => {}
            // Busy stores refuse racers (409); one that was accepted is enough.
            Err(error) => trouble = Some(error),
        }
    }
    match (winner, trouble) {
        (None, Some(error)) => Err(error),
        (winner, _) => Ok(winner),
    }
}

/// Why every write that expected `raced` was refused.
async fn all_refused(register: &dyn Register, raced: &Version) -> Result<StoreError, StoreError> {
    if register.read(MARKER).await?.is_some_and(|cell| cell.version == *raced) {
        return Ok(refusal(
            "this store refuses writes that expect the current version (If-Match)",
            "no lock could ever be renewed or released",
        ));
    }
    Ok(Fault::unavailable("another process is checking the store's preconditions just now").not_applied())
}

async fn refuses_outdated(register: &dyn Register, outdated: &Version) -> Result<(), StoreError> {
    // Where this is accepted after all, it leaves a marker that makes every process examine the store again.
    let value = marker(register, 0, None);
    match register.write(MARKER, Expect::Version(outdated), value).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => Err(refusal(
            "this store ignores the precondition that the version be current (If-Match)",
            "a stale client could overwrite the lock of another",
        )),
    }
}

fn marker(register: &dyn Register, passed: u32, outdated: Option<&Version>) -> Bytes {
    let marker = Marker {
        about: "leasehold checks with this object that the store honours preconditions".to_owned(),
        passed,
        outdated: outdated.map(|version| version.as_str().to_owned()),
        nonce: Id::random(&register.env().random),
    };
    // A struct of strings and numbers always serializes; should it not, an empty marker is examined anew.
    serde_json::to_vec(&marker).map(Bytes::from).unwrap_or_default()
}

fn refusal(what: &str, danger: &str) -> StoreError {
    Fault::new(ErrorKind::Unsupported, what)
        .with_help(format!(
            "{danger}, so nothing was locked: use a store that honours conditional writes (Amazon S3 does; of others, \
             see the store's page in the documentation), or a newer version of this one"
        ))
        .not_applied()
}

fn vanished() -> StoreError {
    Fault::unavailable(format!(
        "the object {MARKER} was deleted while the store's preconditions were checked"
    ))
    .not_applied()
}

/// Says what the refused request was for: the user asked for a lock, not for this object.
fn explained(mut error: StoreError) -> StoreError {
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = &mut error;
    if fault.kind != ErrorKind::Unsupported {
        fault.message = format!("the store's preconditions could not be checked: {}", fault.message);
    }
    error
}
