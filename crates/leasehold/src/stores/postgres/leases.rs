//! The leases of one table. All of this runs on the store's thread ([`worker`](crate::native::worker)).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::POLL_INTERVAL;
use super::connect::Connector;
use super::errors::Effect;
use super::listener::Listener;
use super::record::{self, locked_by};
use super::sessions::{Purpose, Sessions, Used};
use super::statements::{Parameter, Statements};
use crate::clock::{Deadline, Moment, micros};
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    self, Capabilities, Claim, Eviction, Grant, Holder, Id, Swept, Token, Ttl, attempt_limit,
};
use crate::retry::{RetryBudget, repeated};
use crate::stores::on_server::notifications::Calls;
use crate::stores::on_server::record::Record;
use crate::stores::on_server::{Changed, Contended, EvictionAnswer, Page, ServerLeases, renewed_until};
use crate::types::LockName;

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The longest time for which one attempt of a renewal or a release waits for a row.
const LONGEST_ROW_WAIT: Duration = Duration::from_secs(1);

/// For how long the result of [`PostgresLeases::check_unshared`] is valid.
const UNSHARED: Duration = Duration::from_secs(60);

/// The leases of one table.
#[derive(Debug)]
pub(super) struct PostgresLeases {
    pub(super) sessions: Arc<Sessions>,
    pub(super) listener: Arc<Listener>,
    pub(super) statements: Statements,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    pub(super) margin: Duration,
    /// When the table was last found to have only rows of leasehold.
    unshared: Mutex<Option<Moment>>,
}

impl PostgresLeases {
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
    async fn rows(
        &self,
        effect: Effect,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        self.sessions.take(Purpose::Contend).await?.query(effect, sql, parameters).await
    }

    /// Sends one statement for a holder. Also returns the row, and the moment before the statement was sent.
    async fn change(
        &self,
        purpose: Purpose,
        sql: &str,
        parameters: &[Parameter<'_>],
        name: &LockName,
    ) -> Result<(Changed, Row, Moment), StoreError> {
        let mut used = self.sessions.take(purpose).await?;
        let sent = self.env.now();
        let mut rows = used.query(Effect::Writes, sql, parameters).await?;
        let row = only(&rows)?;
        note_clock(&mut used, row)?;
        let changed = self.changed(row, name)?;
        Ok((changed, rows.remove(0), sent))
    }

    /// Records which server is the primary, so that the grace begins if it has changed.
    pub(super) async fn note_epoch(&self) -> Result<(), StoreError> {
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 1] = [(&timeout, Type::TEXT)];
        self.rows(Effect::Writes, &self.statements.note_epoch, &parameters).await.map(drop)
    }

    fn changed(&self, row: &Row, name: &LockName) -> Result<Changed, StoreError> {
        let is_changed: Option<bool> = cell(row, "is_changed")?;
        Ok(match is_changed {
            Some(true) => Changed::Done,
            Some(false) => Changed::Found(Some(self.parsed(row, name)?)),
            None => Changed::Found(None),
        })
    }

    /// Fails if ShedLock uses the table. Keeps the result for a while, because the query reads the whole table.
    async fn check_unshared(&self) -> Result<(), StoreError> {
        let now = self.env.now();
        let found = *self.unshared.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| now.longest_since(found) < UNSHARED) {
            return Ok(());
        }
        let table = self.sessions.table();
        let parameters: [Parameter<'_>; 1] = [(&table.sql, Type::TEXT)];
        let rows = self.rows(Effect::None, &self.statements.is_shared, &parameters).await?;
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

    pub(super) fn parsed(&self, row: &Row, name: &LockName) -> Result<Record, StoreError> {
        record::parse(row, name.as_str(), self.sessions.table())
    }
}

#[async_trait]
impl ServerLeases for PostgresLeases {
    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = Capabilities::new("PostgreSQL", POLL_INTERVAL);
        capabilities.line = Some("the column `waiters` of a lock's row");
        capabilities.permits_in_order = true;
        capabilities
    }

    async fn contend(&self, claim: &Claim, limit: Duration) -> Result<Contended, StoreError> {
        self.send_claim(claim, limit).await
    }

    async fn renew(&self, grant: &Grant) -> Result<(Changed, Deadline), StoreError> {
        let (by, token) = (locked_by(grant.id), number(grant.token.get()));
        let timeout = milliseconds(row_limit(grant.ttl));
        let parameters: [Parameter<'_>; 4] = [
            (&grant.name.as_str(), Type::TEXT),
            (&by, Type::TEXT),
            (&token, Type::INT8),
            (&timeout, Type::TEXT),
        ];
        let (changed, row, sent) =
            self.change(Purpose::Renew, &self.statements.renew, &parameters, &grant.name).await?;
        let ttl_ms = cell::<Option<i64>>(&row, "ttl_ms")?.and_then(|ms| u64::try_from(ms).ok());
        Ok((changed, renewed_until(grant, ttl_ms, sent)))
    }

    async fn release(&self, grant: &Grant, cooldown: Duration) -> Result<Changed, StoreError> {
        let (by, limit) = (locked_by(grant.id), row_limit(grant.ttl));
        let cooldown = number(micros(cooldown));
        let timeout = milliseconds(limit);
        let token = Some(grant.token).filter(|token| token.get() > 0).map(|token| number(token.get()));
        let parameters: [Parameter<'_>; 5] = [
            (&grant.name.as_str(), Type::TEXT),
            (&by, Type::TEXT),
            (&cooldown, Type::INT8),
            (&timeout, Type::TEXT),
            (&token, Type::INT8),
        ];
        let answer = self.change(Purpose::Release, &self.statements.release, &parameters, &grant.name).await;
        answer.map(|(changed, ..)| changed)
    }

    /// Waits until the standbys have all commits to the row of `name`, because an earlier commit may have stopped
    /// waiting for them. Writes the row again, because that commit also waits for the earlier one.
    async fn settle(&self, name: &LockName) -> Result<(), StoreError> {
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&timeout, Type::TEXT)];
        self.rows(Effect::Writes, &self.statements.touch, &parameters).await.map(drop)
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<EvictionAnswer, StoreError> {
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let token = number(token.get());
        let why =
            why.map(serde_json::to_string).transpose().map_err(|error| refused("the reason", &error))?;
        let parameters: [Parameter<'_>; 4] =
            [(&name.as_str(), Type::TEXT), (&token, Type::INT8), (&timeout, Type::TEXT), (&why, Type::TEXT)];
        let rows = self.rows(Effect::Writes, &self.statements.evict, &parameters).await?;
        let row = only(&rows)?;
        Ok(EvictionAnswer { is_changed: cell(row, "is_changed")?, is_over: cell(row, "is_over")? })
    }

    async fn read(&self, name: &LockName) -> Result<Option<Record>, StoreError> {
        let parameters: [Parameter<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let rows = self.rows(Effect::None, &self.statements.read, &parameters).await?;
        rows.first().map(|row| self.parsed(row, name)).transpose()
    }

    async fn join(&self, claim: &Claim) -> Result<Changed, StoreError> {
        let id = claim.id.to_string();
        let holder = as_json(&claim.holder.of_the_past())?;
        let waiter = format!(r#"{{"claim":"{id}","holder":{holder}}}"#);
        let in_ms = |pause: Duration| number(u64::try_from(pause.as_millis()).unwrap_or(u64::MAX));
        let longest = in_ms(lease::pause(Duration::MAX, 0, claim.ttl));
        let single = in_ms(POLL_INTERVAL.max);
        let timeout = milliseconds(attempt_limit(claim.ttl));
        let parameters: [Parameter<'_>; 6] = [
            (&claim.name.as_str(), Type::TEXT),
            (&id, Type::TEXT),
            (&waiter, Type::TEXT),
            (&single, Type::INT8),
            (&longest, Type::INT8),
            (&timeout, Type::TEXT),
        ];
        let rows = self.rows(Effect::Writes, &self.statements.join, &parameters).await?;
        self.changed(only(&rows)?, &claim.name)
    }

    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let (id, timeout) = (claim.to_string(), milliseconds(attempt_limit(Ttl::DEFAULT)));
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&id, Type::TEXT), (&timeout, Type::TEXT)];
        self.rows(Effect::Writes, &self.statements.leave, &parameters).await.map(drop)
    }

    fn calls(&self) -> &Arc<Calls> {
        &self.listener.calls
    }

    fn listen(&self) {
        self.listener.begin();
    }

    async fn names(&self, prefix: &str, from: Option<String>) -> Result<Page, StoreError> {
        let page = number(PAGE as u64);
        let parameters: [Parameter<'_>; 3] =
            [(&prefix, Type::TEXT), (&from, Type::TEXT), (&page, Type::INT8)];
        let rows = self.rows(Effect::None, &self.statements.names, &parameters).await?;
        let names: Vec<String> = rows.iter().map(|row| cell(row, "name")).collect::<Result<_, _>>()?;
        let next = if names.len() == PAGE { names.last().cloned() } else { None };
        Ok((names, next))
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.make_table().await?;
        if self.sessions.failover_grace().is_zero() {
            return Ok(());
        }
        let mut budget = RetryBudget::of_question(&self.env);
        repeated(&mut budget, || self.note_epoch()).await
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        self.check_unshared().await?;
        let older = number(micros(older_than));
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&older, Type::INT8), (&timeout, Type::TEXT)];
        let rows = match dry_run {
            true => self.rows(Effect::None, &self.statements.would_sweep, &parameters[..2]).await?,
            false => self.rows(Effect::Writes, &self.statements.sweep, &parameters).await?,
        };
        Ok(if rows.is_empty() { Swept::Kept } else { Swept::Deleted })
    }

    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&timeout, Type::TEXT)];
        let rows = self.rows(Effect::Writes, &self.statements.discard, &parameters).await?;
        cell(only(&rows)?, "is_gone")
    }

    async fn examine(&self, _: &Examination) -> Examined {
        self.examined().await
    }

    fn close(&self) {
        self.listener.end();
        self.sessions.close_idle();
    }
}

/// Returns `holder` as JSON.
pub(super) fn as_json(holder: &Holder) -> Result<String, StoreError> {
    const WHAT: &str = "the holder or its note";
    if [&holder.name, &holder.host].into_iter().any(|text| text.contains('\0'))
        || [&holder.note, &holder.value].into_iter().flatten().any(|text| text.contains('\0'))
    {
        return Err(refused(WHAT, &"PostgreSQL stores no NUL characters"));
    }
    serde_json::to_string(holder).map_err(|error| refused(WHAT, &error))
}

/// Returns the error for a text that cannot be stored.
fn refused(what: &str, why: &dyn std::fmt::Display) -> StoreError {
    Fault::new(ErrorKind::Invalid, format!("{what}: {why}")).not_applied()
}

/// Returns how long a statement waits for a locked row. The wait is short and repeated, because it occupies a
/// connection.
fn row_limit(ttl: Ttl) -> Duration {
    attempt_limit(ttl).min(LONGEST_ROW_WAIT)
}

pub(super) fn note_clock(used: &mut Used<'_>, row: &Row) -> Result<(), StoreError> {
    used.note_clock(cell(row, "now_us")?);
    Ok(())
}

/// Returns the row of a statement that always returns one.
pub(super) fn only(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| unreadable(&"it has no row"))
}

pub(super) fn cell<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| unreadable(&error))
}

/// Returns the error for a result of an unexpected form. The statement may have taken effect.
fn unreadable(why: &dyn std::fmt::Display) -> StoreError {
    Fault::new(ErrorKind::Corrupt, format!("PostgreSQL's response cannot be read: {why}")).maybe_applied()
}

/// Formats a duration for a setting of PostgreSQL.
pub(super) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

/// Converts a number for PostgreSQL, which has no unsigned types.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
