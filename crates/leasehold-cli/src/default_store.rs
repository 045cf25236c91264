//! Announces the default store, whose locks exclude only processes of one user on one machine.

use std::fs::File;
use std::io::{ErrorKind, IsTerminal as _, stderr};
use std::path::PathBuf;

use crate::config::{Store, folder_in};
use crate::output::Output;

/// The file that remembers the announcement, beside the file of the locks.
const ANNOUNCED: &str = "default-store-announced";

/// Prints a warning if `store`, which is open, is the default and was not chosen, once for each user: without a terminal, as
/// in a job of cron or CI, or if config.toml names other stores.
pub(crate) fn announce(store: &Store, output: &Output) {
    let Some(has_others) = store.is_default() else { return };
    if output.quiet || !has_others && stderr().is_terminal() {
        return;
    }
    if let Some(warning) = warning(folder()) {
        output.warning(&warning);
    }
}

/// Returns the warning, unless this user has seen it, and remembers it in `folder`.
fn warning(folder: Option<PathBuf>) -> Option<String> {
    let remembered = folder.map(|folder| File::create_new(folder.join(ANNOUNCED)));
    let once = match remembered {
        Some(Ok(_)) => ". This warning comes once",
        Some(Err(error)) if error.kind() == ErrorKind::AlreadyExists => return None,
        // It comes again.
        _ => "",
    };
    Some(format!(
        "no store is chosen, so the locks exclude no other user and no other machine. Name one with -s or \
LEASEHOLD_STORE; LEASEHOLD_STORE=sqlite: keeps this one{once}"
    ))
}

fn folder() -> Option<PathBuf> {
    let state =
        folder_in("XDG_STATE_HOME").or_else(|| folder_in("HOME").map(|home| home.join(".local/state")))?;
    Some(state.join("leasehold"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_warning_comes_once_only_if_that_can_be_remembered() {
        let folder = tempfile::tempdir().unwrap();
        let missing = || warning(Some(folder.path().join("missing"))).unwrap();
        assert!(!missing().contains("once") && missing().starts_with("no store is chosen"));
        assert!(warning(Some(folder.path().into())).unwrap().ends_with("This warning comes once"));
        assert_eq!(warning(Some(folder.path().into())), None);
    }
}
