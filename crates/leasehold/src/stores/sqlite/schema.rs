//! The tables, and the check whether a file has them.

use rusqlite::{Connection, TransactionBehavior};

use super::errors::SqliteError;
use crate::error::{ErrorKind, Fault};

/// `lhLK` in the header of the file. It marks the database as leasehold's.
const APPLICATION_ID: i64 = 0x6c68_4c4b;

/// The version in `user_version`. Files of other versions are refused.
const VERSION: i64 = 1;

pub(super) const TABLES: &str = "
CREATE TABLE lock (
    name       TEXT PRIMARY KEY NOT NULL,
    record     TEXT NOT NULL,    -- JSON, as on other stores
    boot       TEXT NOT NULL,    -- the boot whose clock the _ns columns are on
    renewed_ns INTEGER NOT NULL, -- when the record was written
    died_ns    INTEGER,          -- when its process was first seen dead
    process    TEXT              -- JSON: who must run for the lease to last; NULL when detached
) STRICT, WITHOUT ROWID;
CREATE TABLE counter (
    id      INTEGER PRIMARY KEY CHECK (id = 1),
    token   INTEGER NOT NULL, -- the highest token of all locks
    ceiling INTEGER NOT NULL, -- no token up to here is used again after a power failure
    boot    TEXT NOT NULL
) STRICT;
INSERT INTO counter VALUES (1, 0, 0, '');
CREATE TABLE waiter (
    number    INTEGER PRIMARY KEY, -- the order of arrival
    name      TEXT NOT NULL,        -- the lock
    claim_id  TEXT NOT NULL UNIQUE,
    holder    TEXT NOT NULL,        -- JSON, for people
    boot      TEXT NOT NULL,        -- the boot whose clock the _ns columns are on
    joined_ns INTEGER NOT NULL,
    asked_ns  INTEGER NOT NULL,     -- when it joined, or last asked for the lock while it was free for another waiter
    called_ns INTEGER,              -- when the lock was first found free for this waiter
    process   TEXT                  -- JSON: who waits
) STRICT;
CREATE INDEX waiter_of_lock ON waiter (name, number);
";

/// Makes sure that the file has leasehold's tables. Writes nothing if it does.
///
/// # Errors
/// Invalid for another program's database, Unsupported for a newer version, Corrupt for an unknown older version. None
/// of them is overwritten.
pub(super) fn ensure(connection: &mut Connection) -> Result<(), SqliteError> {
    // Reads everything from one snapshot, because another process may create the tables in between.
    let transaction = connection.transaction()?;
    let ours = check(&transaction)?;
    drop(transaction);
    if ours { Ok(()) } else { create(connection) }
}

/// Returns whether the tables exist. Returns `false` for an empty file.
pub(super) fn check(connection: &Connection) -> Result<bool, SqliteError> {
    let application: i64 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if application == APPLICATION_ID {
        return if version == VERSION { Ok(true) } else { Err(other_version(version).into()) };
    }
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", (), |row| row.get(0))?;
    if (application, version, tables) == (0, 0, 0) { Ok(false) } else { Err(foreign().into()) }
}

/// Switches the file to a write-ahead log. The setting is permanent, but a copy that SQLite made (`VACUUM INTO`) may
/// lack it.
pub(super) fn use_log(connection: &Connection) -> Result<(), SqliteError> {
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if mode != "wal" {
        return Err(Fault::new(
            ErrorKind::Unsupported,
            "the file system cannot share memory between processes",
        )
        .with_help("put the file on a local disk")
        .into());
    }
    Ok(())
}

fn create(connection: &mut Connection) -> Result<(), SqliteError> {
    use_log(connection)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    // Another process may have created the tables first.
    if !check(&transaction)? {
        transaction.execute_batch(TABLES)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit().map_err(SqliteError::Commit)
}

fn other_version(version: i64) -> Fault {
    let message =
        format!("the file has version {version} of leasehold's tables, but this program supports {VERSION}");
    if version > VERSION {
        Fault::new(ErrorKind::Unsupported, message).with_help("upgrade leasehold, or name another file")
    } else {
        Fault::new(ErrorKind::Corrupt, message).with_help("the file was edited; name another file")
    }
}

fn foreign() -> Fault {
    Fault::new(ErrorKind::Invalid, "the file is the SQLite database of another program")
        .with_help("name a separate file for leasehold; nothing was overwritten")
}
