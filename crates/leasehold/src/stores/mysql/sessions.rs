//! Checks the connections of a store, and sends requests on them.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable;
use mysql_async::{Conn, Error, Row};

use super::connect::Connector;
use super::errors;
use super::row::{Answer, cell};
use super::server::{self, ServerInfo};
use super::sql::{is_known, note_epoch, quoted};
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::stores::hosts::{Host, first_of, primary_of};
use crate::stores::pool::{self, Pool, Purpose};
use crate::stores::rows::time;
use crate::stores::table::Effect;

/// The time limit of the queries that check a server.
const CHECK_LIMIT: Duration = Duration::from_secs(5);

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
    has_table: bool,
}

impl pool::Session for Session {
    fn host(&self) -> &str {
        &self.host
    }

    fn has_table(&self) -> bool {
        self.has_table
    }

    /// A lost connection shows itself only when it is used.
    fn is_open(&self) -> bool {
        true
    }
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
    pub(super) pool: Arc<Pool<Session>>,
}

/// A connection in use by one request.
#[derive(Debug)]
pub(super) struct Used {
    sessions: Arc<Sessions>,
    used: pool::Used<Session>,
}

impl Sessions {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        Self { connector, clock: StoreClock::default(), pool: Pool::new(env.clone()), env }
    }

    /// Returns the name of the table as in the URL.
    pub(super) fn table(&self) -> &str {
        &self.connector.location.table
    }

    fn hosts(&self) -> &[Host] {
        &self.connector.location.database.hosts
    }

    /// Waits for an unused connection, or opens one to the first server that is the primary.
    pub(super) async fn take(self: &Arc<Self>, purpose: Purpose) -> Result<Used, StoreError> {
        let (sessions, opens) = (self.clone(), self.clone());
        let open = async move { first_of(opens.hosts(), |host| opens.open_at(host)).await };
        Ok(Used { used: self.pool.take(purpose, open).await?, sessions })
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
            has_table: false,
        };
        let info = timeout(&*self.env.clock, CHECK_LIMIT, session.info(self.table())).await;
        let info = info.ok_or_else(|| silent(host))?.map_err(StoreError::of_read)?;
        // The clock of another server does not count.
        if server::check(&info, &session.host, self.table()).is_ok() {
            self.note_clock(info.clock_us, sent);
        }
        (session.guard, session.guard_of_grants) = (info.guard(), info.guard());
        session.has_table = info.table.is_some();
        Ok((session, info))
    }

    /// Connects to the primary, or else to another server, and returns its properties. The connection is not part of the
    /// pool.
    pub(super) async fn any(&self) -> Result<(Session, ServerInfo), StoreError> {
        let is_primary =
            |(session, info): &(Session, ServerInfo)| server::check_server(info, &session.host).is_ok();
        primary_of(self.hosts(), ("MySQL", &self.env), |host| self.checked(host), is_primary).await
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    fn note_clock(&self, clock_us: i64, sent: Moment) {
        self.clock.observe_us(time(clock_us), sent, self.env.now());
    }
}

impl Used {
    /// Returns the connection, unless a request has failed on it.
    pub(super) fn session(&self) -> Result<&Session, StoreError> {
        self.used.session()
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.used.close();
    }

    /// Sends one request. The last statement may return the time and whether the server is the same, in columns `now_us`
    /// and `is_same`. Returns no answers if the row to insert is there. If the future is dropped, the connection is closed,
    /// and later calls fail.
    pub(super) async fn query(&mut self, effect: Effect, sql: &str) -> Result<Vec<Answer>, StoreError> {
        let mut running = self.used.begin()?;
        let began = running.began;
        let answer = running.session()?.run(sql).await;
        running.end(!answer.as_ref().is_err_and(|(error, _)| errors::is_lost(error)));
        let answers = match answer {
            Ok(answers) => answers,
            Err((error, _)) if errors::is(&error, errors::DUPLICATE) => return Ok(Vec::new()),
            Err((error, may_be_done)) => {
                if errors::is_not_primary(&error) {
                    self.used.leave_server();
                }
                return Err(errors::of_statement(&error, effect, may_be_done, self.sessions.table()));
            }
        };
        let checked = self.check(effect, &answers, began);
        if checked.is_err() {
            self.used.leave_server();
        }
        checked.map(|()| answers)
    }

    /// Checks the answers to a request that was sent at `began`.
    fn check(&self, effect: Effect, answers: &[Answer], began: Moment) -> Result<(), StoreError> {
        if effect == Effect::Writes && !self.session()?.has_committed() {
            return Err(Fault::unavailable(
                "MySQL did not commit the statement, although autocommit was set",
            )
            .with_help("if a proxy is between, let it keep the settings of a session")
            .maybe_applied());
        }
        let row = answers.last().and_then(|answer| answer.rows.first());
        let Some(row) = row.filter(|row| has(row, "is_same")) else { return Ok(()) };
        if !cell::<bool>(row, "is_same")? {
            let done = effect == Effect::Writes && answers[0].affected > 0;
            let fault = errors::not_primary(
                "another server than the one that was checked answered, or it is read-only, or it was promoted since",
            );
            return Err(if done { fault.maybe_applied() } else { fault.not_applied() });
        }
        self.sessions.note_clock(cell(row, "now_us")?, began);
        Ok(())
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
