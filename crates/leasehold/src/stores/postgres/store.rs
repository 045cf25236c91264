//! The requests of one table, as the store's thread sends them.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::Row;

use super::connect::Connector;
use super::listener::Listener;
use super::row::{cell, cells, only, unreadable};
use super::sessions::Sessions;
use super::statements::{Parameter, Sql, Statements, boolean, int8, text};
use crate::clock::{Moment, micros};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::{Ttl, attempt_limit};
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Change, Found, Refusal, Written};
use crate::protocol::rules::recorded;
use crate::register::Version;
use crate::stores::columns::Columns;
use crate::stores::grace;
use crate::stores::pages::Page;
use crate::stores::pool::Purpose;
use crate::stores::rows::{Cells, EPOCH, locked_by, number, version_of};
use crate::stores::table::{Effect, used_by_others};
use crate::types::LockName;

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The longest time for which one attempt of a renewal or a release waits for a row. The wait is short and repeated,
/// because it occupies a connection.
const LONGEST_ROW_WAIT: Duration = Duration::from_secs(1);

/// For how long the result of [`PostgresStore::check_unshared`] is valid.
const UNSHARED: Duration = Duration::from_secs(60);

/// The table, as the store's thread uses it.
#[derive(Debug)]
pub(super) struct PostgresStore {
    pub(super) sessions: Arc<Sessions>,
    pub(super) listener: Arc<Listener>,
    pub(super) statements: Statements,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    margin: Duration,
    /// When the table was last found to have only rows of leasehold.
    unshared: Mutex<Option<Moment>>,
}

/// A write of a record.
pub(super) struct Writing {
    pub(super) change: Change,
    /// For a grant over a record that was not read.
    pub(super) over: Option<AnyFree>,
    pub(super) name: LockName,
    pub(super) expect: Version,
    pub(super) record: Record,
    pub(super) columns: Columns,
    /// For how long the record that was read keeps others out, without the margin.
    pub(super) prolongs: Duration,
}

/// A grant over any free record: how many tokens it takes, and whether it ignores the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnyFree {
    pub(super) tokens: u64,
    pub(super) barges: bool,
}

impl PostgresStore {
    pub(super) fn new(connector: Connector, env: Env, margin: Duration) -> Self {
        let statements = Statements::on(connector.table(), connector.failover_grace(), connector.notifies());
        let sessions = Arc::new(Sessions::new(connector, env.clone()));
        Self {
            listener: Listener::new(sessions.clone(), env.clone()),
            sessions,
            statements,
            env,
            margin,
            unshared: Mutex::default(),
        }
    }

    /// Sends one statement that may be repeated.
    pub(super) async fn rows(
        &self,
        effect: Effect,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.sessions.take(Purpose::Contend).await?.query(effect, sql, parameters).await
    }

    pub(super) async fn read(&self, name: &LockName) -> Result<Option<Cells>, StoreError> {
        let rows = self.rows(Effect::None, &self.statements.read, &[text(&name.as_str())]).await?;
        rows.first().map(cells).transpose()
    }

    /// Writes a record. Before the first grant on a primary, records that it is the primary.
    pub(super) async fn write(&self, writing: &Writing) -> Result<Written, StoreError> {
        if let Some(written) = self.attempt(writing).await? {
            return Ok(written);
        }
        self.note_epoch().await.map_err(StoreError::of_read)?;
        self.attempt(writing).await?.ok_or_else(unrecorded)
    }

    /// Writes a record if the primary is recorded. The server does not grant or renew after the time limit of a request,
    /// when the caller no longer waits for the response.
    async fn attempt(&self, writing: &Writing) -> Result<Option<Written>, StoreError> {
        let Writing { change, over, name, expect, record, columns, prolongs } = writing;
        let kept = record.kept_for(self.margin);
        if change.lengthens(*prolongs, record.span()) {
            grace::check(self.sessions.failover_grace(), kept, Duration::ZERO)?;
        }
        let limit = attempt_limit(record.ttl());
        // A grant over a row that was read waits for other grants first, and reads the clock before it waits for the row.
        let waits_twice = *change == Change::Grant && over.is_none();
        let row_limit = match change {
            Change::Grant if waits_twice => limit / 2,
            Change::Grant => limit,
            Change::Renew | Change::Free => limit.min(LONGEST_ROW_WAIT),
        };
        let by = locked_by(record.grant);
        let began = self.env.now();
        let mut used = self.sessions.take((*change).into()).await?;
        let now = self.env.now();
        let too_late = match change {
            Change::Grant | Change::Renew => {
                let row_wait = if waits_twice { row_limit } else { Duration::ZERO };
                let left = limit.saturating_sub(now.longest_since(began)).saturating_sub(row_wait);
                number(self.sessions.clock.lowest_us(now).saturating_add(micros(left)))
            }
            Change::Free => i64::MAX,
        };
        let kept_us = number(micros(kept));
        let prolonged_us = number(micros(*prolongs + self.margin));
        let row_limit = milliseconds(row_limit);
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
                used.query(Effect::Writes, &self.statements.claim, &parameters).await?
            }
            None => {
                let (expect, change) = (expect.as_str(), change.as_str());
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
                used.query(Effect::Writes, &self.statements.write, &parameters).await?
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
            let found = cells.found(name.as_str(), &self.sessions.table().name);
            return match found.map_err(|error| error.if_maybe(true))? {
                Some(Found { content: Content::Record(record), .. }) => {
                    Ok(Written::Granted { record, version, after: cells.previous() })
                }
                _ => Err(unreadable(&"the row is not the one that was written")),
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
        let table = &self.sessions.table().name;
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
                    return Ok(Some(Written::Withheld(Box::new(grace::withheld("PostgreSQL", left)))));
                }
            }
        }
        Ok(Some(Written::Conflict(found.map_or(Refusal::Absent, Refusal::Found))))
    }

    /// Records which server is the primary, so that the grace begins if it has changed.
    pub(super) async fn note_epoch(&self) -> Result<(), StoreError> {
        self.rows(Effect::Writes, &self.statements.note_epoch, &[text(&usual_limit())]).await.map(drop)
    }

    /// Returns one page of the names that begin with `prefix`, after the name `from`.
    pub(super) async fn names(
        &self,
        prefix: &str,
        from: Option<String>,
    ) -> Result<Page<String, String>, StoreError> {
        let count = number(PAGE as u64);
        let parameters = [text(&prefix), text(&from), int8(&count)];
        let rows = self.rows(Effect::None, &self.statements.names, &parameters).await?;
        let items: Vec<String> = rows.iter().map(|row| cell(row, "name")).collect::<Result<_, _>>()?;
        Ok(Page::of_at_most(PAGE, items))
    }

    /// Fails if ShedLock uses the table. Keeps the result for a while, because the query reads the whole table.
    pub(super) async fn check_unshared(&self) -> Result<(), StoreError> {
        let now = self.env.now();
        let found = *self.unshared.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| now.longest_since(found) < UNSHARED) {
            return Ok(());
        }
        let table = self.sessions.table();
        let rows = self.rows(Effect::None, &self.statements.is_shared, &[text(&table.sql)]).await?;
        if cell(only(&rows)?, "is_shared")? {
            return Err(used_by_others(&table.name));
        }
        *self.unshared.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
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
