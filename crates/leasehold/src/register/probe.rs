//! Checks whether a register enforces its preconditions. This happens once per process and prefix, before the first
//! write.
//!
//! A store that ignores `If-Match` grants one lock to every client. A store that does not check it atomically grants
//! one lock to several clients in a race. Without a race, such a store behaves like a correct one. So a store must pass
//! races before it is used for locks. The verdict is recorded in the store: the [marker](evidence::Marker) contains the
//! endpoint and bucket, the time, and an outdated version of the marker itself.
//!
//! If a marker records that this store passed, a process reads it and checks that a write with the outdated version is
//! refused. This takes two requests. If there is no such marker, the process runs the full probe, with races, while
//! other processes wait. If the marker records that it is unsafe, the store is refused without races. Only an
//! examination by the doctor can lift a refusal, because a store without atomic checks would eventually pass a probe
//! that is repeated often enough.
//!
//! No verdict depends on the writes of other processes during the probe. A precondition counts as ignored only if
//! the store accepted two of our own writes of which a correct store accepts at most one.

pub(crate) mod checks;
pub(crate) mod evidence;
pub(crate) mod races;
pub(crate) mod trust;

use std::time::Duration;

use futures_util::future::BoxFuture;

use self::checks::{
    cause_of_conflict, fresh, keeps_metadata, refuses_outdated, refuses_second_create,
    refuses_version_of_nothing, vanished,
};
use self::evidence::{Marker, Standing};
use self::races::{Found, Kind, NO_DELETES_HELP, Plan, Raced, no_deletes};
use super::front_ends::{self, Fronts};
use super::{Body, Deleted, Precondition, Register, Version, VersionedValue, Write};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;

/// The prefix, followed by a random id, of keys that never exist.
const NOTHING: &str = ".leasehold-probe-nothing-";

/// The key for the check that metadata is stored.
const KEEPSAKE: &str = ".leasehold-probe-metadata";

/// The time limit of a probe.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// How many times the probe is tried if the store is busy, and the pause before the second attempt.
const TRIES: u32 = 8;
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// How many times to check whether another process has finished its probe, and the pause in between: some twenty
/// seconds in total. A process that takes longer has died or is very slow. The marker records when the probe began, so a
/// process that cannot wait this long takes over once the time limit of that probe has passed.
const POLLS: u32 = 66;
const POLL_PAUSE: Duration = Duration::from_millis(300);

/// How many times to leave the probe to another process that claims it first. That process makes progress.
const CLAIMS: u32 = 8;

/// The subject of a probe. Each has its own marker key, which is not the name of a lock's record, so it is never
/// listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// The preconditions of writes.
    Writes,
    /// The preconditions of deletes, and of writes that race with them.
    Deletes,
}

impl Subject {
    fn key(self) -> &'static str {
        match self {
            Self::Writes => ".leasehold-probe",
            Self::Deletes => ".leasehold-probe-delete",
        }
    }

    fn kinds(self) -> &'static [Kind] {
        match self {
            Self::Writes => &[Kind::Creates, Kind::Replaces],
            Self::Deletes => &[Kind::Deletes],
        }
    }
}

/// Checks that `register` enforces its preconditions, by writing to its own objects.
///
/// Not cancel safe: a dropped probe leaves the objects that it has written. The next probe can handle them.
///
/// ```
/// # use leasehold::{env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::{ErrorKind, Register, register::probe};
///
/// match probe(&register).await {
///     Ok(()) => println!("conditional writes are safe here"),
///     Err(error) if error.fault().kind == ErrorKind::Unsupported => eprintln!("do not use it: {error}"),
///     Err(error) => eprintln!("not known, try again: {error}"),
/// }
/// // The verdict, which spares other processes the full probe.
/// assert!(register.read(".leasehold-probe").await?.is_some());
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Returns [`ErrorKind::Unsupported`] if the store ignores preconditions or does not check them atomically, or was
/// found to do so earlier. Returns the store's error if it cannot be read or written, and the last error if it stays
/// busy.
pub async fn probe(register: &dyn Register) -> Result<(), StoreError> {
    probed(register, Subject::Writes).await
}

/// Checks that deletes of `register` are conditional, and that a delete and a write cannot both succeed. This is needed
/// for locks whose release deletes, and for sweeps.
///
/// Not cancel safe, like [`probe`].
///
/// ```
/// # use leasehold::{env::Env, stores::memory::MemoryRegister};
/// # let register = MemoryRegister::new(Env::system());
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use leasehold::register::{Deleted, Precondition, Register, Write, probe_deletes};
///
/// probe_deletes(&register).await?; // once, before the first delete
/// let created = register.write("limit", Precondition::Absent, "10".into()).await?;
/// let Write::Committed(version) = created else { panic!("the key exists") };
/// let replaced = register.write("limit", Precondition::Version(&version), "20".into()).await?;
/// assert!(matches!(replaced, Write::Committed(_)));
/// assert_eq!(register.delete("limit", &version).await?, Deleted::Conflict);
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// Returns the same errors as [`probe`].
pub async fn probe_deletes(register: &dyn Register) -> Result<(), StoreError> {
    probed(register, Subject::Deletes).await
}

async fn probed(register: &dyn Register, subject: Subject) -> Result<(), StoreError> {
    let probe = Probe::new(register, subject);
    patiently(register, || Box::pin(probe.run())).await.map_err(explained)
}

/// Checks that `register` stores the metadata of an object, which contains fences and the nonces of updates. Sends two
/// requests.
pub(crate) async fn probe_metadata(register: &dyn Register) -> Result<(), StoreError> {
    patiently(register, || Box::pin(keeps_metadata(register, KEEPSAKE))).await.map_err(explained)
}

/// Records that an examination by the doctor found `register` to be safe, or unsafe for the reason `unsafe_`.
pub(crate) async fn record(
    register: &dyn Register,
    subject: Subject,
    unsafe_: Option<&str>,
) -> Result<(), StoreError> {
    let probe = Probe::new(register, subject);
    probe.record(unsafe_, true).await
}

/// Retries transient errors.
async fn patiently<'a>(
    register: &dyn Register,
    probe: impl Fn() -> BoxFuture<'a, Result<(), StoreError>>,
) -> Result<(), StoreError> {
    let env = register.env();
    let mut pause = FIRST_PAUSE;
    for _ in 1..TRIES {
        match probe().await {
            Err(error) if error.is_transient() => {
                let wait = env.random.jittered(pause, 0.5).max(error.fault().retry_after.unwrap_or_default());
                env.sleep(wait).await;
                pause *= 2;
            }
            outcome => return outcome,
        }
    }
    probe().await
}

/// The result of waiting for other processes.
enum Waited {
    /// The store passed.
    Passed,
    /// This process may run the full probe. `abandoned` is the version of the marker of a prober that has died.
    MayProbe { abandoned: Option<Version> },
}

/// The result of a full probe that found no flaw.
enum Full {
    Passed,
    /// Another process runs it.
    LeftToOther,
    /// Another process found a flaw.
    RefusedBefore {
        what: String,
    },
}

struct Probe<'a> {
    register: &'a dyn Register,
    subject: Subject,
    /// Identifies this probe in the marker.
    id: Id,
}

impl<'a> Probe<'a> {
    fn new(register: &'a dyn Register, subject: Subject) -> Self {
        Self { register, subject, id: Id::random(&register.env().random) }
    }

    async fn run(&self) -> Result<(), StoreError> {
        let env = self.register.env();
        for round in 0..=CLAIMS {
            if round > 0 {
                env.sleep(env.random.jittered(POLL_PAUSE, 0.5)).await;
            }
            let Waited::MayProbe { abandoned } = self.wait().await? else { return Ok(()) };
            match self.run_full(abandoned.as_ref(), round == CLAIMS).await {
                Ok(Full::Passed) => return self.record(None, false).await,
                Ok(Full::LeftToOther) => {}
                // This process has no verdict of its own to record.
                Ok(Full::RefusedBefore { what }) => return Err(self.refused_before(&what)),
                Err(error) if error.fault().kind == ErrorKind::Unsupported => {
                    if let Err(why) = self.record(Some(&error.fault().message), false).await {
                        // Nevertheless, the marker does not say that the store passed.
                        tracing::warn!(%why, "an unsafe store could not be recorded as such: {error}");
                    }
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
        }
        Err(Fault::unavailable("other processes are checking them right now").not_applied())
    }

    /// Waits while another process runs the full probe.
    async fn wait(&self) -> Result<Waited, StoreError> {
        let env = self.register.env();
        let mut seen: Option<(Version, u32)> = None;
        while let Some(VersionedValue { value, version, .. }) = self.register.read(self.subject.key()).await?
        {
            let marker = Marker::read(&value, self.nonce());
            match self.standing(&marker, &version) {
                Standing::Passed { outdated } => {
                    self.still_refuses(marker, &Version::new(outdated)).await?;
                    return Ok(Waited::Passed);
                }
                Standing::Refused { what } => return Err(self.refused_before(&what)),
                Standing::Unknown { prober: Some(other) } if other != self.id => {}
                Standing::Unknown { .. } => break,
            }
            if marker.claim_is_over(LIMIT, self.register.store_time()) {
                return Ok(Waited::MayProbe { abandoned: Some(version) });
            }
            let polls = match seen.take() {
                Some((before, polls)) if before == version => polls + 1,
                _ => 1,
            };
            if polls > POLLS {
                return Ok(Waited::MayProbe { abandoned: Some(version) });
            }
            seen = Some((version, polls));
            env.sleep(env.random.jittered(POLL_PAUSE, 0.5)).await;
        }
        Ok(Waited::MayProbe { abandoned: None })
    }

    /// Checks a store that passed according to its marker. Sends one more write that must be refused. If the store
    /// accepts it, that very write records the refusal in the marker.
    async fn still_refuses(&self, marker: Marker, outdated: &Version) -> Result<(), StoreError> {
        let what = "it accepted a write that expects an outdated version (If-Match)";
        let refused = marker.refused(&self.identity(), self.register.store_time(), what);
        refuses_outdated(self.register, self.subject.key(), outdated, body(&refused)).await
    }

    /// Claims the probe, and runs all checks and the races. Leaves them to another process if that has claimed them in
    /// the meantime, unless `insists`.
    async fn run_full(&self, abandoned: Option<&Version>, insists: bool) -> Result<Full, StoreError> {
        let (fronts, unused) = Fronts::of(self.register, evidence::RACERS).await.map_err(|error| {
            let fault = Fault::new(error.kind(), error.to_string());
            fault.with_help(error.help().join("; ")).not_applied()
        })?;
        let register = fronts.as_ref().map_or(self.register, |fronts| fronts);
        let key = self.subject.key();
        let blank = self.claimed(Marker::blank(self.nonce()));
        refuses_second_create(register, key, body(&blank)).await?;
        // The content is unknown, because another process may have created the object just now.
        let Some(VersionedValue { value, version: outdated, .. }) = register.read(key).await? else {
            return Err(vanished(key));
        };
        let marker = Marker::read(&value, self.nonce());
        match self.standing(&marker, &outdated) {
            Standing::Refused { what } => return Ok(Full::RefusedBefore { what }),
            Standing::Unknown { prober } if prober.is_none_or(|prober| prober == self.id) => {}
            _ if insists || abandoned == Some(&outdated) => {}
            _ if self.is_still_at(abandoned).await? => {}
            _ => return Ok(Full::LeftToOther),
        }
        let claim = self.claimed(marker);
        if register.write(key, Precondition::Version(&outdated), body(&claim)).await? == Write::Conflict {
            return match register.read(key).await? {
                Some(cell) if cell.version == outdated => {
                    Err(cause_of_conflict(register, key, &outdated).await)
                }
                _ => Ok(Full::LeftToOther),
            };
        }
        refuses_outdated(register, key, &outdated, body(&claim)).await?;
        let nothing = format!("{NOTHING}{}", self.nonce());
        match self.subject {
            Subject::Writes => refuses_version_of_nothing(register, &nothing, &outdated).await?,
            Subject::Deletes => {
                refuses_outdated_delete(register, key, &outdated).await?;
                accepts_delete(register, &nothing).await?;
            }
        }
        let Found { kinds, .. } = races::run(register, Plan::first_use(self.subject.kinds())).await;
        verdict(kinds)?;
        front_ends::log(&self.identity(), &unused);
        Ok(Full::Passed)
    }

    /// Returns `marker` with the claim of this process.
    fn claimed(&self, marker: Marker) -> Marker {
        marker.probed_by(self.id, &self.identity(), self.register.store_time())
    }

    /// Returns whether the marker has the version `abandoned`, although another address of the store had another marker
    /// just now. Then the two addresses have different objects. The claim will find that, so there is no process to
    /// wait for.
    async fn is_still_at(&self, abandoned: Option<&Version>) -> Result<bool, StoreError> {
        let Some(abandoned) = abandoned else { return Ok(false) };
        let marker = self.register.read(self.subject.key()).await?;
        Ok(marker.is_some_and(|marker| marker.version == *abandoned))
    }

    /// Records in the marker that this store is `unsafe_`, or that it passed. A refused store can pass only with
    /// `lifts`.
    async fn record(&self, unsafe_: Option<&str>, lifts: bool) -> Result<(), StoreError> {
        evidence::record(self.register.env(), || async {
            let written = self.record_once(unsafe_, lifts).await?;
            Ok(matches!(written, Write::Committed(_)))
        })
        .await
    }

    async fn record_once(&self, unsafe_: Option<&str>, lifts: bool) -> Result<Write, StoreError> {
        let (register, key, identity) = (self.register, self.subject.key(), self.identity());
        let Some(cell) = register.read(key).await? else {
            let blank = Marker::blank(self.nonce());
            let Some(what) = unsafe_ else {
                // A marker that says that the store passed contains an outdated version of itself.
                register.write(key, Precondition::Absent, body(&blank)).await?;
                return Ok(Write::Conflict);
            };
            let refused = blank.refused(&identity, register.store_time(), what);
            return register.write(key, Precondition::Absent, body(&refused)).await;
        };
        let judged = Marker::read(&cell.value, self.nonce())
            .judge(&identity, register.store_time(), cell.version.as_str(), unsafe_, lifts)
            .map_err(|what| self.refused_before(&what))?;
        register.write(key, Precondition::Version(&cell.version), body(&judged)).await
    }

    fn standing(&self, marker: &Marker, version: &Version) -> Standing {
        marker.standing(&self.identity(), version.as_str(), self.register.store_time())
    }

    fn identity(&self) -> String {
        self.register.identity()
    }

    fn refused_before(&self, what: &str) -> StoreError {
        const LIFT: &str = "after the store has been repaired or replaced, run `leasehold doctor` on it: if it \
            passes, the store can be used again";
        let fault =
            Fault::new(ErrorKind::Unsupported, format!("this store was examined and found unsafe: {what}"));
        let help = match self.subject {
            Subject::Writes => LIFT.to_owned(),
            Subject::Deletes => format!("{NO_DELETES_HELP}; {LIFT}"),
        };
        fault.with_help(help).not_applied()
    }

    fn nonce(&self) -> Id {
        Id::random(&self.register.env().random)
    }
}

/// Returns the verdict of the races. Two winners in any race prove that the store is unsafe, even if other races got no
/// result.
fn verdict(kinds: Vec<Raced>) -> Result<(), StoreError> {
    let mut incomplete = None;
    for Raced { counted, unsafe_, trouble, .. } in kinds {
        if let Some(error) = unsafe_ {
            return Err(error);
        }
        if counted < evidence::RACES_FIRST_USE {
            let message = format!("only {counted} of {} races had a result", evidence::RACES_FIRST_USE);
            let trouble = trouble.unwrap_or_else(|| Fault::unavailable(message).not_applied());
            incomplete = races::more_lasting(incomplete, Some(trouble));
        }
    }
    incomplete.map_or(Ok(()), Err)
}

/// Checks that a delete of a replaced version is refused. If the delete succeeds, the store has no marker that records
/// a pass.
async fn refuses_outdated_delete(
    register: &dyn Register,
    key: &str,
    outdated: &Version,
) -> Result<(), StoreError> {
    match register.delete(key, outdated).await? {
        Deleted::Conflict => Ok(()),
        Deleted::Deleted => {
            Err(no_deletes("this store ignores the precondition of deletes (If-Match on DeleteObject)"))
        }
    }
}

/// Checks that a delete of the current version succeeds. There must be no object at `key`.
async fn accepts_delete(register: &dyn Register, key: &str) -> Result<(), StoreError> {
    let Write::Committed(version) = register.write(key, Precondition::Absent, fresh(register)).await? else {
        return Err(vanished(key));
    };
    match register.delete(key, &version).await? {
        Deleted::Deleted => Ok(()),
        Deleted::Conflict => Err(no_deletes("this store refuses deletes that expect the current version")),
    }
}

fn body(marker: &Marker) -> Body {
    marker.to_bytes().into()
}

/// Adds the purpose of the failed request to its error message, because the user asked for a lock and not for this
/// object.
fn explained(mut error: StoreError) -> StoreError {
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = &mut error;
    if fault.kind != ErrorKind::Unsupported {
        fault.message = format!("the store's preconditions could not be checked: {}", fault.message);
    }
    error
}

#[cfg(test)]
mod tests;
