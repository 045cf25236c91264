//! Deletes the rows of locks that have been unused for a long time, and of their remaining waiters. Keeps the counter,
//! so tokens continue to rise.

use std::time::Duration;

use rusqlite::Connection;

use super::database::{Changed, Durability, transact};
use super::evidence::Evidence;
use super::machine::Machine;
use super::requests::Purpose;
use super::row::Row;
use super::{STORE_TIMEOUT, SqliteLeases, row, waiters};
use crate::clock::Moment;
use crate::error::StoreError;
use crate::lease::{State, Swept};
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
                let row = row::load(transaction, &name)?;
                let free = row.and_then(|row| free_for(&row, &machine, env.now()));
                if free.is_none_or(|free| free < older_than) {
                    return Ok((Swept::Kept, None));
                }
                if dry_run {
                    return Ok((Swept::Deleted, None));
                }
                row::delete(transaction, &name)?;
                waiters::remove_all(transaction, &name)?;
                Ok((Swept::Deleted, Some(Changed)))
            })
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Write, work).await
    }
}

/// Returns how long the lock has been free. Returns `None` if it is not free. Uses this machine's wall clock, the only
/// clock that continues across boots.
fn free_for(row: &Row, machine: &Machine, now: Moment) -> Option<Duration> {
    // See `RegisterLeases::swept` for the size.
    if row.record.size != 0 || Evidence::of(Some(row), machine, now).state(Some(row)) != State::Free {
        return None;
    }
    let cooldown_us = row.record.cooldown_ms.unwrap_or(0).saturating_mul(1_000);
    let free_from_us = row.record.renewed_at_us?.saturating_add(cooldown_us);
    now.wall_us().checked_sub(free_from_us).map(Duration::from_micros)
}
