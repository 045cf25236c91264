//! A table of locks on a server that may fail over: what MySQL and PostgreSQL have in common. Each of them implements
//! [`Table`] with its statements, and [`Servers`] with its client.

#[cfg(feature = "mysql")]
mod beside;
mod examine;
mod records;
mod reports;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[cfg(feature = "mysql")]
pub(super) use self::beside::{Stored, outcome, withheld};
#[cfg(test)]
pub(super) use self::examine::suits;
pub(super) use self::examine::{Checks, examined, make_once};
#[cfg(feature = "mysql")]
pub(super) use self::records::here;
pub(super) use self::records::open;
pub(super) use self::reports::{Effect, FULL, Kind, Meaning, not_ordinary, permissions};
use self::reports::{lacks_columns, wrong_types};
use async_trait::async_trait;
use bytes::Bytes;

use crate::clock::{Moment, StoreClock, micros, timeout};
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::lease::{Id, StoreOptions, attempt_limit};
use crate::protocol::line::Waiter;
use crate::protocol::record::Record;
use crate::protocol::records::{Change, Claims, Found, Written};
use crate::register::Version;
use crate::stores::columns::Columns;
use crate::stores::database::Database;
use crate::stores::hosts::{CONNECT_LIMIT, Host, first_of, primary_of};
use crate::stores::notifications::Calls;
use crate::stores::password::Accepted;
use crate::stores::pool::{self, Pool, Purpose, Used};
use crate::stores::rows::{number, time};
use crate::stores::tls::blocking;
use crate::types::LockName;

/// How long it takes to notice a server that has vanished without closing its connections.
pub(super) const SILENCE: Duration = Duration::from_secs(10);

/// The time limit of the queries that check a server.
pub(super) const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// For how long it is known that only leasehold has rows in a table.
const UNSHARED: Duration = Duration::from_secs(60);

/// The table of a store: the requests on its rows. They run on the store's thread.
#[async_trait]
pub(super) trait Table: fmt::Debug + Send + Sync + Sized + 'static {
    const KIND: Kind;
    const CLAIMS: Claims;
    /// Whether permits are queued: see [`Capabilities`](crate::lease::Capabilities).
    const QUEUES_PERMITS: bool;
    type Session: pool::Session;

    fn connections(&self) -> &Connections<Self::Session>;

    /// Connects to the first server that is the primary. The connection is not part of the pool.
    async fn open(&self) -> Result<Self::Session, StoreError>;

    /// Runs the doctor's checks.
    async fn examined(self: &Arc<Self>) -> Examined {
        Examined::default()
    }

    /// Creates the table or adds the missing columns. Changes nothing if the table is complete.
    async fn make(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Records which server is the primary: see `failover_grace`.
    async fn note_primary(self: &Arc<Self>) -> Result<(), StoreError>;

    async fn read(self: &Arc<Self>, name: &LockName) -> Result<Option<Found>, StoreError>;

    /// Writes a record. The server does not grant or renew after the time limit of a request, when the caller no longer
    /// waits for the response.
    async fn write(self: &Arc<Self>, writing: &Writing) -> Result<Written, StoreError>;

    async fn discard(self: &Arc<Self>, name: &LockName, version: &Version) -> Result<bool, StoreError>;

    /// Returns the next `count` names that begin with `prefix`, after the name `from`.
    async fn names(
        self: &Arc<Self>,
        prefix: &str,
        from: Option<&str>,
        count: usize,
    ) -> Result<Vec<String>, StoreError>;

    /// Returns whether ShedLock uses the table.
    async fn is_shared(self: &Arc<Self>) -> Result<bool, StoreError>;

    /// See [`Records::read_line`](crate::protocol::records::Records::read_line).
    async fn read_line(self: &Arc<Self>, _name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        Ok(None)
    }

    /// See [`Records::write_line`](crate::protocol::records::Records::write_line).
    async fn write_line(
        self: &Arc<Self>,
        _name: &LockName,
        _expect: Option<&Version>,
        _line: &[u8],
    ) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// See [`Records::join`](crate::protocol::records::Records::join).
    async fn join(
        self: &Arc<Self>,
        _name: &LockName,
        _waiter: &Waiter,
        _most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        Ok(None)
    }

    /// See [`Records::leave`](crate::protocol::records::Records::leave).
    async fn leave(self: &Arc<Self>, _name: &LockName, _claim: Id) -> Result<(), StoreError> {
        Ok(())
    }

    /// See [`Records::settle`](crate::protocol::records::Records::settle).
    async fn settle(
        self: &Arc<Self>,
        _name: &LockName,
        _version: Option<&Version>,
    ) -> Result<bool, StoreError> {
        Ok(true)
    }

    /// Returns the claims that the server calls, unless it calls none.
    fn calls(&self) -> Option<&Arc<Calls>> {
        None
    }

    /// Begins to receive calls. Returns whether it did not receive them before.
    fn listen(self: &Arc<Self>) -> bool {
        false
    }

    /// Ends what runs in the background.
    fn close(&self) {
        self.connections().pool.close_idle();
    }

    /// Waits for an unused connection, or opens one.
    async fn take(self: &Arc<Self>, purpose: Purpose) -> Result<Used<Self::Session>, StoreError> {
        let opens = self.clone();
        self.connections().pool.take(purpose, async move { opens.open().await }).await
    }

    fn env(&self) -> &Env {
        &self.connections().env
    }

    /// Returns the name of the table as in the URL.
    fn table(&self) -> &str {
        &self.connections().database.table
    }
}

/// The servers of a table: how to connect to them, and which of them are refused.
#[async_trait]
pub(super) trait Servers: Table {
    type Properties: Properties;
    /// What a login needs: the password, and what the TLS files contain.
    type Login: Send;

    /// Reads the password and the TLS files. Blocks.
    fn login(database: &Database) -> Result<Self::Login, Error>;

    /// Connects to `host` within [`CONNECT_LIMIT`]. Sends no statement.
    async fn connect(&self, host: &Host, login: Self::Login) -> Result<Self::Session, Fault>;

    /// Asks for the properties of the server and its table.
    async fn look(&self, session: &mut Self::Session) -> Result<Self::Properties, StoreError>;

    /// Prepares a connection to a server that was checked.
    async fn begin(
        &self,
        _session: &mut Self::Session,
        _properties: &Self::Properties,
    ) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the name of the table in SQL.
    fn sql(&self) -> &str;

    /// Sends the statement that creates or extends the table, which may be repeated. Succeeds if another process has just
    /// done the same.
    async fn define(&self, session: &mut Self::Session, sql: &str) -> Result<(), StoreError>;

    /// Connects to the first server that is the primary. The connection is not part of the pool.
    async fn primary(&self) -> Result<Self::Session, StoreError> {
        first_of(&self.connections().database.hosts, |host| self.open_at(host)).await
    }

    async fn open_at(&self, host: &Host) -> Result<Self::Session, StoreError> {
        let (mut session, properties) = self.checked(host).await?;
        let checked = properties.check_server(&host.to_string());
        let checked = checked.and_then(|()| properties.check_table(self.table()));
        checked.map_err(Fault::not_applied)?;
        let begun = timeout(&*self.env().clock, CHECK_LIMIT, self.begin(&mut session, &properties)).await;
        begun.unwrap_or_else(|| Err(Self::KIND.silent(host)))?;
        Ok(session)
    }

    /// Connects to the primary, or else to another server, and returns its properties. The connection is not part of the
    /// pool.
    async fn any(&self) -> Result<(Self::Session, Self::Properties), StoreError> {
        let is_primary = |(session, properties): &(Self::Session, Self::Properties)| {
            properties.check_server(pool::Session::host(session)).is_ok()
        };
        let hosts = &self.connections().database.hosts;
        primary_of(hosts, (Self::KIND.name, self.env()), |host| self.checked(host), is_primary).await
    }

    /// Connects to `host`, and returns its properties.
    async fn checked(&self, host: &Host) -> Result<(Self::Session, Self::Properties), StoreError> {
        let Connections { database, env, accepted, .. } = self.connections();
        let read = database.clone();
        let connecting = async {
            let login = blocking(move || Self::login(&read)).await?;
            let connected = timeout(&*env.clock, CONNECT_LIMIT, self.connect(host, login)).await;
            let late = format!("no connection to {} at {host} within {CONNECT_LIMIT:.1?}", Self::KIND.name);
            connected.unwrap_or_else(|| Err(Fault::unavailable(late))).map_err(Fault::not_applied)
        };
        let mut session = connecting.await.map_err(|error| accepted.judge(error))?;
        accepted.note();
        let sent = env.now();
        let looked = timeout(&*env.clock, CHECK_LIMIT, self.look(&mut session)).await;
        let properties =
            looked.unwrap_or_else(|| Err(Self::KIND.silent(host))).map_err(StoreError::of_read)?;
        // The clock of another server does not count.
        if properties.check_server(pool::Session::host(&session)).is_ok() {
            self.connections().note_clock(properties.clock_us(), sent);
        }
        Ok((session, properties))
    }
}

/// The properties of a server and its table.
pub(super) trait Properties: Send + Sync {
    /// The columns, their types, and the rest of their definitions.
    const COLUMNS: &'static [(&'static str, &'static str, &'static str)];
    /// The type that is checked at once. A column of another wrong type fails the statement that needs it. `None`: all types
    /// are checked at once.
    const CHECKED_TYPE: Option<&'static str>;
    /// The schema of the types, with a dot.
    const TYPES: &'static str;
    /// What begins the addition of a column, and what ends the definition of a table.
    const ADD: &'static str;
    const END: &'static str;

    /// Returns the time of the server in microseconds since the Unix epoch.
    fn clock_us(&self) -> i64;

    fn has_table(&self) -> bool;

    /// Returns what the doctor says of a good server and of a good table.
    fn praise(&self) -> [String; 2];

    /// Refuses servers on which locks are not safe, and those that are not the primary.
    fn check_server(&self, host: &str) -> Result<(), Fault>;

    /// Refuses tables on which locks are not safe, whatever their other columns are. Accepts a missing table.
    fn check_kind(&self, table: &str) -> Result<(), Fault>;

    /// Returns the columns of the table, with their types. Empty if there is no table.
    fn columns(&self) -> &HashMap<String, String>;

    /// Returns whether the type `is` of a column serves as the type that it `needs`.
    fn fits(is: &str, needs: &str) -> bool;

    /// Returns what helps if columns have other types.
    fn remedy(&self, table: &str) -> String;

    /// Returns the columns that the table lacks.
    fn missing(&self) -> Vec<&'static str> {
        let lacks = |name: &&str| self.has_table() && !self.columns().contains_key(*name);
        Self::COLUMNS.iter().map(|(name, ..)| *name).filter(lacks).collect()
    }

    /// Refuses columns of other types: of those that need the type `only`, or of all.
    fn check_types(&self, table: &str, only: Option<&str>) -> Result<(), Fault> {
        let checked = Self::COLUMNS.iter().filter(|(_, needs, _)| only.is_none_or(|only| only == *needs));
        let wrong = checked.filter_map(|(name, needs, _)| {
            let is = self.columns().get(*name).filter(|is| !Self::fits(is, needs))?;
            Some(format!("{name} {is} (instead of {needs})"))
        });
        match wrong.collect::<Vec<_>>() {
            wrong if wrong.is_empty() => Ok(()),
            wrong => Err(wrong_types(table, &wrong, self.remedy(table))),
        }
    }

    /// Refuses tables on which two processes could hold one lock. Accepts a missing table, because the statements then
    /// fail.
    fn check_table(&self, table: &str) -> Result<(), Fault> {
        self.check_kind(table)?;
        self.check_types(table, Self::CHECKED_TYPE)?;
        match self.missing() {
            missing if missing.is_empty() => Ok(()),
            missing => Err(lacks_columns(table, &missing.join(", "))),
        }
    }

    /// Returns the statement that creates the table. `sql` is its name in SQL.
    fn create(sql: &str) -> String {
        format!("CREATE TABLE IF NOT EXISTS {sql} ({}){}", Self::definitions("", |_| true), Self::END)
    }

    /// Returns the statement that adds the columns that are `missing`.
    fn extend(sql: &str, missing: &[&str]) -> String {
        format!("ALTER TABLE {sql} {}", Self::definitions(Self::ADD, |name| missing.contains(&name)))
    }

    /// Returns the definitions of some columns, each after `add`.
    fn definitions(add: &str, of: impl Fn(&str) -> bool) -> String {
        let columns = Self::COLUMNS.iter().filter(|(name, ..)| of(name));
        let columns = columns.map(|(name, kind, rest)| format!("{add}{name} {}{kind}{rest}", Self::TYPES));
        columns.collect::<Vec<_>>().join(", ")
    }
}

/// The connections to the servers of a table, and what all requests need.
#[derive(Debug)]
pub(super) struct Connections<S> {
    pub(super) database: Database,
    pub(super) env: Env,
    /// How far the server's clock may be set ahead without ending a lease early.
    margin: Duration,
    /// The clock of the server.
    pub(super) clock: StoreClock,
    pub(super) pool: Arc<Pool<S>>,
    accepted: Accepted,
    /// When the table was last found to have only rows of leasehold.
    unshared: Mutex<Option<Moment>>,
}

impl<S: pool::Session> Connections<S> {
    fn of(database: Database, options: &StoreOptions) -> Self {
        let (env, margin) = (options.env.clone(), options.margin);
        let (clock, pool) = (StoreClock::default(), Pool::new(env.clone()));
        let (accepted, unshared) = Default::default();
        Self { database, env, margin, clock, pool, accepted, unshared }
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    pub(super) fn note_clock(&self, clock_us: i64, sent: Moment) {
        self.clock.observe_us(time(clock_us), sent, self.env.now());
    }

    /// Returns the time on the server's clock from which on `writing` is too late, because its caller no longer waits. The
    /// request itself takes up to `reserve`.
    pub(super) fn too_late_us(&self, writing: &Writing, reserve: Duration) -> i64 {
        if writing.change == Change::Free {
            return i64::MAX;
        }
        let now = self.env.now();
        let left = attempt_limit(writing.record.ttl()).saturating_sub(now.longest_since(writing.began));
        number(self.clock.lowest_us(now).saturating_add(micros(left.saturating_sub(reserve))))
    }
}

/// A write of a record.
pub(super) struct Writing {
    pub(super) change: Change,
    /// For a grant over any free record.
    pub(super) over: Option<AnyFree>,
    pub(super) name: LockName,
    /// `None` for a grant over any free record, and to create the row.
    pub(super) expect: Option<Version>,
    pub(super) record: Record,
    pub(super) columns: Columns,
    /// For how long the record keeps others out.
    pub(super) kept: Duration,
    /// For how long the record that was read keeps others out.
    pub(super) prolongs: Duration,
    began: Moment,
}

/// A grant over any free record: how many tokens it takes, and whether it ignores the line.
#[derive(Clone, Copy, Debug)]
pub(super) struct AnyFree {
    pub(super) tokens: u64,
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "MySQL never grants over a line"))]
    pub(super) barges: bool,
}
