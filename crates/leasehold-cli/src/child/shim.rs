//! `leasehold __child PID CMD...`: a moment in the life of a command, between fork and exec.
//!
//! A command must not outlive us, since nobody would renew its lock nor stop it. Linux kills it with us if the process
//! asks for that itself, after the fork; code that runs there needs `unsafe`, and this needs none: we start ourselves,
//! ask, and turn into the command. It costs about a millisecond.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use crate::exit::{FAILED, NOT_EXECUTABLE, NOT_FOUND};

/// The hidden verb.
pub(super) const VERB: &str = "__child";

/// What to exit with if this process was started by [`super::launch`] for one of its hidden purposes.
pub(crate) fn or_guardian(arguments: &[OsString]) -> Option<ExitCode> {
    match arguments.get(1)?.to_str()? {
        VERB => Some(become_command(arguments.get(2..)?)),
        super::guardian::VERB => Some(super::guardian::main(arguments.get(2..)?)),
        _ => None,
    }
}

fn become_command(arguments: &[OsString]) -> ExitCode {
    let [parent, program, rest @ ..] = arguments else { return ExitCode::from(FAILED) };
    if !dies_with(parent) {
        return ExitCode::from(FAILED);
    }
    let error = Command::new(program).args(rest).exec();
    let line = format!("error: cannot run {}: {error}\n", program.to_string_lossy().escape_debug());
    let _ = io::Write::write_all(&mut io::stderr(), line.as_bytes());
    ExitCode::from(code_of(&error))
}

/// Asks to be killed with the parent; false when that failed or the parent is gone already.
#[cfg(target_os = "linux")]
fn dies_with(parent: &OsString) -> bool {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    // In this order: a parent that dies in between is noticed either by the kernel or here.
    let asked = set_parent_process_death_signal(Some(Signal::KILL)).is_ok();
    let now = getppid().map(|pid| pid.as_raw_nonzero().get().to_string());
    asked && now.as_deref() == parent.to_str()
}

#[cfg(not(target_os = "linux"))]
fn dies_with(_parent: &OsString) -> bool {
    true
}

/// What env(1) and timeout(1) exit with for a command that cannot be executed.
pub(super) fn code_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}
