//! The `leasehold` command: argument parsing, output and process supervision around the library. It has no lock logic.

mod acquisition;
mod agent;
mod args;
mod child;
mod commands;
mod complete;
mod config;
mod context;
mod default_store;
mod ending;
mod escape;
mod exit;
mod filter;
mod job;
mod leader_page;
mod log;
mod mode;
mod names;
mod nesting;
mod object;
#[cfg(feature = "otlp")]
mod otlp;
mod output;
mod report;
mod shell;
mod signals;
#[cfg(target_os = "linux")]
mod store_socket;
mod wait_progress;
mod words;

use std::ffi::OsString;
use std::process::ExitCode;

use clap_complete::CompleteEnv;
use clap_complete::env::{Bash, Elvish, EnvCompleter, Fish, Powershell, Shells, Zsh};

use crate::complete::{Plain, VARIABLE};

fn main() -> ExitCode {
    ending::fail_on_panic();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    // Checked first: `run` starts this program again for its child, and that must be fast.
    if let Some(code) = child::internal_subcommand(&arguments) {
        return code;
    }
    answer_shell();
    let exit = commands::dispatch(&arguments);
    log::finish();
    ending::end(exit)
}

/// If a shell requests completions, prints them and exits. Otherwise does nothing.
fn answer_shell() {
    if std::env::var_os(VARIABLE).is_some() {
        let shells: [&dyn EnvCompleter; 5] = [&Plain(Bash), &Elvish, &Fish, &Plain(Powershell), &Zsh];
        CompleteEnv::with_factory(args::command).var(VARIABLE).shells(Shells(&shells)).complete();
    }
}
