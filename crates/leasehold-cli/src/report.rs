//! `--report FILE`: the outcome of a command, without the ambiguity of exit codes, which the command may use too.

mod metrics;

use leasehold::view::ms;
use leasehold::{AlreadyRan, Holder, LockName, Token};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

pub(crate) use self::metrics::MetricsFile;
use crate::escape::escaped;
use crate::exit::{FAILED, Failure};

/// The document. Field names are stable; a field that does not apply is null.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// `exited`, `signaled`, `lost`, `limit`, `held`, `timed_out`, `interrupted`, `not_found`, `not_executable`, `failed`. For
    /// `once` also `already_ran`, and `not_recorded`: the command succeeded, but the run could not be recorded in the
    /// store. For `terraform` also `state_elsewhere`: the command succeeded, but its state is not the one that the lock
    /// protects.
    pub(crate) outcome: String,
    /// The exit code of leasehold.
    pub(crate) exit_code: u8,
    /// The name of the lock. With several, their names, separated by commas.
    pub(crate) lock: String,
    pub(crate) store: String,
    /// Null with several locks.
    pub(crate) token: Option<Token>,
    /// The token of each lock, by its name.
    pub(crate) tokens: Option<BTreeMap<LockName, Token>>,
    /// The number of the permit, with `--permits`.
    pub(crate) permit: Option<usize>,
    /// The exit code of the command.
    pub(crate) command_exit_code: Option<i32>,
    /// The signal that ended the command.
    pub(crate) command_signal: Option<i32>,
    /// How long leasehold waited for the lock.
    pub(crate) waited_ms: Option<u64>,
    /// How long the lock was held while the command ran.
    pub(crate) held_ms: Option<u64>,
    /// `expired`, `taken_over`, `ended`, `deleted`, `limit`, or `not_renewed`: the command was stopped before the lease ended.
    pub(crate) lost_reason: Option<&'static str>,
    /// Whether the store has recorded the release. If not, the lease ends by itself.
    pub(crate) released: Option<bool>,
    /// For `once`: whether the lock has a cooldown until the period is over.
    pub(crate) cooldown: Option<bool>,
    /// For `once`: the earlier run of this period, if the command did not run.
    pub(crate) already_ran: Option<EarlierRun>,
    /// The error message.
    pub(crate) message: Option<String>,
}

/// An earlier run of `once` in the same period. Fields that the store does not record are null.
#[derive(Debug, Serialize)]
pub(crate) struct EarlierRun {
    pub(crate) holder: Option<Holder>,
    pub(crate) token: Option<Token>,
    /// The time since its grant, or since its end if only that is known.
    pub(crate) ago_ms: Option<u64>,
    /// Upper bound of the time until the next run.
    pub(crate) again_within_ms: Option<u64>,
}

impl From<AlreadyRan> for EarlierRun {
    fn from(ran: AlreadyRan) -> Self {
        Self {
            holder: ran.by,
            token: ran.token,
            ago_ms: ran.ago.map(ms),
            again_within_ms: ran.again_within.map(ms),
        }
    }
}

impl Report {
    pub(crate) fn failed(mut self, failure: &Failure) -> Self {
        self.outcome = match failure.kind.as_str() {
            kind @ ("held" | "deadlock" | "lost" | "limit" | "timed_out" | "interrupted" | "not_found"
            | "not_executable") => kind.to_owned(),
            _ => "failed".to_owned(),
        };
        self.exit_code = failure.code;
        self.message = Some(failure.message.clone());
        self
    }

    /// Writes the report atomically, so that a reader never sees only a part of it.
    pub(crate) fn write(&self, file: &Path) -> Result<(), Failure> {
        let text =
            serde_json::to_string_pretty(self).map_err(|error| unwritable(file, &REPORT, &error.into()))?;
        replace(file, format!("{}\n", escaped(&text)).as_bytes(), &REPORT)
    }
}

/// A kind of file that the user names and leasehold writes.
#[derive(Debug)]
pub(crate) struct Kind {
    /// Its content, as error messages name it.
    what: &'static str,
    /// Whether it may be a symbolic link of the same user or of the system.
    may_be_link: bool,
}

pub(crate) const REPORT: Kind = Kind { what: "report", may_be_link: true };

fn unwritable(file: &Path, kind: &Kind, error: &std::io::Error) -> Failure {
    Failure::new(FAILED, "failed", format!("cannot write the {} {}: {error}", kind.what, file.display()))
}

/// Atomically replaces the content of `file` with `text`.
fn replace(file: &Path, text: &[u8], kind: &Kind) -> Result<(), Failure> {
    let failed = |error: std::io::Error| unwritable(file, kind, &error);
    check_link(file, kind).map_err(failed)?;
    if is_special(file) {
        return open_special(file).and_then(|mut opened| opened.write_all(text)).map_err(failed);
    }
    let file = &resolved(file);
    let temporary = temporary(file);
    let written = created(&temporary)
        .and_then(|mut written| {
            written.write_all(text)?;
            // Keep the permissions, so that the same users can read the new file.
            if let Ok(before) = file.metadata()
                && before.uid() == written.metadata()?.uid()
            {
                written.set_permissions(before.permissions())?;
            }
            written.sync_all()
        })
        .and_then(|()| std::fs::rename(&temporary, file));
    if written.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    written.map_err(failed)
}

/// Checks, before the command runs, that `file` can be written.
pub(crate) fn check(file: &Path, kind: &Kind) -> Result<(), Failure> {
    let failed = |error: std::io::Error| unwritable(file, kind, &error);
    check_link(file, kind).map_err(failed)?;
    if file.is_dir() {
        return Err(failed(std::io::Error::other("it is a folder")));
    }
    if is_special(file) {
        // Do not open it. A pipe may get its reader later, and opening and closing it would look like the end of the
        // report.
        return Ok(());
    }
    let temporary = temporary(&resolved(file));
    let made = created(&temporary);
    let _ = std::fs::remove_file(&temporary);
    made.map(drop).map_err(failed)
}

/// Refuses a symbolic link that another user may have created, in a folder that they share, so that this process writes
/// to a file that they may not write. Only the system creates links in `/dev` and `/proc`.
fn check_link(file: &Path, kind: &Kind) -> std::io::Result<()> {
    let Ok(found) = std::fs::symlink_metadata(file) else { return Ok(()) };
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    let is_of_system =
        folder.is_some_and(|folder| folder == Path::new("/dev") || folder.starts_with("/proc"));
    let is_own = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    if !found.is_symlink() || is_of_system || (kind.may_be_link && is_own) {
        return Ok(());
    }
    Err(std::io::Error::other("it is a symbolic link"))
}

/// Returns whether `file` is a device, a pipe or an open descriptor (`/dev/null`, `/dev/stdout`, `>(...)`). Such a file
/// is written directly, because replacing it would destroy it for all users of the machine.
fn is_special(file: &Path) -> bool {
    let is_other = std::fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir());
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    let target = std::fs::read_link(file).ok();
    is_other || folder.into_iter().chain(target).any(|path| path.starts_with("/proc"))
}

fn open_special(file: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A pipe without a reader is an error. Do not wait for a reader.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    File::options().append(true).custom_flags(flags).open(file)
}

/// Returns the target if `file` is a symbolic link, so that the link itself is kept.
fn resolved(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

/// Creates `temporary` as a new file. A link that another process put in its place is removed and not followed.
fn created(temporary: &Path) -> std::io::Result<File> {
    let _ = std::fs::remove_file(temporary);
    File::create_new(temporary)
}

fn temporary(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    file.with_file_name(name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn links_are_followed_only_where_others_cannot_create_them() {
        let folder = tempfile::tempdir().unwrap();
        let (file, victim) = (folder.path().join("job.prom"), folder.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        for target in [&victim, Path::new("/dev/null"), Path::new("/proc/self/comm")] {
            symlink(target, &file).unwrap();
            let refused = [check(&file, &metrics::METRICS), replace(&file, b"new", &metrics::METRICS)];
            for failure in refused.map(Result::unwrap_err) {
                assert!(failure.message.ends_with("it is a symbolic link"), "{failure:?}");
            }
            check(&file, &REPORT).unwrap();
            std::fs::remove_file(&file).unwrap();
        }
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        check(Path::new("/dev/stdout"), &metrics::METRICS).unwrap();
    }

    /// Only root can create a link of another user.
    #[test]
    fn a_link_of_another_user_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let (file, victim) = (folder.path().join("report"), folder.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        symlink(&victim, &file).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::lchown(&file, Some(65_534), None).unwrap();
            assert!(check(&file, &REPORT).is_err() && replace(&file, b"new", &REPORT).is_err());
            assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        }
    }

    #[test]
    fn a_planted_link_is_not_followed_and_the_mode_stays() {
        let folder = tempfile::tempdir().unwrap();
        let (file, victim) = (folder.path().join("job.prom"), folder.path().join("victim"));
        std::fs::write(&victim, "precious").unwrap();
        std::fs::write(&file, "old").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
        symlink(&victim, temporary(&file)).unwrap();
        replace(&file, b"new", &REPORT).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "new");
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
        symlink(&victim, temporary(&file)).unwrap();
        check(&file, &REPORT).unwrap();
        assert_eq!(std::fs::read_to_string(&victim).unwrap(), "precious");
    }
}
