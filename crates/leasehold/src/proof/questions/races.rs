//! Which races to run, and what they show.

use std::time::Duration;

use super::{Questions, Selection, Step};
use crate::diagnosis::Finding;
use crate::proof::cells::{Races, excluded};
use crate::proof::marker::Subject;
use crate::proof::races::{self, Found, Kind, Plan, Raced};

/// The time limit of the races before a process first uses a store. It leaves time to record the verdict.
const FIRST_USE_LIMIT: Duration = Duration::from_secs(90);

/// The time limit of the doctor's races. The thorough ones may take five times as long.
const DOCTOR_LIMIT: Duration = Duration::from_secs(120);

impl Questions<'_> {
    /// Runs races of creates, of writes over one version, and of writes and deletes.
    pub(super) async fn races(&mut self) {
        let (size, limit) = match self.selection {
            Selection::FirstUse(_) => (self.profile.first_use, FIRST_USE_LIMIT),
            Selection::Doctor { thorough: false, .. } => (self.profile.doctor, DOCTOR_LIMIT),
            Selection::Doctor { thorough: true, .. } => (self.profile.thorough, 5 * DOCTOR_LIMIT),
        };
        let kinds: &[Kind] = match self.selection {
            _ if size.races == 0 => return,
            Selection::FirstUse(Subject::Deletes) => &[Kind::Deletes],
            // Without conditional deletes, there is nothing to race.
            Selection::Doctor { .. } if self.conditional_deletes && self.profile.races_deletes => {
                &[Kind::Creates, Kind::Replaces, Kind::Deletes]
            }
            _ => &[Kind::Creates, Kind::Replaces],
        };
        let plan = Plan { kinds, size, all: !self.is_first_use(), limit };
        let Found { kinds, prefix, left } = races::run(self.cells, plan).await;
        if !left.is_empty() {
            self.found.leave(format!("{} objects {prefix}*", left.len()));
        }
        for raced in kinds {
            // Each kind is judged, even before the first use.
            let _ = self.raced(raced, size);
        }
    }

    fn raced(&mut self, raced: Raced, Races { racers, .. }: Races) -> Step<()> {
        let Raced { kind, counted, .. } = raced;
        let check = kind.check();
        let what = raced.unsafe_.as_ref().map(|error| error.fault().message.clone());
        let is_unsafe = what.is_some();
        if kind == Kind::Deletes {
            self.unsafe_deletes = what;
        }
        let cause = raced.trouble.as_ref().map_or_else(String::new, |error| format!(": {error}"));
        // With fewer races, a process would not use the store either.
        match raced.problem(self.profile.first_use.races) {
            None => {
                let what = kind.what(&self.profile);
                let seen = format!("of {racers} {what} at once, one is accepted, {counted} times");
                self.pass(check, format!("{seen}: {}", excluded(counted)));
            }
            Some(error) if is_unsafe && kind == Kind::Deletes => return self.unsafe_delete(check, error),
            Some(error) if is_unsafe || self.is_first_use() => return self.fail(check, error),
            Some(_) => {
                let seen = format!(
                    "only {counted} races of {racers} requests had a result, too few for a conclusion"
                );
                self.found.push(Finding::warning(check, seen + &cause).with_help(
                    "it remains unknown whether the store checks preconditions atomically, and an earlier result in the \
                     store stays valid: try again when it is less busy, or with --thorough",
                ));
            }
        }
        Ok(())
    }
}
