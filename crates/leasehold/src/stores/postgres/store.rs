//! The requests of one table.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::task::AbortHandle;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use super::connect::{Login, connect};
use super::row::{cell, cells, only};
use super::server::{self, ServerInfo};
use super::session::Session;
use super::sql::quoted;
use super::statements::{Parameter, Sql, Statements, boolean, channel, int8, text};
use super::{POSTGRES, errors};
use crate::clock::micros;
use crate::diagnosis::Examined;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{Id, Ttl, attempt_limit};
use crate::protocol::line::Waiter;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Change, Claims, Found, Refusal, Written};
use crate::protocol::rules::recorded;
use crate::register::Version;
use crate::stores::database::Database;
use crate::stores::grace;
use crate::stores::hosts::Host;
use crate::stores::notifications::Calls;
use crate::stores::pool::{Purpose, Used};
use crate::stores::rows::{EPOCH, locked_by, number, version_of};
use crate::stores::table::{self, AnyFree, Connections, Effect, Kind, Servers, Table, Writing};
use crate::stores::tls::client_config;
use crate::types::LockName;
use crate::url::CheckedUrl;

/// The longest time for which one attempt of a renewal or a release waits for a row. The wait is short and repeated,
/// because it occupies a connection.
const LONGEST_ROW_WAIT: Duration = Duration::from_secs(1);

/// The table, as the store's thread uses it.
#[derive(Debug)]
pub(super) struct PostgresTable {
    connections: Connections<Session>,
    pub(super) listener: Listener,
    statements: Statements,
    /// The name of the table in SQL.
    sql: String,
    /// Set if a pooler in front of the server has refused [`MARK`](super::connect::MARK).
    is_pooled: AtomicBool,
}

/// The notifications of a table.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) calls: Arc<Calls>,
    /// The channel, unless the store URL turns notifications off.
    pub(super) channel: Option<String>,
    /// Set if a pooler is in front of the server, or if notifications are turned off.
    pub(super) is_off: AtomicBool,
    pub(super) task: Mutex<Option<AbortHandle>>,
}

impl PostgresTable {
    pub(super) fn on(connections: Connections<Session>, url: &CheckedUrl) -> Self {
        let Database { table, failover_grace, .. } = &connections.database;
        let (sql, notifies) = (quoted(table), url.switch("notify"));
        Self {
            listener: Listener::new(connections.env.clone(), notifies.then(|| channel(&sql))),
            statements: Statements::on(&sql, *failover_grace, notifies),
            sql,
            is_pooled: AtomicBool::new(false),
            connections,
        }
    }

    /// Sends one statement that may be repeated.
    pub(super) async fn rows(
        self: &Arc<Self>,
        effect: Effect,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.query(&mut self.take(Purpose::Contend).await?, effect, sql, parameters).await
    }

    /// Sends a statement that changes the row of `name`. Its parameters are the name, `which`, and the limit of a wait for
    /// the row. Returns whether it returns a row.
    async fn change(
        self: &Arc<Self>,
        sql: &Sql,
        name: &LockName,
        which: Option<&str>,
    ) -> Result<bool, StoreError> {
        let (name, limit) = (name.as_str(), usual_limit());
        let parameters = [text(&name), text(&which), text(&limit)];
        Ok(!self.rows(Effect::Writes, sql, &parameters).await?.is_empty())
    }

    /// Sends one statement over `used`. When it returns rows, the response is complete and the transaction is committed. If
    /// the future is dropped, the connection is closed, and later calls fail.
    async fn query(
        &self,
        used: &mut Used<Session>,
        effect: Effect,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut running = used.begin()?;
        let began = running.began;
        let session = running.session()?;
        session.take_doubt();
        let answer = session.run(sql, parameters).await;
        let doubt = session.take_doubt();
        running.end(!answer.as_ref().is_err_and(|error| error.as_db_error().is_none()));
        match answer {
            Ok(_) if doubt && effect == Effect::Writes => Err(errors::commit_in_doubt()),
            Ok(rows) => {
                if let Some(clock_us) = rows.first().and_then(|row| row.try_get("now_us").ok()) {
                    self.connections.note_clock(clock_us, began);
                }
                Ok(rows)
            }
            Err(error) => {
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    used.leave_server();
                }
                Err(errors::of_statement(&error, effect, self.table()))
            }
        }
    }

    /// Writes a record if the primary is recorded.
    async fn attempt(self: &Arc<Self>, writing: &Writing) -> Result<Option<Written>, StoreError> {
        let Writing { change, over, name, expect, record, columns, kept, prolongs, .. } = writing;
        let limit = attempt_limit(record.ttl());
        // A grant over a row that was read waits for other grants first, and reads the clock before it waits for the row.
        let waits_twice = *change == Change::Grant && over.is_none();
        let row_limit = match change {
            Change::Grant if waits_twice => limit / 2,
            Change::Grant => limit,
            Change::Renew | Change::Free => limit.min(LONGEST_ROW_WAIT),
        };
        let mut used = self.take((*change).into()).await?;
        let reserve = if waits_twice { row_limit } else { Duration::ZERO };
        let too_late = self.connections.too_late_us(writing, reserve);
        let (kept_us, prolonged_us) = (number(micros(*kept)), number(micros(*prolongs)));
        let (by, row_limit) = (locked_by(record.grant), milliseconds(row_limit));
        let (name, version, json) = (name.as_str(), columns.version.as_str(), &columns.record);
        let size = recorded(record.size).map(number);
        let rows = match over {
            Some(AnyFree { tokens, barges }) => {
                let tokens = number(*tokens);
                let parameters = [
                    text(&name),
                    text(&by),
                    text(&version),
                    int8(&tokens),
                    int8(&kept_us),
                    text(json),
                    int8(&too_late),
                    text(&row_limit),
                    boolean(barges),
                    int8(&size),
                ];
                self.query(&mut used, Effect::Writes, &self.statements.claim, &parameters).await?
            }
            None => {
                let expect = expect.as_ref().map_or("", Version::as_str);
                let change = change.as_str();
                let (token, served) = (number(record.token.get()), number(record.served));
                let parameters = [
                    text(&name),
                    text(&expect),
                    text(&change),
                    text(&by),
                    text(&version),
                    int8(&token),
                    int8(&served),
                    text(json),
                    text(&columns.history),
                    boolean(&columns.is_open),
                    int8(&kept_us),
                    int8(&too_late),
                    text(&row_limit),
                    int8(&prolonged_us),
                    int8(&size),
                ];
                self.query(&mut used, Effect::Writes, &self.statements.write, &parameters).await?
            }
        };
        // Returns the connection, because the rest may need one too.
        drop(used);
        let row = only(&rows)?;
        if cell::<Option<bool>>(row, "is_written")? == Some(true) {
            return self.committed(writing, row, &by).map(Some);
        }
        self.refused(writing, row, too_late)
    }

    /// Returns the result of a write that was applied, of which `row` is the response.
    fn committed(&self, writing: &Writing, row: &Row, by: &str) -> Result<Written, StoreError> {
        let Writing { over, name, record, columns, .. } = writing;
        let version = version_of(&columns.version, by);
        if over.is_some() {
            // If the row cannot be read, the lock is granted nevertheless.
            let cells = cells(row)?;
            let found = cells.found(name.as_str(), self.table());
            return match found.map_err(|error| error.if_maybe(true))? {
                Some(Found { content: Content::Record(record), .. }) => {
                    Ok(Written::Granted { record, version, after: cells.previous() })
                }
                _ => Err(POSTGRES.unreadable(&"the row is not the one that was written")),
            };
        }
        let written_us: i64 = cell(row, "written_us")?;
        let renewed_at_us = u64::try_from(written_us).ok();
        Ok(Written::Committed { record: Box::new(Record { renewed_at_us, ..record.clone() }), version })
    }

    /// Returns the result of a write that was not applied, of which `row` is the response. `None` if the primary is not
    /// recorded.
    fn refused(&self, writing: &Writing, row: &Row, too_late: i64) -> Result<Option<Written>, StoreError> {
        let Writing { change, over, name, .. } = writing;
        let table = self.table();
        let is_right: Option<bool> = cell(row, "is_right").map_err(StoreError::of_read)?;
        let found = match is_right {
            Some(_) => cells(row).map_err(StoreError::of_read)?.found(name.as_str(), table)?,
            None => None,
        };
        let now_us: i64 = cell(row, "now_us").map_err(StoreError::of_read)?;
        let may_grant = is_right == Some(true) || is_right.is_none() && over.is_some();
        if may_grant && *change == Change::Grant {
            match cell::<Option<i64>>(row, "left_us").map_err(StoreError::of_read)? {
                None => return Ok(None),
                Some(0) if is_right.is_none() && now_us < too_late => return Err(hidden()),
                Some(0) => {}
                Some(left_us) => {
                    let left = Duration::from_micros(u64::try_from(left_us).unwrap_or(0));
                    return Ok(Some(Written::Withheld(Box::new(grace::withheld(POSTGRES.name, left)))));
                }
            }
        }
        Ok(Some(Written::Conflict(found.map_or(Refusal::Absent, Refusal::Found))))
    }

    /// Records which server is the primary, so that the grace begins if it has changed.
    async fn note_epoch(self: &Arc<Self>) -> Result<(), StoreError> {
        self.rows(Effect::Writes, &self.statements.note_epoch, &[text(&usual_limit())]).await.map(drop)
    }
}

#[async_trait]
impl Table for PostgresTable {
    const KIND: Kind = POSTGRES;
    const CLAIMS: Claims = Claims::InTurn;
    const QUEUES_PERMITS: bool = false;
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

    async fn note_primary(self: &Arc<Self>) -> Result<(), StoreError> {
        if self.connections.database.failover_grace.is_zero() {
            return Ok(());
        }
        self.note_epoch().await
    }

    async fn read(self: &Arc<Self>, name: &LockName) -> Result<Option<Found>, StoreError> {
        let rows = self.rows(Effect::None, &self.statements.read, &[text(&name.as_str())]).await?;
        match rows.first() {
            Some(row) => cells(row)?.found(name.as_str(), self.table()),
            None => Ok(None),
        }
    }

    /// Before the first grant on a primary, records that it is the primary.
    async fn write(self: &Arc<Self>, writing: &Writing) -> Result<Written, StoreError> {
        if let Some(written) = self.attempt(writing).await? {
            return Ok(written);
        }
        self.note_epoch().await.map_err(StoreError::of_read)?;
        self.attempt(writing).await?.ok_or_else(unrecorded)
    }

    async fn discard(self: &Arc<Self>, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.change(&self.statements.discard, name, Some(version.as_str())).await
    }

    async fn names(
        self: &Arc<Self>,
        prefix: &str,
        from: Option<&str>,
        count: usize,
    ) -> Result<Vec<String>, StoreError> {
        let count = number(count as u64);
        let parameters = [text(&prefix), text(&from), int8(&count)];
        let rows = self.rows(Effect::None, &self.statements.names, &parameters).await?;
        rows.iter().map(|row| cell(row, "name")).collect()
    }

    async fn is_shared(self: &Arc<Self>) -> Result<bool, StoreError> {
        let rows = self.rows(Effect::None, &self.statements.is_shared, &[text(&self.sql)]).await?;
        cell(only(&rows)?, "is_shared")
    }

    async fn join(
        self: &Arc<Self>,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        // PostgreSQL stores no NUL characters in such JSON.
        let entry = waiter.to_json().map_err(Fault::not_applied)?.replace("\\u0000", "\\ufffd");
        let (name, claim, limit) = (name.as_str(), waiter.claim.to_string(), usual_limit());
        let (single, most) = (number(waiter.polls_ms), number(most_ms));
        let parameters = [text(&name), text(&claim), text(&entry), int8(&single), int8(&most), text(&limit)];
        let rows = self.rows(Effect::Writes, &self.statements.join, &parameters).await?;
        let row = only(&rows)?;
        match cell::<Option<bool>>(row, "is_written")? {
            Some(_) => cells(row)?.found(name, self.table()),
            None => Ok(None),
        }
    }

    async fn leave(self: &Arc<Self>, name: &LockName, claim: Id) -> Result<(), StoreError> {
        self.change(&self.statements.leave, name, Some(&claim.to_string())).await.map(drop)
    }

    /// Waits until the standbys have all commits to the row of `name`, because an earlier commit may have stopped
    /// waiting for them. Writes the row again, because that commit also waits for the earlier one. The version shows that
    /// this server has the earlier commit: a standby that lacks it may have been promoted since the read.
    async fn settle(
        self: &Arc<Self>,
        name: &LockName,
        version: Option<&Version>,
    ) -> Result<bool, StoreError> {
        self.change(&self.statements.touch, name, version.map(Version::as_str)).await
    }

    fn calls(&self) -> Option<&Arc<Calls>> {
        Some(&self.listener.calls).filter(|_| self.listener.is_on())
    }

    fn listen(self: &Arc<Self>) -> bool {
        self.begin_to_listen()
    }

    fn close(&self) {
        self.listener.end();
        self.connections.pool.close_idle();
    }
}

#[async_trait]
impl Servers for PostgresTable {
    type Properties = ServerInfo;
    type Login = Login;

    fn login(database: &Database) -> Result<Login, Error> {
        database.login("PGPASSWORD", |tls| client_config(tls, POSTGRES.name))
    }

    async fn connect(&self, host: &Host, login: Login) -> Result<Session, Fault> {
        let database = &self.connections.database;
        let no_connection =
            |error| errors::of_connection(&error, host, database.tls.is_some(), &database.table);
        if !self.is_pooled.load(Ordering::SeqCst) {
            match connect(host, database, login.clone(), true).await.map_err(no_connection) {
                Err(fault) if fault.kind == ErrorKind::Unsupported => {
                    self.is_pooled.store(true, Ordering::SeqCst);
                }
                connected => return connected,
            }
        }
        connect(host, database, login, false).await.map_err(no_connection)
    }

    async fn look(&self, session: &mut Session) -> Result<ServerInfo, StoreError> {
        let rows = session.ask(&server::query(), &[text(&self.sql)]).await;
        let rows = rows.map_err(|error| errors::of_statement(&error, Effect::None, self.table()))?;
        let info = ServerInfo::of(only(&rows)?).map_err(|error| POSTGRES.unreadable(&error))?;
        (session.is_direct, session.has_table) = (info.is_direct, info.kind.is_some());
        Ok(info)
    }

    fn sql(&self) -> &str {
        &self.sql
    }

    async fn define(&self, session: &mut Session, sql: &str) -> Result<(), StoreError> {
        // The wait is short, because statements of other clients queue behind one that waits for a lock on the whole
        // table.
        let made = session.client.batch_execute(&format!("SET LOCAL lock_timeout = '1s'; {sql}")).await;
        made.map_err(|error| match error.code() {
            // Another process has just created the table, perhaps with other columns. PostgreSQL reports the collision
            // despite IF NOT EXISTS.
            Some(&SqlState::UNIQUE_VIOLATION | &SqlState::DUPLICATE_TABLE | &SqlState::DUPLICATE_OBJECT) => {
                Fault::unavailable("another process created the table at the same time").not_applied()
            }
            _ => errors::of_statement(&error, Effect::Writes, self.table()),
        })
    }
}

/// Returns the error for a row that is not visible. Usually another client has just created it. Row security may hide
/// it.
fn hidden() -> StoreError {
    Fault::contended("PostgreSQL neither granted the lock nor returned its row")
        .with_help(
            "row security may hide the rows of other users from this one: `leasehold doctor` checks for it",
        )
        .not_applied()
}

/// Returns the error for a row about the primary that is not there after it was written. The primary may just have changed.
fn unrecorded() -> StoreError {
    Fault::contended(format!(
        "PostgreSQL did not keep the row `{EPOCH}`, which says which server is the primary"
    ))
    .with_help("a trigger or a policy of the table may change or hide it: `leasehold doctor` checks for them")
    .not_applied()
}

/// Returns for how long a request without a ttl waits for a row.
pub(super) fn usual_limit() -> String {
    milliseconds(attempt_limit(Ttl::DEFAULT))
}

/// Formats a duration for a setting of PostgreSQL.
fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}
