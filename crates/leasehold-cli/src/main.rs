//! The `leasehold` command: words for people and programs around the leasehold library. No lock logic lives here.

mod acquiring;
mod args;
mod child;
mod complete;
mod config;
mod context;
mod exit;
mod filter;
mod job;
mod object;
mod output;
mod report;
mod sharing;
mod signals;
mod verbs;
mod waiting;

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Before anything else: `run` starts this program again for its child, and that must cost next to nothing.
    if let Some(code) = child::hidden_verb(&arguments) {
        return code;
    }
    complete::answer_shell();
    verbs::dispatch(&arguments)
}
