//! The requests of one table, as the store's thread sends them.

use std::sync::Arc;
use std::time::Duration;

use mysql_async::Row;

use super::connect::Connector;
use super::row::{Answer, Stored, cell, text, unreadable};
use super::sessions::Sessions;
use super::sql::{self, Writing, quoted};
use crate::clock::micros;
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::attempt_limit;
use crate::protocol::record::{Content, Record};
use crate::protocol::records::{Change, Found, Refusal, Written};
use crate::register::Version;
use crate::stores::grace;
use crate::stores::pages::Page;
use crate::stores::pool::Purpose;
use crate::stores::rows::{locked_by, number, version_of};
use crate::stores::table::{Effect, used_by_others};
use crate::types::LockName;

/// The number of names in a page.
const PAGE: usize = 1_000;

/// The table, as the store's thread uses it.
#[derive(Debug)]
pub(super) struct MysqlStore {
    pub(super) sessions: Arc<Sessions>,
    /// The name of the table in SQL.
    pub(super) table: String,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    margin: Duration,
}

impl MysqlStore {
    pub(super) fn new(connector: Connector, env: Env, margin: Duration) -> Self {
        let sessions = Arc::new(Sessions::new(connector, env.clone()));
        Self { table: quoted(sessions.table()), sessions, env, margin }
    }

    /// Sends one statement that may be repeated.
    pub(super) async fn send(&self, effect: Effect, sql: &str) -> Result<Vec<Answer>, StoreError> {
        self.sessions.take(Purpose::Contend).await?.query(effect, sql).await
    }

    pub(super) async fn read(&self, name: &LockName) -> Result<Option<Stored>, StoreError> {
        let mut used = self.sessions.take(Purpose::Contend).await?;
        let read = sql::read(&self.table, name.as_str(), &used.session()?.guard);
        Stored::of(only(&used.query(Effect::None, &read).await?)?)
    }

    /// Writes a record, and reads it back in the same request. The server does not grant or renew after the time limit of
    /// a request, when the caller no longer waits for the response.
    pub(super) async fn write(&self, mut writing: Writing) -> Result<Written, StoreError> {
        writing.prolongs += self.margin;
        let Writing { change, tokens, name, record, columns, .. } = &writing;
        let kept = record.kept_for(self.margin);
        if change.lengthens(writing.prolongs, kept) {
            grace::check(self.sessions.connector.location.failover_grace, kept, Duration::ZERO)?;
        }
        let began = self.env.now();
        let mut used = self.sessions.take((*change).into()).await?;
        let now = self.env.now();
        let (clock_us, session) = (number(self.sessions.clock.lowest_us(now)), used.session()?);
        if *change == Change::Grant && clock_us < session.grants_from_us {
            // Only a read shows who has the lock.
            if tokens.is_some() {
                return Ok(Written::Conflict(Refusal::Unexplained));
            }
            let left = Duration::from_micros(u64::try_from(session.grants_from_us - clock_us).unwrap_or(0));
            // The clock may have been set back. The next connection records that.
            if left > self.sessions.connector.location.failover_grace {
                used.close();
            }
            return Ok(Written::Withheld(Box::new(grace::withheld("MySQL", left))));
        }
        let left = attempt_limit(record.ttl()).saturating_sub(now.longest_since(began));
        let too_late_us = match change {
            Change::Grant | Change::Renew => clock_us.saturating_add(number(micros(left))),
            Change::Free => i64::MAX,
        };
        let guard = if *change == Change::Grant { &session.guard_of_grants } else { &session.guard };
        let write = sql::write(&self.table, guard, &writing, kept, too_late_us);
        let request = format!("{write}; {}", sql::read(&self.table, name.as_str(), guard));
        let answers = used.query(Effect::Writes, &request).await?;
        // Returns the connection, because the rest may need one too.
        drop(used);
        if answers.is_empty() {
            return Ok(Written::Conflict(Refusal::Unexplained));
        }
        let stored = Stored::of(only(&answers)?)?;
        if answers[0].affected == 0 {
            let found = stored.map(|stored| stored.found(name.as_str(), self.sessions.table())).transpose();
            return Ok(Written::Conflict(
                found.map_err(StoreError::of_read)?.map_or(Refusal::Absent, Refusal::Found),
            ));
        }
        let version = version_of(&columns.version, &locked_by(record.grant));
        let Some(stored) = stored else { return overtaken(*change, record, version) };
        // If the row cannot be read, the record is written nevertheless.
        let found =
            stored.found(name.as_str(), self.sessions.table()).map_err(|error| error.if_maybe(true))?;
        match found {
            Found { content: Content::Record(record), version: there, .. } if there == version => {
                let after = stored.cells.previous();
                Ok(match tokens {
                    Some(_) => Written::Granted { record, version, after },
                    None => Written::Committed { record, version },
                })
            }
            _ => overtaken(*change, record, version),
        }
    }

    /// Returns one page of the names that begin with `prefix`, after the name `from`.
    pub(super) async fn names(
        &self,
        prefix: &str,
        from: Option<String>,
    ) -> Result<Page<String, String>, StoreError> {
        let mut used = self.sessions.take(Purpose::Contend).await?;
        let names = sql::names(&self.table, &used.session()?.guard, prefix, from.as_deref(), PAGE);
        let answers = used.query(Effect::None, &names).await?;
        let rows = answers.first().map_or(&[][..], |answer| &answer.rows);
        let items = rows.iter().map(|row| Ok(text(row, "name")?.unwrap_or_default()));
        Ok(Page::of_at_most(PAGE, items.collect::<Result<_, StoreError>>()?))
    }

    /// Fails if ShedLock uses the table.
    pub(super) async fn check_unshared(&self) -> Result<(), StoreError> {
        let answers = self.send(Effect::None, &sql::is_shared(&self.table)).await?;
        match cell::<bool>(only(&answers)?, "is_shared")? {
            true => Err(used_by_others(self.sessions.table())),
            false => Ok(()),
        }
    }
}

/// Returns the row of the last statement, which always returns one.
fn only(answers: &[Answer]) -> Result<&Row, StoreError> {
    answers.last().and_then(|answer| answer.rows.first()).ok_or_else(|| unreadable(&"it has no row"))
}

/// Returns the outcome of a write whose row was written again, or deleted, before it was read. A client that waits takes a
/// lock as soon as it is free, so this happens after a release. Of another write, only a read shows what became of it.
fn overtaken(change: Change, record: &Record, version: Version) -> Result<Written, StoreError> {
    match change {
        Change::Free => Ok(Written::Committed { record: Box::new(record.clone()), version }),
        Change::Grant | Change::Renew => {
            Err(Fault::unavailable("the row was written again at the same time").maybe_applied())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::golden_record;

    #[test]
    fn a_release_succeeds_although_the_row_was_written_again() {
        let (record, version) = (golden_record("1-free.json"), Version::new("v"));
        let freed = overtaken(Change::Free, &record, version.clone()).unwrap();
        assert!(matches!(freed, Written::Committed { version: of, .. } if of == version));
        for change in [Change::Grant, Change::Renew] {
            let error = overtaken(change, &record, version.clone()).unwrap_err();
            assert!(error.is_transient() && matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
        }
    }
}
