//! Does this register enforce its preconditions? Asked once per process and prefix, before the first write.
//!
//! A store that ignores `If-Match` grants one lock to everybody, and one that checks it but not atomically does so in
//! every race. Both answer like good ones until it matters. So a marker object is written to under preconditions that
//! must fail, and raced for, before any lock is.
//!
//! The marker's value says which version of it is known to be outdated, and that the whole examination was passed. As
//! long as it says so, a process reads it and makes sure that a write with that outdated version is refused: two
//! requests. Where it does not, the process examines the store itself: 7 requests and [`RACES`] times [`RACERS`],
//! once per prefix.
//!
//! Any number of processes may do this at once. No verdict rests on what another may have written in between: a
//! precondition counts as ignored only when two of our own writes were accepted of which a good store accepts at most
//! one, whatever the others do.

pub(crate) mod checks;
#[allow(dead_code, reason = "not every store uses all of it")]
pub(crate) mod evidence;

use std::time::Duration;

use futures_util::future::BoxFuture;

use self::checks::{
    Marker, keeps_metadata, marker, race, refusal, refuses_outdated, refuses_second_create,
    refuses_version_of_nothing, vanished,
};
use super::{Cell, Expect, Register, Version};
use crate::clock::timeout;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;

/// Not the name of a lock's record, so it is never listed as one.
const MARKER: &str = ".leasehold-probe";

/// Followed by a random id, of keys where there must never be anything.
const NOTHING: &str = ".leasehold-probe-nothing-";

/// Whether metadata is kept is seen on this one.
const KEEPSAKE: &str = ".leasehold-probe-metadata";

/// Raised when the examination asks for more; markers of another number are examined anew.
const EXAMINATION: u32 = 1;

/// How many writes race for one version. A store that checks and writes in two steps accepts several of them, unless
/// they happen to come one after the other.
const RACERS: usize = 8;

/// How many races there are. The first opens connections, which spreads the racers: measured on s3s-fs 0.14.1, which
/// does not check atomically, one race in two found nothing.
const RACES: usize = 4;

/// How often the probe is tried when the store is busy, or a whole fleet begins with it, and the pause before the second
/// try.
const TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Checks that `register` enforces its preconditions, by writing to an object of its own.
///
/// Dropping the future leaves the marker as it is, which the next probe copes with.
///
/// # Errors
/// [`ErrorKind::Unsupported`] when the store ignores preconditions or does not check them atomically; what the store
/// says when it cannot be read from or written to; the last trouble when it stays busy.
pub async fn probe(register: &dyn Register) -> Result<(), StoreError> {
    patiently(register, |register| Box::pin(probe_once(register))).await.map_err(explained)
}

/// Checks that `register` keeps the metadata of an object, where fences and the nonces of updates stand. 2 requests.
pub(super) async fn probe_metadata(register: &dyn Register) -> Result<(), StoreError> {
    patiently(register, |register| Box::pin(keeps_metadata(register, KEEPSAKE))).await.map_err(explained)
}

/// Does `checks` of `register`, but not of one that is trusted, and for at most `limit`.
pub(super) async fn unless_trusted(
    register: &dyn Register,
    limit: Duration,
    checks: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    if register.traits().trusted {
        return Ok(());
    }
    match timeout(&*register.env().clock, limit, checks).await {
        Some(outcome) => outcome,
        None => {
            let message = format!("the store's preconditions could not be checked within {limit:?}");
            Err(Fault::unavailable(message).not_applied())
        }
    }
}

/// Tries again what passes.
async fn patiently(
    register: &dyn Register,
    examine: for<'a> fn(&'a dyn Register) -> BoxFuture<'a, Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let env = register.env();
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match examine(register).await {
            Err(error) if error.is_transient() => {
                let wait = env.random.jittered(pause, 0.5).max(error.fault().retry_after.unwrap_or_default());
                env.sleep(wait).await;
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
    examine(register).await
}

async fn probe_once(register: &dyn Register) -> Result<(), StoreError> {
    let cell = register.read(MARKER).await?;
    match cell.as_ref().and_then(outdated_version) {
        Some(outdated) => refuses_outdated(register, MARKER, &outdated).await,
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
    refuses_second_create(register, MARKER).await?;
    // Of nobody knows what state: the create just now may have been another's.
    let Some(Cell { version: mut current, .. }) = register.read(MARKER).await? else {
        return Err(vanished(MARKER));
    };
    let mut outdated = current.clone();
    let mut won = false;
    for _ in 0..RACES {
        let next = match race(register, MARKER, &current, RACERS).await?.winner {
            Some(winner) => {
                won = true;
                winner
            }
            None => overtaken(register, &current).await?,
        };
        outdated = std::mem::replace(&mut current, next);
    }
    if !won {
        // Others won every race, so nothing was learned of the store. One of them will have passed it soon.
        return Err(Fault::unavailable("other processes are checking them just now").not_applied());
    }
    refuses_outdated(register, MARKER, &outdated).await?;
    let nothing = format!("{NOTHING}{}", Id::random(&register.env().random));
    refuses_version_of_nothing(register, &nothing, &outdated).await?;
    // A conflict means that another process is at the same work and has come further.
    let passed = marker(register, EXAMINATION, Some(&outdated));
    register.write(MARKER, Expect::Version(&current), passed).await.map(|_| ())
}

/// The version that another process wrote in place of `raced`, which none of our writes could replace.
async fn overtaken(register: &dyn Register, raced: &Version) -> Result<Version, StoreError> {
    match register.read(MARKER).await? {
        None => Err(vanished(MARKER)),
        Some(cell) if cell.version == *raced => Err(refusal(
            "this store refuses writes that expect the current version (If-Match)",
            "no lock could ever be renewed or released",
        )),
        Some(cell) => Ok(cell.version),
    }
}

/// Says what the refused request was for: the user asked for a lock, not for this object.
fn explained(mut error: StoreError) -> StoreError {
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = &mut error;
    if fault.kind != ErrorKind::Unsupported {
        fault.message = format!("the store's preconditions could not be checked: {}", fault.message);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::future::join_all;

    use crate::golden::{assert_written, golden};
    use crate::register::Metadata;
    use crate::register::flawed::{Flaw, Flawed, store};

    #[tokio::test(start_paused = true)]
    async fn a_good_store_is_examined_once_and_then_costs_two_requests() {
        let store = store(Flaw::None);
        probe(&store).await.unwrap();
        assert_eq!(store.requests(), RACES * RACERS + 7);
        for _ in 0..3 {
            probe(&store).await.unwrap();
            assert_eq!(store.requests(), 2);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_drops_metadata_is_refused_for_what_needs_it() {
        let good = store(Flaw::None);
        for _ in 0..2 {
            probe_metadata(&good).await.unwrap();
            assert_eq!(good.requests(), 2);
        }
        let forgetful = store(Flaw::DropsMetadata);
        probe(&forgetful).await.unwrap();
        for _ in 0..2 {
            let error = probe_metadata(&forgetful).await.unwrap_err();
            assert_eq!(error.fault().kind, ErrorKind::Unsupported);
        }
        let busy = Flawed { busy_every: 2, loses_every: 3, ..store(Flaw::None) };
        probe_metadata(&busy).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn every_flawed_store_is_refused_each_time_it_is_asked() {
        for (flaw, named) in [
            (Flaw::IgnoresAbsent, "If-None-Match"),
            (Flaw::IgnoresVersion, "accepted 8"),
            (Flaw::IgnoresBoth, "If-None-Match"),
            (Flaw::IgnoresVersionOfNothing, "no object"),
            (Flaw::ChecksInTwoSteps, "atomically"),
            (Flaw::NeverMatches, "If-Match"),
            (Flaw::SameVersionAlways, "accepted 8"),
        ] {
            let store = store(flaw);
            for _ in 0..3 {
                let error = probe(&store).await.unwrap_err();
                assert_eq!(error.fault().kind, ErrorKind::Unsupported, "{flaw:?}: {error:?}");
                assert!(error.to_string().contains(named), "{flaw:?}: {error:?}");
                assert!(error.fault().help.as_ref().unwrap().contains("conditional writes"));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_turned_bad_after_its_examination_is_refused() {
        for flaw in [Flaw::IgnoresVersion, Flaw::IgnoresBoth] {
            let store = store(Flaw::None);
            probe(&store).await.unwrap();
            *store.flaw.lock().unwrap() = flaw;
            for _ in 0..3 {
                assert_eq!(probe(&store).await.unwrap_err().fault().kind, ErrorKind::Unsupported);
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn many_processes_at_once_raise_no_false_alarm() {
        for (loses_every, busy_every) in [(0, 0), (7, 0), (0, 5), (7, 5), (2, 0), (0, 2)] {
            let store = Flawed { loses_every, busy_every, ..store(Flaw::None) };
            for outcome in join_all((0..16).map(|_| probe(&store))).await {
                match outcome {
                    Ok(()) => {}
                    // Sixteen at once on a store that loses or refuses many writes may stay busy.
                    Err(error) => assert!(error.is_transient() && loses_every + busy_every > 0, "{error:?}"),
                }
            }
            store.requests();
            probe(&Flawed { loses_every: 0, busy_every: 0, ..store }).await.unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_stands_at_the_markers_key_is_examined_unless_it_is_a_passed_marker() {
        for value in [
            "",
            "garbage",
            "{}",
            r#"{"about":"","passed":99,"outdated":"x","nonce":"00000000000000000000000000000000"}"#,
        ] {
            let store = store(Flaw::None);
            let cell = Cell {
                value: Bytes::from(value),
                version: Version::new("v0"),
                metadata: Metadata::default(),
            };
            store.cells.lock().unwrap().insert(MARKER.to_owned(), cell);
            probe(&store).await.unwrap();
            assert!(store.requests() > 2, "{value}");
            probe(&store).await.unwrap();
            assert_eq!(store.requests(), 2, "{value}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_store_that_stays_busy_is_reported_as_such() {
        let store = Flawed { busy_every: 1, ..store(Flaw::None) };
        let error = probe(&store).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("preconditions"), "{error:?}");
        assert_eq!(store.requests(), 2 * TRIES as usize, "a read and a refused write each time");
    }

    #[test]
    fn the_golden_marker_is_read_and_written() {
        let marker = Marker {
            about: "leasehold checks with this object that the store honours preconditions".to_owned(),
            passed: 1,
            outdated: Some("\"9b2cf535f27731c974343645a3985328\"".to_owned()),
            nonce: "00112233445566778899aabbccddeeff".parse().unwrap(),
        };
        assert_written("1-probe-marker.json", &serde_json::to_string(&marker).unwrap());
        let value = Bytes::from(golden("1-probe-marker.json"));
        let cell = Cell { value, version: Version::new("2"), metadata: Metadata::default() };
        assert_eq!(outdated_version(&cell), Some(Version::new("\"9b2cf535f27731c974343645a3985328\"")));
    }
}
