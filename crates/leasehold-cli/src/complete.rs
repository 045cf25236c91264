//! Completes lock names on the command line.

use std::ffi::OsStr;
use std::time::Duration;

use clap_complete::engine::CompletionCandidate;
use futures_util::StreamExt as _;
use leasehold::clock::{SystemClock, timeout};

use crate::config::Settings;

/// The variable with which a shell requests completions. It is not clap's `COMPLETE`: where a variable with this common
/// name is already set, `run` would print completions instead of running the command.
pub(crate) const VARIABLE: &str = "LEASEHOLD_COMPLETE";
/// The timeout. No completions are better than a shell that hangs.
const TIMEOUT: Duration = Duration::from_millis(500);
/// Maximum number of names to offer.
const MAX_NAMES: usize = 200;

/// Returns the names of locks that start with `current`, or none if the store does not respond in time.
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
    let names = locker.list(prefix).take(MAX_NAMES).filter_map(async |name| name.ok());
    Some(names.map(|name| CompletionCandidate::new(name.as_str())).collect().await)
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
