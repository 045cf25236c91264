//! The leases of one table. All of it runs on the thread of the store ([`worker`](crate::stores::worker)).

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::{FromSql, Type};

use super::STORE_TIMEOUT;
use super::connect::Way;
use super::errors::Effect;
use super::record::{self, Record, State, locked_by};
use super::rules;
use super::sessions::{Purpose, Sessions, Used};
use super::statements::{Parameter, Statements};
use crate::clock::{Moment, micros};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    Evicted, Grant, Loss, LossReason, Released, Renewal, Swept, Token, Ttl, attempt_limit, deadline,
};
use crate::retry::RetryBudget;
use crate::types::LockName;

/// The number of names that are read at a time.
pub(super) const PAGE: usize = 1_000;

/// The longest that a renewal or a release waits for a row at a time.
const LONGEST_ROW_WAIT: Duration = Duration::from_secs(1);

/// For how long a table that has rows of leasehold only is taken to stay so.
const UNSHARED: Duration = Duration::from_secs(60);

/// The leases of one table.
#[derive(Debug)]
pub(super) struct PostgresLeases {
    pub(super) sessions: Arc<Sessions>,
    pub(super) statements: Statements,
    pub(super) env: Env,
    /// By how much the server's clock may be set ahead without ending a lease early.
    pub(super) margin: Duration,
    /// When the table was last found to have rows of leasehold only.
    unshared: Mutex<Option<Moment>>,
}

/// In a grant's memo: its release was requested, and may have been done although no answer arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReleaseAsked;

impl PostgresLeases {
    pub(super) fn new(way: Way, env: Env, margin: Duration) -> Self {
        let statements = Statements::on(way.table());
        Self {
            sessions: Arc::new(Sessions::new(way, env.clone())),
            statements,
            env,
            margin,
            unshared: Mutex::default(),
        }
    }

    pub(super) fn budget(&self, limit: Duration, ttl: Ttl) -> RetryBudget<'_> {
        RetryBudget::new(&self.env, limit, attempt_limit(ttl))
    }

    pub(super) async fn prolong(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let left = grant.deadline.remaining(self.env.now());
        if left.is_zero() {
            return Ok(lost(grant, LossReason::Expired { last_error: None }));
        }
        // Not until the deadline: the renewal task must learn of errors before that, and continues at its own pace.
        let mut budget = self.budget(left.min(2 * attempt_limit(grant.ttl)), grant.ttl);
        let (by, token) = (locked_by(grant.id), number(grant.token.get()));
        let timeout = milliseconds(row_limit(grant.ttl));
        let parameters: [Parameter<'_>; 4] = [
            (&grant.name.as_str(), Type::TEXT),
            (&by, Type::TEXT),
            (&token, Type::INT8),
            (&timeout, Type::TEXT),
        ];
        loop {
            match budget
                .request(self.change(Purpose::Renew, &self.statements.renew, &parameters, &grant.name))
                .await
            {
                Ok((Changed::Done, sent)) => {
                    let prolonged = deadline(grant.ttl, sent);
                    let now = self.env.now();
                    // An answer that arrives after the end of the lease does not prolong it.
                    if grant.deadline.passed(now) || prolonged.passed(now) {
                        return Ok(lost(grant, LossReason::Expired { last_error: None }));
                    }
                    grant.deadline = prolonged;
                    return Ok(Renewal::Renewed);
                }
                Ok((Changed::Found(record), _)) => {
                    let stands = record.as_ref().is_some_and(|record| {
                        record.is_live
                            && record.grant() == Some(grant.id)
                            && record.token == Some(grant.token)
                    });
                    if !stands {
                        return Ok(Renewal::Lost(rules::loss(
                            &grant.name,
                            grant.id,
                            grant.token,
                            record.as_ref(),
                        )));
                    }
                    // The row was read as it was before the statement that the renewal waited for.
                    budget.pause_after_conflict().await?;
                }
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Ends a grant. It is not granted again before the end of `cooldown`.
    pub(super) async fn end(
        &self,
        grant: &mut Grant,
        cooldown: Option<Duration>,
    ) -> Result<Released, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, grant.ttl);
        let (by, limit) = (locked_by(grant.id), row_limit(grant.ttl));
        let cooldown = number(micros(cooldown.unwrap_or_default()));
        let timeout = milliseconds(limit);
        // A claim that is withdrawn does not know its token.
        let token = Some(grant.token).filter(|token| token.get() > 0).map(|token| number(token.get()));
        let parameters: [Parameter<'_>; 5] = [
            (&grant.name.as_str(), Type::TEXT),
            (&by, Type::TEXT),
            (&cooldown, Type::INT8),
            (&timeout, Type::TEXT),
            (&token, Type::INT8),
        ];
        let mut asked_before = grant.memo.replace(Box::new(ReleaseAsked)).is_some();
        let mut in_doubt = false;
        loop {
            match budget
                .request(self.change(Purpose::Release, &self.statements.release, &parameters, &grant.name))
                .await
            {
                Ok((Changed::Done, _)) => return Ok(Released::Released),
                Ok((Changed::Found(record), _)) => {
                    let stands = record.as_ref().is_some_and(|record| {
                        matches!(record.state, State::Held { .. })
                            && record.grant() == Some(grant.id)
                            && (token.is_none() || record.token == Some(grant.token))
                    });
                    if !stands {
                        if in_doubt {
                            self.replicate(&grant.name, &mut budget).await?;
                        }
                        return Ok(match asked_before {
                            true => rules::was_released(record.as_ref(), grant.id),
                            false => Released::AlreadyLost,
                        });
                    }
                    // The row was read as it was before the statement that the release waited for.
                    budget.pause_after_conflict().await?;
                }
                Err(error) => {
                    in_doubt |= matches!(error, StoreError::MaybeApplied(_));
                    asked_before |= in_doubt;
                    budget.pause_after(error).await?;
                }
            }
        }
    }

    /// Waits until the standbys have what was committed to the row of `name`, because an earlier commit may have stopped
    /// waiting for them. The commit of a later write waits for both.
    async fn replicate(&self, name: &LockName, budget: &mut RetryBudget<'_>) -> Result<(), StoreError> {
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&timeout, Type::TEXT)];
        let written = self.rows(Effect::Writes, &self.statements.touch, &parameters, budget).await;
        written.map(drop).map_err(|error| match error {
            StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault) => fault.maybe_applied(),
        })
    }

    /// Sends one statement for a holder. Also returns a moment before it was sent.
    async fn change(
        &self,
        purpose: Purpose,
        sql: &str,
        parameters: &[Parameter<'_>],
        name: &LockName,
    ) -> Result<(Changed, Moment), StoreError> {
        let mut used = self.sessions.take(purpose).await?;
        let sent = self.env.now();
        let rows = used.query(Effect::Writes, sql, parameters).await?;
        let row = only(&rows)?;
        note_clock(&mut used, row)?;
        let is_changed: Option<bool> = cell(row, "is_changed")?;
        let changed = match is_changed {
            Some(true) => Changed::Done,
            Some(false) => Changed::Found(Some(self.parsed(row, name)?)),
            None => Changed::Found(None),
        };
        Ok((changed, sent))
    }

    pub(super) async fn end_by_token(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let token = number(token.get());
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&token, Type::INT8), (&timeout, Type::TEXT)];
        let mut unknown = false;
        loop {
            let asked = async {
                let mut used = self.sessions.take(Purpose::Contend).await?;
                let rows = used.query(Effect::Writes, &self.statements.evict, &parameters).await?;
                let row = only(&rows)?;
                Ok((cell(row, "is_changed")?, cell(row, "is_over")?))
            };
            match budget.request(asked).await {
                Ok((true, _)) => return Ok(Evicted::Evicted),
                // By an earlier request, whose answer was lost.
                Ok((false, true)) if unknown => {
                    self.replicate(name, &mut budget).await?;
                    return Ok(Evicted::Evicted);
                }
                Ok((false, _)) => return Ok(Evicted::Changed),
                Err(error) => {
                    unknown |= matches!(error, StoreError::MaybeApplied(_));
                    budget.pause_after(error).await?;
                }
            }
        }
    }

    /// Reads the row of `name`.
    pub(super) async fn record(
        &self,
        name: &LockName,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<Record>, StoreError> {
        let parameters: [Parameter<'_>; 1] = [(&name.as_str(), Type::TEXT)];
        let rows = self.rows(Effect::None, &self.statements.read, &parameters, budget).await?;
        rows.first().map(|row| self.parsed(row, name)).transpose()
    }

    /// Returns one page of the names that begin with `prefix`, after `last`.
    pub(super) async fn names(&self, prefix: &str, last: Option<&str>) -> Result<Vec<String>, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let page = number(PAGE as u64);
        let parameters: [Parameter<'_>; 3] =
            [(&prefix, Type::TEXT), (&last, Type::TEXT), (&page, Type::INT8)];
        let rows = self.rows(Effect::None, &self.statements.names, &parameters, &mut budget).await?;
        rows.iter().map(|row| cell(row, "name")).collect()
    }

    pub(super) async fn swept(
        &self,
        name: &LockName,
        older_than: Duration,
        dry_run: bool,
    ) -> Result<Swept, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        self.check_unshared(&mut budget).await?;
        let older = number(micros(older_than));
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 3] =
            [(&name.as_str(), Type::TEXT), (&older, Type::INT8), (&timeout, Type::TEXT)];
        let rows = match dry_run {
            true => {
                self.rows(Effect::None, &self.statements.would_sweep, &parameters[..2], &mut budget).await?
            }
            false => self.rows(Effect::Writes, &self.statements.sweep, &parameters, &mut budget).await?,
        };
        Ok(if rows.is_empty() { Swept::Kept } else { Swept::Deleted })
    }

    /// Fails if ShedLock uses the table. Not asked for each name, since it reads the whole table.
    async fn check_unshared(&self, budget: &mut RetryBudget<'_>) -> Result<(), StoreError> {
        let now = self.env.now();
        let found = *self.unshared.lock().unwrap_or_else(PoisonError::into_inner);
        if found.is_some_and(|found| now.longest_since(found) < UNSHARED) {
            return Ok(());
        }
        let table = self.sessions.table();
        let parameters: [Parameter<'_>; 1] = [(&table.sql, Type::TEXT)];
        let rows = self.rows(Effect::None, &self.statements.is_shared, &parameters, budget).await?;
        if cell(only(&rows)?, "is_shared")? {
            let message = format!("the table {:?} is, or was made, for other clients too", table.name);
            return Err(Fault::new(ErrorKind::Unsupported, message)
                .with_help("ShedLock remembers which names have rows: its job would not run again until its JVM restarts. Keep the rows")
                .not_applied());
        }
        *self.unshared.lock().unwrap_or_else(PoisonError::into_inner) = Some(now);
        Ok(())
    }

    /// Deletes the row of a lock that is free. Returns whether there is none now.
    pub(super) async fn discarded(&self, name: &LockName) -> Result<bool, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let timeout = milliseconds(attempt_limit(Ttl::DEFAULT));
        let parameters: [Parameter<'_>; 2] = [(&name.as_str(), Type::TEXT), (&timeout, Type::TEXT)];
        let rows = self.rows(Effect::Writes, &self.statements.discard, &parameters, &mut budget).await?;
        cell(only(&rows)?, "is_gone")
    }

    /// Sends a statement that may be repeated, with retries.
    pub(super) async fn rows(
        &self,
        effect: Effect,
        sql: &str,
        parameters: &[Parameter<'_>],
        budget: &mut RetryBudget<'_>,
    ) -> Result<Vec<Row>, StoreError> {
        loop {
            let asked =
                async { self.sessions.take(Purpose::Contend).await?.query(effect, sql, parameters).await };
            match budget.request(asked).await {
                Ok(rows) => return Ok(rows),
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    pub(super) fn parsed(&self, row: &Row, name: &LockName) -> Result<Record, StoreError> {
        record::parse(row, name.as_str(), self.sessions.table())
    }
}

/// The answer to the request of a holder.
enum Changed {
    Done,
    /// Nothing was changed: what is there instead.
    Found(Option<Record>),
}

/// Statements that wait for a locked row keep their connection from others, so they wait briefly and are repeated.
fn row_limit(ttl: Ttl) -> Duration {
    attempt_limit(ttl).min(LONGEST_ROW_WAIT)
}

fn lost(grant: &Grant, reason: LossReason) -> Renewal {
    Renewal::Lost(Loss::new(grant.name.clone(), grant.token, reason))
}

pub(super) fn note_clock(used: &mut Used<'_>, row: &Row) -> Result<(), StoreError> {
    used.note_clock(cell(row, "now_us")?);
    Ok(())
}

/// The row of a statement that always has one.
pub(super) fn only(rows: &[Row]) -> Result<&Row, StoreError> {
    rows.first().ok_or_else(|| unreadable(&"it has no row"))
}

pub(super) fn cell<'a, T: FromSql<'a>>(row: &'a Row, column: &str) -> Result<T, StoreError> {
    row.try_get(column).map_err(|error| unreadable(&error))
}

/// The statement was answered with something else than it asks for. It may have had its effect.
fn unreadable(why: &dyn std::fmt::Display) -> StoreError {
    Fault::new(ErrorKind::Corrupt, format!("PostgreSQL's answer cannot be read: {why}")).maybe_applied()
}

/// As PostgreSQL's settings have durations.
pub(super) fn milliseconds(duration: Duration) -> String {
    duration.as_millis().max(1).to_string()
}

/// PostgreSQL has no unsigned numbers.
pub(super) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
