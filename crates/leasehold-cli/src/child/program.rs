//! The program of a command: whether it can be run, and the failure if it cannot.

use std::ffi::OsStr;
use std::io;
use std::path::Path;

use rustix::fs::{Access, access};

use crate::exit::{Failure, NOT_EXECUTABLE, NOT_FOUND};

/// Checks, before the lock is acquired, that `program` can be run. Searches as execvp(3) does.
pub(crate) fn look_up(program: &OsStr) -> Result<(), Failure> {
    let executable = |path: &Path| access(path, Access::EXEC_OK).is_ok() && path.is_file();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(program);
        return match std::fs::metadata(path) {
            Err(error) => Err(cannot_run(program, &error)),
            Ok(_) if executable(path) => Ok(()),
            Ok(_) => Err(not_executable(program)),
        };
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let places: Vec<_> = std::env::split_paths(&path).map(|folder| folder.join(program)).collect();
    if !program.is_empty() && places.iter().any(|place| executable(place)) {
        return Ok(());
    }
    if !program.is_empty() && places.iter().any(|place| place.exists()) {
        return Err(not_executable(program));
    }
    let shown = program.to_string_lossy();
    let error = Failure::new(NOT_FOUND, "not_found", format!("the command {shown:?} was not found"));
    if shown.contains(char::is_whitespace) {
        return Err(
            error.with_help("pass each argument separately, or add --shell to run a shell command line")
        );
    }
    Err(error.with_help("leasehold searches $PATH; for a shell built-in, add --shell"))
}

fn not_executable(program: &OsStr) -> Failure {
    let message = format!("the command {:?} is not an executable file", program.to_string_lossy());
    Failure::new(NOT_EXECUTABLE, "not_executable", message)
        .with_help("to make a script executable, use chmod +x")
}

/// Returns the failure for a `program` that did not start.
pub(crate) fn cannot_run(program: &OsStr, error: &io::Error) -> Failure {
    let code = code_of(error);
    let kind = if code == NOT_FOUND { "not_found" } else { "not_executable" };
    Failure::new(code, kind, format!("cannot run the command {:?}: {error}", program.to_string_lossy()))
}

/// Returns the exit code that env(1) and timeout(1) use for a command that cannot be executed.
pub(super) fn code_of(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}
