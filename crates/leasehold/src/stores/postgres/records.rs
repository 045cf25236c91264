//! The records of one table.

use std::future::{pending, ready};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};
use tokio_postgres::Row;

use super::POLL_INTERVAL;
use super::config::Location;
use super::connect::Connector;
use super::errors::Effect;
use super::listener::Listener;
use super::row::{Cells, cell, is_ours, locked_by, number, only, unreadable, version_of};
use super::sessions::{Purpose, Sessions};
use super::statements::{Parameter, Sql, Statements, boolean, int8, text};
use crate::clock::{Moment, StoreTime, micros};
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Error, ErrorKind, Fault, StoreError};
use crate::lease::{Capabilities, Id, Ttl, attempt_limit};
use crate::protocol::line::Waiter;
use crate::protocol::record::{Content, Record, RecordState};
use crate::protocol::records::{Claims, Found, Records, Refusal, Written};
use crate::register::{Precondition, Version};
use crate::retry::{RetryBudget, repeated};
use crate::stores::columns::Columns;
use crate::stores::grace;
use crate::stores::notifications::Called;
use crate::stores::pages::{self, Page};
use crate::types::LockName;
use crate::worker::{Job, OnWorker};

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The longest time for which one attempt of a renewal or a release waits for a row. The wait is short and repeated,
/// because it occupies a connection.
const LONGEST_ROW_WAIT: Duration = Duration::from_secs(1);

/// For how long the result of [`PostgresStore::check_unshared`] is valid.
const UNSHARED: Duration = Duration::from_secs(60);

/// The records of one table. Each request runs as a job on the store's thread, so that a future that its caller no longer
/// polls does not keep a connection.
#[derive(Debug)]
pub(super) struct PostgresRecords {
    worker: OnWorker<PostgresStore>,
    env: Env,
}

/// The table, as the store's thread uses it.
#[derive(Debug)]
pub(super) struct PostgresStore {
    pub(super) sessions: Arc<Sessions>,
    pub(super) listener: Arc<Listener>,
    statements: Statements,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    margin: Duration,
    /// When the table was last found to have only rows of leasehold.
    unshared: Mutex<Option<Moment>>,
}

/// What a write of a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// A grant over a free record that was not read, with this many tokens.
    Claim {
        tokens: u64,
        barges: bool,
    },
    Grant,
    Renew,
    Free,
}

/// A write of a record.
struct Writing {
    step: Step,
    name: LockName,
    expect: Version,
    record: Record,
    columns: Columns,
    /// The record that was read.
    before: Option<Record>,
}

impl PostgresRecords {
    /// Starts the store's thread. Sends no request.
    pub(super) async fn open(location: Location, env: Env, margin: Duration) -> Result<Self, Error> {
        let own_env = env.clone();
        let connect = move || Ok(PostgresStore::new(Connector::to(location)?, own_env, margin));
        Ok(Self { worker: OnWorker::open("PostgreSQL", connect).await?, env })
    }

    /// Runs `work` on the store's thread.
    fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<PostgresStore>) -> F) -> Job<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.worker.run(work)
    }

    /// Sends a statement that changes the row of `name`. Its parameters are the name, `more`, and the limit of a wait for
    /// the row. Returns whether it returns a row.
    async fn change(
        &self,
        name: &LockName,
        sql: fn(&Statements) -> &Sql,
        more: Option<String>,
    ) -> Result<bool, StoreError> {
        let name = name.clone();
        self.run(move |store| async move {
            let (name, limit) = (name.as_str(), usual_limit());
            let parameters: Vec<_> =
                [text(&name)].into_iter().chain(more.as_ref().map(text)).chain([text(&limit)]).collect();
            Ok(!store.rows(Effect::Writes, sql(&store.statements), &parameters).await?.is_empty())
        })
        .await?
    }

    async fn written(
        &self,
        step: Step,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let expect = match expect {
            Precondition::Absent => Version::new(""),
            Precondition::Version(version) => version.clone(),
        };
        let read = before.cloned();
        // After another client's lock, the row lacks what was added to the history that was read.
        let before = before.filter(|_| matches!(step, Step::Claim { .. }) || is_ours(&expect));
        let columns = Columns::of(record, before).map_err(Fault::not_applied)?;
        let writing =
            Writing { step, name: name.clone(), expect, record: record.clone(), columns, before: read };
        self.run(|store| async move { store.write(&writing).await }).await?
    }
}

impl Drop for PostgresRecords {
    fn drop(&mut self) {
        let store = self.worker.leases.clone();
        self.worker.finish(async move {
            store.listener.end();
            store.sessions.close_idle();
        });
    }
}

#[async_trait]
impl Records for PostgresRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let name = name.clone();
        self.run(|store| async move {
            match store.read(&name).await? {
                Some(cells) => cells.found(name.as_str(), store.sessions.table()),
                None => Ok(None),
            }
        })
        .await?
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let is_same = |before: &Record| before.grant == record.grant && before.state == RecordState::Held;
        let step = match record.state {
            RecordState::Held if before.is_some_and(is_same) => Step::Renew,
            RecordState::Held => Step::Grant,
            RecordState::Free | RecordState::Cooldown => Step::Free,
        };
        self.written(step, name, expect, before, record).await
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        tokens: u64,
        barges: bool,
    ) -> Result<Written, StoreError> {
        // The free record keeps its history.
        let step = Step::Claim { tokens, barges };
        self.written(step, name, Precondition::Absent, Some(record), record).await
    }

    fn claims(&self) -> Claims {
        Claims::InTurn
    }

    async fn join(
        &self,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        let entry = serde_json::to_string(waiter).map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("a waiter for the line: {error}")).not_applied()
        })?;
        // PostgreSQL stores no NUL characters in such JSON.
        let entry = entry.replace("\\u0000", "\\ufffd");
        let (name, claim) = (name.clone(), waiter.claim.to_string());
        let (single, most) = (number(waiter.polls_ms), number(most_ms));
        self.run(move |store| async move {
            let (name, limit) = (name.as_str(), usual_limit());
            let parameters =
                [text(&name), text(&claim), text(&entry), int8(&single), int8(&most), text(&limit)];
            let rows = store.rows(Effect::Writes, &store.statements.join, &parameters).await?;
            let row = only(&rows)?;
            match cell::<Option<bool>>(row, "is_written")? {
                Some(_) => Cells::of(row)?.found(name, store.sessions.table()),
                None => Ok(None),
            }
        })
        .await?
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        self.change(name, |statements| &statements.leave, Some(claim.to_string())).await.map(drop)
    }

    /// A failover loses what the new primary did not receive.
    fn loses_writes(&self) -> bool {
        true
    }

    /// The row shows that another client has taken the lock, but a lapsed grant is over in any case.
    fn others_leave_no_trace(&self) -> bool {
        true
    }

    /// Waits until the standbys have all commits to the row of `name`, because an earlier commit may have stopped
    /// waiting for them. Writes the row again, because that commit also waits for the earlier one.
    async fn settle(&self, name: &LockName) -> Result<(), StoreError> {
        self.change(name, |statements| &statements.touch, None).await.map(drop)
    }

    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let listener = &self.worker.leases.listener;
        let Some(claim) = claim.filter(|_| listener.is_on()) else { return pending().await };
        // Registers before the read, so that no call is missed.
        let call = listener.calls.expect(claim);
        // A listener that begins now calls all claims once it listens.
        let mut reads = !self.run(|store| async move { store.listener.begin() }).await.unwrap_or_default();
        loop {
            if reads
                && let Ok(Some(Found { content: Content::Record(record), line, .. })) = self.read(name).await
                && record.state == RecordState::Free
                && line
                    .is_none_or(|line| line.waiting(&record).next().is_none_or(|first| first.claim == claim))
            {
                return;
            }
            if call.called().await == Called::Alone {
                return;
            }
            reads = true;
        }
    }

    fn calls_the_first(&self) -> bool {
        true
    }

    fn has_lines(&self) -> bool {
        true
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        let fetch = move |from| {
            let prefix = prefix.clone();
            async move { self.run(|store| async move { store.names(&prefix, from).await }).await? }
        };
        let names = pages::items(&self.env, fetch, || unreadable(&"a page follows itself"));
        names.try_filter_map(|name| ready(Ok(LockName::new(name).ok()))).boxed()
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        self.change(name, |statements| &statements.discard, Some(version.as_str().to_owned())).await
    }

    async fn check_sweep(&self) -> Result<(), StoreError> {
        self.run(|store| async move { store.check_unshared().await }).await?
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.run(|store| async move { store.examined().await }).await.unwrap_or_default()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.run(|store| async move {
            store.make_table().await?;
            if store.sessions.failover_grace().is_zero() {
                return Ok(());
            }
            let mut budget = RetryBudget::of_question(&store.env);
            repeated(&mut budget, || store.note_epoch()).await
        })
        .await?
    }

    /// Connects, so that the server's time is known.
    async fn prepare(&self) -> Result<(), StoreError> {
        if self.store_time().is_some() {
            return Ok(());
        }
        self.run(|store| async move { store.sessions.take(Purpose::Contend).await.map(drop) }).await?
    }

    /// Succeeds without a check, because a server that is not PostgreSQL would not understand the statements.
    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.worker.leases.sessions.clock.bounds(self.env.now())
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("PostgreSQL", POLL_INTERVAL);
        capabilities.line = Some("the column `line` of a lock's row");
        capabilities.permits_in_order = true;
        capabilities
    }
}

impl PostgresStore {
    fn new(connector: Connector, env: Env, margin: Duration) -> Self {
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
    async fn rows(
        &self,
        effect: Effect,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.sessions.take(Purpose::Contend).await?.query(effect, sql, parameters).await
    }

    async fn read(&self, name: &LockName) -> Result<Option<Cells>, StoreError> {
        let rows = self.rows(Effect::None, &self.statements.read, &[text(&name.as_str())]).await?;
        rows.first().map(Cells::of).transpose()
    }

    /// Writes a record. The server does not grant or renew after the time limit of a request, when the caller no longer
    /// waits for the response.
    async fn write(&self, writing: &Writing) -> Result<Written, StoreError> {
        let Writing { step, name, expect, record, columns, before } = writing;
        let span = |record: &Record| record.ttl().contender_span() + self.margin + record.lock_delay();
        let kept = match record.state {
            RecordState::Held => span(record),
            RecordState::Cooldown => Duration::from_millis(record.cooldown_ms.unwrap_or(0)),
            RecordState::Free => Duration::ZERO,
        };
        if matches!(step, Step::Claim { .. } | Step::Grant) {
            grace::check(self.sessions.failover_grace(), span(record), Duration::ZERO)?;
        }
        let purpose = match step {
            Step::Renew => Purpose::Renew,
            Step::Free => Purpose::Release,
            Step::Claim { .. } | Step::Grant => Purpose::Contend,
        };
        let limit = attempt_limit(record.ttl());
        let row_limit = match step {
            // It waits for other grants first, and reads the clock before it waits for the row.
            Step::Grant => limit / 2,
            Step::Claim { .. } => limit,
            Step::Renew | Step::Free => limit.min(LONGEST_ROW_WAIT),
        };
        let by = locked_by(record.grant);
        let began = self.env.now();
        let mut used = self.sessions.take(purpose).await?;
        let now = self.env.now();
        let too_late = match step {
            Step::Claim { .. } | Step::Grant | Step::Renew => {
                let row_wait = if matches!(step, Step::Grant) { row_limit } else { Duration::ZERO };
                let left = limit.saturating_sub(now.longest_since(began)).saturating_sub(row_wait);
                self.sessions.clock_us(now).saturating_add(number(micros(left)))
            }
            Step::Free => i64::MAX,
        };
        let kept_us = number(micros(kept));
        let prolonged_us = number(before.as_ref().map_or(0, |before| micros(span(before))));
        let row_limit = milliseconds(row_limit);
        let (name, version, json) = (name.as_str(), columns.version.as_str(), &columns.record);
        let rows = match step {
            Step::Claim { tokens, barges } => {
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
                ];
                used.query(Effect::Writes, &self.statements.claim, &parameters).await?
            }
            step => {
                let (expect, step) = (expect.as_str(), step.as_str());
                let (token, served) = (number(record.token.get()), number(record.served));
                let parameters = [
                    text(&name),
                    text(&expect),
                    text(&step),
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
                ];
                used.query(Effect::Writes, &self.statements.write, &parameters).await?
            }
        };
        // Returns the connection, because the rest may need one too.
        drop(used);
        let row = only(&rows)?;
        if cell::<Option<bool>>(row, "is_written")? == Some(true) {
            return self.committed(writing, row, &by);
        }
        self.refused(writing, row, too_late).await
    }

    /// Returns the result of a write that was applied, of which `row` is the response.
    fn committed(&self, writing: &Writing, row: &Row, by: &str) -> Result<Written, StoreError> {
        let Writing { step, name, record, columns, .. } = writing;
        let version = version_of(&columns.version, by);
        if let Step::Claim { .. } = step {
            // If the row cannot be read, the lock is granted nevertheless.
            let cells = Cells::of(row)?;
            let found = cells.found(name.as_str(), self.sessions.table());
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

    /// Returns the result of a write that was not applied, of which `row` is the response.
    async fn refused(&self, writing: &Writing, row: &Row, too_late: i64) -> Result<Written, StoreError> {
        let Writing { step, name, .. } = writing;
        let table = self.sessions.table();
        let is_right: Option<bool> = cell(row, "is_right").map_err(not_applied)?;
        let found = match is_right {
            Some(_) => Cells::of(row).map_err(not_applied)?.found(name.as_str(), table)?,
            None => None,
        };
        let now_us: i64 = cell(row, "now_us").map_err(not_applied)?;
        let may_grant = is_right == Some(true) || is_right.is_none() && matches!(step, Step::Claim { .. });
        if may_grant && matches!(step, Step::Claim { .. } | Step::Grant) {
            match cell::<Option<i64>>(row, "left_us").map_err(not_applied)? {
                // The primary is not recorded.
                None => {
                    self.note_epoch().await.map_err(not_applied)?;
                    return Box::pin(self.write(writing)).await;
                }
                Some(0) if is_right.is_none() && now_us < too_late => return Err(hidden()),
                Some(0) => {}
                Some(left_us) => {
                    let left = Duration::from_micros(u64::try_from(left_us).unwrap_or(0));
                    return Ok(Written::Withheld(Box::new(grace::withheld("PostgreSQL", left))));
                }
            }
        }
        Ok(Written::Conflict(found.map_or(Refusal::Absent, Refusal::Found)))
    }

    /// Records which server is the primary, so that the grace begins if it has changed.
    async fn note_epoch(&self) -> Result<(), StoreError> {
        self.rows(Effect::Writes, &self.statements.note_epoch, &[text(&usual_limit())]).await.map(drop)
    }

    /// Returns one page of the names that begin with `prefix`, after the name `from`.
    async fn names(&self, prefix: &str, from: Option<String>) -> Result<Page<String, String>, StoreError> {
        let count = number(PAGE as u64);
        let parameters = [text(&prefix), text(&from), int8(&count)];
        let rows = self.rows(Effect::None, &self.statements.names, &parameters).await?;
        let items: Vec<String> = rows.iter().map(|row| cell(row, "name")).collect::<Result<_, _>>()?;
        let next = if items.len() == PAGE { items.last().cloned() } else { None };
        Ok(Page { items, next })
    }

    /// Fails if ShedLock uses the table. Keeps the result for a while, because the query reads the whole table.
    async fn check_unshared(&self) -> Result<(), StoreError> {
        let now = self.env.now();
        let found = *self.unshared.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| now.longest_since(found) < UNSHARED) {
            return Ok(());
        }
        let table = self.sessions.table();
        let rows = self.rows(Effect::None, &self.statements.is_shared, &[text(&table.sql)]).await?;
        if cell(only(&rows)?, "is_shared")? {
            let message =
                format!("the table {:?} is used by other clients too, or was created for them", table.name);
            return Err(Fault::new(ErrorKind::Unsupported, message)
                .with_help("ShedLock remembers which names have rows: its job would not run again until its JVM restarts. Keep the rows")
                .not_applied());
        }
        *self.unshared.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    }
}

impl Step {
    fn as_str(self) -> &'static str {
        match self {
            Self::Claim { .. } | Self::Grant => "grant",
            Self::Renew => "renew",
            Self::Free => "free",
        }
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

/// Returns the error of a request after a write that was certainly not applied.
fn not_applied(error: StoreError) -> StoreError {
    match error {
        StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault) => fault.not_applied(),
    }
}

/// Returns for how long a request without a ttl waits for a row.
fn usual_limit() -> String {
    milliseconds(attempt_limit(Ttl::DEFAULT))
}

/// Formats a duration for a setting of PostgreSQL.
fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}
