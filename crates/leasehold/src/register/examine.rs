//! The doctor's checks of any register: permissions, preconditions and the consistency of reads.

mod deletes;
mod races;

use std::sync::Arc;

use futures_util::StreamExt;

use super::front_ends::{self, Fronts};
use super::probe::checks::{
    cause_of_conflict, fresh, keeps_metadata, refusal, refuses_outdated, refuses_second_create,
    refuses_version_of_nothing, vanished,
};
use super::probe::evidence::RACERS;
use super::{Body, Deleted, Precondition, Register, Version, VersionedValue, Write};
use crate::diagnosis::{CheckStatus, Examination, Examined, Finding};
use crate::error::{ErrorKind, StoreError};
use crate::lease::Id;
use crate::retry::{RetryBudget, retry};

/// The prefix of the keys of an examination. They are not the keys of locks and are never listed as locks.
const PREFIX: &str = ".leasehold-probe-doctor-";

/// Examines `register`, together with the endpoints that `examination` names. If `deletes` is set, a release deletes
/// objects, so conditional deletes matter.
pub(crate) async fn examine_all(
    register: &Arc<dyn Register>,
    deletes: bool,
    examination: &Examination,
) -> Examined {
    let fronts = match Fronts::open(register, &examination.endpoints, RACERS).await {
        Ok(fronts) => fronts,
        Err(error) => {
            let finding = Finding::failed(front_ends::CHECK, error.to_string());
            let mut examined = Examined::default();
            examined.push(Finding { help: error.help().to_vec(), ..finding });
            return examined;
        }
    };
    let mut patient = Patient::new(&fronts, deletes, examination).await;
    patient.found.findings.extend_from_slice(fronts.findings());
    patient.run(&fronts.named()).await
}

struct Patient<'a> {
    register: &'a dyn Register,
    /// The prefix of all keys of this examination.
    prefix: String,
    /// The key that most checks use.
    key: String,
    /// All keys that may exist.
    written: Vec<String>,
    count: usize,
    deletes: bool,
    thorough: bool,
    /// Whether a delete that expects an outdated version was refused.
    conditional_deletes: bool,
    /// What is wrong with deletes, even if they do not matter here.
    unsafe_deletes: Option<String>,
    found: Examined,
}

/// `Err` ends the examination.
type Step<T> = Result<T, Finding>;

impl<'a> Patient<'a> {
    async fn new(register: &'a dyn Register, deletes: bool, examination: &Examination) -> Self {
        let id = Id::random(&register.env().random).to_string();
        let prefix = format!("{PREFIX}{}", &id[..12]);
        Self {
            register,
            key: prefix.clone(),
            prefix,
            written: Vec::new(),
            count: 0,
            deletes,
            thorough: examination.thorough,
            conditional_deletes: false,
            unsafe_deletes: None,
            found: register.examine().await,
        }
    }

    /// Examines the register, and records the result at each of its `fronts`.
    async fn run(mut self, fronts: &[&dyn Register]) -> Examined {
        if let Err(stop) = self.examine().await {
            self.found.push(stop);
        }
        for front in fronts {
            self.record(*front).await;
        }
        self.clean_up().await;
        self.found.releases_delete = self.deletes;
        self.found
    }

    async fn examine(&mut self) -> Step<()> {
        // The failed check may mean that objects cannot be deleted. A race would then leave its objects.
        if !self.found.is_sound() {
            return Err(Finding::not_applicable(
                "preconditions",
                "not examined, because a check above failed",
            ));
        }
        let first = self.permissions().await?;
        let permitted = self.found.is_sound();
        let (register, key) = (self.register, self.key.clone());
        let result = retry(register.env(), || refuses_second_create(register, &key, fresh(register))).await;
        self.check("create-if-absent", "a second create is refused", result)?;
        if !permitted {
            return Err(Finding::not_applicable(
                "preconditions",
                "not examined further, because a check above failed",
            ));
        }
        self.new_version(&first).await?;
        let result =
            retry(register.env(), || refuses_outdated(register, &key, &first, fresh(register))).await;
        self.check("stale-version", "a write that expects an outdated version is refused", result)?;
        let result = self.version_of_nothing(&first).await;
        self.check("missing-key", "a write that expects a version of a missing object is refused", result)?;
        let deletes = self.deletion(&first).await?;
        self.races().await;
        if deletes && self.register.capabilities().metadata.is_some() {
            self.metadata().await;
        }
        Ok(())
    }

    /// Returns a new key, at which there is no object.
    fn another(&mut self) -> String {
        self.count += 1;
        let key = format!("{}-{}", self.prefix, self.count);
        self.written.push(key.clone());
        key
    }

    /// Creates a key. Uses another key after each lost response, because the object may exist.
    async fn created(&mut self) -> Result<(String, Write), StoreError> {
        let register = self.register;
        let mut budget = RetryBudget::of_question(register.env());
        let mut key = self.another();
        loop {
            let error =
                match budget.request(register.write(&key, Precondition::Absent, fresh(register))).await {
                    Ok(write) => return Ok((key, write)),
                    Err(error) => error,
                };
            let unknown = matches!(error, StoreError::MaybeApplied(_));
            if !unknown {
                self.written.pop();
            }
            budget.pause_after(error).await?;
            key = self.another();
        }
    }

    /// Checks that a write that expects a version of a missing object is refused. Uses another key for each attempt,
    /// because an earlier request without a response may have created an object.
    async fn version_of_nothing(&mut self, version: &Version) -> Result<(), StoreError> {
        let register = self.register;
        let mut budget = RetryBudget::of_question(register.env());
        loop {
            let key = self.another();
            match budget.request(refuses_version_of_nothing(register, &key, version)).await {
                Ok(()) => return Ok(()),
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Checks the permissions one by one, so that the report has a line for each missing permission. Returns the
    /// version of the first write.
    async fn permissions(&mut self) -> Step<Version> {
        let register = self.register;
        let (prefix, env) = (self.prefix.clone(), register.env());
        // `list` retries by itself.
        let listed = register.list(&prefix).next().await.transpose().map(|_| ());
        let written = self.created().await.map(|(key, write)| {
            self.key = key;
            write
        });
        let key = self.key.clone();
        let read = match &written {
            Ok(Write::Committed(_)) => Some(retry(env, || register.read(&key)).await),
            _ => None,
        };
        let nothing = format!("{prefix}-nothing");
        let absent = retry(env, || register.read(&nothing)).await.map(|_| ());
        let first = match written {
            Ok(Write::Committed(version)) => {
                self.pass("permission-write", "objects can be written");
                Ok(version)
            }
            Ok(Write::Conflict) => {
                let error = refusal(
                    "this store refuses to create an object that does not exist (If-None-Match: *)",
                    "no lock could ever be acquired",
                );
                Err(Finding::of_error("create-if-absent", CheckStatus::Failed, &error))
            }
            Err(error) => {
                // An operation that the store does not support is not a missing permission.
                let check = if is_denied(&error) { "permission-write" } else { "create-if-absent" };
                Err(Finding::stopped(check, &error))
            }
        };
        let requests = [
            ("permission-list", listed.as_ref().err()),
            ("permission-read", read.as_ref().and_then(|read| read.as_ref().err())),
            ("permission-list", absent.as_ref().err()),
        ];
        for (check, error) in requests {
            if let Some(error) = error.filter(|error| error.is_transient()) {
                self.found.push(Finding::stopped(check, error));
                return first;
            }
        }
        let readable = self.may_read(read, &listed, &absent, first.as_ref().ok());
        self.may_list(listed, absent, readable);
        first
    }

    /// Checks that the object can be read and is what was just written.
    fn may_read(
        &mut self,
        read: Option<Result<Option<VersionedValue>, StoreError>>,
        listed: &Result<(), StoreError>,
        absent: &Result<(), StoreError>,
        written: Option<&Version>,
    ) -> bool {
        const CHECK: &str = "permission-read";
        match read {
            Some(Ok(cell)) => {
                self.pass(CHECK, "objects can be read");
                let finding = match cell {
                    Some(cell) if Some(&cell.version) == written => Finding::passed(
                        "read-after-write",
                        "a read returns a write as soon as the write is \
                            confirmed",
                    ),
                    Some(_) => Finding::failed(
                        "read-after-write",
                        "a read returned a different version than the write before it",
                    ),
                    None => {
                        Finding::failed("read-after-write", "an object that was just written cannot be found")
                    }
                };
                self.found.push(match finding.verdict {
                    CheckStatus::Passed => finding,
                    _ => finding.with_help("locks need a store whose reads are strongly consistent"),
                });
                true
            }
            Some(Err(error)) => {
                let check = if is_denied(&error) { CHECK } else { "read-after-write" };
                self.found.push(Finding::of_error(check, CheckStatus::Failed, &error));
                false
            }
            // There is no object of ours to read, so the read of a missing object decides.
            None => match (absent, listed) {
                (Ok(()), _) => {
                    self.pass(CHECK, "reads are permitted");
                    true
                }
                (Err(error), Ok(())) => {
                    self.found.push(Finding::of_error(CHECK, CheckStatus::Failed, error));
                    false
                }
                (Err(_), Err(_)) => true,
            },
        }
    }

    /// Checks the permission to list objects. Without it, clouds do not report that an object is missing.
    fn may_list(&mut self, listed: Result<(), StoreError>, absent: Result<(), StoreError>, readable: bool) {
        const CHECK: &str = "permission-list";
        let finding = match (listed, absent) {
            // This is another problem, which a permission would not solve.
            (Ok(()), Err(error)) if readable && !is_denied(&error) => {
                Finding::of_error("absence", CheckStatus::Failed, &error)
                    .with_help("a lock that was never held cannot be recognised as free")
            }
            (Err(_), Err(error)) if !is_denied(&error) => {
                Finding::of_error("absence", CheckStatus::Failed, &error)
                    .with_help("a lock that was never held cannot be recognised as free")
            }
            (Ok(()), Err(error)) if readable => Finding::of_error(CHECK, CheckStatus::Failed, &error).with_help(
                "listing below the prefix is allowed, but looking up a missing object is not: the permission to \
                 list must not have a condition on the prefix",
            ),
            (Ok(()), _) => Finding::passed(CHECK, "objects can be listed, and the store reports a missing object as missing"),
            (Err(error), Ok(())) => Finding::of_error(CHECK, CheckStatus::Warning, &error)
                .with_help("locks work without it; `leasehold ls` does not"),
            (Err(error), Err(_)) => Finding::of_error(CHECK, CheckStatus::Failed, &error).with_help(
                "without it the store also responds with 403 for a lock that was never held, so the lock cannot be \
                 recognised as free",
            ),
        };
        self.found.push(finding);
    }

    fn check(&mut self, check: &'static str, good: &str, result: Result<(), StoreError>) -> Step<()> {
        let finding = match result {
            Ok(()) => Finding::passed(check, good),
            Err(error) if error.is_transient() => return Err(Finding::stopped(check, &error)),
            Err(error) => Finding::of_error(check, CheckStatus::Failed, &error),
        };
        self.found.push(finding);
        Ok(())
    }

    /// Returns the current version of `key`.
    async fn current(&self, check: &'static str, key: &str) -> Step<Version> {
        match retry(self.register.env(), || self.register.read(key)).await {
            Ok(Some(cell)) => Ok(cell.version),
            Ok(None) => Err(Finding::of_error(check, CheckStatus::Failed, &vanished(key)).with_help(
                "another client deletes objects below the prefix, or reads return old content: try again",
            )),
            Err(error) => Err(Finding::stopped(check, &error)),
        }
    }

    /// Checks that a write over the current version is accepted and gives a new version.
    async fn new_version(&mut self, first: &Version) -> Step<()> {
        const CHECK: &str = "new-version";
        let (current, second, body) = self.replaced(None).await?;
        if second == *first || second == current {
            let error = refusal(
                "two writes of different contents returned the same version",
                "a stale client could overwrite another client's lock",
            );
            self.found.push(Finding::of_error(CHECK, CheckStatus::Failed, &error));
            return Ok(());
        }
        let (second, third, _) = self.replaced(Some(body)).await?;
        let generations = self.register.capabilities().generations;
        self.found.push(match third == second {
            false => Finding::passed(CHECK, "each write has a new version, even if its content is the same"),
            true if generations => Finding::failed(CHECK, "a write of the same content has the same generation"),
            true => Finding::passed(
                CHECK,
                "each write has a new version, unless its content is the same (an ETag); leasehold never writes the \
                 same content twice",
            ),
        });
        Ok(())
    }

    /// Writes `body`, or a new body in each attempt, over the current version. Returns the versions before and after,
    /// and the body.
    async fn replaced(&self, body: Option<Body>) -> Step<(Version, Version, Body)> {
        const CHECK: &str = "current-version";
        let mut budget = RetryBudget::of_question(self.register.env());
        loop {
            let current = self.current(CHECK, &self.key).await?;
            let body = body.clone().unwrap_or_else(|| fresh(self.register));
            let write = self.register.write(&self.key, Precondition::Version(&current), body.clone());
            match budget.request(write).await {
                Ok(Write::Committed(version)) => return Ok((current, version, body)),
                Ok(Write::Conflict) if self.current(CHECK, &self.key).await? == current => {
                    let error = cause_of_conflict(self.register, &self.key, &current).await;
                    return Err(Finding::of_error(CHECK, CheckStatus::Failed, &error));
                }
                // An earlier write of ours was applied late.
                Ok(Write::Conflict) => {
                    budget.pause_after_conflict().await.map_err(|error| Finding::stopped(CHECK, &error))?;
                }
                Err(error) if is_denied(&error) => {
                    return Err(Finding::of_error("permission-replace", CheckStatus::Failed, &error));
                }
                Err(error) => {
                    budget.pause_after(error).await.map_err(|error| Finding::stopped(CHECK, &error))?;
                }
            }
        }
    }

    /// Checks that metadata is stored. Only updates and fenced writes need it.
    async fn metadata(&mut self) {
        const CHECK: &str = "metadata";
        let (register, key) = (self.register, self.another());
        let kept = retry(register.env(), || keeps_metadata(register, &key)).await;
        self.found.push(match kept {
            Ok(()) => Finding::passed(CHECK, "metadata is kept: updates and fenced writes work"),
            Err(error) if error.is_transient() => {
                Finding::warning(CHECK, format!("could not be checked: {error}")).with_help("try again")
            }
            Err(error) => Finding::of_error(CHECK, CheckStatus::Warning, &error),
        });
    }

    async fn clean_up(&mut self) {
        for key in std::mem::take(&mut self.written) {
            if !self.erased(&key).await {
                self.found.leave(key);
            }
        }
    }

    /// Deletes `key`. Returns whether it no longer exists.
    async fn erased(&mut self, key: &str) -> bool {
        let register = self.register;
        let gone = retry(register.env(), || async {
            Ok(match register.read(key).await? {
                None => true,
                Some(cell) => register.delete(key, &cell.version).await? == Deleted::Deleted,
            })
        });
        let gone = matches!(gone.await, Ok(true));
        if gone {
            self.written.retain(|written| written != key);
        }
        gone
    }

    fn pass(&mut self, check: &'static str, seen: impl Into<String>) {
        self.found.push(Finding::passed(check, seen));
    }
}

fn is_denied(error: &StoreError) -> bool {
    error.fault().kind == ErrorKind::Denied
}

#[cfg(test)]
mod tests;
