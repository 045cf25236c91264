//! Announces the default store, whose locks exclude only processes of one user on one machine.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, stderr};
use std::path::PathBuf;

use crate::config::{Store, folder_in};
use crate::output::Output;

/// The file that remembers the announcement, beside the file of the locks.
const ANNOUNCED: &str = "default-store-announced";

/// Prints a warning if nobody has chosen `store`, which is open, once for each user: when no person watches, as in a job of cron or CI,
/// or if config.toml names other stores.
pub(crate) fn announce(store: &Store, output: &Output) {
    let Some(has_others) = store.is_default() else { return };
    if output.quiet || !has_others && stderr().is_terminal() {
        return;
    }
    if is_announced() {
        return;
    }
    output.warning(
        "no store is chosen, so the locks exclude no other user and no other machine. Name one with -s or \
LEASEHOLD_STORE; LEASEHOLD_STORE=sqlite: keeps this one. This warning comes once",
    );
}

/// Returns whether this user has seen the announcement, and remembers that it has now.
fn is_announced() -> bool {
    let Some(folder) = folder() else { return false };
    // If it cannot be written, the warning comes again.
    File::create_new(folder.join(ANNOUNCED)).is_err_and(|error| error.kind() == ErrorKind::AlreadyExists)
}

fn folder() -> Option<PathBuf> {
    let state =
        folder_in("XDG_STATE_HOME").or_else(|| folder_in("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("leasehold"))
}
