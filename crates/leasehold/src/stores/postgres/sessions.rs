//! The connections of a store. They are opened on demand, and each runs one statement at a time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join;
use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Row, Statement};

use super::config::Table;
use super::connect::{Connector, Link};
use super::errors::{self, Effect};
use super::server::{self, ServerInfo};
use super::statements::{Parameter, Sql};
use crate::clock::{Moment, StoreClock, timeout};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::hosts::{Host, none_of};
use crate::stores::rows::number;

/// The most connections of a store, separately for acquisitions, reads and polls, for renewals, and for releases. So
/// holders do not wait for contenders, and releases do not wait for renewals whose rows are locked.
const CONTENDERS: usize = 3;
const RENEWALS: usize = 4;
const RELEASES: usize = 2;
const MOST: usize = CONTENDERS + RENEWALS + RELEASES;

/// A connection that was unused for this long is closed when another one is returned to the pool.
const IDLE: Duration = Duration::from_secs(60);

/// The resolution of the server's clock.
const RESOLUTION: Duration = Duration::from_micros(1);

/// The time limit for each server when all are queried at the same time.
const HOST_LIMIT: Duration = Duration::from_secs(3);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Renew,
    Release,
    /// Everything else.
    Contend,
}

/// The time limit of a request to begin notifications.
const LISTEN: Duration = Duration::from_secs(5);

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Sessions {
    connector: Connector,
    env: Env,
    /// The clock of the server.
    pub(super) clock: StoreClock,
    /// The unused connections. The last one is used first. It is the connection for notifications if that is unused.
    idle: Mutex<Vec<Session>>,
    contenders: Arc<Semaphore>,
    renewals: Arc<Semaphore>,
    releases: Arc<Semaphore>,
}

/// A connection to a primary whose table was checked.
pub(super) struct Session {
    link: Link,
    /// The statements that were sent more than once, by name, unless a pooler is in front of the server.
    prepared: HashMap<&'static str, Option<Statement>>,
    /// Whether no pooler is in front of the server.
    is_direct: bool,
    /// When the server last responded.
    answered: Moment,
    /// Whether the table existed. If not, the connection is not kept, so that the next one checks the table again.
    has_table: bool,
    /// Whether the connection receives notifications.
    listens: bool,
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
            Some(Ok(())) => {
                self.listens = true;
                Ok(notifications)
            }
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

/// A connection in use by one request. If it is dropped while a statement runs, the connection is closed.
#[derive(Debug)]
pub(super) struct Used<'a> {
    sessions: &'a Arc<Sessions>,
    session: Option<Session>,
    _permit: OwnedSemaphorePermit,
}

impl Sessions {
    pub(super) fn new(connector: Connector, env: Env) -> Self {
        Self {
            connector,
            env,
            clock: StoreClock::default(),
            idle: Mutex::default(),
            contenders: Arc::new(Semaphore::new(CONTENDERS)),
            renewals: Arc::new(Semaphore::new(RENEWALS)),
            releases: Arc::new(Semaphore::new(RELEASES)),
        }
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

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for an unused connection.
    pub(super) async fn take(self: &Arc<Self>, purpose: Purpose) -> Result<Used<'_>, StoreError> {
        let closed = |_| Fault::unavailable("the store is closed").not_applied();
        let permits = match purpose {
            Purpose::Contend => &self.contenders,
            Purpose::Renew => &self.renewals,
            Purpose::Release => &self.releases,
        };
        let permit = permits.clone().acquire_owned().await.map_err(closed)?;
        let (session, permit) = loop {
            let idle = self.idle().pop();
            match idle {
                Some(session) if session.link.client.is_closed() => {}
                Some(session) => break (session, permit),
                None => break self.opened(permit).await?,
            }
        };
        Ok(Used { sessions: self, session: Some(session), _permit: permit })
    }

    /// Opens a connection in a separate task. If the request is abandoned before the connection is open, the next
    /// request gets it. The task holds the permit, so that abandoned requests do not open more connections than there
    /// are permits.
    async fn opened(
        self: &Arc<Self>,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Session, OwnedSemaphorePermit), StoreError> {
        let (give, given) = oneshot::channel();
        let sessions = self.clone();
        tokio::spawn(async move {
            let opened = sessions.open().await.map(|session| (session, permit));
            if let Err(Ok((session, _permit))) = give.send(opened) {
                sessions.keep(session);
            }
        });
        given.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    /// Connects to the first server that is the primary.
    pub(super) async fn open(&self) -> Result<Session, StoreError> {
        let mut failed = Vec::new();
        for host in self.connector.hosts() {
            match self.open_at(host).await {
                Ok(session) => return Ok(session),
                Err(error) => failed.push(error),
            }
        }
        Err(none_of(failed))
    }

    async fn open_at(&self, host: &Host) -> Result<Session, StoreError> {
        let link = self.connector.connect(host, &self.env).await?;
        let sent = self.env.now();
        let info = server::checked(&link, self.table(), &self.env).await?;
        self.note_clock(info.clock_us, sent);
        let (answered, prepared, has_table) = (self.env.now(), HashMap::new(), info.kind.is_some());
        Ok(Session { link, prepared, is_direct: info.is_direct, answered, has_table, listens: false })
    }

    /// Records the reading of the server's clock in a response that has just arrived.
    fn note_clock(&self, clock_us: i64, sent: Moment) {
        self.clock.observe(u64::try_from(clock_us).unwrap_or(0), RESOLUTION, sent, self.env.now());
    }

    /// Returns a lower bound of the server's clock at `now`.
    pub(super) fn clock_us(&self, now: Moment) -> i64 {
        self.clock.bounds(now).map_or(0, |time| number(time.lo_us))
    }

    /// Listens to `channel` on one of the connections, which requests use too. So a process that waits needs a single
    /// connection.
    pub(super) async fn listen(
        self: &Arc<Self>,
        channel: &str,
    ) -> Result<UnboundedReceiver<String>, StoreError> {
        let mut used = self.take(Purpose::Contend).await?;
        let Some(session) = used.session.as_mut().filter(|session| session.is_direct) else {
            return Err(pooled());
        };
        let listens = session.listen(channel, self).await;
        if listens.is_err() {
            used.session = None;
        }
        listens
    }

    /// Closes the connection for notifications, and returns true, unless it is in use.
    pub(super) fn stop_listening(&self) -> bool {
        self.idle().pop_if(|session| session.listens).is_some()
    }

    /// Opens a connection to the primary that is not part of the pool.
    pub(super) async fn separate(&self) -> Result<Link, StoreError> {
        let (link, info) = self.any().await?;
        server::check_server(&info, &link.host).map_err(Fault::not_applied)?;
        Ok(link)
    }

    /// Opens a connection to the primary, or else to another server, and returns its properties. Connects to all
    /// servers at the same time, so that one that does not respond delays no other.
    pub(super) async fn any(&self) -> Result<(Link, ServerInfo), StoreError> {
        let (mut other, mut failed) = (None, Vec::new());
        let asked = async |host: &Host| {
            let opened = async {
                let link = self.connector.connect(host, &self.env).await?;
                let info = server::query(&link, self.table(), &self.env).await?;
                Ok((link, info))
            };
            timeout(&*self.env.clock, HOST_LIMIT, opened).await.unwrap_or_else(|| {
                let message = format!("PostgreSQL at {host} did not respond within {HOST_LIMIT:.0?}");
                Err(Fault::unavailable(message).not_applied())
            })
        };
        let mut answers: FuturesUnordered<_> = self.connector.hosts().iter().map(asked).collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok((link, info)) if server::check_server(&info, &link.host).is_ok() => {
                    return Ok((link, info));
                }
                Ok(info) => other = Some(info),
                Err(error) => failed.push(error),
            }
        }
        other.ok_or_else(|| none_of(failed))
    }

    fn keep(&self, session: Session) {
        if !session.has_table || session.link.client.is_closed() {
            return;
        }
        let now = self.env.now();
        let mut idle = self.idle();
        idle.retain(|other| {
            (other.listens || now.longest_since(other.answered) < IDLE) && !other.link.client.is_closed()
        });
        if idle.len() < MOST {
            let listening = idle.pop_if(|last| last.listens);
            idle.push(session);
            idle.extend(listening);
        }
    }

    /// Closes the connections on which nothing has arrived since `began`, when a request was sent that got no response.
    /// Those connections may be dead too, and each would cost an attempt.
    fn close_unanswered(&self, began: Moment) {
        self.idle().retain(|session| session.answered.since_boot() > began.since_boot());
    }

    /// Closes the connections to `host`, which is no longer the primary.
    fn close_to(&self, host: &str) {
        self.idle().retain(|session| session.link.host != host);
    }

    /// Closes the unused connections.
    pub(super) fn close_idle(&self) {
        self.idle().clear();
    }
}

impl Used<'_> {
    /// Sends one statement. When it returns rows, the response is complete and the transaction is committed. If the
    /// future is dropped, the connection is closed, and later calls fail.
    pub(super) async fn query(
        &mut self,
        effect: Effect,
        sql: &Sql,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let Some(session) = self.session.take() else {
            return Err(Fault::unavailable("the connection to PostgreSQL is closed").not_applied());
        };
        let began = self.sessions.env.now();
        let mut running = Running { session: Some(session), sessions: self.sessions, began };
        let Some(session) = &mut running.session else { return Ok(Vec::new()) };
        session.link.take_doubt();
        let answer = session.run(sql, parameters).await;
        let doubt = session.link.take_doubt();
        let mut session = running.done();
        match &answer {
            Err(error) if error.as_db_error().is_none() => self.sessions.close_unanswered(began),
            Err(error) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => {
                if let Some(session) = session.take() {
                    self.sessions.close_to(&session.link.host);
                }
            }
            Ok(_) | Err(_) => {
                if let Some(session) = &mut session {
                    session.answered = self.sessions.env.now();
                }
            }
        }
        self.session = session;
        match answer {
            Ok(_) if doubt && effect == Effect::Writes => Err(errors::commit_in_doubt()),
            Ok(rows) => {
                if let Some(clock_us) = rows.first().and_then(|row| row.try_get("now_us").ok()) {
                    self.sessions.note_clock(clock_us, began);
                }
                Ok(rows)
            }
            Err(error) => Err(errors::of_statement(&error, effect, self.sessions.table())),
        }
    }
}

impl Drop for Used<'_> {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            self.sessions.keep(session);
        }
    }
}

fn pooled() -> StoreError {
    Fault::new(ErrorKind::Unsupported, "a pooler is in front of the server").not_applied()
}

/// A connection that runs a statement. It is closed if this is dropped before the response.
struct Running<'a> {
    session: Option<Session>,
    sessions: &'a Sessions,
    began: Moment,
}

impl Running<'_> {
    fn done(mut self) -> Option<Session> {
        self.session.take()
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            session.link.abort();
            self.sessions.close_unanswered(self.began);
        }
    }
}
