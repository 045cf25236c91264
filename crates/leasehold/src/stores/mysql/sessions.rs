//! The connections of a store. They are opened on demand, and each runs one request at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use super::connect::Connector;
use super::errors::{self, Effect};
use super::row::{Answer, cell};
use super::server::{self, ServerInfo};
use super::sql::{is_known, note_epoch, quoted};
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::stores::hosts::{Host, none_of};
use crate::stores::rows::number;

/// The most connections of a store, separately for acquisitions, reads and polls, for renewals, and for releases. So
/// holders do not wait for contenders, and releases do not wait for renewals whose rows are locked.
const MOST: [usize; 3] = [3, 4, 2];

/// A connection that was unused for this long is closed.
const IDLE: Duration = Duration::from_secs(60);

/// The resolution of the server's clock.
const RESOLUTION: Duration = Duration::from_micros(1);

/// The time limit of the queries that check a server.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Everything else.
    Contend,
    Renew,
    Release,
}

/// A connection. It is closed when this is dropped.
pub(super) struct Session {
    conn: Conn,
    pub(super) host: String,
    /// See [`ServerInfo::guard`].
    pub(super) guard: String,
    /// The guard of a grant. With `failover_grace`, see [`is_known`].
    pub(super) guard_of_grants: String,
    /// From when on the server grants locks, on its clock: see `failover_grace`.
    pub(super) grants_from_us: i64,
    /// When the server last responded.
    answered: Moment,
    /// Whether the table existed. If not, the connection is not kept, so that the next one checks the table again.
    has_table: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.host).finish_non_exhaustive()
    }
}

impl Session {
    /// Sends a request of one or more statements. With an error, returns whether the first statement had succeeded.
    pub(super) async fn run(&mut self, sql: &str) -> Result<Vec<Answer>, (Error, bool)> {
        let mut answers = Vec::new();
        let mut result = self.conn.query_iter(sql).await.map_err(|error| (error, false))?;
        loop {
            let (affected, mut rows) = (result.affected_rows(), Vec::new());
            while let Some(row) = result.next().await.map_err(|error| (error, true))? {
                rows.push(row);
            }
            answers.push(Answer { affected, rows });
            if result.is_empty() {
                return Ok(answers);
            }
        }
    }

    /// Returns the properties of the server and its table.
    pub(super) async fn info(&mut self, table: &str) -> Result<ServerInfo, StoreError> {
        let answers = self.run(&server::queries(table)).await;
        ServerInfo::of(
            &answers.map_err(|(error, _)| errors::of_statement(&error, Effect::None, false, table))?,
        )
    }

    /// Returns whether the server has committed what the latest request wrote.
    fn has_committed(&self) -> bool {
        self.conn.last_ok_packet().is_some_and(|answer| is_committed(answer.status_flags()))
    }
}

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Sessions {
    pub(super) connector: Connector,
    env: Env,
    /// The clock of the server.
    pub(super) clock: StoreClock,
    /// The unused connections. The last one is used first.
    idle: Mutex<Vec<Session>>,
    permits: [Arc<Semaphore>; 3],
}

/// A connection in use by one request. If it is dropped while a statement runs, the connection is closed.
#[derive(Debug)]
pub(super) struct Used {
    sessions: Arc<Sessions>,
    session: Option<Session>,
    _permit: OwnedSemaphorePermit,
}

impl Sessions {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        let permits = MOST.map(|most| Arc::new(Semaphore::new(most)));
        Self { connector, env, clock: StoreClock::default(), idle: Mutex::default(), permits }
    }

    /// Returns the name of the table as in the URL.
    pub(super) fn table(&self) -> &str {
        &self.connector.location.table
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an unused connection. Opens one in a separate task. If the request is abandoned before the connection is
    /// open, the next request gets it. The task holds the permit, so that abandoned requests do not open more connections
    /// than there are permits.
    pub(super) async fn take(self: &Arc<Self>, purpose: Purpose) -> Result<Used, StoreError> {
        let closed = |_| Fault::unavailable("the store is closed").not_applied();
        let permit = self.permits[purpose as usize].clone().acquire_owned().await.map_err(closed)?;
        let now = self.env.now();
        self.idle().retain(|session| now.longest_since(session.answered) < IDLE);
        let idle = self.idle().pop();
        let (sessions, pool) = (self.clone(), self.clone());
        let used = move |session| Used { sessions, session: Some(session), _permit: permit };
        if let Some(session) = idle {
            return Ok(used(session));
        }
        let (give, given) = oneshot::channel();
        tokio::spawn(async move {
            let _ = give.send(pool.open().await.map(used));
        });
        given.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    /// Connects to the first server that is the primary.
    async fn open(&self) -> Result<Session, StoreError> {
        let mut failed = Vec::new();
        for host in &self.connector.location.database.hosts {
            match self.open_at(host).await {
                Ok(session) => return Ok(session),
                Err(error) => failed.push(error),
            }
        }
        Err(none_of(failed))
    }

    async fn open_at(&self, host: &Host) -> Result<Session, StoreError> {
        let (mut session, info) = self.checked(host).await?;
        server::check(&info, &session.host, self.table()).map_err(Fault::not_applied)?;
        let grace = self.connector.location.failover_grace;
        if grace.is_zero() {
            return Ok(session);
        }
        let (table, identity) = (quoted(self.table()), info.identity());
        let known = is_known(&table, &identity, grace);
        session.guard_of_grants = format!("{} AND {known}", session.guard);
        if session.has_table {
            let note = note_epoch(&table, &identity, grace);
            let noted = timeout(&*self.env.clock, CHECK_LIMIT, session.run(&note)).await;
            let noted = noted.ok_or_else(|| silent(host))?;
            let noted = noted.map_err(|(error, _)| {
                errors::of_statement(&error, Effect::None, false, self.table()).of_read()
            })?;
            session.grants_from_us = match noted.last().and_then(|answer| answer.rows.first()) {
                Some(row) => cell(row, "grants_from_us").map_err(StoreError::of_read)?,
                None => return Err(Fault::unavailable("the row of the primary was deleted").not_applied()),
            };
        }
        Ok(session)
    }

    /// Connects to `host`, and returns its properties.
    async fn checked(&self, host: &Host) -> Result<(Session, ServerInfo), StoreError> {
        let conn = self.connector.connect(host, &self.env).await?;
        let sent = self.env.now();
        let mut session = Session {
            conn,
            host: host.to_string(),
            guard: String::new(),
            guard_of_grants: String::new(),
            grants_from_us: 0,
            answered: sent,
            has_table: false,
        };
        let info = timeout(&*self.env.clock, CHECK_LIMIT, session.info(self.table())).await;
        let info = info.ok_or_else(|| silent(host))?.map_err(StoreError::of_read)?;
        // The clock of another server does not count.
        if server::check(&info, &session.host, self.table()).is_ok() {
            self.note_clock(info.clock_us, sent);
        }
        (session.guard, session.guard_of_grants) = (info.guard(), info.guard());
        (session.has_table, session.answered) = (info.table.is_some(), self.env.now());
        Ok((session, info))
    }

    /// Connects to the primary, or else to another server, and returns its properties.
    pub(super) async fn any(&self) -> Result<(Session, ServerInfo), StoreError> {
        let (mut other, mut failed) = (None, Vec::new());
        for host in &self.connector.location.database.hosts {
            match self.checked(host).await {
                Ok((session, info)) if server::check_server(&info, &session.host).is_ok() => {
                    return Ok((session, info));
                }
                Ok(found) => other = Some(found),
                Err(error) => failed.push(error),
            }
        }
        other.ok_or_else(|| none_of(failed))
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    fn note_clock(&self, clock_us: i64, sent: Moment) {
        self.clock.observe(u64::try_from(clock_us).unwrap_or(0), RESOLUTION, sent, self.env.now());
    }

    /// Returns a lower bound of the server's clock at `now`.
    pub(super) fn clock_us(&self, now: Moment) -> i64 {
        self.clock.bounds(now).map_or(0, |time| number(time.lo_us))
    }

    /// Closes the unused connections.
    pub(super) fn close_idle(&self) {
        self.idle().clear();
    }
}

impl Used {
    /// Returns the connection, unless a request has failed on it.
    pub(super) fn session(&self) -> Result<&Session, StoreError> {
        self.session
            .as_ref()
            .ok_or_else(|| Fault::unavailable("the connection to MySQL is closed").not_applied())
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.session = None;
    }

    /// Sends one request. The last statement may return the time and whether the server is the same, in columns `now_us`
    /// and `is_same`. After an error of the connection, and if the future is dropped, all connections are closed: the
    /// unused ones may be dead too, and each would cost an attempt. Returns no answers if the row to insert is there.
    pub(super) async fn query(&mut self, effect: Effect, sql: &str) -> Result<Vec<Answer>, StoreError> {
        self.session()?;
        let began = self.sessions.env.now();
        let mut running = Running { session: self.session.take(), sessions: &self.sessions };
        let Some(session) = &mut running.session else { return Ok(Vec::new()) };
        let table = self.sessions.table();
        let answers = match session.run(sql).await {
            Ok(answers) => answers,
            Err((error, may_be_done)) => {
                if !errors::is_fatal(&error) {
                    session.answered = self.sessions.env.now();
                    self.session = running.session.take();
                }
                if errors::is(&error, errors::DUPLICATE) {
                    return Ok(Vec::new());
                }
                return Err(errors::of_statement(&error, effect, may_be_done, table));
            }
        };
        if effect == Effect::Writes && !session.has_committed() {
            return Err(Fault::unavailable(
                "MySQL did not commit the statement, although autocommit was set",
            )
            .with_help("if a proxy is between, let it keep the settings of a session")
            .maybe_applied());
        }
        if let Some(row) =
            answers.last().and_then(|answer| answer.rows.first()).filter(|row| has(row, "is_same"))
        {
            if !cell::<bool>(row, "is_same")? {
                let done = effect == Effect::Writes && answers[0].affected > 0;
                let fault = errors::not_primary(
                    "another server than the one that was checked answered, or it is read-only, or it was promoted since",
                );
                return Err(if done { fault.maybe_applied() } else { fault.not_applied() });
            }
            self.sessions.note_clock(cell(row, "now_us")?, began);
        }
        session.answered = self.sessions.env.now();
        self.session = running.session.take();
        Ok(answers)
    }
}

impl Drop for Used {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(|session| session.has_table) {
            self.sessions.idle().push(session);
        }
    }
}

/// A connection that runs a request. If this is dropped with it, all unused connections are closed too.
struct Running<'a> {
    session: Option<Session>,
    sessions: &'a Sessions,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if self.session.is_some() {
            self.sessions.close_idle();
        }
    }
}

/// Returns whether the server commits each statement, and has no transaction open. Without `autocommit`, which a proxy may
/// have lost, a write that succeeds is not committed.
fn is_committed(flags: StatusFlags) -> bool {
    flags.contains(StatusFlags::SERVER_STATUS_AUTOCOMMIT)
        && !flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)
}

fn has(row: &Row, column: &str) -> bool {
    row.columns_ref().iter().any(|there| there.name_str() == column)
}

fn silent(host: &Host) -> StoreError {
    Fault::unavailable(format!("MySQL at {host} did not respond within {CHECK_LIMIT:.0?}")).not_applied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_counts_only_if_it_was_committed() {
        let commits = StatusFlags::SERVER_STATUS_AUTOCOMMIT;
        assert!(is_committed(commits));
        assert!(!is_committed(StatusFlags::empty()));
        assert!(!is_committed(commits | StatusFlags::SERVER_STATUS_IN_TRANS));
    }
}
