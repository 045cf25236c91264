//! Reads the rows of the table.

use mysql_async::Row;
use mysql_async::prelude::FromValue;

use super::MYSQL;
use crate::error::StoreError;
use crate::protocol::line::Line;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::Found;
use crate::register::Version;
use crate::stores::rows::{Cells, version_of};

/// The answer to one statement of a request.
#[derive(Debug)]
pub(super) struct Answer {
    /// How many rows a write has found.
    pub(super) affected: u64,
    pub(super) rows: Vec<Row>,
}

/// A row of the table, as [`read`](super::sql::read) returns it.
#[derive(Debug)]
pub(in crate::stores) struct Stored {
    pub(in crate::stores) cells: Cells,
    /// The line of waiters, and its version. A line that cannot be read counts as empty.
    pub(in crate::stores) line: Option<(Line, Version)>,
}

impl Stored {
    /// Returns the row, or `None` if there is none.
    pub(super) fn of(row: &Row) -> Result<Option<Self>, StoreError> {
        if !cell::<bool>(row, "is_there")? {
            return Ok(None);
        }
        let cells = Cells {
            now_us: cell(row, "now_us")?,
            locked_by: text(row, "locked_by")?.unwrap_or_default(),
            until_us: cell(row, "until_us")?,
            version: text(row, "version")?,
            token: cell(row, "token")?,
            prev_token: cell(row, "prev_token")?,
            served: cell(row, "served")?,
            size: cell(row, "size")?,
            written_us: cell(row, "written_us")?,
            record: text(row, "record")?,
            history: text(row, "history")?,
            // It has another format.
            line: None,
        };
        let line = text(row, "line")?.zip(text(row, "line_version")?).map(|(line, version)| {
            let line = Line::parse(line.as_bytes()).unwrap_or_else(|_| Line::of(Vec::new()));
            (line, Version::new(version))
        });
        Ok(Some(Self { cells, line }))
    }

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

pub(super) fn cell<T: FromValue>(row: &Row, column: &str) -> Result<T, StoreError> {
    match row.get_opt(column) {
        Some(Ok(value)) => Ok(value),
        Some(Err(_)) => Err(MYSQL.unreadable(&format_args!("the value of {column} has another type"))),
        None => Err(MYSQL.unreadable(&format_args!("it has no column {column}"))),
    }
}

/// Returns a text. Bytes that are not UTF-8 are replaced, so that a row that was edited by hand is refused like any other.
pub(super) fn text(row: &Row, column: &str) -> Result<Option<String>, StoreError> {
    let bytes: Option<Vec<u8>> = cell(row, column)?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

pub(super) fn has(row: &Row, column: &str) -> bool {
    row.columns_ref().iter().any(|there| there.name_str() == column)
}
