//! The open file: one connection, opened anew whenever the path no longer leads to what is open.

use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags};

use super::fault::Trouble;
use super::identity::{Closable, Companions, FileId, Sharing};
use super::location::Location;
use super::schema;
use crate::error::Fault;

/// How long SQLite itself waits for another connection before it gives the turn to the next request of this store, so
/// that a patient acquisition does not keep a renewal waiting.
const TURN: Duration = Duration::from_millis(100);

/// How many pages the log may have before a commit writes it into the file, which waits for the disk three times. As long
/// as a connection is young, few: whoever opens the file next reads the log, and most live for one lock.
pub(super) const YOUNG_LOG: u32 = 64;
/// Later, SQLite's own default.
const LOG: u32 = 1_000;
/// A connection is young for so many requests.
const YOUTH: u32 = 64;

/// How often the file is opened before giving up, when its files change meanwhile. The first process makes them.
const ATTEMPTS: u32 = 4;
/// How often a connection that is being closed is looked for, and the pause between.
const CLOSING_ROUNDS: u32 = 50;
const CLOSING_PAUSE: Duration = Duration::from_millis(1);

/// The file of one store.
#[derive(Debug)]
pub(super) struct File {
    location: Location,
    /// That serves this file.
    queue: Weak<dyn Closable>,
    open: Option<Open>,
}

impl File {
    /// The file at `location`, which is opened by the first request.
    pub(super) fn new(location: Location, queue: Weak<dyn Closable>) -> Self {
        Self { location, queue, open: None }
    }

    /// Runs `work` on the connection.
    pub(super) fn with<T>(
        &mut self,
        writes: bool,
        work: impl FnOnce(&mut Connection) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut open = match self.open.take() {
            Some(open) if open.is_current(&self.location) => open,
            Some(stale) => {
                tracing::warn!(
                    path = %self.location.path.display(),
                    "the file, or its -wal or -shm file, was moved, deleted or replaced: opening anew"
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
            // Else whoever closes the file last writes the log into it, and a short `leasehold run` cannot end before: that
            // takes longer than all the rest of it. Those who only look do so, and after `init` there is no log.
            open.leave_log()?;
        }
        let result = work(&mut open.connection);
        // After an error of the file, begin afresh: it may have been mended meanwhile.
        if !matches!(&result, Err(trouble @ (Trouble::Sqlite(_) | Trouble::Commit(_))) if !trouble.is_busy())
        {
            self.open = Some(open);
        }
        result
    }

    /// What is open, to be closed by the caller.
    pub(super) fn take_open(&mut self) -> Option<Open> {
        self.open.take()
    }

    fn open(&self) -> Result<Open, Trouble> {
        for _ in 0..ATTEMPTS {
            let path = self.location.prepare()?;
            if let Some(open) = self.try_open(path)? {
                return Ok(open);
            }
        }
        // Others open and close the file at the same time.
        Err(Trouble::busy("its -wal and -shm files keep changing"))
    }

    /// `None` when it cannot be told which files were opened, because they changed meanwhile.
    fn try_open(&self, path: PathBuf) -> Result<Option<Open>, Trouble> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            // One request at a time has the connection.
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        // Opens the file, and its -wal and -shm files with the first read.
        let connection = Connection::open_with_flags(&path, flags)?;
        let Some(id) = FileId::of(&path) else { return Ok(None) };
        let sharing = Sharing::of(id);
        let mut sharing = sharing.lock();
        let before = Companions::of(&path);
        // SQLite opens those that other connections of this process have open, wherever their names lead by now.
        if sharing.known().is_some_and(|known| before != Some(*known)) {
            sharing.close_idle();
            // A connection that another thread closes now is known until it is closed. Its file may be deleted already,
            // and this one have its number.
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
        schema::ensure(&mut open.connection).map_err(|trouble| self.named(trouble))?;
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
        // There, a plain fsync stops at the drive's cache.
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
        .with_help("restart the programs that use this file; never delete its -wal and -shm files before they ended")
    }

    fn named(&self, trouble: Trouble) -> Trouble {
        match trouble {
            Trouble::Fault(mut fault) => {
                fault.message = format!("{}: {}", self.location.path.display(), fault.message);
                Trouble::Fault(fault)
            }
            other => other,
        }
    }
}

/// A connection, and which files it has open.
#[derive(Debug)]
pub(super) struct Open {
    /// Closed before the others are told so, by the fields below.
    connection: Connection,
    /// Without symbolic links.
    path: PathBuf,
    id: FileId,
    /// `None` while it is being opened.
    companions: Option<Arc<Companions>>,
    /// Of the connection, as long as it is young.
    requests: u32,
}

impl Open {
    /// Whether `location` still leads to what is open. Two processes with different files would each grant the lock.
    fn is_current(&self, location: &Location) -> bool {
        FileId::of(&location.path) == Some(self.id) && self.has_companions()
    }

    /// Whether the -wal and -shm files that are open are those that others find.
    fn has_companions(&self) -> bool {
        let now = Companions::of(&self.path);
        has_moved(&self.connection).is_ok_and(|moved| !moved)
            && self.companions.as_deref().is_some_and(|ours| now == Some(*ours))
    }

    /// Closing it will leave the log as it is.
    fn leave_log(&self) -> Result<(), Trouble> {
        self.connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        Ok(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // SQLite would write a log that was deleted into the file, and then delete the log that others write.
        if !self.has_companions() {
            let _ = self.leave_log();
        }
    }
}

/// Whether the path leads to another file by now: a file that was deleted or replaced keeps its connections, and old
/// and new connections would each grant the lock.
fn has_moved(connection: &Connection) -> Result<bool, Trouble> {
    let mut moved = 0;
    connection.file_control(None::<&str>, FileControl::HasMoved(&mut moved))?;
    Ok(moved != 0)
}
