//! Completes the command line, including lock names.
//!
//! Other users choose the names of locks, and perhaps of files. bash and PowerShell insert a completion as it stands, so
//! a name like `d$(...)` would run a command. The other shells quote it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use clap::Command;
use clap_complete::engine::CompletionCandidate;
use clap_complete::env::EnvCompleter;
use futures_util::StreamExt as _;
use leasehold::clock::{SystemClock, timeout};

use crate::config::Settings;
use crate::shell::{is_plain, is_plain_word};

/// The variable with which a shell requests completions. It is not clap's `COMPLETE`: where a variable with this common
/// name is already set, `run` would print completions instead of running the command.
pub(crate) const VARIABLE: &str = "LEASEHOLD_COMPLETE";
/// The timeout. No completions are better than a shell that hangs.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of names to offer.
const MAX_NAMES: usize = 200;

/// A shell that inserts a completion without quotes. It gets only completions that need none.
pub(crate) struct Plain<S>(pub(crate) S);

impl<S: EnvCompleter> EnvCompleter for Plain<S> {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn is(&self, name: &str) -> bool {
        self.0.is(name)
    }

    fn write_registration(
        &self,
        variable: &str,
        name: &str,
        program: &str,
        completer: &str,
        output: &mut dyn Write,
    ) -> io::Result<()> {
        self.0.write_registration(variable, name, program, completer, output)
    }

    fn write_complete(
        &self,
        command: &mut Command,
        words: Vec<OsString>,
        folder: Option<&Path>,
        output: &mut dyn Write,
    ) -> io::Result<()> {
        let mut all = Vec::new();
        self.0.write_complete(command, words, folder, &mut all)?;
        let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        let all = String::from_utf8_lossy(&all);
        let needs_no_quotes =
            |line: &&str| line.split('\t').next().is_some_and(|word| word.chars().all(is_plain));
        let plain: Vec<&str> = all.split(separator.as_str()).filter(needs_no_quotes).collect();
        output.write_all(plain.join(&separator).as_bytes())
    }
}

/// Returns the names of locks that start with `current`, or none if the store does not respond in time. Leaves out the
/// names that a shell or this command would not take as they stand.
pub(crate) fn lock_names(current: &OsStr) -> Vec<CompletionCandidate> {
    let Some(prefix) = current.to_str() else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else {
        return Vec::new();
    };
    let names = runtime.block_on(timeout(&SystemClock, TIMEOUT, names(prefix)));
    runtime.shutdown_background();
    names.flatten().unwrap_or_default()
}

async fn names(prefix: &str) -> Option<Vec<CompletionCandidate>> {
    let store = Settings::load().ok()?.store(store_argument()).ok()?;
    let locker = leasehold::Locker::open(&store.url).await.ok()?;
    let names =
        locker.list(prefix).filter_map(async |name| name.ok().filter(|name| is_plain_word(name.as_str())));
    Some(names.take(MAX_NAMES).map(|name| CompletionCandidate::new(name.as_str())).collect().await)
}

/// Returns the `--store` of the command line that is being completed. The shell passes that line after `--`.
fn store_argument() -> Option<String> {
    let words: Vec<String> = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok()).collect();
    let line = words.iter().position(|word| word == "--").map_or(&words[..], |at| &words[at + 1..]);
    line.iter().enumerate().find_map(|(at, word)| match word.as_str() {
        "-s" | "--store" => line.get(at + 1).cloned(),
        word => word.strip_prefix("--store=").map(str::to_owned),
    })
}
