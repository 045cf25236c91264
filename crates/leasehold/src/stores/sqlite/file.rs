//! The open file and its one connection. The connection is opened again when the path no longer leads to the open file.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags};

use super::errors::SqliteError;
use super::identity::{Closable, Companions, FileId, Sharing};
use super::location::Location;
use super::schema;
use crate::error::Fault;

/// How long SQLite itself waits for another connection. After that, the store serves its next request, so that an
/// acquisition with a long limit does not delay a renewal.
const TURN: Duration = Duration::from_millis(100);

/// The number of pages in the log at which a commit writes the log into the file. That write waits for the disk three
/// times. The limit is low while a connection is young: most connections live for one lock, and the next process that
/// opens the file reads the log.
pub(super) const YOUNG_LOG: u32 = 64;
/// The limit for older connections: SQLite's own default.
const LOG: u32 = 1_000;
/// The number of requests during which a connection is young.
const YOUTH: u32 = 64;

/// Held while the file is created and opened. Closing a file drops all locks that the process has on it, so no other
/// thread of this process may have opened the new file by then.
static CREATING: Mutex<()> = Mutex::new(());

/// How often opening is tried if the files change in the meantime. They change when the first process creates them.
const ATTEMPTS: u32 = 4;
/// How often to check whether another thread has closed a connection, and the pause between the checks.
const CLOSING_ROUNDS: u32 = 500;
const CLOSING_PAUSE: Duration = Duration::from_millis(1);

/// The file of one store.
#[derive(Debug)]
pub(super) struct File {
    location: Location,
    /// The queue that serves this file.
    queue: Weak<dyn Closable>,
    open: Option<Open>,
}

impl File {
    /// Creates the handle of the file at `location`. The first request opens the file.
    pub(super) fn new(location: Location, queue: Weak<dyn Closable>) -> Self {
        Self { location, queue, open: None }
    }

    /// Runs `work` on the connection. Opens the file if necessary.
    pub(super) fn with<T>(
        &mut self,
        writes: bool,
        work: impl FnOnce(&mut Connection) -> Result<T, SqliteError>,
    ) -> Result<T, SqliteError> {
        let mut open = match self.open.take() {
            Some(open) if open.is_current(&self.location) => open,
            Some(stale) => {
                tracing::warn!(
                    path = %self.location.path.display(),
                    "the file, or its -wal or -shm file, was moved, deleted or replaced: opening it again"
                );
                drop(stale);
                self.open()?
            }
            None => self.open()?,
        };
        if open.requests < YOUTH {
            open.requests += 1;
            if open.requests == YOUTH {
                open.connection.pragma_update(None, "wal_autocheckpoint", LOG)?;
            }
        }
        if writes {
            // Otherwise the last process that closes the file writes the log into it. A short `leasehold run` would
            // have to wait for that write, which takes longer than the rest of the run. Processes that only read do
            // write the log, so there is no log after `init`.
            open.leave_log()?;
        }
        let result = work(&mut open.connection);
        // After an error of the file, the next request opens the file again, because it may have been repaired by then.
        if !matches!(&result, Err(error @ (SqliteError::Sqlite(_) | SqliteError::Commit(_))) if !error.is_busy())
        {
            self.open = Some(open);
        }
        result
    }

    /// Returns a number that changes when another connection changes the file. Returns `None` if it cannot be read.
    pub(super) fn version(&self) -> Option<i64> {
        let open = self.open.as_ref()?;
        open.connection.pragma_query_value(None, "data_version", |row| row.get(0)).ok()
    }

    /// Takes the open connection. The caller closes it.
    pub(super) fn take_open(&mut self) -> Option<Open> {
        self.open.take()
    }

    fn open(&self) -> Result<Open, SqliteError> {
        for _ in 0..ATTEMPTS {
            let path = self.location.prepare()?;
            if let Some(open) = self.try_open(path)? {
                return Ok(open);
            }
        }
        // Other processes open and close the file at the same time.
        Err(SqliteError::busy("its -wal and -shm files keep changing"))
    }

    /// Opens the file. Returns `None` if the files changed in the meantime, because it is then unknown which files were
    /// opened.
    fn try_open(&self, path: PathBuf) -> Result<Option<Open>, SqliteError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            // The connection serves one request at a time.
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // Opens the database file. The first read opens its -wal and -shm files.
        let connection = {
            let _alone = CREATING.lock().unwrap_or_else(PoisonError::into_inner);
            create_for_owner(&path);
            Connection::open_with_flags(&path, flags)?
        };
        let Some(id) = FileId::of(&path) else { return Ok(None) };
        let sharing = Sharing::of(id);
        let mut sharing = sharing.lock();
        let before = Companions::of(&path);
        // SQLite uses the companions that other connections of this process have open, even if their names lead to
        // other files now.
        if sharing.known().is_some_and(|known| before != Some(*known)) {
            sharing.close_idle();
            // A connection that another thread is closing stays known until it is closed. The file of that connection
            // may already be deleted, and this file may have the same inode number.
            let mut rounds = 0;
            while sharing.known().is_some() {
                if rounds == CLOSING_ROUNDS {
                    return Err(self.deleted().into());
                }
                rounds += 1;
                std::thread::park_timeout(CLOSING_PAUSE);
            }
        }
        let mut open = Open { connection, path, id, requests: 0, companions: None };
        open.leave_log()?;
        open.connection.busy_timeout(TURN)?;
        schema::ensure(&mut open.connection).map_err(|error| self.named(error))?;
        let now = Companions::of(&open.path);
        if now.is_none() {
            schema::use_log(&open.connection)?;
        }
        let sure = before.is_some() && now == before && FileId::of(&self.location.path) == Some(id);
        let Some(companions) = now.filter(|_| sure && !has_moved(&open.connection).unwrap_or(true)) else {
            return Ok(None);
        };
        open.companions = Some(sharing.known().unwrap_or_else(|| sharing.begin(companions)));
        sharing.add(&self.queue);
        open.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)?;
        open.connection.pragma_update(None, "synchronous", "NORMAL")?;
        open.connection.pragma_update(None, "wal_autocheckpoint", YOUNG_LOG)?;
        // On macOS, a plain fsync does not flush the cache of the drive.
        if cfg!(target_os = "macos") {
            open.connection.pragma_update(None, "fullfsync", "ON")?;
        }
        Ok(Some(open))
    }

    fn deleted(&self) -> Fault {
        let path = self.location.path.display();
        Fault::unavailable(format!(
            "the -wal or -shm file of {path} was deleted or replaced while in use, and this process still has it open"
        ))
        .with_help("restart the programs that use this file; never delete its -wal and -shm files while they are \
            running")
    }

    fn named(&self, error: SqliteError) -> SqliteError {
        match error {
            SqliteError::Fault(mut fault) => {
                fault.message = format!("{}: {}", self.location.path.display(), fault.message);
                SqliteError::Fault(fault)
            }
            other => other,
        }
    }
}

/// A connection, and the files that it has open.
#[derive(Debug)]
pub(super) struct Open {
    /// Must be closed before the fields below are dropped, because dropping them reports that it is closed.
    connection: Connection,
    /// The path without symbolic links.
    path: PathBuf,
    id: FileId,
    /// `None` while the file is being opened.
    companions: Option<Arc<Companions>>,
    /// The number of requests on the connection, as long as it is young.
    requests: u32,
}

impl Open {
    /// Returns whether `location` still leads to the open file. Two processes with different files would each grant the
    /// lock.
    fn is_current(&self, location: &Location) -> bool {
        FileId::of(&location.path) == Some(self.id) && self.has_companions()
    }

    /// Returns whether the open -wal and -shm files are those that other processes find.
    fn has_companions(&self) -> bool {
        let now = Companions::of(&self.path);
        has_moved(&self.connection).is_ok_and(|moved| !moved)
            && self.companions.as_deref().is_some_and(|ours| now == Some(*ours))
    }

    /// Prevents SQLite from writing the log into the file when it closes the connection.
    fn leave_log(&self) -> Result<(), SqliteError> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SQLite would write a deleted log into the file, and then delete the log that other processes write.
        if !self.has_companions() {
            let _ = self.leave_log();
        }
    }
}

/// Creates the file for its owner only, if it is missing: it names holders and says what they do. SQLite gives its -wal
/// and -shm files the mode of the file. If the file cannot be created, SQLite's own attempt reports why.
fn create_for_owner(path: &Path) {
    let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
}

/// Returns whether the path now leads to another file. Connections to a file that was deleted or replaced continue to
/// work, so old and new connections would each grant the lock.
fn has_moved(connection: &Connection) -> Result<bool, SqliteError> {
    let mut moved = 0;
    connection.file_control(None::<&str>, FileControl::HasMoved(&mut moved))?;
    Ok(moved != 0)
}
