//! Reads the rows of the table.

use tokio_postgres::Row;
use tokio_postgres::types::FromSql;

use super::POSTGRES;
use crate::error::StoreError;
use crate::stores::rows::Cells;

/// Returns the columns of `row`.
pub(super) fn cells(row: &Row) -> Result<Cells, StoreError> {
    Ok(Cells {
        now_us: cell(row, "now_us")?,
        locked_by: cell(row, "locked_by")?,
        until_us: cell(row, "until_us")?,
        version: cell(row, "version")?,
        token: cell(row, "token")?,
        prev_token: cell(row, "prev_token")?,
        served: cell(row, "served")?,
        size: cell(row, "size")?,
        written_us: cell(row, "written_us")?,
        record: cell(row, "record")?,
        history: cell(row, "history")?,
        line: cell(row, "line")?,
    })
}

/// Returns the row of a statement that always returns one.
pub(super) fn only(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| POSTGRES.unreadable(&"it has no row"))
}

pub(super) fn cell<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| POSTGRES.unreadable(&error))
}
