//! The arguments of `ls` and `sweep`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap_complete::engine::ArgValueCompleter;
use leasehold::view::StateView;

use super::duration;
use crate::complete::lock_names;

#[derive(Debug, Args)]
#[command(after_help = "Examples:
  leasehold ls
  leasehold ls deploy/ --state held,lapsed
  leasehold ls --watch
  leasehold ls deploy/ --json | jq -r 'select(.state == \"held\") | .lock'")]
pub(crate) struct LsArgs {
    /// List only locks whose names start with PREFIX
    #[arg(add = ArgValueCompleter::new(lock_names))]
    pub(crate) prefix: Option<OsString>,
    /// Only held, lapsed, reserved, cooldown or free locks
    ///
    /// Several states are separated by commas.
    #[arg(long, value_name = "STATE", value_delimiter = ',', hide_possible_values = true, value_parser = state())]
    pub(crate) state: Vec<StateView>,
    /// List again every 2s, or every INTERVAL
    ///
    /// On a terminal, each table replaces the one before. Each time, leasehold lists the store and reads every lock.
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, require_equals = true, value_parser = duration)]
    pub(crate) watch: Option<Option<Duration>>,
}

/// Parses the state of a lock.
fn state() -> impl TypedValueParser<Value = StateView> {
    const STATES: [StateView; 5] =
        [StateView::Held, StateView::Lapsed, StateView::Reserved, StateView::Cooldown, StateView::Free];
    let words = PossibleValuesParser::new(STATES.map(StateView::as_str));
    words.try_map(|word| STATES.into_iter().find(|state| state.as_str() == word).ok_or("an unknown state"))
}

#[derive(Debug, Args)]
#[command(
    after_help = "Deletes only the records of locks that have been free for at least --older-than, measured by the \
store's clock. A lock whose holder crashed is not free. Deleting a record is safe: later tokens of the lock are still \
higher than all earlier ones, and a process that acquires the lock at the same time keeps it.

Fails if the store has no conditional deletes or if you have no permission to delete. On etcd there is nothing to \
sweep.

Examples:
  leasehold sweep --older-than 30d --dry-run
  leasehold sweep builds/ --older-than 7d"
)]
pub(crate) struct SweepArgs {
    /// Sweep only locks whose names start with PREFIX
    #[arg(add = ArgValueCompleter::new(lock_names))]
    pub(crate) prefix: Option<OsString>,
    /// Minimum time that a lock has been free
    #[arg(long, value_name = "DURATION", value_parser = duration, required = true)]
    pub(crate) older_than: Duration,
    /// Print what would be deleted, without deleting it
    #[arg(long)]
    pub(crate) dry_run: bool,
}
