//! `--report FILE`: how a `run` or `once` ended, without the ambiguity of an exit code that the command may use too.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use leasehold::{AlreadyRan, Holder, Loss, LossReason, Token};
use serde::Serialize;

use crate::exit::{FAILED, Failure};

/// The document. Field names are stable; a field that does not apply is null.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    /// `exited`, `signaled`, `lost`, `held`, `timed_out`, `interrupted`, `not_found`, `not_executable`, `failed`;
    /// of `once` also `already_ran`, and `not_told`: the command succeeded, and the store does not know.
    pub(crate) outcome: String,
    /// What leasehold exits with.
    pub(crate) exit_code: u8,
    pub(crate) lock: String,
    pub(crate) store: String,
    pub(crate) token: Option<Token>,
    /// The number of the permit that was held, with `--permits`.
    pub(crate) permit: Option<usize>,
    /// What the command exited with.
    pub(crate) command_exit_code: Option<i32>,
    /// The signal that ended the command.
    pub(crate) command_signal: Option<i32>,
    /// For how long the lock was waited for.
    pub(crate) waited_ms: Option<u64>,
    /// For how long it was held, as far as the command is concerned.
    pub(crate) held_ms: Option<u64>,
    /// `expired`, `taken_over`, `ended`, `deleted`, or `not_renewed`: the command was ended before the lease was.
    pub(crate) lost_reason: Option<&'static str>,
    /// Whether we ended our grant, and the store knows. If not, it lapses.
    pub(crate) released: Option<bool>,
    /// Of `once`: whether the lock now rests until the period is over.
    pub(crate) rests: Option<bool>,
    /// Of `once`: the run that counts for this period, when the command was not run.
    pub(crate) already_ran: Option<EarlierRun>,
    /// What went wrong, for people.
    pub(crate) message: Option<String>,
}

/// A run of `once` that made another one needless. What the store does not tell is null.
#[derive(Debug, Serialize)]
pub(crate) struct EarlierRun {
    pub(crate) holder: Option<Holder>,
    pub(crate) token: Option<Token>,
    /// Since it was granted the lock; or since it ended, where only that is known.
    pub(crate) ago_ms: Option<u64>,
    /// Until the next may run, at most.
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

/// Whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Report {
    pub(crate) fn failed(mut self, failure: &Failure) -> Self {
        self.outcome = match failure.kind.as_str() {
            kind @ ("held" | "lost" | "timed_out" | "interrupted" | "not_found" | "not_executable") => {
                kind.to_owned()
            }
            _ => "failed".to_owned(),
        };
        self.exit_code = failure.code;
        self.message = Some(failure.message.clone());
        self
    }

    /// Writes it, so that a reader finds all of it or nothing.
    pub(crate) fn write(&self, file: &Path) -> Result<(), Failure> {
        let failed = |error: std::io::Error| {
            Failure::new(FAILED, "failed", format!("cannot write the report {}: {error}", file.display()))
        };
        let mut text = serde_json::to_vec_pretty(self).map_err(|error| failed(error.into()))?;
        text.push(b'\n');
        if is_special(file) {
            return open_special(file).and_then(|mut opened| opened.write_all(&text)).map_err(failed);
        }
        let file = &resolved(file);
        let temporary = temporary(file);
        let written = File::create(&temporary)
            .and_then(|mut written| written.write_all(&text).and_then(|()| written.sync_all()))
            .and_then(|()| std::fs::rename(&temporary, file));
        if written.is_err() {
            let _ = std::fs::remove_file(&temporary);
        }
        written.map_err(failed)
    }
}

/// Finds out before the command runs whether the report can be written after it.
pub(crate) fn check(file: &Path) -> Result<(), Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(FAILED, "failed", format!("cannot write the report {}: {error}", file.display()))
    };
    if file.is_dir() {
        return Err(failed(std::io::Error::other("it is a folder")));
    }
    if is_special(file) {
        // Not opened: a pipe may get its reader later, and would take this for the end of the report.
        return Ok(());
    }
    let temporary = temporary(&resolved(file));
    let made = File::create(&temporary);
    let _ = std::fs::remove_file(&temporary);
    made.map(drop).map_err(failed)
}

/// Whether `file` is a device, a pipe or one of our own descriptors (`/dev/null`, `/dev/stdout`, `>(...)`): written to
/// as it is. To put a file in its place would destroy it, for everybody.
fn is_special(file: &Path) -> bool {
    let is_other = std::fs::metadata(file).is_ok_and(|found| !found.is_file() && !found.is_dir());
    let folder = file.parent().and_then(|folder| folder.canonicalize().ok());
    let target = std::fs::read_link(file).ok();
    is_other || folder.into_iter().chain(target).any(|path| path.starts_with("/proc"))
}

fn open_special(file: &Path) -> std::io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    // A pipe that nobody reads is an error, not a reason to wait for ever.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or(0);
    File::options().append(true).custom_flags(flags).open(file)
}

/// What a symbolic link stands for, so that the link stays one.
fn resolved(file: &Path) -> PathBuf {
    file.canonicalize().unwrap_or_else(|_| file.to_owned())
}

/// One word for how a lock was lost.
pub(crate) fn reason(loss: &Loss) -> &'static str {
    match loss.reason {
        LossReason::Expired { .. } => "expired",
        LossReason::TakenOver { .. } => "taken_over",
        LossReason::Ended => "ended",
        LossReason::Deleted => "deleted",
        LossReason::RenewedElsewhere => "renewed_elsewhere",
        _ => "other",
    }
}

fn temporary(file: &Path) -> PathBuf {
    let mut name = file.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    file.with_file_name(name)
}
