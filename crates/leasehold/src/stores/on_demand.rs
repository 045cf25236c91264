//! A connection that all requests of a store share. It is opened on demand, and replaced when it is lost, given up, or does
//! not respond.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::Moment;
use crate::env::Env;
use crate::error::StoreError;
use crate::worker::program_ends;

/// If requests are abandoned, and no response has arrived for this long since the first of them was sent, later requests
/// use another connection. This is below the time limit of every attempt.
const STALLED: Duration = Duration::from_millis(200);

/// A connection of [`OnDemand`].
pub(super) trait Connection: Send + Sync + 'static {
    /// Returns whether the connection is not lost.
    fn is_open(&self) -> bool;
}

/// The connection in use, if there is one.
#[derive(Debug)]
pub(super) struct OnDemand<C> {
    env: Env,
    current: Mutex<Option<Current<C>>>,
    opening: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct Current<C> {
    connection: Arc<C>,
    /// When the latest response arrived.
    heard: Moment,
    /// Since when abandoned requests wait for a response. `None` if none was abandoned since the latest response.
    silent_since: Option<Moment>,
}

impl<C: Connection> OnDemand<C> {
    pub(super) fn new(env: Env) -> Arc<Self> {
        Arc::new(Self { env, current: Mutex::default(), opening: tokio::sync::Mutex::default() })
    }

    fn current(&self) -> MutexGuard<'_, Option<Current<C>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the connection if it is open.
    pub(super) fn opened(&self) -> Option<Arc<C>> {
        self.current().as_ref().map(|current| current.connection.clone()).filter(|current| current.is_open())
    }

    /// Returns the connection. If it is not open, waits for the result of `open`, and calls `in_use` when that is the
    /// current one. This happens in a separate task, so that if the request is abandoned, the next request gets the
    /// connection.
    pub(super) async fn get(
        self: &Arc<Self>,
        open: impl Future<Output = Result<C, StoreError>> + Send + 'static,
        in_use: impl FnOnce() + Send + 'static,
    ) -> Result<Arc<C>, StoreError> {
        if let Some(connection) = self.opened() {
            return Ok(connection);
        }
        let (give, given) = oneshot::channel();
        let this = self.clone();
        // The task waits for its turn, not the caller: a caller that is no longer polled would keep the turn.
        tokio::spawn(async move {
            let _opening = this.opening.lock().await;
            let connection = match this.opened() {
                Some(connection) => Ok(connection),
                None if give.is_closed() => return,
                None => open.await.map(|connection| {
                    let connection = this.set(connection);
                    in_use();
                    connection
                }),
            };
            let _ = give.send(connection);
        });
        given.await.unwrap_or_else(|_| Err(program_ends().not_applied()))
    }

    /// Makes requests use `connection`.
    fn set(&self, connection: C) -> Arc<C> {
        let connection = Arc::new(connection);
        let (heard, silent_since) = (self.env.now(), None);
        *self.current() = Some(Current { connection: connection.clone(), heard, silent_since });
        connection
    }

    /// Waits for the response to `request`, which is sent over `connection`.
    pub(super) async fn response<T>(&self, connection: &Arc<C>, request: impl Future<Output = T>) -> T {
        let mut waiting = Waiting { all: self, connection, sent: self.env.now(), is_answered: false };
        let response = request.await;
        waiting.is_answered = true;
        response
    }

    /// Makes later requests use another connection. Requests that wait for a response on this one continue.
    pub(super) fn give_up(&self, connection: &Arc<C>) {
        self.current().take_if(|current| Arc::ptr_eq(&current.connection, connection));
    }

    pub(super) fn close(&self) {
        self.current().take();
    }
}

/// A request that waits for its response.
struct Waiting<'a, C: Connection> {
    all: &'a OnDemand<C>,
    connection: &'a Arc<C>,
    sent: Moment,
    is_answered: bool,
}

impl<C: Connection> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        let now = self.all.env.now();
        self.all.current().take_if(|current| {
            if !Arc::ptr_eq(&current.connection, self.connection) {
                return false;
            }
            if self.is_answered {
                (current.heard, current.silent_since) = (now, None);
                return false;
            }
            // Until a response to another request arrived, the connection was not silent.
            let since = [self.sent, current.heard].into_iter().max_by_key(|moment| moment.since_boot());
            let since =
                current.silent_since.into_iter().chain(since).min_by_key(|moment| moment.since_boot());
            current.silent_since = since;
            since.is_some_and(|since| now.shortest_since(since) > STALLED)
        });
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::{TestClock, timeout};
    use crate::error::Fault;

    #[derive(Debug, Default)]
    struct Fake(AtomicBool);

    impl Connection for Fake {
        fn is_open(&self) -> bool {
            !self.0.load(Ordering::SeqCst)
        }
    }

    fn on_demand() -> Arc<OnDemand<Fake>> {
        OnDemand::new(Env::seeded(Arc::new(TestClock::default()), 1))
    }

    /// Takes a second to connect, and counts how often it does.
    async fn get(
        on_demand: &Arc<OnDemand<Fake>>,
        opened: &Arc<AtomicUsize>,
    ) -> Result<Arc<Fake>, StoreError> {
        let (env, opened) = (on_demand.env.clone(), opened.clone());
        let open = async move {
            opened.fetch_add(1, Ordering::SeqCst);
            env.sleep(Duration::from_secs(1)).await;
            Ok(Fake::default())
        };
        on_demand.get(open, || {}).await
    }

    #[tokio::test(start_paused = true)]
    async fn requests_share_a_connection_until_it_is_lost() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        let (one, other) = tokio::join!(get(&on_demand, &opened), get(&on_demand, &opened));
        assert!(Arc::ptr_eq(&one.unwrap(), other.as_ref().unwrap()));
        other.unwrap().0.store(true, Ordering::SeqCst);
        assert!(on_demand.opened().is_none());
        get(&on_demand, &opened).await.unwrap();
        assert_eq!(opened.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_of_an_abandoned_request_goes_to_the_next_one() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        assert!(get(&on_demand, &opened).now_or_never().is_none());
        get(&on_demand, &opened).await.unwrap();
        assert_eq!(opened.load(Ordering::SeqCst), 1);
    }

    /// Each of them would delay the next request by the time limit of a connection.
    #[tokio::test(start_paused = true)]
    async fn abandoned_requests_do_not_connect_one_after_the_other() {
        let (on_demand, opened) = (on_demand(), Arc::<AtomicUsize>::default());
        for _ in 0..8 {
            let (env, opened) = (on_demand.env.clone(), opened.clone());
            let fails = async move {
                opened.fetch_add(1, Ordering::SeqCst);
                env.sleep(Duration::from_secs(1)).await;
                Err(Fault::unavailable("no response").not_applied())
            };
            let get = on_demand.get(fails, || {});
            assert!(timeout(&*on_demand.env.clock, Duration::from_millis(10), get).await.is_none());
        }
        get(&on_demand, &opened).await.unwrap();
        assert_eq!(opened.load(Ordering::SeqCst), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_is_not_polled_keeps_no_turn() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        let mut frozen = [0, 1].map(|_| Box::pin(get(&on_demand, &opened)));
        assert!(frozen.iter_mut().all(|caller| caller.now_or_never().is_none()));
        let limit = Duration::from_secs(60);
        let got = timeout(&*on_demand.env.clock, limit, get(&on_demand, &opened)).await;
        got.expect("it waits for no other caller").unwrap();
    }

    /// Sends a request, and abandons it after `limit` without a response.
    async fn abandon(on_demand: &OnDemand<Fake>, connection: &Arc<Fake>, limit: Duration) {
        let request = on_demand.response(connection, pending::<()>());
        assert!(timeout(&*on_demand.env.clock, limit, request).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_does_not_respond_is_replaced() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        let connection = get(&on_demand, &opened).await.unwrap();
        on_demand.env.sleep(Duration::from_secs(60)).await;
        abandon(&on_demand, &connection, STALLED / 2).await;
        assert!(on_demand.opened().is_some(), "it may yet respond");
        abandon(&on_demand, &connection, 2 * STALLED).await;
        assert!(on_demand.opened().is_none());
        let other = get(&on_demand, &opened).await.unwrap();
        abandon(&on_demand, &connection, 2 * STALLED).await;
        assert!(Arc::ptr_eq(&on_demand.opened().unwrap(), &other), "the request was sent over the first one");
    }

    #[tokio::test(start_paused = true)]
    async fn short_requests_without_a_response_add_up() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        let connection = get(&on_demand, &opened).await.unwrap();
        for _ in 0..3 {
            assert!(on_demand.opened().is_some());
            abandon(&on_demand, &connection, STALLED / 2 - Duration::from_millis(10)).await;
        }
        assert!(on_demand.opened().is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_responds_to_other_requests_is_kept() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        let connection = get(&on_demand, &opened).await.unwrap();
        for _ in 0..3 {
            let responds = async {
                on_demand.env.sleep(9 * STALLED).await;
                on_demand.response(&connection, async {}).await;
            };
            tokio::join!(abandon(&on_demand, &connection, 10 * STALLED), responds);
            assert!(on_demand.opened().is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_ends_the_silence() {
        let (on_demand, opened) = (on_demand(), Arc::default());
        let connection = get(&on_demand, &opened).await.unwrap();
        for _ in 0..9 {
            abandon(&on_demand, &connection, STALLED / 2).await;
            on_demand.response(&connection, async {}).await;
        }
        assert!(on_demand.opened().is_some());
    }
}
