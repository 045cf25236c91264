//! Reads the rows of the table.

use mysql_async::Row;
use mysql_async::prelude::FromValue;

use super::MYSQL;
use crate::error::StoreError;
use crate::protocol::line::Line;
use crate::register::Version;
use crate::stores::rows::Cells;
use crate::stores::table::Stored;

/// The answer to one statement of a request.
#[derive(Debug)]
pub(super) struct Answer {
    /// How many rows a write has found.
    pub(super) affected: u64,
    pub(super) rows: Vec<Row>,
}

/// Returns the row that [`read`](super::sql::read) returns, or `None` if there is none.
pub(super) fn stored(row: &Row) -> Result<Option<Stored>, StoreError> {
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
    Ok(Some(Stored { cells, line }))
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
