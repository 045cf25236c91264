//! Who leads an election, over HTTP: for programs beside `leasehold elect`.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use axum::{Json, Router};
use futures_util::StreamExt as _;
use leasehold::clock::{Clock, Moment};
use leasehold::{Election, Guard, Holder, Leader, Token};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::connections::{Connections, MostConnections};
use crate::server::{ServeError, listen};

/// How many connections the listener may have. Each may be closed to make room for another one.
const CONNECTIONS: MostConnections = MostConnections { in_total: 64, per_address: 64 };

/// The listener of a [`LeaderPage`], before the election begins.
#[derive(Debug)]
pub struct LeaderListener(TcpListener);

impl LeaderListener {
    /// Listens on `address`, which `option` sets. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The address is in use or may not be used.
    pub fn bind(address: SocketAddr, option: &str) -> Result<Self, ServeError> {
        listen(address, option).map(Self)
    }

    /// Returns the address that was chosen, or `None` if it is unknown.
    pub fn address(&self) -> Option<SocketAddr> {
        self.0.local_addr().ok()
    }

    /// Answers requests in the background, until the runtime shuts down. A state that is older than `ttl` is outdated.
    pub fn serve(self, clock: Arc<dyn Clock>, ttl: Duration) -> LeaderPage {
        let page = LeaderPage { clock: clock.clone(), ttl, known: Arc::default() };
        let (router, stopping) = (page.router(), CancellationToken::new());
        tokio::spawn(Connections { router, tls: None, clock, stopping, most: CONNECTIONS }.serve(self.0));
        page
    }
}

/// What this process knows of an election. `GET /` answers it, and `/healthz` whether it is recent.
#[derive(Clone)]
pub struct LeaderPage {
    clock: Arc<dyn Clock>,
    ttl: Duration,
    known: Arc<Mutex<Known>>,
}

#[derive(Default)]
struct Known {
    /// The term of this process.
    own: Option<Term>,
    /// The leader in the store, and when it was read.
    seen: Option<(Option<Leader>, Moment)>,
}

struct Term {
    remaining: Box<dyn Fn() -> Duration + Send + Sync>,
    answer: Answer,
    over: CancellationToken,
}

/// The response to `GET /`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
struct Answer {
    /// The value that the leader advertises, or else the name of its host. Null if no leader is known.
    name: Option<String>,
    /// Whether this process leads.
    leader: bool,
    /// The leader's term.
    token: Option<Token>,
}

impl LeaderPage {
    /// Records that this process leads while `guard` is valid, and advertises `value`.
    pub fn leads(&self, guard: &Guard, value: Option<&str>) {
        let name = value.map_or_else(|| Holder::this_process().host, ToOwned::to_owned);
        let answer = Answer { name: Some(name), leader: true, token: guard.token().ok() };
        let term = Term { remaining: Box::new(guard.monitor()), answer, over: guard.cancellation() };
        // What was read before the term is outdated when the term ends.
        *self.known() = Known { own: Some(term), seen: None };
    }

    /// Records that `leader` was just read from the store.
    pub fn saw(&self, leader: Option<Leader>) {
        self.known().seen = Some((leader, self.clock.now()));
    }

    /// Reads who leads `election` while this process does not lead.
    pub async fn observe(&self, election: &Election) {
        'terms: loop {
            let over = self.known().own.as_ref().map(|term| term.over.clone());
            if let Some(over) = over {
                over.cancelled().await;
            }
            let mut read = election.observe_every(self.pause());
            while let Some(leader) = read.next().await {
                match leader {
                    Ok(leader) => self.saw(leader),
                    Err(error) => tracing::warn!(%error, "cannot read the leader"),
                }
                if self.is_leading() {
                    continue 'terms;
                }
            }
            // Only an invalid name ends the stream.
            return;
        }
    }

    /// Returns how long to wait at most between two reads.
    pub fn pause(&self) -> Duration {
        self.ttl / 3
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_leading(&self) -> bool {
        self.known().own.as_ref().is_some_and(Term::is_valid)
    }

    fn answer(&self) -> Answer {
        let known = self.known();
        if let Some(term) = known.own.as_ref().filter(|term| term.is_valid()) {
            return term.answer.clone();
        }
        let Some((Some(leader), _)) = &known.seen else { return Answer::default() };
        let host = || {
            leader.holder.as_ref().map(|holder| if holder.is_foreign() { &holder.name } else { &holder.host })
        };
        Answer { name: leader.value.as_ref().or_else(host).cloned(), leader: false, token: leader.term }
    }

    /// Returns whether the answer is at most a ttl old.
    fn is_recent(&self) -> bool {
        let seen = self.known().seen.as_ref().map(|(_, at)| *at);
        self.is_leading() || seen.is_some_and(|at| self.clock.now().longest_since(at) <= self.ttl)
    }

    fn router(&self) -> Router {
        Router::new().route("/", get(root)).route("/healthz", get(healthz)).with_state(self.clone())
    }
}

impl Term {
    fn is_valid(&self) -> bool {
        !(self.remaining)().is_zero()
    }
}

async fn root(State(page): State<LeaderPage>) -> impl IntoResponse {
    ([(header::CACHE_CONTROL, "no-store")], Json(page.answer()))
}

async fn healthz(State(page): State<LeaderPage>) -> (StatusCode, &'static str) {
    match page.is_recent() {
        true => (StatusCode::OK, "ok\n"),
        false => (StatusCode::SERVICE_UNAVAILABLE, "the leader was not read for longer than the ttl\n"),
    }
}

#[cfg(test)]
mod tests {
    use leasehold::Locker;

    use super::*;
    use crate::feed::paused_store;

    const TTL: Duration = Duration::from_secs(30);

    fn page(locker: &Locker) -> LeaderPage {
        let clock = locker.store().env().clock.clone();
        LeaderPage { clock, ttl: TTL, known: Arc::default() }
    }

    #[tokio::test(start_paused = true)]
    async fn a_state_older_than_the_ttl_is_not_healthy() {
        let locker = paused_store().await;
        let page = page(&locker);
        assert!(!page.is_recent(), "nothing was read");
        page.saw(None);
        locker.store().env().sleep(TTL - Duration::from_millis(1)).await;
        assert!(page.is_recent());
        locker.store().env().sleep(Duration::from_millis(2)).await;
        assert!(!page.is_recent());
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_term_is_not_reported_as_led() {
        let locker = paused_store().await;
        let (page, election) = (page(&locker), locker.election("x").ttl(TTL));
        let guard = Guard::from(election.campaign().await.unwrap());
        page.saw(None);
        page.leads(&guard, Some("http://one"));
        let mine = Answer { name: Some("http://one".into()), leader: true, token: guard.token().ok() };
        assert_eq!(page.answer(), mine);
        locker.store().env().sleep(TTL * 10).await;
        assert!(page.is_recent() && page.answer().leader, "it is renewed, and needs no reads");
        guard.release().await.unwrap();
        assert_eq!(page.answer(), Answer::default());
        assert!(!page.is_recent());

        page.saw(None);
        let short = Guard::from(election.campaign().await.unwrap());
        page.leads(&short, None);
        short.release().await.unwrap();
        assert!(!page.is_recent(), "it was read before the term");
    }

    #[tokio::test(start_paused = true)]
    async fn a_candidate_reads_only_while_it_does_not_lead() {
        let locker = paused_store().await;
        let (page, election) = (page(&locker), locker.election("x").value("http://other").ttl(TTL));
        let other = election.campaign().await.unwrap();
        let observing = tokio::spawn({
            let (page, election) = (page.clone(), election.clone());
            async move { page.observe(&election).await }
        });
        locker.store().env().sleep(TTL * 10).await;
        let theirs = Answer { name: Some("http://other".into()), leader: false, token: other.term().ok() };
        assert!(page.is_recent());
        assert_eq!(page.answer(), theirs);
        other.resign().await.unwrap();
        let own = Guard::from(election.campaign().await.unwrap());
        page.leads(&own, None);
        locker.store().env().sleep(TTL * 10).await;
        assert!(
            page.answer().leader
                && page
                    .known()
                    .seen
                    .as_ref()
                    .is_none_or(|(_, at)| { locker.store().env().now().longest_since(*at) > TTL * 9 })
        );
        own.release().await.unwrap();
        locker.store().env().sleep(TTL).await;
        assert!(page.is_recent());
        assert_eq!(page.answer(), Answer::default());
        observing.abort();
    }
}
