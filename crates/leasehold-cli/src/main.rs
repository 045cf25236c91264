//! The `leasehold` command: words for people and programs around the leasehold library. No lock logic lives here.

mod acquisition;
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
    // Before anything else: `run` starts this program again for its child, and that must cost next to nothing.
    if let Some(code) = child::internal_subcommand(&arguments) {
        return code;
    }
    answer_shell();
    commands::dispatch(&arguments)
}

/// Answers a shell that asks for completions, and ends the process; otherwise does nothing.
fn answer_shell() {
    if std::env::var_os(complete::VARIABLE).is_some() {
        clap_complete::CompleteEnv::with_factory(Cli::command).var(complete::VARIABLE).complete();
    }
}
