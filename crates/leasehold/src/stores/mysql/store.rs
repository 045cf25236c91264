//! The requests of one table.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use mysql_async::Row;

use super::connect::{Login, connect, ssl_options};
use super::row::{Answer, cell, has, stored, text};
use super::server::{self, ServerInfo};
use super::session::Session;
use super::sql::{self, quoted};
use super::{MYSQL, errors};
use crate::clock::Moment;
use crate::diagnosis::Examined;
use crate::error::{Error, Fault, StoreError};
use crate::protocol::line::Line;
use crate::protocol::records::{Change, Claims, Found, Refusal, Written};
use crate::register::Version;
use crate::stores::database::Database;
use crate::stores::hosts::Host;
use crate::stores::pool::{Purpose, Used};
use crate::stores::table::{
    self, Connections, Effect, Kind, Servers, Stored, Table, Writing, outcome, withheld,
};
use crate::types::LockName;
use crate::url::CheckedUrl;

/// The table, as the store's thread uses it.
#[derive(Debug)]
pub(super) struct MysqlTable {
    connections: Connections<Session>,
    /// The name of the table in SQL.
    sql: String,
}

impl MysqlTable {
    pub(super) fn on(connections: Connections<Session>, _: &CheckedUrl) -> Self {
        Self { sql: quoted(&connections.database.table), connections }
    }

    /// Sends one statement that may be repeated.
    async fn send(self: &Arc<Self>, effect: Effect, sql: &str) -> Result<Vec<Answer>, StoreError> {
        self.query(&mut self.take(Purpose::Contend).await?, effect, sql).await
    }

    /// Sends a statement that changes one row. Returns whether the row was found.
    async fn change(self: &Arc<Self>, sql: &str) -> Result<bool, StoreError> {
        let answers = self.send(Effect::Writes, sql).await?;
        Ok(answers.first().is_some_and(|answer| answer.affected > 0))
    }

    /// Sends one request over `used`. The last statement may return the time and whether the server is the same, in columns
    /// `now_us` and `is_same`. Returns no answers if the row to insert is there. If the future is dropped, the connection
    /// is closed, and later calls fail.
    async fn query(
        &self,
        used: &mut Used<Session>,
        effect: Effect,
        sql: &str,
    ) -> Result<Vec<Answer>, StoreError> {
        let mut running = used.begin()?;
        let began = running.began;
        let answer = running.session()?.run(sql).await;
        running.end(!answer.as_ref().is_err_and(|(error, _)| errors::is_lost(error)));
        let answers = match answer {
            Ok(answers) => answers,
            Err((error, _)) if errors::is(&error, errors::DUPLICATE) => return Ok(Vec::new()),
            Err((error, may_be_done)) => {
                if errors::is_not_primary(&error) {
                    used.leave_server();
                }
                return Err(errors::of_statement(&error, effect, may_be_done, self.table()));
            }
        };
        let checked = self.check(used.session()?, effect, &answers, began);
        if checked.is_err() {
            used.leave_server();
        }
        checked.map(|()| answers)
    }

    /// Checks the answers to a request that was sent at `began`.
    fn check(
        &self,
        session: &Session,
        effect: Effect,
        answers: &[Answer],
        began: Moment,
    ) -> Result<(), StoreError> {
        if effect == Effect::Writes && !session.has_committed() {
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
            let fault = MYSQL.not_primary(
                "another server than the one that was checked answered, or it is read-only, or it was promoted since",
            );
            return Err(if done { fault.maybe_applied() } else { fault.not_applied() });
        }
        self.connections.note_clock(cell(row, "now_us")?, began);
        Ok(())
    }

    async fn stored(self: &Arc<Self>, name: &LockName) -> Result<Option<Stored>, StoreError> {
        let mut used = self.take(Purpose::Contend).await?;
        let read = sql::read(&self.sql, name.as_str(), &used.session()?.guard);
        stored(only(&self.query(&mut used, Effect::None, &read).await?)?)
    }
}

#[async_trait]
impl Table for MysqlTable {
    const KIND: Kind = MYSQL;
    const CLAIMS: Claims = Claims::Free;
    const QUEUES_PERMITS: bool = true;
    type Session = Session;

    fn connections(&self) -> &Connections<Session> {
        &self.connections
    }

    async fn open(&self) -> Result<Session, StoreError> {
        self.primary().await
    }

    async fn examined(self: &Arc<Self>) -> Examined {
        table::examined(self).await
    }

    async fn make(&self) -> Result<(), StoreError> {
        table::make_once(self).await
    }

    /// Each new connection does it.
    async fn note_primary(self: &Arc<Self>) -> Result<(), StoreError> {
        self.take(Purpose::Contend).await.map(drop)
    }

    async fn read(self: &Arc<Self>, name: &LockName) -> Result<Option<Found>, StoreError> {
        let stored = self.stored(name).await?;
        stored.map(|stored| stored.found(name.as_str(), self.table())).transpose()
    }

    /// Also reads the record back in the same request.
    async fn write(self: &Arc<Self>, writing: &Writing) -> Result<Written, StoreError> {
        let Writing { change, name, .. } = writing;
        let mut used = self.take((*change).into()).await?;
        let too_late_us = self.connections.too_late_us(writing, Duration::ZERO);
        let grants_from_us = used.session()?.grants_from_us;
        let refused = withheld(MYSQL.name, &self.connections, writing, (&mut used, grants_from_us));
        if let Some(refused) = refused {
            return Ok(refused);
        }
        let session = used.session()?;
        let guard = if *change == Change::Grant { &session.guard_of_grants } else { &session.guard };
        let write = sql::write(&self.sql, guard, writing, too_late_us);
        let request = format!("{write}; {}", sql::read(&self.sql, name.as_str(), guard));
        let answers = self.query(&mut used, Effect::Writes, &request).await?;
        // Returns the connection, because the rest may need one too.
        drop(used);
        if answers.is_empty() {
            return Ok(Written::Conflict(Refusal::Unexplained));
        }
        outcome(writing, answers[0].affected > 0, stored(only(&answers)?)?, self.table())
    }

    async fn discard(self: &Arc<Self>, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.change(&sql::discard(&self.sql, name.as_str(), version)).await
    }

    async fn names(
        self: &Arc<Self>,
        prefix: &str,
        from: Option<&str>,
        count: usize,
    ) -> Result<Vec<String>, StoreError> {
        let mut used = self.take(Purpose::Contend).await?;
        let names = sql::names(&self.sql, &used.session()?.guard, prefix, from, count);
        let answers = self.query(&mut used, Effect::None, &names).await?;
        let rows = answers.first().map_or(&[][..], |answer| &answer.rows);
        rows.iter().map(|row| Ok(text(row, "name")?.unwrap_or_default())).collect()
    }

    async fn is_shared(self: &Arc<Self>) -> Result<bool, StoreError> {
        cell(only(&self.send(Effect::None, &sql::is_shared(&self.sql)).await?)?, "is_shared")
    }

    async fn read_line(self: &Arc<Self>, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let line = self.stored(name).await?.and_then(|stored| stored.line);
        line.map(|(line, version)| Ok((line.to_bytes().map_err(Fault::not_applied)?, version))).transpose()
    }

    async fn write_line(
        self: &Arc<Self>,
        name: &LockName,
        expect: Option<&Version>,
        line: &[u8],
    ) -> Result<bool, StoreError> {
        let back = Line::parse(line).map_err(Fault::not_applied)?.back();
        let line = String::from_utf8_lossy(line);
        self.change(&sql::write_line(&self.sql, name.as_str(), expect, &line, back)).await
    }
}

#[async_trait]
impl Servers for MysqlTable {
    type Properties = ServerInfo;
    type Login = Login;

    fn login(database: &Database) -> Result<Login, Error> {
        database.login("MYSQL_PWD", ssl_options)
    }

    async fn connect(&self, host: &Host, login: Login) -> Result<Session, Fault> {
        let database = &self.connections.database;
        let conn = connect(host, database, login).await;
        let no_connection =
            |error| errors::of_connection(&error, host, database.tls.is_some(), &database.table);
        Ok(Session::new(conn.map_err(no_connection)?, host.to_string()))
    }

    async fn look(&self, session: &mut Session) -> Result<ServerInfo, StoreError> {
        let answers = session.run(&server::queries(self.table())).await;
        let answers =
            answers.map_err(|(error, _)| errors::of_statement(&error, Effect::None, false, self.table()))?;
        let info = ServerInfo::of(&answers)?;
        (session.guard, session.guard_of_grants) = (info.guard(), info.guard());
        session.has_table = info.table.is_some();
        Ok(info)
    }

    /// With `failover_grace`, records that the server is the primary.
    async fn begin(&self, session: &mut Session, info: &ServerInfo) -> Result<(), StoreError> {
        let grace = self.connections.database.failover_grace;
        if grace.is_zero() {
            return Ok(());
        }
        let identity = info.identity();
        let known = sql::is_known(&self.sql, &identity, grace);
        session.guard_of_grants = format!("{} AND {known}", session.guard);
        if session.has_table {
            let noted = session.run(&sql::note_epoch(&self.sql, &identity, grace)).await;
            let noted = noted.map_err(|(error, _)| {
                errors::of_statement(&error, Effect::None, false, self.table()).of_read()
            })?;
            session.grants_from_us = match noted.last().and_then(|answer| answer.rows.first()) {
                Some(row) => cell(row, "grants_from_us").map_err(StoreError::of_read)?,
                None => return Err(Fault::unavailable("the row of the primary was deleted").not_applied()),
            };
        }
        Ok(())
    }

    fn sql(&self) -> &str {
        &self.sql
    }

    async fn define(&self, session: &mut Session, sql: &str) -> Result<(), StoreError> {
        match session.run(sql).await {
            // Another process has just added the same columns.
            Err((error, _)) if !errors::is(&error, errors::SAME_COLUMN) => {
                Err(errors::of_statement(&error, Effect::Writes, false, self.table()))
            }
            _ => Ok(()),
        }
    }
}

/// Returns the row of the last statement, which always returns one.
fn only(answers: &[Answer]) -> Result<&Row, StoreError> {
    answers.last().and_then(|answer| answer.rows.first()).ok_or_else(|| MYSQL.unreadable(&"it has no row"))
}
