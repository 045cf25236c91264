//! The end of this process: by a signal, or after a panic.

use std::io::Write as _;
use std::process::ExitCode;

use rustix::process::{Pid, getpid};

use crate::exit::{Exit, FAILED, clean};
use crate::log;

/// Ends this process as `exit` says, or returns its exit code.
///
/// A shell script stops after Ctrl-C only if the program that it runs is killed by SIGINT. A program that exits,
/// even with 130, seems to have handled the signal, and bash continues with the next line of the script.
pub(crate) fn end(exit: Exit) -> ExitCode {
    match exit {
        // The kernel does not kill process 1 of a container by a signal that it sends to itself.
        Exit::By(signal) if getpid() != Pid::INIT => {
            dump_no_core();
            // Returns only for a signal that does not end a process.
            let _ = signal_hook::low_level::emulate_default_handler(signal.as_raw());
        }
        Exit::By(_) | Exit::Code(_) => {}
    }
    ExitCode::from(exit.code())
}

/// Makes a panic of the main thread an error in one line, with exit code 125. Libraries panic if the system refuses a
/// descriptor or a thread. A panic in another thread is reported by whatever awaits that thread.
pub(crate) fn fail_on_panic() {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if std::thread::current().name() != Some("main") {
            return default(panic);
        }
        let why = panic.payload_as_str().unwrap_or("unknown error");
        let place = panic.location().map(|place| format!(" ({}:{})", place.file(), place.line()));
        let message = format!("leasehold stopped: {}{}", clean(why), place.unwrap_or_default());
        // Its last lines may say why.
        log::finish();
        // Without a panic if stderr is closed.
        let _ = writeln!(std::io::stderr(), "error: {message}");
        std::process::exit(FAILED.into());
    }));
}

/// Prevents a core dump at SIGQUIT: the memory of this process may hold passwords, and the command has dumped its own.
fn dump_no_core() {
    // Both fail only if the system does not know them.
    #[cfg(target_os = "linux")]
    let _ = rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable);
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
}
