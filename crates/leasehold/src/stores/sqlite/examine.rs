//! The doctor's checks of the file: its file system, its log, its integrity, and its locks between connections.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, TransactionBehavior};

use super::database::{Changed, Durability, transact};
use super::errors::SqliteError;
use super::location::Location;
use super::requests::Purpose;
use super::{STORE_TIMEOUT, SqliteLeases, row};
use crate::diagnosis::{CheckStatus, Examined, Finding};
use crate::error::StoreError;
use crate::protocol::record::RecordState;
use crate::types::LockName;

impl SqliteLeases {
    pub(super) async fn examined(&self) -> Examined {
        let mut examined = Examined::default();
        examined.push(file_system(self.database.location()));
        examined.push(self.asked("journal", journal).await);
        examined.push(self.asked("integrity", integrity).await);
        let path = self.database.location().path.clone();
        examined.push(self.asked("write-lock", move |connection| write_lock(connection, &path)).await);
        examined
    }

    async fn asked(
        &self,
        check: &'static str,
        ask: impl Fn(&mut Connection) -> Result<Finding, SqliteError> + Clone + Send + 'static,
    ) -> Finding {
        match self.database.run(&self.env, STORE_TIMEOUT, Purpose::Read, ask).await {
            Ok(finding) => finding,
            Err(error) => Finding::of_error(check, CheckStatus::Failed, &error),
        }
    }

    /// Deletes the row of a lock if the lock is free. Returns whether no row is left.
    pub(super) async fn deleted(&self, name: &LockName) -> Result<bool, StoreError> {
        let name = name.clone();
        let work = move |connection: &mut Connection| {
            transact(connection, Durability::System, |transaction| {
                let row = row::load(transaction, &name)?;
                let is_free = row.is_none_or(|row| row.record.state == RecordState::Free);
                if is_free {
                    row::delete(transaction, &name)?;
                }
                Ok((is_free, is_free.then_some(Changed)))
            })
        };
        self.database.run(&self.env, STORE_TIMEOUT, Purpose::Write, work).await
    }
}

fn file_system(location: &Location) -> Finding {
    const CHECK: &str = "file-system";
    if location.allow_network {
        return Finding::warning(CHECK, "not checked: ?allow_network=on")
            .with_help("two machines that open the file can hold the same lock: only one may open it; for several, use dir:FOLDER");
    }
    match location.file_system() {
        Ok(name) if ["tmpfs", "ramfs"].contains(&name.as_str()) => {
            Finding::warning(CHECK, format!("{name}: the file ends with the boot"))
                .with_help("for tickets, cooldowns and `leasehold serve`, name a file on a disk")
        }
        other => Finding::required(CHECK, other.map(|name| format!("a local one: {name}"))),
    }
}

fn journal(connection: &mut Connection) -> Result<Finding, SqliteError> {
    const CHECK: &str = "journal";
    let mode: String = connection.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
    Ok(match mode.as_str() {
        "wal" => Finding::passed(CHECK, "a write-ahead log, which processes share"),
        other => {
            Finding::failed(CHECK, format!("the file is in journal mode {other:?}, and not in WAL mode"))
                .with_help("the journal mode was changed: run `PRAGMA journal_mode=WAL` on the file while no process uses it")
        }
    })
}

fn integrity(connection: &mut Connection) -> Result<Finding, SqliteError> {
    const CHECK: &str = "integrity";
    let word: String = connection.query_row("PRAGMA quick_check(1)", (), |row| row.get(0))?;
    Ok(match word.as_str() {
        "ok" => Finding::passed(CHECK, "the file is intact"),
        other => Finding::failed(CHECK, format!("the file is damaged: {other}")).with_help(
            "move it away with its -wal and -shm files; a new one is created, and tokens keep rising",
        ),
    })
}

/// Checks whether SQLite refuses a second writer while there is one. Connections of one process detect each other in
/// memory, so this does not test the locks of the file system.
fn write_lock(connection: &mut Connection, path: &Path) -> Result<Finding, SqliteError> {
    const CHECK: &str = "write-lock";
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut other = Connection::open(path)?;
    other.busy_timeout(Duration::ZERO)?;
    let second = other
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map(|_| ())
        .map_err(SqliteError::from);
    transaction.rollback()?;
    match second {
        Err(error) if error.is_busy() => Ok(Finding::passed(
            CHECK,
            "a second connection of this process waits (other processes were not tried)",
        )),
        Ok(()) => Ok(Finding::failed(CHECK, "two connections wrote to the file at once").with_help(
            "this SQLite library or this file system does not honour file locks: put the file on a local disk",
        )),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_ends_with_the_boot_is_a_warning() {
        let verdict = |path: &str| {
            let location = Location { path: path.into(), allow_network: false, is_default: false };
            file_system(&location).verdict
        };
        assert!(verdict("/dev/shm/locks.db") == CheckStatus::Warning, "tmpfs");
        assert!(verdict("/proc/locks.db") == CheckStatus::Failed);
    }
}
