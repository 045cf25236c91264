//! Requests to the file, and transactions in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::errors::SqliteError;
use super::file::File;
use super::location::Location;
use super::requests::{Caller, Purpose, Queue, Reply, Request, Work};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::worker::program_ends;

/// The pause before a request that found the file busy is tried again.
const PAUSE: Duration = Duration::from_millis(10);

/// The database of one store.
#[derive(Debug)]
pub(super) struct Database {
    location: Location,
    queue: Arc<Queue>,
    /// The process that opened the store.
    pub(super) pid: u32,
}

impl Database {
    /// Creates the handle of the database at `location`. The first [`run`](Self::run) opens the file.
    pub(super) fn new(location: Location) -> Self {
        let queue = Queue::new(|queue| File::new(location.clone(), queue));
        Self { location, queue, pid: std::process::id() }
    }

    /// Runs `work` on the connection, and repeats it while the file is busy, for at most `limit`. While other processes
    /// change the file, the file responds, and the time limit of a request other than a renewal starts again.
    ///
    /// Cancel safe: work that has begun is finished, and work that has not begun is dropped. A future that is rarely
    /// polled, or no longer polled, delays no other request.
    pub(super) async fn run<T, F>(
        &self,
        env: &Env,
        limit: Duration,
        purpose: Purpose,
        work: F,
    ) -> Result<T, StoreError>
    where
        F: FnMut(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
        T: Send + 'static,
    {
        // A grant of a forked child would name its parent, whose death would end it.
        if std::process::id() != self.pid {
            let fault =
                Fault::new(ErrorKind::Unsupported, "the store was opened before this process was forked");
            return Err(fault.with_help("open it again in the child").not_applied());
        }
        let Ok(runtime) = Handle::try_current() else {
            return Err(Fault::unavailable("SQLite stores are used within a tokio runtime").not_applied());
        };
        let (answer, answered) = oneshot::channel();
        let answer = Arc::new(Answer(Mutex::new(Some(answer))));
        let caller = Caller {
            runtime,
            env: env.clone(),
            responded: Arc::new(Mutex::new(env.now())),
            limit,
            reply: answer.clone(),
        };
        let call = Call { caller: caller.clone(), purpose, work, version: None, result: None, answer };
        self.queue.push(Request::new(purpose, caller, Box::new(call)));
        match answered.await {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(Failure::Sqlite(error))) => Err(error.at(&self.location.path)),
            Ok(Err(Failure::TooLate { begun })) if begun && purpose.writes() => {
                Err(self.silent(limit).maybe_applied())
            }
            Ok(Err(Failure::TooLate { .. })) => Err(self.silent(limit).not_applied()),
            // Its runtime shut down. It is unknown whether the work was done.
            Err(_) => {
                let fault = program_ends();
                Err(if purpose.writes() { fault.maybe_applied() } else { fault.not_applied() })
            }
        }
    }

    fn silent(&self, limit: Duration) -> Fault {
        Fault::unavailable(format!("{} did not respond within {limit:.1?}", self.location.path.display()))
    }

    #[cfg(test)]
    pub(super) fn queue(&self) -> &Arc<Queue> {
        &self.queue
    }

    /// Returns the location of the file.
    pub(super) fn location(&self) -> &Location {
        &self.location
    }
}

/// Sends the result to the caller, once.
struct Answer<T>(Mutex<Option<oneshot::Sender<Result<T, Failure>>>>);

enum Failure {
    Sqlite(SqliteError),
    TooLate { begun: bool },
}

impl<T> Answer<T> {
    fn sender(&self) -> MutexGuard<'_, Option<oneshot::Sender<Result<T, Failure>>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, result: Result<T, Failure>) {
        let sender = self.sender().take();
        // A caller that has been dropped needs no result.
        let _ = sender.map(|sender| sender.send(result));
    }
}

impl<T: Send> Reply for Answer<T> {
    fn is_awaited(&self) -> bool {
        self.sender().as_ref().is_some_and(|sender| !sender.is_closed())
    }

    fn give_up(&self, begun: bool) {
        self.send(Err(Failure::TooLate { begun }));
    }
}

/// The work of a request, and its result once it is done.
struct Call<T, F> {
    caller: Caller,
    purpose: Purpose,
    work: F,
    /// The version of the file when it was last busy.
    version: Option<i64>,
    result: Option<Result<T, Failure>>,
    answer: Arc<Answer<T>>,
}

impl<T, F> Work for Call<T, F>
where
    F: FnMut(&mut Connection) -> Result<T, SqliteError> + Send + 'static,
    T: Send + 'static,
{
    fn run(&mut self, file: &mut File) -> Option<Duration> {
        if self.caller.left().is_zero() {
            self.result = Some(Err(Failure::TooLate { begun: false }));
            return None;
        }
        let result = file.with(self.purpose.writes(), &mut self.work);
        if result.as_ref().is_err_and(SqliteError::is_busy) && self.purpose != Purpose::Renew {
            let (before, now) = (self.version, file.version());
            if before.zip(now).is_some_and(|(before, now)| before != now) {
                self.caller.start_again();
            }
            self.version = now;
        }
        if result.as_ref().is_err_and(SqliteError::is_busy) && !self.caller.left().is_zero() {
            return Some(self.caller.env.random.jittered(PAUSE, 0.5));
        }
        self.result = Some(result.map_err(Failure::Sqlite));
        None
    }

    fn answer(self: Box<Self>) {
        if let Some(result) = self.result {
            self.answer.send(result);
        }
    }
}

/// Runs `body` in a transaction that takes the write lock at once, so that nothing changes between its reads and its
/// writes. The changes take effect at the commit. If `body` returns `None` beside the output, the transaction is rolled
/// back.
pub(super) fn transact<T>(
    connection: &mut Connection,
    durability: Durability,
    body: impl FnOnce(&Transaction<'_>) -> Result<(T, Option<Changed>), SqliteError>,
) -> Result<T, SqliteError> {
    if durability == Durability::Disk {
        connection.pragma_update(None, "synchronous", "FULL")?;
    }
    let result = commit(connection, body);
    if durability == Durability::Disk {
        // An error must not hide whether the commit was applied. Without the change, later commits are only slower.
        let _ = connection.pragma_update(None, "synchronous", "NORMAL");
    }
    result
}

/// Proof that a row was written.
#[derive(Clone, Copy, Debug)]
pub(super) struct Changed;

/// The durability that a commit waits for. A crash of this process loses neither kind of commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// The commit waits for the operating system. A power failure may undo the latest commits, in order. It also ends
    /// the boot and with it the leases of this machine's processes, so only tokens are lost (see
    /// [`mint`](super::counter::Counter::mint)). What outlives the boot is not committed in this way.
    System,
    /// The commit waits for the disk.
    Disk,
}

fn commit<T>(
    connection: &mut Connection,
    body: impl FnOnce(&Transaction<'_>) -> Result<(T, Option<Changed>), SqliteError>,
) -> Result<T, SqliteError> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let (output, changed) = body(&transaction)?;
    match changed {
        Some(Changed) => transaction.commit().map_err(SqliteError::Commit)?,
        None => transaction.rollback()?,
    }
    Ok(output)
}
