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

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};

use super::{Body, Cell, Expect, Metadata, Register, Version, Write};
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
    patiently(register, |register| Box::pin(probe_once(register))).await.map_err(explained)
}

/// Checks that `register` keeps the metadata of an object, where fences and the nonces of updates stand. 2 requests.
pub(super) async fn probe_metadata(register: &dyn Register) -> Result<(), StoreError> {
    patiently(register, |register| Box::pin(keeps_metadata(register))).await.map_err(explained)
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

async fn keeps_metadata(register: &dyn Register) -> Result<(), StoreError> {
    let user = BTreeMap::from([("leasehold-kept".to_owned(), "yes".to_owned())]);
    let metadata = Metadata { user, ..Metadata::default() };
    // There, now or already: either will do.
    let body = Body { bytes: Bytes::from_static(b"{}"), metadata: metadata.clone() };
    register.write(KEEPSAKE, Expect::Absent, body).await?;
    match register.stat(KEEPSAKE).await? {
        Some(found) if found.metadata.user == metadata.user => Ok(()),
        Some(_) => Err(Fault::new(
            ErrorKind::Unsupported,
            format!("this store does not keep the metadata of {KEEPSAKE}, or somebody else wrote that"),
        )
        .with_help("updates and fenced writes keep their marks in metadata (x-amz-meta-*): use a store that keeps it")
        .not_applied()),
        None => Err(vanished()),
    }
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
    let Some(Cell { version: mut current, .. }) = register.read(MARKER).await? else {
        return Err(vanished());
    };
    let mut outdated = current.clone();
    let mut won = false;
    for _ in 0..RACES {
        let next = match race(register, &current).await? {
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
    refuses_outdated(register, &outdated).await?;
    refuses_version_of_nothing(register, &outdated).await?;
    // A conflict means that another process is at the same work and has come further.
    let passed = marker(register, EXAMINATION, Some(&outdated));
    register.write(MARKER, Expect::Version(&current), passed).await.map(|_| ())
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
    let mut winners = Vec::new();
    let mut trouble = None;
    for outcome in join_all(racers).await {
        match outcome {
            Ok(Write::Committed(version)) => winners.push(version),
            Ok(Write::Conflict) => {}
            // Busy stores refuse racers (409); one that was accepted is enough.
            Err(error) => trouble = Some(error),
        }
    }
    match (winners.len(), trouble) {
        (0, Some(error)) => Err(error),
        (0 | 1, _) => Ok(winners.pop()),
        (accepted, _) => Err(refusal(
            &format!(
                "this store ignores the precondition that the version be current (If-Match), or does not check it \
                 atomically: of {RACERS} writes that raced for one version, it accepted {accepted}"
            ),
            "two clients that ask at the same moment could be granted the same lock",
        )),
    }
}

/// The version that another process wrote in place of `raced`, which none of our writes could replace.
async fn overtaken(register: &dyn Register, raced: &Version) -> Result<Version, StoreError> {
    match register.read(MARKER).await? {
        None => Err(vanished()),
        Some(cell) if cell.version == *raced => Err(refusal(
            "this store refuses writes that expect the current version (If-Match)",
            "no lock could ever be renewed or released",
        )),
        Some(cell) => Ok(cell.version),
    }
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

/// Some stores check a version only where there is an object (minio#21526): the renewal of a lock whose record was
/// deleted by hand would bring it back.
async fn refuses_version_of_nothing(register: &dyn Register, version: &Version) -> Result<(), StoreError> {
    let key = format!("{NOTHING}{}", Id::random(&register.env().random));
    let value = marker(register, 0, None);
    match register.write(&key, Expect::Version(version), value).await? {
        Write::Conflict => Ok(()),
        Write::Committed(_) => Err(refusal(
            "this store ignores the precondition that the version be current (If-Match) where there is no object",
            "a lock that was deleted by hand could come back",
        )),
    }
}

fn marker(register: &dyn Register, passed: u32, outdated: Option<&Version>) -> Body {
    let marker = Marker {
        about: "leasehold checks with this object that the store honours preconditions".to_owned(),
        passed,
        outdated: outdated.map(|version| version.as_str().to_owned()),
        nonce: Id::random(&register.env().random),
    };
    // A struct of strings and numbers always serializes; should it not, an empty marker is examined anew.
    serde_json::to_vec(&marker).map(Bytes::from).unwrap_or_default().into()
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
        "an object {MARKER}* was deleted while the store's preconditions were checked"
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    use async_trait::async_trait;
    use futures_util::stream::{self, BoxStream, StreamExt};

    use crate::clock::{StoreTime, TestClock};
    use crate::env::Env;
    use crate::golden::{assert_written, golden};
    use crate::lease::Pace;
    use crate::register::{Deleted, RegisterTraits};

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Flaw {
        None,
        IgnoresAbsent,
        IgnoresVersion,
        IgnoresBoth,
        IgnoresVersionOfNothing,
        /// Checks, then writes: right for every lone client.
        ChecksInTwoSteps,
        NeverMatches,
        SameVersionAlways,
        DropsMetadata,
    }

    /// A register with a flaw, which also has bad moments: every so many requests it fails.
    #[derive(Debug)]
    struct Flawed {
        flaw: Mutex<Flaw>,
        cells: Mutex<HashMap<String, Cell>>,
        requests: AtomicUsize,
        /// Every how many writes an answer is lost after the write was applied; 0 for never.
        loses_every: usize,
        /// Likewise refused as busy.
        busy_every: usize,
        env: Env,
    }

    fn store(flaw: Flaw) -> Flawed {
        Flawed {
            flaw: Mutex::new(flaw),
            cells: Mutex::default(),
            requests: AtomicUsize::new(0),
            loses_every: 0,
            busy_every: 0,
            env: Env::seeded(Arc::new(TestClock::default()), 1),
        }
    }

    impl Flawed {
        fn requests(&self) -> usize {
            self.requests.swap(0, Ordering::SeqCst)
        }

        fn holds(&self, key: &str, expect: Expect<'_>) -> bool {
            let flaw = *self.flaw.lock().unwrap();
            let cells = self.cells.lock().unwrap();
            match (expect, cells.get(key)) {
                (Expect::Absent, _) if matches!(flaw, Flaw::IgnoresAbsent | Flaw::IgnoresBoth) => true,
                (Expect::Version(_), _) if matches!(flaw, Flaw::IgnoresVersion | Flaw::IgnoresBoth) => true,
                (Expect::Version(_), _) if flaw == Flaw::NeverMatches => false,
                (Expect::Version(_), None) if flaw == Flaw::IgnoresVersionOfNothing => true,
                (Expect::Absent, cell) => cell.is_none(),
                (Expect::Version(version), cell) => cell.is_some_and(|cell| cell.version == *version),
            }
        }
    }

    #[async_trait]
    impl Register for Flawed {
        async fn read(&self, key: &str) -> Result<Option<Cell>, StoreError> {
            self.requests.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Ok(self.cells.lock().unwrap().get(key).cloned())
        }

        async fn write(&self, key: &str, expect: Expect<'_>, body: Body) -> Result<Write, StoreError> {
            let n = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
            let nth = |every: usize| every > 0 && n.is_multiple_of(every);
            tokio::task::yield_now().await;
            if nth(self.busy_every) {
                return Err(Fault::unavailable("409").not_applied());
            }
            let flaw = *self.flaw.lock().unwrap();
            if flaw == Flaw::ChecksInTwoSteps {
                if !self.holds(key, expect) {
                    return Ok(Write::Conflict);
                }
                tokio::task::yield_now().await;
            } else if !self.holds(key, expect) {
                return Ok(Write::Conflict);
            }
            let version =
                Version::new(if flaw == Flaw::SameVersionAlways { "v".to_owned() } else { format!("v{n}") });
            let metadata = if flaw == Flaw::DropsMetadata { Metadata::default() } else { body.metadata };
            let cell = Cell { value: body.bytes, version: version.clone(), metadata };
            self.cells.lock().unwrap().insert(key.to_owned(), cell);
            if nth(self.loses_every) {
                return Err(Fault::unavailable("reset").maybe_applied());
            }
            Ok(Write::Committed(version))
        }

        async fn delete(&self, _key: &str, _version: &Version) -> Result<Deleted, StoreError> {
            Err(Fault::new(ErrorKind::Unsupported, "no deletes").not_applied())
        }

        fn list(&self, _prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
            stream::empty().boxed()
        }

        fn store_time(&self) -> Option<StoreTime> {
            None
        }

        fn env(&self) -> &Env {
            &self.env
        }

        fn traits(&self) -> RegisterTraits {
            let pace = Pace { first: Duration::ZERO, most: Duration::ZERO };
            RegisterTraits { store: "flawed", trusted: false, generations: false, metadata: None, pace }
        }
    }

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
