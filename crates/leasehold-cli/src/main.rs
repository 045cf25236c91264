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
mod wait_progress;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::CommandFactory as _;

use crate::args::Cli;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Checked first: `run` starts this program again for its child, and that must be fast.
    if let Some(code) = child::internal_subcommand(&arguments) {
        return code;
    }
    answer_shell();
    commands::dispatch(&arguments)
}

/// If a shell requests completions, prints them and exits. Otherwise does nothing.
fn answer_shell() {
    if std::env::var_os(complete::VARIABLE).is_some() {
        clap_complete::CompleteEnv::with_factory(Cli::command).var(complete::VARIABLE).complete();
    }
}
