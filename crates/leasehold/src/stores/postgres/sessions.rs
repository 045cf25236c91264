//! Checks the connections of a store, and sends statements on them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Row, Statement};

use super::config::Table;
use super::connect::{Connector, Link};
use super::errors;
use super::server::{self, ServerInfo};
use super::statements::{Parameter, Sql};
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::hosts::{Host, first_of, primary_of};
use crate::stores::pool::{self, Pool, Purpose};
use crate::stores::rows::time;
use crate::stores::table::Effect;

/// The time limit of a request to begin notifications.
const LISTEN: Duration = Duration::from_secs(5);

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Sessions {
    connector: Connector,
    env: Env,
    /// The clock of the server.
    pub(super) clock: StoreClock,
    pub(super) pool: Arc<Pool<Session>>,
}

/// A connection to a primary whose table was checked.
pub(super) struct Session {
    link: Link,
    /// The statements that were sent more than once, by name, unless a pooler is in front of the server.
    prepared: HashMap<&'static str, Option<Statement>>,
    /// Whether no pooler is in front of the server.
    is_direct: bool,
    has_table: bool,
    /// Whether a statement was sent, and the response has not arrived.
    is_running: bool,
}

impl pool::Session for Session {
    fn host(&self) -> &str {
        &self.link.host
    }

    fn has_table(&self) -> bool {
        self.has_table
    }

    fn is_open(&self) -> bool {
        !self.link.client.is_closed()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if self.is_running {
            self.link.abort();
        }
    }
}

impl Session {
    /// Listens to `channel`. Fails behind a pooler, where `LISTEN` would apply to one of the pooler's connections.
    pub(super) async fn listen(
        &mut self,
        channel: &str,
        sessions: &Sessions,
    ) -> Result<UnboundedReceiver<String>, StoreError> {
        let Some(notifications) = self.link.notifications.take().filter(|_| self.is_direct) else {
            return Err(pooled());
        };
        let listen = format!("LISTEN {channel}");
        match timeout(&*sessions.env.clock, LISTEN, self.link.client.batch_execute(&listen)).await {
            Some(Ok(())) => Ok(notifications),
            Some(Err(error)) => Err(errors::of_statement(&error, Effect::None, sessions.table())),
            None => Err(Fault::unavailable("PostgreSQL did not respond").not_applied()),
        }
    }

    /// Sends `sql`. Prepares it, after its second use without waiting for it, so that the server plans it once.
    async fn run(
        &mut self,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        self.is_running = true;
        let client = &self.link.client;
        let answer = match self.prepared.get(sql.name) {
            _ if !self.is_direct => client.query_typed(&sql.text, parameters).await,
            Some(Some(statement)) => {
                let values: Vec<_> = parameters.iter().map(|(value, _)| *value).collect();
                client.query(statement, &values).await
            }
            Some(None) => {
                let kinds: Vec<_> = parameters.iter().map(|(_, kind)| kind.clone()).collect();
                let asked = client.query_typed(&sql.text, parameters);
                let (answer, statement) = join(asked, client.prepare_typed(&sql.text, &kinds)).await;
                self.prepared.insert(sql.name, statement.ok());
                answer
            }
            None => {
                self.prepared.insert(sql.name, None);
                client.query_typed(&sql.text, parameters).await
            }
        };
        self.is_running = false;
        if answer.is_err() {
            self.prepared.clear();
        }
        answer
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.link.host).finish_non_exhaustive()
    }
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

    pub(super) fn table(&self) -> &Table {
        self.connector.table()
    }

    pub(super) fn failover_grace(&self) -> Duration {
        self.connector.failover_grace()
    }

    pub(super) fn notifies(&self) -> bool {
        self.connector.notifies()
    }

    /// Waits for an unused connection, or opens one.
    pub(super) async fn take(self: &Arc<Self>, purpose: Purpose) -> Result<Used, StoreError> {
        let (sessions, opens) = (self.clone(), self.clone());
        let open = async move { opens.open().await };
        Ok(Used { used: self.pool.take(purpose, open).await?, sessions })
    }

    /// Connects to the first server that is the primary. The connection is not part of the pool.
    pub(super) async fn open(&self) -> Result<Session, StoreError> {
        first_of(self.connector.hosts(), |host| self.open_at(host)).await
    }

    async fn open_at(&self, host: &Host) -> Result<Session, StoreError> {
        let link = self.connector.connect(host, &self.env).await?;
        let sent = self.env.now();
        let info = server::checked(&link, self.table(), &self.env).await?;
        self.note_clock(info.clock_us, sent);
        let (prepared, is_direct, has_table) = (HashMap::new(), info.is_direct, info.kind.is_some());
        Ok(Session { link, prepared, is_direct, has_table, is_running: false })
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    fn note_clock(&self, clock_us: i64, sent: Moment) {
        self.clock.observe_us(time(clock_us), sent, self.env.now());
    }

    /// Listens to `channel` on one of the connections, which requests use too. So a process that waits needs a single
    /// connection.
    pub(super) async fn listen(
        self: &Arc<Self>,
        channel: &str,
    ) -> Result<UnboundedReceiver<String>, StoreError> {
        let Used { mut used, .. } = self.take(Purpose::Contend).await?;
        if !used.session()?.is_direct {
            return Err(pooled());
        }
        let mut running = used.begin()?;
        let listens = running.session()?.listen(channel, self).await;
        running.end(true);
        match listens {
            Ok(_) => used.listens(),
            Err(_) => used.close(),
        }
        listens
    }

    /// Opens a connection to the primary that is not part of the pool.
    pub(super) async fn separate(&self) -> Result<Link, StoreError> {
        let (link, info) = self.any().await?;
        server::check_server(&info, &link.host).map_err(Fault::not_applied)?;
        Ok(link)
    }

    /// Opens a connection to the primary, or else to another server, and returns its properties. The connection is not
    /// part of the pool.
    pub(super) async fn any(&self) -> Result<(Link, ServerInfo), StoreError> {
        let ask = |host| async move {
            let link = self.connector.connect(host, &self.env).await?;
            let info = server::query(&link, self.table(), &self.env).await?;
            Ok((link, info))
        };
        let is_primary = |(link, info): &(Link, ServerInfo)| server::check_server(info, &link.host).is_ok();
        primary_of(self.connector.hosts(), ("PostgreSQL", &self.env), ask, is_primary).await
    }
}

impl Used {
    /// Sends one statement. When it returns rows, the response is complete and the transaction is committed. If the
    /// future is dropped, the connection is closed, and later calls fail.
    pub(super) async fn query(
        &mut self,
        effect: Effect,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let mut running = self.used.begin()?;
        let began = running.began;
        let session = running.session()?;
        session.link.take_doubt();
        let answer = session.run(sql, parameters).await;
        let doubt = session.link.take_doubt();
        running.end(!answer.as_ref().is_err_and(|error| error.as_db_error().is_none()));
        match answer {
            Ok(_) if doubt && effect == Effect::Writes => Err(errors::commit_in_doubt()),
            Ok(rows) => {
                if let Some(clock_us) = rows.first().and_then(|row| row.try_get("now_us").ok()) {
                    self.sessions.note_clock(clock_us, began);
                }
                Ok(rows)
            }
            Err(error) => {
                if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) {
                    self.used.leave_server();
                }
                Err(errors::of_statement(&error, effect, self.sessions.table()))
            }
        }
    }
}

fn pooled() -> StoreError {
    Fault::new(ErrorKind::Unsupported, "a pooler is in front of the server").not_applied()
}
