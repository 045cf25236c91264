//! A table whose line of waiters is beside the record, in a column of its own: what MySQL's and the simulated one have in
//! common. A request writes a record, and then reads the row.

use std::time::Duration;

use super::{Connections, Writing};
use crate::error::{Fault, StoreError};
use crate::protocol::line::Line;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Change, Found, Refusal, Written};
use crate::register::Version;
use crate::stores::grace;
use crate::stores::pool::{self, Used};
use crate::stores::rows::{Cells, locked_by, number, version_of};

/// A row, as it is read.
#[derive(Debug)]
pub(in crate::stores) struct Stored {
    pub(in crate::stores) cells: Cells,
    /// The line of waiters, and its version. A line that cannot be read counts as empty.
    pub(in crate::stores) line: Option<(Line, Version)>,
}

impl Stored {
    /// Returns the record of the lock `name`.
    pub(in crate::stores) fn found(&self, name: &str, table: &str) -> Result<Found, StoreError> {
        let found = self.cells.found(name, table)?.unwrap_or_else(|| {
            // Only another client has ever had the lock, and has it no longer.
            let version = version_of(&Version::new(""), &self.cells.locked_by);
            Found { content: Content::Record(Box::new(Record::never_granted())), version, line: None }
        });
        let line = self.line.as_ref().map_or_else(|| Line::of(Vec::new()), |(line, _)| line.clone());
        Ok(Found { line: Some(line), ..found })
    }
}

/// Returns what becomes of a grant over `used`, on whose server locks are granted from `grants_from_us` on: see
/// `failover_grace`. `None` if that time has come.
pub(in crate::stores) fn withheld<S: pool::Session>(
    store: &str,
    Connections { clock, env, database, .. }: &Connections<S>,
    writing: &Writing,
    (used, grants_from_us): (&mut Used<S>, i64),
) -> Option<Written> {
    let clock_us = number(clock.lowest_us(env.now()));
    if writing.change != Change::Grant || clock_us >= grants_from_us {
        return None;
    }
    // Only a read shows who has the lock.
    if writing.over.is_some() {
        return Some(Written::Conflict(Refusal::Unexplained));
    }
    let left = Duration::from_micros(u64::try_from(grants_from_us - clock_us).unwrap_or(0));
    // The clock may have been set back. The next connection records that.
    if left > database.failover_grace {
        used.close();
    }
    Some(Written::Withheld(Box::new(grace::withheld(store, left))))
}

/// Returns the outcome of a write, after which the row was read: whether a row `was_found`, and the row.
pub(in crate::stores) fn outcome(
    writing: &Writing,
    was_found: bool,
    stored: Option<Stored>,
    table: &str,
) -> Result<Written, StoreError> {
    let Writing { change, over, name, record, columns, .. } = writing;
    if !was_found {
        let found = stored.map(|stored| stored.found(name.as_str(), table)).transpose();
        return Ok(Written::Conflict(
            found.map_err(StoreError::of_read)?.map_or(Refusal::Absent, Refusal::Found),
        ));
    }
    let version = version_of(&columns.version, &locked_by(record.grant));
    let Some(stored) = stored else { return overtaken(*change, record, version) };
    // If the row cannot be read, the record is written nevertheless.
    let found = stored.found(name.as_str(), table).map_err(|error| error.if_maybe(true))?;
    match found {
        Found { content: Content::Record(record), version: there, .. } if there == version => {
            let after = stored.cells.previous();
            Ok(match over {
                Some(_) => Written::Granted { record, version, after },
                None => Written::Committed { record, version },
            })
        }
        _ => overtaken(*change, record, version),
    }
}

/// Returns the outcome of a write whose row was written again, or deleted, before it was read. A client that waits takes a
/// lock as soon as it is free, so this happens after a release. Of another write, only a read shows what became of it.
fn overtaken(change: Change, record: &Record, version: Version) -> Result<Written, StoreError> {
    match change {
        Change::Free => Ok(Written::Committed { record: Box::new(record.clone()), version }),
        Change::Grant | Change::Renew => {
            Err(Fault::unavailable("the row was written again at the same time").maybe_applied())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden_record;

    #[test]
    fn a_release_succeeds_although_the_row_was_written_again() {
        let (record, version) = (golden_record("1-free.json"), Version::new("v"));
        let freed = overtaken(Change::Free, &record, version.clone()).unwrap();
        assert!(matches!(freed, Written::Committed { version: of, .. } if of == version));
        for change in [Change::Grant, Change::Renew] {
            let error = overtaken(change, &record, version.clone()).unwrap_err();
            assert!(error.is_transient() && matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
        }
    }
}
