//! Runs the doctor's races and records the result in the store.

use std::time::Duration;

use super::Patient;
use crate::diagnosis::{CheckStatus, Finding};
use crate::register::Register;
use crate::register::probe::evidence::{RACERS, RACES_DOCTOR, RACES_FIRST_USE, RACES_THOROUGH, excluded};
use crate::register::probe::races::{self, Found, Kind, Plan, Raced};
use crate::register::probe::{Subject, record};

/// The time limit of the races. The thorough ones may take five times as long.
const RACES_LIMIT: Duration = Duration::from_secs(120);

/// The checks whose failure makes a store unsafe instead of only unusable. Such a failure is recorded in the store, so
/// that no process uses it.
const UNSAFE: [&str; 9] = [
    "read-after-write",
    "create-if-absent",
    "current-version",
    "new-version",
    "stale-version",
    "missing-key",
    CREATE_RACE,
    WRITE_RACE,
    "delete-marker",
];

const CREATE_RACE: &str = "create-race";
const WRITE_RACE: &str = "atomic-race";
const DELETE_RACE: &str = "delete-race";

impl Patient<'_> {
    /// Runs races of creates, of writes over one version, and of writes and deletes.
    pub(super) async fn races(&mut self) {
        let (racers, races, limit) = match self.thorough {
            true => (2 * RACERS, RACES_THOROUGH, 5 * RACES_LIMIT),
            false => (RACERS, RACES_DOCTOR, RACES_LIMIT),
        };
        // Without conditional deletes, there is nothing to race.
        let kinds: &[Kind] = match self.conditional_deletes {
            true => &[Kind::Creates, Kind::Replaces, Kind::Deletes],
            false => &[Kind::Creates, Kind::Replaces],
        };
        let plan = Plan { kinds, racers, races, all: true, limit };
        let Found { kinds, prefix, left } = races::run(self.register, plan).await;
        if !left.is_empty() {
            self.found.leave(format!("{} objects {prefix}*", left.len()));
        }
        for raced in kinds {
            let finding = self.raced(raced, racers);
            self.found.push(finding);
        }
    }

    fn raced(&mut self, raced: Raced, racers: usize) -> Finding {
        let Raced { kind, counted, unsafe_, trouble } = raced;
        let check = match kind {
            Kind::Creates => CREATE_RACE,
            Kind::Replaces => WRITE_RACE,
            Kind::Deletes => DELETE_RACE,
        };
        if kind == Kind::Deletes {
            self.unsafe_deletes = unsafe_.as_ref().map(|error| error.fault().message.clone());
        }
        match unsafe_ {
            Some(error) if kind == Kind::Deletes && !self.deletes => Finding::not_applicable(
                check,
                format!(
                    "{}: leasehold deletes records only in a sweep, which it refuses here",
                    error.fault().message
                ),
            ),
            Some(error) => Finding::of_error(check, CheckStatus::Failed, &error),
            // With fewer races, a process would not use the store either.
            None if counted >= RACES_FIRST_USE => {
                let seen = format!("of {racers} {} at once, one is accepted, {counted} times", kind.what());
                Finding::passed(check, format!("{seen}: {}", excluded(counted)))
            }
            None => {
                let cause = trouble.map_or_else(String::new, |error| format!(": {}", error.fault().message));
                let seen = format!(
                    "only {counted} races of {racers} requests had a result, too few for a conclusion"
                );
                Finding::warning(check, seen + &cause).with_help(
                    "it remains unknown whether the store checks preconditions atomically, and an earlier result \
                        in the store stays valid: try again when it is less busy, or with --thorough",
                )
            }
        }
    }

    /// Records the result at `front`. Processes then use the store, or refuse it, until the doctor examines it again.
    pub(super) async fn record(&mut self, front: &dyn Register) {
        if front.capabilities().trusted {
            return;
        }
        let unsafe_ = self
            .found
            .findings
            .iter()
            .find(|finding| finding.verdict == CheckStatus::Failed && UNSAFE.contains(&finding.check));
        let unsafe_ = unsafe_.map(|finding| finding.seen.clone());
        let raced = [CREATE_RACE, WRITE_RACE].iter().all(|check| self.found.passed(check));
        let writes = unsafe_.map(Err).or((raced && self.found.is_sound()).then_some(Ok(())));
        let deletes = match &self.unsafe_deletes {
            Some(what) => Some(Err(what.clone())),
            None => (writes == Some(Ok(())) && self.found.passed(DELETE_RACE)).then_some(Ok(())),
        };
        for (subject, verdict) in [(Subject::Writes, writes), (Subject::Deletes, deletes)] {
            let Some(verdict) = verdict else { continue };
            let unsafe_ = verdict.as_ref().err().map(String::as_str);
            if let Err(error) = record(front, subject, unsafe_).await {
                self.found.push(Finding::not_recorded(&error));
            }
        }
    }
}
