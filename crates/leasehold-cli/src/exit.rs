//! Exit codes, and the error that carries one.

use std::process::ExitStatus;

use leasehold::{Error, ErrorKind};

/// A negative result: the lock of a ticket is lost, the lock is not held with that token (`break`), a higher token has
/// written the object (`put`), the store is not safe (`doctor`).
pub(crate) const NEGATIVE: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// The lock was lost, or a higher token has written the object. If CMD ran, replaces its status, so that work done
/// after the loss does not look successful. Three places return it:
///
/// - `Job::conclude` (`job/completion.rs`): the lock was lost before CMD started or while it ran, or CMD was stopped
///   because only `--grace` was left of the lease. In the last case, the lock need not be lost. `Running::supervise`
///   (`child.rs`) stops CMD in time.
/// - `Job::resume` (`job.rs`): with `--ticket`, the lock of the ticket was lost already.
/// - `update` (`commands/update.rs`): a higher token has written the object.
pub(crate) const LOST: u8 = 122;
/// The lock is held, with `--try`.
pub(crate) const HELD: u8 = 123;
/// Timed out, with `--wait`; or `update` ran out of attempts.
pub(crate) const TIMED_OUT: u8 = 124;
/// leasehold itself failed: the store, its URL, its permissions.
pub(crate) const FAILED: u8 = 125;
/// CMD was found but could not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// CMD was not found.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to the number of the signal that ended CMD, or that ended leasehold while it waited.
pub(crate) const SIGNAL_BASE: u8 = 128;

/// Why a subcommand failed: message and exit code.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// One word, for programs.
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) help: Vec<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, kind: &str, message: impl Into<String>) -> Self {
        Self { code, kind: kind.to_owned(), message: clean(&message.into()), help: Vec::new() }
    }

    /// Returns whether the command was not found or is not executable.
    pub(crate) fn is_of_execution(&self) -> bool {
        matches!(self.code, NOT_FOUND | NOT_EXECUTABLE)
    }

    /// Creates the failure for a wrong command line.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "usage", message)
    }

    /// Creates the failure for a library error about an argument.
    pub(crate) fn bad_argument(error: impl Into<Error>) -> Self {
        let error = error.into();
        Self { help: error.help().to_vec(), ..Self::usage(error.to_string()) }
    }

    pub(crate) fn with_help(mut self, help: impl Into<String>) -> Self {
        self.help.push(clean(&help.into()));
        self
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let code = match error.kind() {
            // `run` and `update` report a loss as LOST, because they may already have run a command.
            ErrorKind::Lost => NEGATIVE,
            ErrorKind::Conflict => TIMED_OUT,
            _ => FAILED,
        };
        Self { help: error.help().to_vec(), ..Self::new(code, &error.kind().to_string(), error.to_string()) }
    }
}

/// Removes control characters, because messages can contain text from other processes and appear on a terminal.
fn clean(text: &str) -> String {
    leasehold::lease::printable(text, text.len())
}

/// Returns the exit code for a child that ended with `status`: its own code, or 128 + signal.
pub(crate) fn of_child(status: ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => Some(code),
        (None, Some(signal)) => signal.checked_add(i32::from(SIGNAL_BASE)),
        (None, None) => None,
    };
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(FAILED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_exit_code_is_the_childs_or_128_plus_its_signal() {
        assert_eq!(of_child(ExitStatus::from_raw(0)), 0);
        assert_eq!(of_child(ExitStatus::from_raw(7 << 8)), 7);
        assert_eq!(of_child(ExitStatus::from_raw(9)), 137);
        assert_eq!(of_child(ExitStatus::from_raw(64)), 192);
    }
}
