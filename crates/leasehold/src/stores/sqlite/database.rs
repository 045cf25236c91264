//! The open file: one connection, used by one request at a time, off the asynchronous threads.
//!
//! SQLite blocks. Each request waits its turn at a fair lock and then runs on one of tokio's threads for blocking work,
//! so that a runtime with a paused clock knows that something is going on, and ends only after it.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, FileControl, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::{Mutex, OwnedMutexGuard};
use tokio::task::spawn_blocking;

use super::fault::Trouble;
use super::location::Location;
use super::schema;
use crate::clock::timeout;
use crate::env::Env;
use crate::error::{Fault, StoreError};

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

/// The pause before a request that found the file busy tries again.
const PAUSE: Duration = Duration::from_millis(10);

/// The database of one store.
#[derive(Debug)]
pub(super) struct Database {
    location: Location,
    file: Arc<Mutex<File>>,
    /// Held, one after the other, by what lets holders go first ([`Purpose`]).
    others: Mutex<()>,
    polls: Mutex<()>,
}

/// What a request is for. The file serves one at a time, and holders first: of those who contend, and of those who wait, no
/// more than one stands before a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A holder's: its renewal, its release.
    Hold,
    /// Another write: an acquisition, an eviction.
    Write,
    /// Somebody's question.
    Read,
    /// The question of one who waits for a lock, and asks again.
    Poll,
}

impl Purpose {
    fn writes(self) -> bool {
        matches!(self, Self::Hold | Self::Write)
    }
}

impl Database {
    /// The database at `location`, not opened before the first [`run`](Self::run).
    pub(super) fn new(location: Location) -> Self {
        let file = File { location: location.clone(), connection: None, requests: 0 };
        Self { location, file: Arc::new(Mutex::new(file)), others: Mutex::default(), polls: Mutex::default() }
    }

    /// Runs `work` on the connection, again while the file is busy, for at most `limit`.
    ///
    /// Cancel safe in so far as work that has begun is finished.
    pub(super) async fn run<T, F>(
        &self,
        env: &Env,
        limit: Duration,
        purpose: Purpose,
        work: F,
    ) -> Result<T, StoreError>
    where
        F: Fn(&mut Connection) -> Result<T, Trouble> + Clone + Send + 'static,
        T: Send + 'static,
    {
        let start = env.now();
        loop {
            let left = limit.saturating_sub(env.now().longest_since(start));
            let Some(result) = timeout(&*env.clock, left, self.once(purpose, work.clone())).await else {
                let fault = Fault::unavailable(format!(
                    "{} did not answer within {limit:?}",
                    self.location.path.display()
                ));
                return Err(if purpose.writes() { fault.maybe_applied() } else { fault.not_applied() });
            };
            match result {
                Err(trouble) if trouble.is_busy() && env.now().longest_since(start) < limit => {
                    env.sleep(env.random.jittered(PAUSE, 0.5)).await;
                }
                Err(trouble) => return Err(trouble.at(&self.location.path)),
                Ok(output) => return Ok(output),
            }
        }
    }

    /// Where it is.
    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    /// The file, to itself.
    pub(super) async fn turn(&self) -> OwnedMutexGuard<File> {
        Arc::clone(&self.file).lock_owned().await
    }

    async fn once<T, F>(&self, purpose: Purpose, work: F) -> Result<T, Trouble>
    where
        F: FnOnce(&mut Connection) -> Result<T, Trouble> + Send + 'static,
        T: Send + 'static,
    {
        let _first_poll = if purpose == Purpose::Poll { Some(self.polls.lock().await) } else { None };
        let _first_other = if purpose == Purpose::Hold { None } else { Some(self.others.lock().await) };
        let mut file = self.turn().await;
        let work = spawn_blocking(move || file.with(purpose.writes(), work));
        work.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").into()))
    }
}

/// Runs `body` in a transaction that takes the write lock at once, so that nothing changes between what it reads and
/// what it writes. The commit is the point where the transition happens. A `None` beside the output commits nothing.
pub(super) fn transact<T>(
    connection: &mut Connection,
    durability: Durability,
    body: impl FnOnce(&Transaction<'_>) -> Result<(T, Option<Changed>), Trouble>,
) -> Result<T, Trouble> {
    if durability == Durability::Disk {
        connection.pragma_update(None, "synchronous", "FULL")?;
    }
    let result = commit(connection, body);
    if durability == Durability::Disk {
        connection.pragma_update(None, "synchronous", "NORMAL")?;
    }
    result
}

/// Something was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed;

/// What a commit waits for. A crash of this process loses neither kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// For the operating system. A power failure may take the latest commits back, in order; it also ends the boot, and
    /// with it every lease, so that nothing is lost but a token (see [`next_token`](super::rules::next_token)).
    System,
    /// For the disk.
    Disk,
}

fn commit<T>(
    connection: &mut Connection,
    body: impl FnOnce(&Transaction<'_>) -> Result<(T, Option<Changed>), Trouble>,
) -> Result<T, Trouble> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (output, changed) = body(&transaction)?;
    match changed {
        Some(Changed) => transaction.commit().map_err(Trouble::Commit)?,
        None => transaction.rollback()?,
    }
    Ok(output)
}

/// The file, opened again whenever it is not the one that was opened.
#[derive(Debug)]
pub(super) struct File {
    location: Location,
    connection: Option<Connection>,
    /// Of the connection, as long as it is young.
    requests: u32,
}

impl File {
    fn with<T>(
        &mut self,
        writes: bool,
        work: impl FnOnce(&mut Connection) -> Result<T, Trouble>,
    ) -> Result<T, Trouble> {
        let mut connection = match self.connection.take() {
            Some(connection) if !has_moved(&connection)? => connection,
            Some(_) => {
                tracing::warn!(path = %self.location.path.display(), "the file was moved or replaced: opening anew");
                self.open()?
            }
            None => self.open()?,
        };
        if self.requests < YOUTH {
            self.requests += 1;
            if self.requests == YOUTH {
                connection.pragma_update(None, "wal_autocheckpoint", LOG)?;
            }
        }
        if writes {
            // Else whoever closes the file last writes the log into it, and a short `leasehold run` cannot end before: that
            // takes longer than all the rest of it. Those who only look do so, and after `init` there is no log.
            connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
        }
        let result = work(&mut connection);
        // After an error of the file, begin afresh: it may have been mended meanwhile.
        if !matches!(&result, Err(trouble @ (Trouble::Sqlite(_) | Trouble::Commit(_))) if !trouble.is_busy())
        {
            self.connection = Some(connection);
        }
        result
    }

    fn open(&mut self) -> Result<Connection, Trouble> {
        self.requests = 0;
        self.location.prepare()?;
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            // One request at a time has the connection.
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let mut connection = Connection::open_with_flags(&self.location.path, flags)?;
        connection.busy_timeout(TURN)?;
        schema::ensure(&mut connection).map_err(|trouble| self.named(trouble))?;
        connection.pragma_update(None, "synchronous", "NORMAL")?;
        connection.pragma_update(None, "wal_autocheckpoint", YOUNG_LOG)?;
        // There, a plain fsync stops at the drive's cache.
        if cfg!(target_os = "macos") {
            connection.pragma_update(None, "fullfsync", "ON")?;
        }
        Ok(connection)
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

/// Whether the path leads to another file by now: a file that was deleted or replaced keeps its connections, and old
/// and new connections would each grant the lock.
fn has_moved(connection: &Connection) -> Result<bool, Trouble> {
    let mut moved = 0;
    connection.file_control(None::<&str>, FileControl::HasMoved(&mut moved))?;
    Ok(moved != 0)
}
