//! The `leasehold` command: argument parsing, output and process supervision around the library. It has no lock logic.

mod acquisition;
mod agent;
mod args;
mod child;
mod commands;
mod complete;
mod config;
mod context;
mod exit;
mod filter;
mod job;
mod mode;
mod object;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod report;
mod signals;
#[cfg(target_os = "linux")]
mod store_socket;
mod wait_progress;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    exit::fail_on_panic();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Checked first: `run` starts this program again for its child, and that must be fast.
    if let Some(code) = child::internal_subcommand(&arguments) {
        return code;
    }
    complete::answer_shell();
    commands::dispatch(&arguments).end()
}
