//! The rows of the file. They are validated when they are read, and always written whole.

use std::time::Duration;

use rusqlite::{Connection, Row, named_params};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::errors::SqliteError;
use super::machine::Process;
use crate::lease::{Holder, Id, PastGrant, Token, Ttl};
use crate::types::LockName;

/// One lock.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    /// The token of the current or latest grant.
    pub(super) token: Token,
    /// The latest grants that have ended, newest first.
    pub(super) history: Vec<PastGrant>,
    /// The current state.
    pub(super) state: State,
}

impl Record {
    pub(super) fn is_in_cooldown(&self) -> bool {
        matches!(self.state, State::Cooldown(_))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum State {
    Free,
    Cooldown(Cooldown),
    Held(Box<Hold>),
}

/// The end of a cooldown. The lock is not granted before it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Cooldown {
    pub(super) boot: String,
    pub(super) until_ns: u64,
    pub(super) until_us: u64,
}

/// A grant that has not ended. Nanoseconds are on the boot clock of `boot`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Hold {
    pub(super) grant: Id,
    pub(super) holder: Holder,
    pub(super) ttl: Ttl,
    pub(super) lock_delay: Duration,
    pub(super) boot: String,
    pub(super) granted_us: u64,
    pub(super) granted_ns: u64,
    pub(super) renewed_ns: u64,
    pub(super) died_ns: Option<u64>,
    pub(super) process: Option<Process>,
}

/// Reads the row of `name`.
pub(super) fn load(connection: &Connection, name: &LockName) -> Result<Option<Record>, SqliteError> {
    let mut statement = connection.prepare_cached("SELECT * FROM lock WHERE name = ?")?;
    let mut rows = statement.query([name.as_str()])?;
    match rows.next()? {
        None => Ok(None),
        Some(row) => parse(row).map(Some).map_err(|error| match error {
            SqliteError::Garbled(what) => SqliteError::Garbled(format!("{name}: {what}")),
            other => other,
        }),
    }
}

/// Returns up to `limit` names after `after` that start with `prefix`, in order. Returns them as text, because people
/// may have edited them.
pub(super) fn names(
    connection: &Connection,
    prefix: &str,
    after: Option<&str>,
    limit: u32,
) -> Result<Vec<String>, SqliteError> {
    // Uses a range instead of LIKE, because a range uses the index and the prefix may contain `%` and `_`.
    let mut statement = connection.prepare(
        "SELECT name FROM lock WHERE name >= :prefix AND (:after IS NULL OR name > :after) ORDER BY name LIMIT :limit",
    )?;
    let mut rows = statement.query(named_params! { ":prefix": prefix, ":after": after, ":limit": limit })?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if !name.starts_with(prefix) {
            break;
        }
        names.push(name);
    }
    Ok(names)
}

/// Writes the row of `name`.
pub(super) fn store(connection: &Connection, name: &LockName, record: &Record) -> Result<(), SqliteError> {
    let (hold, cooldown) = match &record.state {
        State::Free => (None, None),
        State::Cooldown(cooldown) => (None, Some(cooldown)),
        State::Held(hold) => (Some(hold), None),
    };
    let mut statement = connection.prepare_cached(
        "INSERT OR REPLACE INTO lock (name, state, token, boot, grant_id, holder, ttl_ms, lock_delay_ms, granted_us,
            granted_ns, renewed_ns, died_ns, process, rest_ns, rest_us, history)
         VALUES (:name, :state, :token, :boot, :grant, :holder, :ttl_ms, :lock_delay_ms, :granted_us,
            :granted_ns, :renewed_ns, :died_ns, :process, :rest_ns, :rest_us, :history)",
    )?;
    statement.execute(
        named_params! {
            ":name": name.as_str(),
            ":state": match record.state { State::Free => "free", State::Cooldown(_) => "resting", State::Held(_) => "held" },
            ":token": signed(record.token.get()),
            ":boot": hold.map(|hold| &hold.boot).or(cooldown.map(|cooldown| &cooldown.boot)),
            ":grant": hold.map(|hold| hold.grant.to_string()),
            ":holder": hold.map(|hold| json(&hold.holder)).transpose()?,
            ":ttl_ms": hold.map(|hold| signed(hold.ttl.as_millis())),
            ":lock_delay_ms": hold.map(|hold| i64::try_from(hold.lock_delay.as_millis()).unwrap_or(i64::MAX)),
            ":granted_us": hold.map(|hold| signed(hold.granted_us)),
            ":granted_ns": hold.map(|hold| signed(hold.granted_ns)),
            ":renewed_ns": hold.map(|hold| signed(hold.renewed_ns)),
            ":died_ns": hold.and_then(|hold| hold.died_ns).map(signed),
            ":process": hold.and_then(|hold| hold.process.as_ref()).map(json).transpose()?,
            ":rest_ns": cooldown.map(|cooldown| signed(cooldown.until_ns)),
            ":rest_us": cooldown.map(|cooldown| signed(cooldown.until_us)),
            ":history": json(&record.history)?,
        },
    )?;
    Ok(())
}

/// The token counter of the file. It outlives every row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Counter {
    /// The highest token of all locks.
    pub(super) token: u64,
    /// Tokens up to this one may have been granted by commits that a power failure undid.
    pub(super) ceiling: u64,
    /// The boot in which the ceiling was set.
    pub(super) boot: String,
}

impl Counter {
    /// Reads the counter. A counter that was deleted by hand starts again at the wall clock, as in a new file.
    pub(super) fn load(connection: &Connection) -> Result<Self, SqliteError> {
        let mut statement =
            connection.prepare_cached("SELECT token, ceiling, boot FROM counter WHERE id = 1")?;
        let mut rows = statement.query(())?;
        match rows.next()? {
            None => Ok(Self { token: 0, ceiling: 0, boot: String::new() }),
            Some(row) => Ok(Self {
                token: unsigned(row, "token")?,
                ceiling: unsigned(row, "ceiling")?,
                boot: row.get("boot")?,
            }),
        }
    }

    /// Writes the counter.
    pub(super) fn store(&self, connection: &Connection) -> Result<(), SqliteError> {
        let mut statement = connection.prepare_cached(
            "INSERT OR REPLACE INTO counter (id, token, ceiling, boot) VALUES (1, ?, ?, ?)",
        )?;
        statement.execute((signed(self.token), signed(self.ceiling), &self.boot))?;
        Ok(())
    }
}

fn parse(row: &Row<'_>) -> Result<Record, SqliteError> {
    let token = unsigned(row, "token")?;
    let token = Token::new(token).ok_or_else(|| SqliteError::Garbled(format!("{token} is not a token")))?;
    let state = match row.get::<_, String>("state")?.as_str() {
        "free" => State::Free,
        "resting" => State::Cooldown(Cooldown {
            boot: row.get("boot")?,
            until_ns: unsigned(row, "rest_ns")?,
            until_us: unsigned(row, "rest_us")?,
        }),
        "held" => State::Held(Box::new(parse_hold(row)?)),
        other => return Err(SqliteError::Garbled(format!("unknown state {other:?}"))),
    };
    Ok(Record { token, history: from_json(&row.get::<_, String>("history")?)?, state })
}

fn parse_hold(row: &Row<'_>) -> Result<Hold, SqliteError> {
    let garbled = |error: crate::InvalidValue| SqliteError::Garbled(error.to_string());
    Ok(Hold {
        grant: row.get::<_, String>("grant_id")?.parse().map_err(garbled)?,
        holder: from_json(&row.get::<_, String>("holder")?)?,
        ttl: Ttl::from_millis(unsigned(row, "ttl_ms")?).map_err(garbled)?,
        lock_delay: Duration::from_millis(unsigned(row, "lock_delay_ms")?),
        boot: row.get("boot")?,
        granted_us: unsigned(row, "granted_us")?,
        granted_ns: unsigned(row, "granted_ns")?,
        renewed_ns: unsigned(row, "renewed_ns")?,
        died_ns: row.get::<_, Option<i64>>("died_ns")?.map(|_| unsigned(row, "died_ns")).transpose()?,
        process: row.get::<_, Option<String>>("process")?.map(|text| from_json(&text)).transpose()?,
    })
}

fn unsigned(row: &Row<'_>, column: &str) -> Result<u64, SqliteError> {
    let number: i64 = row.get(column)?;
    u64::try_from(number).map_err(|_| SqliteError::Garbled(format!("{column} is {number}")))
}

/// Converts a time or a token. Both stay below 2^63. The boot clock does so for 292 years.
pub(super) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

pub(super) fn json<T: Serialize>(value: &T) -> Result<String, SqliteError> {
    serde_json::to_string(value).map_err(|error| SqliteError::Garbled(error.to_string()))
}

pub(super) fn from_json<T: DeserializeOwned>(text: &str) -> Result<T, SqliteError> {
    serde_json::from_str(text).map_err(|error| SqliteError::Garbled(error.to_string()))
}
