//! The meaning of SQLite's errors for a lease, and the help for each.

use std::path::Path;

use rusqlite::ErrorCode;
use rusqlite::ffi;

use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::printable;

/// Why a request to the file failed.
#[derive(Debug)]
pub(super) enum SqliteError {
    /// An error of SQLite before the commit. The request certainly had no effect.
    Sqlite(rusqlite::Error),
    /// An error of SQLite at the commit.
    Commit(rusqlite::Error),
    /// An error of leasehold. The request certainly had no effect.
    Fault(Fault),
    /// A value in a row that does not parse.
    Garbled(String),
}

impl SqliteError {
    /// Returns the error for a file that another connection has locked. The error is transient.
    pub(super) fn busy(what: &str) -> Self {
        let error = ffi::Error::new(ffi::SQLITE_BUSY);
        Self::Sqlite(rusqlite::Error::SqliteFailure(error, Some(what.to_owned())))
    }

    /// Returns whether another connection had the file locked. This is transient.
    pub(super) fn is_busy(&self) -> bool {
        let (Self::Sqlite(error) | Self::Commit(error)) = self else { return false };
        matches!(
            error.sqlite_error_code(),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed)
        )
    }

    /// Returns the error to report about the file at `path`.
    pub(super) fn at(self, path: &Path) -> StoreError {
        let refused_commit = matches!(&self, Self::Commit(_)) && !self.is_busy();
        let fault = match self {
            Self::Sqlite(error) | Self::Commit(error) => explained(&error, path),
            Self::Fault(fault) => fault,
            Self::Garbled(what) => garbled(&what, path),
        };
        // A busy commit leaves its transaction open, and the transaction is rolled back. After any other error, the
        // commit may already be in the log. It then takes effect when the log is recovered.
        if refused_commit { fault.maybe_applied() } else { fault.not_applied() }
    }
}

impl From<rusqlite::Error> for SqliteError {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::Error as E;
        match error {
            E::FromSqlConversionFailure(..)
            | E::IntegralValueOutOfRange(..)
            | E::Utf8Error(..)
            | E::InvalidColumnType(..) => Self::Garbled(error.to_string()),
            other => Self::Sqlite(other),
        }
    }
}

impl From<Fault> for SqliteError {
    fn from(fault: Fault) -> Self {
        Self::Fault(fault)
    }
}

/// Reports a value that does not parse. Such a value is never overwritten, and its lock is never granted.
fn garbled(what: &str, path: &Path) -> Fault {
    // The message may contain bytes of the row.
    let what = printable(what, 300);
    Fault::new(ErrorKind::Corrupt, format!("{} holds a row that cannot be read: {what}", path.display()))
        .with_help("the row was edited by hand: delete it while the lock is free; tokens keep rising")
}

fn explained(error: &rusqlite::Error, path: &Path) -> Fault {
    let path = path.display();
    let (kind, what, help) = meaning(error);
    let mut fault = Fault::new(kind, format!("{path} {what}: {error}"));
    fault.help = help.map(str::to_owned);
    fault
}

type Meaning = (ErrorKind, &'static str, Option<&'static str>);

fn meaning(error: &rusqlite::Error) -> Meaning {
    const WRITABLE: &str =
        "the file and its folder must both be writable: SQLite keeps -wal and -shm files beside it";
    const RESTORE: &str =
        "move it away with its -wal and -shm files; a new one is created, and tokens keep rising";
    if error.sqlite_error().is_some_and(|error| error.extended_code == ffi::SQLITE_READONLY_DBMOVED) {
        return (ErrorKind::Unavailable, "was moved or replaced meanwhile", None);
    }
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked | ErrorCode::FileLockingProtocolFailed) => (
            ErrorKind::Unavailable,
            "is busy",
            Some(
                "another process holds its write lock, perhaps a backup, an open sqlite3 shell or a stopped process",
            ),
        ),
        Some(ErrorCode::ReadOnly) => (ErrorKind::Denied, "cannot be written", Some(WRITABLE)),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (ErrorKind::Denied, "may not be used", Some(WRITABLE))
        }
        Some(ErrorCode::CannotOpen) => (ErrorKind::Denied, "cannot be opened or created", Some(WRITABLE)),
        Some(ErrorCode::DiskFull) => {
            (ErrorKind::Unavailable, "cannot grow", Some("the disk is full: free some space"))
        }
        Some(ErrorCode::SystemIoFailure) => (
            ErrorKind::Unavailable,
            "cannot be read or written",
            Some("the disk reports an error: see the system's log"),
        ),
        Some(ErrorCode::DatabaseCorrupt) => (ErrorKind::Corrupt, "is damaged", Some(RESTORE)),
        Some(ErrorCode::NotADatabase) => (
            ErrorKind::Corrupt,
            "is not an SQLite database",
            Some("nothing was overwritten; name another file for the locks"),
        ),
        Some(ErrorCode::Unknown | ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch) => {
            (ErrorKind::Corrupt, "does not have the tables of leasehold", Some(RESTORE))
        }
        _ => (ErrorKind::Unavailable, "cannot be used", None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sqlite(code: i32) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn each_error_of_sqlite_has_its_kind() {
        for (code, kind, helps) in [
            (ffi::SQLITE_BUSY, ErrorKind::Unavailable, true),
            (ffi::SQLITE_BUSY_SNAPSHOT, ErrorKind::Unavailable, true),
            (ffi::SQLITE_LOCKED, ErrorKind::Unavailable, true),
            (ffi::SQLITE_PROTOCOL, ErrorKind::Unavailable, true),
            (ffi::SQLITE_READONLY, ErrorKind::Denied, true),
            (ffi::SQLITE_READONLY_DIRECTORY, ErrorKind::Denied, true),
            (ffi::SQLITE_READONLY_DBMOVED, ErrorKind::Unavailable, false),
            (ffi::SQLITE_PERM, ErrorKind::Denied, true),
            (ffi::SQLITE_CANTOPEN, ErrorKind::Denied, true),
            (ffi::SQLITE_FULL, ErrorKind::Unavailable, true),
            (ffi::SQLITE_IOERR_FSYNC, ErrorKind::Unavailable, true),
            (ffi::SQLITE_CORRUPT, ErrorKind::Corrupt, true),
            (ffi::SQLITE_NOTADB, ErrorKind::Corrupt, true),
            (ffi::SQLITE_ERROR, ErrorKind::Corrupt, true),
            (ffi::SQLITE_CONSTRAINT, ErrorKind::Corrupt, true),
            (ffi::SQLITE_NOMEM, ErrorKind::Unavailable, false),
            (ffi::SQLITE_MISUSE, ErrorKind::Unavailable, false),
        ] {
            let error = SqliteError::from(sqlite(code)).at(Path::new("/x/locks.db"));
            assert_eq!(error.fault().kind, kind, "{code}");
            assert_eq!(error.fault().help.is_some(), helps, "{code}");
            assert!(error.to_string().contains("/x/locks.db"), "{error}");
        }
    }

    #[test]
    fn only_a_failed_commit_may_have_an_effect_unless_it_was_busy() {
        let path = Path::new("x");
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_IOERR_WRITE, ffi::SQLITE_NOMEM] {
            assert!(
                matches!(SqliteError::Sqlite(sqlite(code)).at(path), StoreError::NotApplied(_)),
                "{code}"
            );
            assert!(
                matches!(SqliteError::Commit(sqlite(code)).at(path), StoreError::MaybeApplied(_)),
                "{code}"
            );
        }
        assert!(matches!(SqliteError::Commit(sqlite(ffi::SQLITE_BUSY)).at(path), StoreError::NotApplied(_)));
    }

    #[test]
    fn a_value_of_the_wrong_type_is_corrupt() {
        let error = rusqlite::Error::IntegralValueOutOfRange(3, -1);
        assert_eq!(SqliteError::from(error).at(Path::new("x")).fault().kind, ErrorKind::Corrupt);
    }
}
