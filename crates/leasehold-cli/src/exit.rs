//! How leasehold ends: exit codes, signals, and the error that carries one of them.

use std::process::ExitStatus;

use leasehold::{Error, ErrorKind};
use rustix::process::Signal;

/// Signals that end leasehold while it waits for a lock. They are forwarded to a running command.
pub(crate) const ENDING: [Signal; 4] = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM];

/// A negative result: the lock of a ticket is lost, the lock is not held with that token (`evict`), a higher token has
/// written the object (`put`), the store is not safe (`doctor`).
pub(crate) const NEGATIVE: u8 = 1;
/// The command line is wrong.
pub(crate) const USAGE: u8 = 2;
/// The lock was not acquired: a run around this one holds it, or it was awaited in a cycle of waiters.
pub(crate) const DEADLOCK: u8 = 120;
/// The lock was held for as long as `--max-hold` allows, and CMD was stopped. If CMD ran, replaces its status.
pub(crate) const LIMIT: u8 = 121;
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

/// How a subcommand ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// With an exit code.
    Code(u8),
    /// By a signal of [`ENDING`] that has ended leasehold's wait, or its command.
    By(Signal),
}

impl Exit {
    /// Returns the exit code, as a shell shows it.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::By(signal) => of_signal(signal.as_raw()),
        }
    }
}

impl From<u8> for Exit {
    fn from(code: u8) -> Self {
        Self::Code(code)
    }
}

/// Returns 128 + the number of a signal.
fn of_signal(number: i32) -> u8 {
    u8::try_from(number).ok().and_then(|number| SIGNAL_BASE.checked_add(number)).unwrap_or(FAILED)
}

/// Why a subcommand failed: message, and exit code or signal.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// The signal that ended leasehold's wait, or its command.
    pub(crate) signal: Option<Signal>,
    /// One word, for programs.
    pub(crate) kind: String,
    pub(crate) message: String,
    pub(crate) help: Vec<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, kind: &str, message: impl Into<String>) -> Self {
        Self { code, signal: None, kind: kind.to_owned(), message: clean(&message.into()), help: Vec::new() }
    }

    /// Creates the failure that ends leasehold as `exit`.
    pub(crate) fn ending(exit: Exit, kind: &str, message: impl Into<String>) -> Self {
        let signal = match exit {
            Exit::By(signal) => Some(signal),
            Exit::Code(_) => None,
        };
        Self { signal, ..Self::new(exit.code(), kind, message) }
    }

    /// Returns how leasehold ends after this failure.
    pub(crate) fn exit(&self) -> Exit {
        self.signal.map_or(Exit::Code(self.code), Exit::By)
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
            ErrorKind::Deadlock => DEADLOCK,
            _ => FAILED,
        };
        Self { help: error.help().to_vec(), ..Self::new(code, &error.kind().to_string(), error.to_string()) }
    }
}

/// Removes control characters, because messages can contain text from other processes and appear on a terminal.
pub(crate) fn clean(text: &str) -> String {
    leasehold::lease::printable(text, text.len())
}

/// Returns how leasehold ends after a child that ended with `status`: with its exit code, by its signal if that is one
/// of [`ENDING`], or with 128 + signal.
pub(crate) fn of_child(status: ExitStatus) -> Exit {
    use std::os::unix::process::ExitStatusExt as _;
    if let Some(code) = status.code() {
        return Exit::Code(u8::try_from(code).unwrap_or(FAILED));
    }
    let number = status.signal().unwrap_or_default();
    let ending = ENDING.into_iter().find(|signal| signal.as_raw() == number);
    ending.map_or_else(|| Exit::Code(of_signal(number)), Exit::By)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn the_exit_code_is_the_childs_or_128_plus_its_signal() {
        assert_eq!(of_child(ExitStatus::from_raw(0)), Exit::Code(0));
        assert_eq!(of_child(ExitStatus::from_raw(7 << 8)), Exit::Code(7));
        assert_eq!(of_child(ExitStatus::from_raw(130 << 8)), Exit::Code(130), "it has handled the signal");
        assert_eq!(of_child(ExitStatus::from_raw(9)), Exit::Code(137));
        assert_eq!(of_child(ExitStatus::from_raw(64)), Exit::Code(192));
        assert_eq!(of_child(ExitStatus::from_raw(2)), Exit::By(Signal::INT));
        assert_eq!(Exit::By(Signal::TERM).code(), 143);
    }
}
