//! The rows of the locks. They are validated when they are read, and always written whole.

use rusqlite::{Connection, named_params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::errors::SqliteError;
use super::machine::Process;
use crate::error::{ErrorKind, Fault};
use crate::protocol::record::{Content, Record, parse};
use crate::types::LockName;

/// One lock: its record, which is the same on all stores, and what only the processes of this machine know about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) record: Record,
    /// The boot whose clock the times are on.
    pub(super) boot: String,
    /// When the record was written.
    pub(super) renewed_ns: u64,
    /// When the holder's process was first seen dead.
    pub(super) died_ns: Option<u64>,
    /// The process that must run for the lease to last.
    pub(super) process: Option<Process>,
}

impl Row {
    /// Returns the record as the rules expect it.
    pub(super) fn content(&self) -> Content {
        Content::Record(Box::new(self.record.clone()))
    }
}

/// Reads the row of `name`.
pub(super) fn load(connection: &Connection, name: &LockName) -> Result<Option<Row>, SqliteError> {
    let mut statement = connection.prepare_cached("SELECT * FROM lock WHERE name = ?")?;
    let mut rows = statement.query([name.as_str()])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    let read = || {
        Ok(Row {
            record: record(&row.get::<_, String>("record")?)?,
            boot: row.get("boot")?,
            renewed_ns: unsigned(row, "renewed_ns")?,
            died_ns: row.get::<_, Option<i64>>("died_ns")?.map(|_| unsigned(row, "died_ns")).transpose()?,
            process: row.get::<_, Option<String>>("process")?.map(|text| from_json(&text)).transpose()?,
        })
    };
    read().map(Some).map_err(|error| match error {
        SqliteError::Garbled(what) => SqliteError::Garbled(format!("{name}: {what}")),
        other => other,
    })
}

fn record(text: &str) -> Result<Record, SqliteError> {
    match parse(text.as_bytes()) {
        Ok(Content::Record(record)) if record.renewed_at_us.is_some() => Ok(*record),
        Ok(Content::Record(_)) => {
            Err(SqliteError::Garbled("the record does not say when it was written".to_owned()))
        }
        Ok(Content::Foreign { what, .. }) => Err(SqliteError::Garbled(what)),
        Err(Fault { kind: ErrorKind::Corrupt, message, .. }) => Err(SqliteError::Garbled(message)),
        Err(fault) => Err(fault.into()),
    }
}

/// Writes the row of `name`.
pub(super) fn store(connection: &Connection, name: &LockName, row: &Row) -> Result<(), SqliteError> {
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO lock (name, record, boot, renewed_ns, died_ns, process)
         VALUES (:name, :record, :boot, :renewed_ns, :died_ns, :process)",
    )?;
    statement.execute(named_params! {
        ":name": name.as_str(),
        ":record": json(&row.record)?,
        ":boot": row.boot,
        ":renewed_ns": signed(row.renewed_ns),
        ":died_ns": row.died_ns.map(signed),
        ":process": row.process.as_ref().map(json).transpose()?,
    })?;
    Ok(())
}

/// Deletes the row of `name`.
pub(super) fn delete(connection: &Connection, name: &LockName) -> Result<(), SqliteError> {
    connection.execute("DELETE FROM lock WHERE name = ?", [name.as_str()])?;
    Ok(())
}

/// Returns up to `limit` names after `after` that start with `prefix`, in order. Returns them as text, because people
/// may have edited them.
pub(super) fn names(
    connection: &Connection,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<String>, SqliteError> {
    // Uses a range instead of LIKE, because a range uses the index and the prefix may contain `%` and `_`.
    let mut statement = connection.prepare(
        "SELECT name FROM lock WHERE name >= :prefix AND (:after IS NULL OR name > :after) ORDER BY name LIMIT :limit",
    )?;
    let mut rows = statement.query(named_params! { ":prefix": prefix, ":after": after, ":limit": limit })?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if !name.starts_with(prefix) {
            break;
        }
        names.push(name);
    }
    Ok(names)
}

pub(super) fn unsigned(row: &rusqlite::Row<'_>, column: &str) -> Result<u64, SqliteError> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| SqliteError::Garbled(format!("{column} is {number}")))
}

/// Converts a time or a token. Both stay below 2^63. The boot clock does so for 292 years.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, SqliteError> {
    serde_json::to_string(value).map_err(|error| SqliteError::Garbled(error.to_string()))
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, SqliteError> {
    serde_json::from_str(text).map_err(|error| SqliteError::Garbled(error.to_string()))
}
