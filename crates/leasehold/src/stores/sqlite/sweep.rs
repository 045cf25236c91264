//! Deletes the rows of locks that have been unused for a long time, and of their remaining waiters. Keeps the counter,
//! so tokens continue to rise.

use std::time::Duration;

use rusqlite::Connection;

use super::database::{Changed, Durability, transact};
use super::machine::Machine;
use super::record::{Record, State};
use super::requests::Purpose;
use super::{STORE_TIMEOUT, SqliteLeases, record, rules, waiters};
use crate::clock::Moment;
use crate::error::StoreError;
use crate::lease::Swept;
use crate::types::LockName;

impl SqliteLeases {
    /// Sweeps one lock. Uses one transaction, so that no process acquires the lock between the read and the delete.
    pub(super) async fn swept(
        &self,
        name: &LockName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Swept, StoreError> {
        let (name, machine, env) = (name.clone(), self.machine.clone(), self.env.clone());
        let work = move |connection: &mut Connection| {
            transact(connection, Durability::System, |transaction| {
                let record = record::load(transaction, &name)?;
                let free = record.and_then(|record| free_for(&record, &machine, env.now()));
                if free.is_none_or(|free| free < older_than) {
                    return Ok((Swept::Kept, None));
                }
                if dry_run {
                    return Ok((Swept::Deleted, None));
                }
                transaction.execute("DELETE FROM lock WHERE name = ?", [name.as_str()])?;
                waiters::remove_all(transaction, &name)?;
                Ok((Swept::Deleted, Some(Changed)))
            })
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Write, work).await
    }
}

/// Returns how long the lock has been free. Returns `None` if it is not free. Uses this machine's wall clock, the only
/// clock that continues across boots.
fn free_for(record: &Record, machine: &Machine, now: Moment) -> Option<Duration> {
    let free_from_us = match &record.state {
        State::Held(_) => return None,
        State::Free => record.history.first()?.until_us?,
        State::Cooldown(cooldown) if rules::standing(record, machine, now) == rules::Standing::Free => {
            cooldown.until_us
        }
        State::Cooldown(_) => return None,
    };
    now.wall_us().checked_sub(free_from_us).map(Duration::from_micros)
}
