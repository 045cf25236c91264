//! The connections of a store, of which each runs one request at a time. They are opened on demand.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock::Moment;
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::protocol::records::Change;
use crate::worker::detached;

/// The most connections for each [`Purpose`]. So holders do not wait for contenders, and releases do not wait for renewals
/// whose rows are locked.
const MOST: [usize; 3] = [3, 4, 2];

/// A connection on which nothing has arrived for this long is closed before the next request, and after it.
const IDLE: Duration = Duration::from_secs(60);

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// Everything else: acquisitions, reads and polls.
    Contend,
    Renew,
    Release,
}

impl From<Change> for Purpose {
    fn from(change: Change) -> Self {
        match change {
            Change::Grant => Self::Contend,
            Change::Renew => Self::Renew,
            Change::Free => Self::Release,
        }
    }
}

/// A connection to a server that was checked. It is closed when this is dropped.
pub(super) trait Session: Send + 'static {
    /// Returns the server.
    fn host(&self) -> &str;

    /// Returns whether the table existed when the connection was opened. If not, the connection is not kept, so that the
    /// next one checks the table again.
    fn has_table(&self) -> bool;

    /// Returns whether the connection is not known to be lost.
    fn is_open(&self) -> bool;
}

/// The connections of a store.
#[derive(Debug)]
pub(super) struct Pool<S> {
    env: Env,
    /// The unused connections. The last one is used first. It is the connection that listens, if that is unused.
    idle: Mutex<Vec<Kept<S>>>,
    permits: [Arc<Semaphore>; 3],
}

#[derive(Debug)]
struct Kept<S> {
    session: S,
    /// When the server last responded.
    answered: Moment,
    /// Whether the connection also receives notifications. It then stays open although it is unused.
    listens: bool,
}

impl<S: Session> Pool<S> {
    pub(super) fn new(env: Env) -> Arc<Self> {
        let permits = MOST.map(|most| Arc::new(Semaphore::new(most)));
        Arc::new(Self { env, idle: Mutex::default(), permits })
    }

    /// Waits for an unused connection, or else for the result of `open`. That runs in a separate task, so that if the
    /// request is abandoned, the next request gets the connection. The task holds the permit, so that abandoned requests
    /// do not open more connections than there are permits.
    pub(super) async fn take(
        self: &Arc<Self>,
        purpose: Purpose,
        open: impl Future<Output = Result<S, StoreError>> + Send + 'static,
    ) -> Result<Used<S>, StoreError> {
        let closed = |_| Fault::unavailable("the store is closed").not_applied();
        let permit = self.permits[purpose as usize].clone().acquire_owned().await.map_err(closed)?;
        let pool = self.clone();
        if let Some(kept) = self.idle().pop() {
            return Ok(Used { pool, kept: Some(kept), _permit: permit });
        }
        detached(async move {
            let session = open.await?;
            let kept = Some(Kept { session, answered: pool.env.now(), listens: false });
            Ok(Used { pool, kept, _permit: permit })
        })
        .await
    }

    /// Returns the unused connections that may be used.
    fn idle(&self) -> MutexGuard<'_, Vec<Kept<S>>> {
        let now = self.env.now();
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|kept| {
            kept.session.is_open() && (kept.listens || now.longest_since(kept.answered) < IDLE)
        });
        idle
    }

    fn keep(&self, kept: Kept<S>) {
        let mut idle = self.idle();
        if kept.session.has_table() && kept.session.is_open() {
            // So a process that waits needs a single connection.
            let listening = idle.pop_if(|last| last.listens);
            idle.push(kept);
            idle.extend(listening);
        }
    }

    /// Closes the connection that listens, and returns true, unless it is in use.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL notifies"))]
    pub(super) fn stop_listening(&self) -> bool {
        self.idle().pop_if(|last| last.listens).is_some()
    }

    /// Closes the unused connections.
    pub(super) fn close_idle(&self) {
        self.idle().clear();
    }
}

/// A connection in use by one request. When this is dropped, the next request may use the connection.
#[derive(Debug)]
pub(super) struct Used<S: Session> {
    pool: Arc<Pool<S>>,
    /// `None` once the connection is closed.
    kept: Option<Kept<S>>,
    _permit: OwnedSemaphorePermit,
}

impl<S: Session> Used<S> {
    /// Returns the connection, unless it was closed.
    pub(super) fn session(&self) -> Result<&S, StoreError> {
        self.kept.as_ref().map(|kept| &kept.session).ok_or_else(closed)
    }

    /// Begins a request.
    pub(super) fn begin(&mut self) -> Result<Running<'_, S>, StoreError> {
        self.session()?;
        Ok(Running { began: self.pool.env.now(), used: self, is_answered: false })
    }

    /// Closes the connection.
    pub(super) fn close(&mut self) {
        self.kept = None;
    }

    /// Closes the connection and the unused ones to the same server, which is not the primary.
    pub(super) fn leave_server(&mut self) {
        if let Some(left) = self.kept.take() {
            self.pool.idle().retain(|kept| kept.session.host() != left.session.host());
        }
    }

    /// Notes that the connection receives notifications.
    #[cfg_attr(not(feature = "postgres"), allow(dead_code, reason = "only PostgreSQL notifies"))]
    pub(super) fn listens(&mut self) {
        if let Some(kept) = &mut self.kept {
            kept.listens = true;
        }
    }
}

impl<S: Session> Drop for Used<S> {
    fn drop(&mut self) {
        if let Some(kept) = self.kept.take() {
            self.pool.keep(kept);
        }
    }
}

/// A request. If this is dropped before the response has arrived, it closes its connection, and the unused ones on which
/// nothing has arrived since the request was sent. Those may be dead too, and each would cost an attempt.
#[derive(Debug)]
pub(super) struct Running<'a, S: Session> {
    used: &'a mut Used<S>,
    pub(super) began: Moment,
    is_answered: bool,
}

impl<S: Session> Running<'_, S> {
    pub(super) fn session(&mut self) -> Result<&mut S, StoreError> {
        self.used.kept.as_mut().map(|kept| &mut kept.session).ok_or_else(closed)
    }

    /// Ends the request. `is_answered` is whether the server has responded, so that the connection can be used again.
    pub(super) fn end(mut self, is_answered: bool) {
        self.is_answered = is_answered;
        if let Some(kept) = self.used.kept.as_mut().filter(|_| is_answered) {
            kept.answered = self.used.pool.env.now();
        }
    }
}

impl<S: Session> Drop for Running<'_, S> {
    fn drop(&mut self) {
        if !self.is_answered {
            self.used.close();
            let began = self.began.since_boot();
            self.used.pool.idle().retain(|kept| kept.answered.since_boot() > began);
        }
    }
}

fn closed() -> StoreError {
    Fault::unavailable("the connection to the server is closed").not_applied()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::{TestClock, timeout};

    const SECOND: Duration = Duration::from_secs(1);

    /// A connection with a number.
    #[derive(Debug)]
    struct Fake {
        number: usize,
        host: &'static str,
        has_table: bool,
        is_open: Arc<AtomicBool>,
        open: Arc<AtomicUsize>,
    }

    impl Session for Fake {
        fn host(&self) -> &str {
            self.host
        }

        fn has_table(&self) -> bool {
            self.has_table
        }

        fn is_open(&self) -> bool {
            self.is_open.load(Ordering::SeqCst)
        }
    }

    impl Drop for Fake {
        fn drop(&mut self) {
            self.open.fetch_sub(1, Ordering::SeqCst);
        }
    }

    /// A pool of connections that take a second to open.
    struct Fakes {
        pool: Arc<Pool<Fake>>,
        env: Env,
        host: &'static str,
        has_table: bool,
        is_open: Arc<AtomicBool>,
        opened: Arc<AtomicUsize>,
        open: Arc<AtomicUsize>,
    }

    impl Fakes {
        fn new() -> Self {
            let env = Env::seeded(Arc::new(TestClock::default()), 1);
            let (opened, open) = Default::default();
            let (pool, is_open) = (Pool::new(env.clone()), Arc::new(AtomicBool::new(true)));
            Self { pool, env, host: "a", has_table: true, is_open, opened, open }
        }

        async fn take(&self, purpose: Purpose) -> Used<Fake> {
            let (env, opened, open) = (self.env.clone(), self.opened.clone(), self.open.clone());
            let (host, has_table, is_open) = (self.host, self.has_table, self.is_open.clone());
            let opening = async move {
                open.fetch_add(1, Ordering::SeqCst);
                let number = opened.fetch_add(1, Ordering::SeqCst);
                env.sleep(SECOND).await;
                Ok(Fake { number, host, has_table, is_open, open })
            };
            let taken = timeout(&*self.env.clock, IDLE, self.pool.take(purpose, opening)).await;
            taken.expect("a connection").unwrap()
        }

        /// Takes this many connections at once.
        async fn several(&self, count: usize) -> Vec<Used<Fake>> {
            futures_util::future::join_all((0..count).map(|_| self.take(Purpose::Contend))).await
        }

        /// Returns how many connections were opened, and how many of them are open.
        fn counts(&self) -> (usize, usize) {
            (self.opened.load(Ordering::SeqCst), self.open.load(Ordering::SeqCst))
        }
    }

    fn number(used: &Used<Fake>) -> usize {
        used.session().unwrap().number
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_an_abandoned_request_goes_to_the_next_one() {
        let fakes = Fakes::new();
        assert!(fakes.take(Purpose::Contend).now_or_never().is_none());
        fakes.env.sleep(2 * SECOND).await;
        assert_eq!(number(&fakes.take(Purpose::Renew).await), 0);
        assert_eq!(fakes.counts(), (1, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn abandoned_requests_open_no_more_connections_than_permits() {
        let fakes = Fakes::new();
        for _ in 0..2 * MOST[0] {
            assert!(fakes.take(Purpose::Contend).now_or_never().is_none());
            tokio::task::yield_now().await;
        }
        assert_eq!(fakes.counts().0, MOST[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn no_purpose_waits_for_another_one() {
        let fakes = Fakes::new();
        let mut all = Vec::new();
        for (purpose, most) in [(Purpose::Contend, 3), (Purpose::Renew, 4), (Purpose::Release, 2)] {
            let took = futures_util::future::join_all((0..most).map(|_| fakes.take(purpose))).await;
            assert!(fakes.take(purpose).now_or_never().is_none());
            all.extend(took);
            assert_eq!(fakes.counts(), (all.len(), all.len()), "none more was opened");
        }
        let freed = number(&all.remove(0));
        assert_eq!(number(&fakes.take(Purpose::Contend).await), freed);
    }

    #[tokio::test(start_paused = true)]
    async fn unused_connections_are_closed_after_a_while() {
        let fakes = Fakes::new();
        let used = fakes.several(2).await;
        let last = number(&used[1]);
        drop(used);
        fakes.env.sleep(IDLE / 2).await;
        let mut used = fakes.take(Purpose::Contend).await;
        assert_eq!(number(&used), last, "the last one is used first");
        used.begin().unwrap().end(true);
        fakes.env.sleep(IDLE / 2).await;
        assert_eq!(fakes.counts(), (2, 2));
        drop(used);
        assert_eq!(fakes.counts(), (2, 1), "closed when another one is returned");
        fakes.env.sleep(IDLE).await;
        assert_eq!(number(&fakes.take(Purpose::Contend).await), 2, "and before the next request");
        assert_eq!(fakes.counts(), (3, 1));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_listens_stays_open_and_is_used_first() {
        let fakes = Fakes::new();
        let mut used = fakes.several(2).await;
        used[0].listens();
        let listening = number(&used[0]);
        used.into_iter().for_each(drop);
        let taken = fakes.take(Purpose::Contend).await;
        assert_eq!(number(&taken), listening);
        assert!(!fakes.pool.stop_listening(), "it is in use");
        drop(taken);
        fakes.env.sleep(2 * IDLE).await;
        assert_eq!(number(&fakes.take(Purpose::Contend).await), listening);
        assert_eq!(fakes.counts(), (2, 1));
        assert!(fakes.pool.stop_listening());
        assert_eq!(fakes.counts(), (2, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_table_is_not_kept() {
        let fakes = Fakes { has_table: false, ..Fakes::new() };
        drop(fakes.take(Purpose::Contend).await);
        assert_eq!(fakes.counts(), (1, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_is_not_used_again() {
        let fakes = Fakes::new();
        let used = fakes.several(2).await;
        used.into_iter().for_each(drop);
        fakes.is_open.store(false, Ordering::SeqCst);
        let used = fakes.take(Purpose::Contend).await;
        assert_eq!((number(&used), fakes.counts()), (2, (3, 1)));
        drop(used);
        assert_eq!(fakes.counts(), (3, 0));
    }

    /// Both when a request is abandoned, and when its connection fails.
    #[tokio::test(start_paused = true)]
    async fn an_abandoned_request_closes_the_connections_that_are_silent() {
        for is_abandoned in [false, true] {
            let fakes = Fakes::new();
            let mut used = fakes.several(3).await;
            let [mut asked, mut responds] = [used.remove(0), used.remove(0)];
            let responding = number(&responds);
            drop(used);
            let running = asked.begin().unwrap();
            fakes.env.sleep(SECOND).await;
            responds.begin().unwrap().end(true);
            drop(responds);
            match is_abandoned {
                true => drop(running),
                false => running.end(false),
            }
            assert!(asked.session().is_err() && asked.begin().is_err());
            assert_eq!(fakes.counts(), (3, 1));
            assert_eq!(number(&fakes.take(Purpose::Contend).await), responding);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn after_a_response_no_connection_is_closed() {
        let fakes = Fakes::new();
        let mut used = fakes.several(2).await;
        let mut asked = used.remove(0);
        drop(used);
        asked.begin().unwrap().end(true);
        drop(asked);
        assert_eq!(fakes.counts(), (2, 2));
    }

    #[tokio::test(start_paused = true)]
    async fn all_connections_to_a_server_that_is_no_primary_are_closed() {
        let mut fakes = Fakes::new();
        let old = fakes.several(2).await;
        fakes.host = "b";
        let new = fakes.take(Purpose::Contend).await;
        let primary = number(&new);
        let mut left = old.into_iter().next().unwrap();
        drop(new);
        left.leave_server();
        assert!(left.session().is_err());
        assert_eq!(fakes.counts(), (3, 1));
        assert_eq!(number(&fakes.take(Purpose::Contend).await), primary);
    }

    #[tokio::test(start_paused = true)]
    async fn a_closed_connection_is_not_kept() {
        let fakes = Fakes::new();
        let mut used = fakes.several(2).await;
        used[0].close();
        used.into_iter().for_each(drop);
        assert_eq!(fakes.counts(), (2, 1));
        fakes.pool.close_idle();
        assert_eq!(fakes.counts(), (2, 0));
    }
}
