//! The connections of a store: opened when they are needed, each used by one statement at a time.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio_postgres::Row;

use super::config::{Host, Table};
use super::connect::{Heard, Link, Way};
use super::errors::{self, Effect};
use super::server::{self, Found};
use super::statements::Parameter;
use crate::clock::{Moment, RATE_ERROR, micros};
use crate::env::Env;
use crate::error::{Fault, StoreError};

/// The most connections of a store, beside the one that listens.
const MOST: usize = 4;

/// How many of them acquisitions, reads and polls may use at a time. The rest is for renewals and releases.
const MOST_OF_CONTENDERS: usize = MOST - 1;

/// A connection that was not used for this long is closed when another one returns.
const IDLE: Duration = Duration::from_secs(60);

/// Who asks. Holders go first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A renewal or a release.
    Hold,
    /// Everything else.
    Contend,
}

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Sessions {
    way: Way,
    env: Env,
    idle: Mutex<Vec<Session>>,
    all: Semaphore,
    contenders: Semaphore,
}

/// A connection to a primary whose table was looked at.
pub(super) struct Session {
    link: Link,
    /// What the server's clock read, and a moment after that.
    clock: (i64, Moment),
    used: Moment,
    /// Whether the table existed. Otherwise it is looked at again, by another connection.
    has_table: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("host", &self.link.host).finish_non_exhaustive()
    }
}

/// A connection that one request uses. If it is dropped while a statement runs, the connection is closed.
#[derive(Debug)]
pub(super) struct Used<'a> {
    sessions: &'a Arc<Sessions>,
    session: Option<Session>,
    _permits: (Option<SemaphorePermit<'a>>, SemaphorePermit<'a>),
}

impl Sessions {
    pub(super) fn new(way: Way, env: Env) -> Self {
        Self {
            way,
            env,
            idle: Mutex::default(),
            all: Semaphore::new(MOST),
            contenders: Semaphore::new(MOST_OF_CONTENDERS),
        }
    }

    pub(super) fn table(&self) -> &Table {
        self.way.table()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Session>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a connection that nothing else uses.
    pub(super) async fn take(self: &Arc<Self>, purpose: Purpose) -> Result<Used<'_>, StoreError> {
        let closed = |_| Fault::unavailable("the store is closed").not_applied();
        let contender = match purpose {
            Purpose::Hold => None,
            Purpose::Contend => Some(self.contenders.acquire().await.map_err(closed)?),
        };
        let permits = (contender, self.all.acquire().await.map_err(closed)?);
        let session = loop {
            let idle = self.idle().pop();
            match idle {
                Some(session) if session.link.client.is_closed() => {}
                Some(session) => break session,
                None => break self.opened().await?,
            }
        };
        Ok(Used { sessions: self, session: Some(session), _permits: permits })
    }

    /// Opens a connection in a task of its own: a request that is given up before it is open leaves it to the next.
    async fn opened(self: &Arc<Self>) -> Result<Session, StoreError> {
        let (give, given) = oneshot::channel();
        let sessions = self.clone();
        tokio::spawn(async move {
            if let Err(Ok(session)) = give.send(sessions.open().await) {
                sessions.keep(session);
            }
        });
        given.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").not_applied()))
    }

    /// Connects to the first server that is the primary.
    async fn open(&self) -> Result<Session, StoreError> {
        let mut failed: Option<StoreError> = None;
        for host in self.way.hosts() {
            match self.open_at(host).await {
                Ok(session) => return Ok(session),
                // What no retry changes says more than what may pass.
                Err(error) if failed.as_ref().is_none_or(StoreError::is_transient) => failed = Some(error),
                Err(_) => {}
            }
        }
        Err(failed.unwrap_or_else(|| Fault::unavailable("there is no PostgreSQL server").not_applied()))
    }

    async fn open_at(&self, host: &Host) -> Result<Session, StoreError> {
        let silent: Heard = Arc::new(|_| {});
        let link = self.way.connect(host, &self.env, silent).await?;
        let found = server::look(&link, self.table(), &self.env).await?;
        let now = self.env.now();
        Ok(Session { link, clock: (found.clock_us, now), used: now, has_table: found.kind.is_some() })
    }

    /// Opens a connection to the primary that is not one of the store's: to listen on, or to make the table.
    pub(super) async fn separate(&self, heard: Heard) -> Result<Link, StoreError> {
        let (link, found) = self.any_with(heard).await?;
        server::check_server(&found, &link.host).map_err(Fault::not_applied)?;
        Ok(link)
    }

    /// Opens a connection to the primary, or else to another server, and says what was found there.
    pub(super) async fn any(&self) -> Result<(Link, Found), StoreError> {
        self.any_with(Arc::new(|_| {})).await
    }

    async fn any_with(&self, heard: Heard) -> Result<(Link, Found), StoreError> {
        let (mut other, mut failed) = (None, None);
        for host in self.way.hosts() {
            let opened = async {
                let link = self.way.connect(host, &self.env, heard.clone()).await?;
                let found = server::find(&link, self.table(), &self.env).await?;
                Ok::<_, StoreError>((link, found))
            };
            match opened.await {
                Ok((link, found)) if server::check_server(&found, &link.host).is_ok() => {
                    return Ok((link, found));
                }
                Ok(found) => other = Some(found),
                Err(error) => failed = Some(error),
            }
        }
        match (other, failed) {
            (Some(other), _) => Ok(other),
            (None, Some(error)) => Err(error),
            (None, None) => Err(Fault::unavailable("there is no PostgreSQL server").not_applied()),
        }
    }

    fn keep(&self, mut session: Session) {
        if !session.has_table || session.link.client.is_closed() {
            return;
        }
        let now = self.env.now();
        session.used = now;
        let mut idle = self.idle();
        idle.retain(|other| now.longest_since(other.used) < IDLE && !other.link.client.is_closed());
        idle.push(session);
    }

    /// Closes the connections that nothing uses.
    pub(super) fn close_idle(&self) {
        self.idle().clear();
    }
}

impl Used<'_> {
    /// A reading of the server's clock that it certainly shows or has passed when it is this moment: the latest
    /// answer's, with the shortest time that can have passed since.
    pub(super) fn clock_us(&self, now: Moment) -> i64 {
        let Some(session) = &self.session else { return 0 };
        let (read_us, at) = session.clock;
        let passed = now.shortest_since(at).mul_f64(1.0 - RATE_ERROR);
        read_us.saturating_add(i64::try_from(micros(passed)).unwrap_or(i64::MAX))
    }

    /// Notes what the server's clock read in an answer that has just come.
    pub(super) fn note_clock(&mut self, clock_us: i64) {
        let now = self.sessions.env.now();
        if let Some(session) = &mut self.session {
            session.clock = (clock_us, now);
        }
    }

    /// Sends one statement. Its answer is complete, and its transaction committed, when this completes. Once only: a
    /// connection that was given up has gone.
    pub(super) async fn query(
        &mut self,
        effect: Effect,
        sql: &str,
        parameters: &[Parameter<'_>],
    ) -> Result<Vec<Row>, StoreError> {
        let Some(session) = self.session.take() else {
            return Err(Fault::unavailable("the connection to PostgreSQL is closed").not_applied());
        };
        let running = Running(Some(session));
        let Some(session) = &running.0 else { return Ok(Vec::new()) };
        session.link.take_doubt();
        let answer = session.link.client.query_typed(sql, parameters).await;
        let doubt = session.link.take_doubt();
        self.session = running.done();
        match answer {
            Ok(_) if doubt && effect == Effect::Writes => Err(errors::commit_in_doubt()),
            Ok(rows) => Ok(rows),
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

/// A connection whose statement runs. It is closed if its future is dropped before the answer.
struct Running(Option<Session>);

impl Running {
    fn done(mut self) -> Option<Session> {
        self.0.take()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(session) = &self.0 {
            session.link.abort();
        }
    }
}
