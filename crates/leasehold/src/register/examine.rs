//! The doctor's questions to any register: permissions, preconditions, and that what was written is read.

use futures_util::StreamExt;

use super::probe::checks::{
    keeps_metadata, marker, race, refusal, refuses_outdated, refuses_second_create,
    refuses_version_of_nothing, vanished,
};
use super::{Deleted, Expect, Register, Version, Write};
use crate::doctor::{Examination, Examined, Finding, Verdict};
use crate::error::{ErrorKind, StoreError};
use crate::lease::Id;

/// What the keys of an examination begin with: those of no lock, and never listed as one.
const PLACE: &str = ".leasehold-probe-doctor-";

const RACERS: usize = 8;
const RACES: usize = 6;

/// Examines `register`; `deletes` tells whether releases delete, so that conditional deletes matter.
pub(crate) async fn examine(register: &dyn Register, deletes: bool, examination: &Examination) -> Examined {
    let id = Id::random(&register.env().random).to_string();
    let mut patient = Patient {
        register,
        key: format!("{PLACE}{}", &id[..12]),
        deletes,
        thorough: examination.thorough,
        found: register.examine().await,
    };
    if let Err(stop) = patient.examine().await {
        patient.found.push(stop);
    }
    patient.clean_up().await;
    patient.found
}

struct Patient<'a> {
    register: &'a dyn Register,
    key: String,
    deletes: bool,
    thorough: bool,
    found: Examined,
}

/// `Err` is what ends the examination.
type Step<T> = Result<T, Finding>;

impl Patient<'_> {
    async fn examine(&mut self) -> Step<()> {
        let first = self.permissions().await?;
        let permitted = self.found.is_sound();
        let (register, key) = (self.register, self.key.clone());
        let asked = refuses_second_create(register, &key).await;
        self.check("create-if-absent", "a second create is refused", asked);
        if !permitted {
            return Err(Finding::not_applicable(
                "preconditions",
                "not examined further, because of what failed above",
            ));
        }
        self.new_version(&first).await?;
        let asked = refuses_outdated(register, &key, &first).await;
        self.check("stale-version", "a write that expects an outdated version is refused", asked);
        let asked = refuses_version_of_nothing(register, &nothing(&key), &first).await;
        self.check("missing-key", "a write that expects a version is refused where nothing is", asked);
        self.races().await?;
        if self.deletion(&first).await? && self.register.traits().metadata.is_some() {
            self.metadata().await;
        }
        Ok(())
    }

    /// One after the other, so that each that is missing has a line. Gives the version of the first write.
    async fn permissions(&mut self) -> Step<Version> {
        let (register, key) = (self.register, self.key.clone());
        let listed = register.list(&key).next().await.transpose().map(|_| ());
        let written = register.write(&key, Expect::Absent, marker(register, 0, None)).await;
        let read = match &written {
            Ok(Write::Committed(_)) => Some(register.read(&key).await),
            _ => None,
        };
        let absent = register.read(&nothing(&key)).await.map(|_| ());
        let first = match written {
            Ok(Write::Committed(version)) => {
                self.pass("permission-write", "objects can be written");
                Ok(version)
            }
            Ok(Write::Conflict) => {
                let error = refusal(
                    "this store refuses to create what is not there (If-None-Match: *)",
                    "no lock could ever be acquired",
                );
                Err(Finding::of_error("create-if-absent", Verdict::Failed, &error))
            }
            Err(error) => {
                // What a store does not know is no permission that is missing.
                let check = if is_denied(&error) { "permission-write" } else { "create-if-absent" };
                Err(Finding::of_error(check, Verdict::Failed, &error))
            }
        };
        let readable = self.may_read(read, &listed, &absent, first.as_ref().ok());
        self.may_list(listed, absent, readable);
        first
    }

    /// Whether what is there can be read; and that it is what was just written.
    fn may_read(
        &mut self,
        read: Option<Result<Option<super::Cell>, StoreError>>,
        listed: &Result<(), StoreError>,
        absent: &Result<(), StoreError>,
        written: Option<&Version>,
    ) -> bool {
        const CHECK: &str = "permission-read";
        match read {
            Some(Ok(cell)) => {
                self.pass(CHECK, "objects can be read");
                let finding = match cell {
                    Some(cell) if Some(&cell.version) == written => {
                        Finding::passed("read-after-write", "a write is read as soon as it was answered")
                    }
                    Some(_) => Finding::failed(
                        "read-after-write",
                        "a read tells another version than the write before it",
                    ),
                    None => Finding::failed("read-after-write", "what was just written is not there"),
                };
                self.found.push(match finding.verdict {
                    Verdict::Passed => finding,
                    _ => finding.with_help("locks need a store whose reads are strongly consistent"),
                });
                true
            }
            Some(Err(error)) => {
                let check = if is_denied(&error) { CHECK } else { "read-after-write" };
                self.found.push(Finding::of_error(check, Verdict::Failed, &error));
                false
            }
            // Nothing of ours is there to be read: what is not there has to do.
            None => match (absent, listed) {
                (Ok(()), _) => {
                    self.pass(CHECK, "reads are answered");
                    true
                }
                (Err(error), Ok(())) => {
                    self.found.push(Finding::of_error(CHECK, Verdict::Failed, error));
                    false
                }
                (Err(_), Err(_)) => true,
            },
        }
    }

    /// Without it, clouds do not say that something is not there.
    fn may_list(&mut self, listed: Result<(), StoreError>, absent: Result<(), StoreError>, readable: bool) {
        const CHECK: &str = "permission-list";
        let finding = match (listed, absent) {
            (Ok(()), Err(error)) if readable => Finding::of_error(CHECK, Verdict::Failed, &error).with_help(
                "listing below the prefix is allowed, and asking for what is not there is not: the permission to list must \
                 have no condition on the prefix",
            ),
            (Ok(()), _) => Finding::passed(CHECK, "objects can be listed, and what is not there is told"),
            (Err(error), Ok(())) => Finding::of_error(CHECK, Verdict::Warning, &error)
                .with_help("locks work without it; `leasehold ls` does not"),
            (Err(error), Err(_)) => Finding::of_error(CHECK, Verdict::Failed, &error).with_help(
                "without it the store answers 403 also for a lock that nobody has held yet, and it cannot be told free",
            ),
        };
        self.found.push(finding);
    }

    fn check(&mut self, check: &'static str, good: &str, asked: Result<(), StoreError>) {
        let finding = match asked {
            Ok(()) => Finding::passed(check, good),
            Err(error) => Finding::of_error(check, Verdict::Failed, &error),
        };
        self.found.push(finding);
    }

    /// The version of what is there now.
    async fn current(&self, check: &'static str) -> Step<Version> {
        match self.register.read(&self.key).await {
            Ok(Some(cell)) => Ok(cell.version),
            Ok(None) => Err(Finding::of_error(check, Verdict::Failed, &vanished(&self.key)).with_help(
                "somebody deletes objects below the prefix, or what is written is read late: try again",
            )),
            Err(error) => Err(Finding::of_error(check, Verdict::Failed, &error)),
        }
    }

    /// A write over the current version is accepted, and gives a version that never was.
    async fn new_version(&mut self, first: &Version) -> Step<()> {
        const CHECK: &str = "new-version";
        let current = self.current(CHECK).await?;
        let body = marker(self.register, 0, None);
        let second = self.replaced(&current, body.clone()).await?;
        if second == *first || second == current {
            let error = refusal(
                "two writes of different contents gave one version",
                "a stale client could overwrite the lock of another",
            );
            self.found.push(Finding::of_error(CHECK, Verdict::Failed, &error));
            return Ok(());
        }
        let third = self.replaced(&second, body).await?;
        let generations = self.register.traits().generations;
        self.found.push(match third == second {
            false => Finding::passed(CHECK, "each write has a new version, also one of the same content"),
            true if generations => Finding::failed(CHECK, "a write of the same content has the same generation"),
            true => Finding::passed(
                CHECK,
                "each write has a new version, unless it is of the same content (an ETag); leasehold never writes the same twice",
            ),
        });
        Ok(())
    }

    async fn replaced(&self, current: &Version, body: super::Body) -> Step<Version> {
        match self.register.write(&self.key, Expect::Version(current), body).await {
            Ok(Write::Committed(version)) => Ok(version),
            Ok(Write::Conflict) => {
                let error = refusal(
                    "this store refuses writes that expect the current version (If-Match)",
                    "no lock could ever be renewed or released",
                );
                Err(Finding::of_error("current-version", Verdict::Failed, &error))
            }
            Err(error) if is_denied(&error) => {
                Err(Finding::of_error("permission-replace", Verdict::Failed, &error))
            }
            Err(error) => Err(Finding::of_error("current-version", Verdict::Failed, &error)),
        }
    }

    async fn races(&mut self) -> Step<()> {
        const CHECK: &str = "atomic-race";
        let (racers, races) = if self.thorough { (2 * RACERS, 10 * RACES) } else { (RACERS, RACES) };
        for _ in 0..races {
            let current = self.current(CHECK).await?;
            match race(self.register, &self.key, &current, racers).await {
                Ok(Some(_)) => {}
                Ok(None) => {
                    self.found.push(Finding::failed(
                        CHECK,
                        format!("of {racers} writes at once none was accepted"),
                    ));
                    return Ok(());
                }
                Err(error) => {
                    self.found.push(Finding::of_error(CHECK, Verdict::Failed, &error));
                    return Ok(());
                }
            }
        }
        self.pass(
            CHECK,
            format!("of {racers} writes at once that expect one version, one is accepted, {races} times"),
        );
        Ok(())
    }

    /// Whether deletes are conditional, and what is deleted is not there. Gives whether there is a way to delete.
    async fn deletion(&mut self, stale: &Version) -> Step<bool> {
        const CHECK: &str = "conditional-delete";
        let current = self.current(CHECK).await?;
        match self.register.delete_unexamined(&self.key, stale).await {
            Ok(Deleted::Conflict) => self.pass(CHECK, "a delete that expects an outdated version is refused"),
            Ok(Deleted::Deleted) if self.deletes => {
                let error = refusal(
                    "this store ignores the precondition of deletes (If-Match on DeleteObject)",
                    "with protocol=existence a late release could free the lock of another",
                );
                self.found.push(Finding::of_error(CHECK, Verdict::Failed, &error));
            }
            Ok(Deleted::Deleted) => self.found.push(Finding::not_applicable(
                CHECK,
                "the store ignores preconditions of deletes: leasehold deletes no records here, and locks do not need it",
            )),
            Err(error) if self.deletes => {
                return Err(Finding::of_error("permission-delete", Verdict::Failed, &error));
            }
            Err(error) => {
                let seen = format!("no deletes, and locks need none: {error}");
                self.found.push(Finding::not_applicable("permission-delete", seen));
                return Ok(false);
            }
        }
        self.deleted_is_absent(&current).await?;
        Ok(true)
    }

    /// In a versioned bucket a delete leaves a marker, which counts as nothing.
    async fn deleted_is_absent(&mut self, current: &Version) -> Step<()> {
        const CHECK: &str = "delete-marker";
        let failed = |error: StoreError| Finding::of_error(CHECK, Verdict::Failed, &error);
        let (register, key) = (self.register, self.key.clone());
        // Where the precondition was ignored it is gone already.
        register.delete_unexamined(&key, current).await.map_err(failed)?;
        let trouble = if register.read(&key).await.map_err(failed)?.is_some() {
            Some("what was deleted is still read")
        } else if let Write::Committed(_) =
            register.write(&key, Expect::Version(current), marker(register, 0, None)).await.map_err(failed)?
        {
            Some("a write that expects the version before a delete is accepted after it")
        } else if register.write(&key, Expect::Absent, marker(register, 0, None)).await.map_err(failed)?
            == Write::Conflict
        {
            Some("what was deleted cannot be created again")
        } else {
            None
        };
        self.found.push(match trouble {
            None => Finding::passed(CHECK, "what is deleted counts as not there, and can be created again"),
            Some(trouble) => Finding::of_error(
                CHECK,
                Verdict::Failed,
                &refusal(trouble, "a record that was deleted by hand would not be safe"),
            ),
        });
        Ok(())
    }

    /// For updates and fenced writes alone.
    async fn metadata(&mut self) {
        const CHECK: &str = "metadata";
        let kept = keeps_metadata(self.register, &keepsake(&self.key)).await;
        self.found.push(match kept {
            Ok(()) => Finding::passed(CHECK, "metadata is kept: updates and fenced writes work"),
            Err(error) => Finding::of_error(CHECK, Verdict::Warning, &error),
        });
    }

    async fn clean_up(&mut self) {
        for key in [self.key.clone(), nothing(&self.key), keepsake(&self.key)] {
            // Where nothing can be read, the first is all that was written.
            let cell = self.register.read(&key).await;
            let gone = match cell {
                Ok(None) => true,
                Ok(Some(cell)) => {
                    matches!(self.register.delete_unexamined(&key, &cell.version).await, Ok(Deleted::Deleted))
                }
                Err(_) => key != self.key,
            };
            if !gone {
                self.found.leave(key);
            }
        }
    }

    fn pass(&mut self, check: &'static str, seen: impl Into<String>) {
        self.found.push(Finding::passed(check, seen));
    }
}

fn is_denied(error: &StoreError) -> bool {
    error.fault().kind == ErrorKind::Denied
}

/// Where there is never anything, on a good store.
fn nothing(key: &str) -> String {
    format!("{key}-nothing")
}

fn keepsake(key: &str) -> String {
    format!("{key}-metadata")
}

#[cfg(test)]
mod tests;
