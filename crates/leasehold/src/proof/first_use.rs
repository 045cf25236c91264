//! Proves a store before a process first writes to it, once for all processes.

use std::time::Duration;

use super::cells::Cells;
use super::checks::{NO_DELETES_HELP, accepted_outdated};
use super::marker::{self, Marker, Standing, Subject};
use super::questions::{Questions, Selection};
use crate::diagnosis::Examined;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Id;
use crate::register::{Precondition, Version, Write};
use crate::retry::{RetryBudget, retry};

/// The time limit of a probe.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The time limit of a busy store to accept the claim of a probe.
const CLAIM_LIMIT: Duration = Duration::from_secs(30);

/// How many times to check whether another process has finished its probe, and the pause in between: some twenty
/// seconds in total. A process that takes longer has died or is very slow. The marker records when the probe began, so a
/// process that cannot wait this long takes over once the time limit of that probe has passed.
const POLLS: u32 = 66;
const POLL_PAUSE: Duration = Duration::from_millis(300);

/// How many times to leave the probe to another process that claims it first. That process makes progress.
const CLAIMS: u32 = 8;

/// Makes sure that the store of `cells` passed, or asks the questions.
///
/// # Errors
/// Returns [`ErrorKind::Unsupported`] if it did not pass, now or earlier, and other errors if that is unknown.
pub(crate) async fn prove(cells: &dyn Cells, subject: Subject) -> Result<(), StoreError> {
    Probe::new(cells, subject).run().await.map_err(explained)
}

/// Records that an examination by the doctor found the store to be safe, or unsafe for the reason `unsafe_`.
pub(super) async fn record(
    cells: &dyn Cells,
    subject: Subject,
    unsafe_: Option<&str>,
) -> Result<(), StoreError> {
    Probe::new(cells, subject).record(None, unsafe_, true).await
}

/// The marker as it was found or written.
type Found = Option<(Marker, Version)>;

struct Probe<'a> {
    cells: &'a dyn Cells,
    subject: Subject,
    /// Identifies this probe in the marker.
    id: Id,
}

impl<'a> Probe<'a> {
    fn new(cells: &'a dyn Cells, subject: Subject) -> Self {
        Self { cells, subject, id: Id::random(&cells.env().random) }
    }

    async fn run(&self) -> Result<(), StoreError> {
        let Some(claim) = self.claim().await? else { return Ok(()) };
        let fronts = self.cells.fronts().await?;
        let cells = fronts.as_deref().unwrap_or(self.cells);
        let mut questions = Questions::new(cells, Selection::FirstUse(self.subject), Examined::default());
        questions.ask().await;
        let outcome = questions.outcome();
        match &outcome {
            Ok(()) => self.record(claim, None, false).await,
            Err(error) => {
                if error.fault().kind == ErrorKind::Unsupported
                    && let Err(why) = self.record(claim, Some(&error.fault().message), false).await
                {
                    // Nevertheless, the marker does not say that the store passed.
                    tracing::warn!(%why, "an unsafe store could not be recorded as such: {error}");
                }
                outcome
            }
        }
    }

    /// Claims the probe for this process, after other processes. Returns the marker with the claim, or `None` if the
    /// store has passed.
    async fn claim(&self) -> Result<Option<Found>, StoreError> {
        let env = self.cells.env();
        let mut budget = RetryBudget::of_question_within(env, CLAIM_LIMIT);
        let mut claims = 0;
        loop {
            let Some(seen) = self.wait().await? else { return Ok(None) };
            let claim = match &seen {
                Some((marker, _)) => marker.clone(),
                None => Marker::blank(self.nonce()),
            };
            let claim = claim.probed_by(self.id, &self.identity(), self.cells.store_time());
            match budget.request(self.write(seen.as_ref(), &claim)).await {
                Ok(Write::Committed(version)) => return Ok(Some(Some((claim, version)))),
                // The other processes do not finish, or this store refuses every write.
                Ok(Write::Conflict) if claims == CLAIMS => return Ok(Some(None)),
                Ok(Write::Conflict) => {
                    claims += 1;
                    budget.progressed();
                    env.sleep(env.random.jittered(POLL_PAUSE, 0.5)).await;
                }
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Waits while another process asks the questions. Returns the marker, or `None` if the store has passed.
    async fn wait(&self) -> Result<Option<Found>, StoreError> {
        let env = self.cells.env();
        let mut seen: Option<(Version, u32)> = None;
        loop {
            let Some((marker, version)) = retry(env, || self.read()).await? else { return Ok(Some(None)) };
            match self.standing(&marker, &version) {
                Standing::Passed { outdated } => {
                    self.still_refuses(marker, &Version::new(outdated)).await?;
                    return Ok(None);
                }
                Standing::Refused { what } => return Err(self.refused_before(&what)),
                Standing::Unknown { prober: Some(other) } if other != self.id => {}
                Standing::Unknown { .. } => return Ok(Some(Some((marker, version)))),
            }
            let polls = match seen.take() {
                Some((before, polls)) if before == version => polls + 1,
                _ => 1,
            };
            if polls > POLLS || marker.claim_is_over(LIMIT, self.cells.store_time()) {
                return Ok(Some(Some((marker, version))));
            }
            seen = Some((version, polls));
            env.sleep(env.random.jittered(POLL_PAUSE, 0.5)).await;
        }
    }

    /// Checks a store that passed according to its marker. Sends one more write that must be refused. If the store
    /// accepts it, that very write records the refusal in the marker.
    async fn still_refuses(&self, marker: Marker, outdated: &Version) -> Result<(), StoreError> {
        let what = "it accepted a write that expects an outdated version";
        let refused = marker.refused(&self.identity(), self.cells.store_time(), what);
        let (key, bytes) = (self.subject.key(), refused.to_bytes());
        let write = || self.cells.write(key, Precondition::Version(outdated), bytes.clone());
        accepted_outdated(self.cells, retry(self.cells.env(), write).await?, false)
    }

    /// Records that this store is `unsafe_`, or that it passed. A refused store can pass only with `lifts`. `claim` is
    /// the marker, unless another process has changed it.
    async fn record(&self, claim: Found, unsafe_: Option<&str>, lifts: bool) -> Result<(), StoreError> {
        let mut known = claim;
        marker::record(self.cells.env(), || {
            let known = known.take();
            async move {
                let found = match known {
                    Some(found) => Some(found),
                    None => self.read().await?,
                };
                let judged = match (&found, unsafe_) {
                    (Some((marker, version)), _) => {
                        let (now, version) = (self.cells.store_time(), version.as_str());
                        let judged = marker.clone().judge(&self.identity(), now, version, unsafe_, lifts);
                        judged.map_err(|what| self.refused_before(&what))?
                    }
                    (None, Some(what)) => {
                        let blank = Marker::blank(self.nonce());
                        blank.refused(&self.identity(), self.cells.store_time(), what)
                    }
                    (None, None) => Marker::blank(self.nonce()),
                };
                let written = self.write(found.as_ref(), &judged).await? != Write::Conflict;
                // A marker that says that the store passed contains an outdated version of itself.
                Ok(written && (found.is_some() || unsafe_.is_some()))
            }
        })
        .await
    }

    async fn read(&self) -> Result<Found, StoreError> {
        let found = self.cells.read(self.subject.key()).await?;
        Ok(found.map(|(bytes, version)| (Marker::read(&bytes, self.nonce()), version)))
    }

    /// Writes `marker` over what was `seen`.
    async fn write(&self, seen: Option<&(Marker, Version)>, marker: &Marker) -> Result<Write, StoreError> {
        let expect = seen.map_or(Precondition::Absent, |(_, version)| Precondition::Version(version));
        self.cells.write(self.subject.key(), expect, marker.to_bytes()).await
    }

    fn standing(&self, marker: &Marker, version: &Version) -> Standing {
        marker.standing(&self.identity(), version.as_str(), self.cells.store_time())
    }

    fn identity(&self) -> String {
        self.cells.identity()
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
        Id::random(&self.cells.env().random)
    }
}

/// Adds the purpose of the failed request to its error message, because the user asked for a lock and not for this
/// object.
pub(super) fn explained(mut error: StoreError) -> StoreError {
    let (StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) = &mut error;
    if fault.kind != ErrorKind::Unsupported {
        fault.message = format!("the store's preconditions could not be checked: {}", fault.message);
    }
    error
}
