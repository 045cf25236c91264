//! The state that all routes share.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use leasehold::clock::{Deadline, Moment};
use leasehold::lease::Secret;
use leasehold::{LockName, Locker};
use tokio_util::sync::CancellationToken;

use crate::access::{Access, Caller, Hosts, Right, Sessions, is_seal, seal};
use crate::audit::{self, Audit};
use crate::capacity::Capacity;
use crate::changes::Changes;
use crate::connections::{Arriving, Handle};
use crate::examiner::Examiner;
use crate::feed::{Feed, FeedEvent};
use crate::grants::Grants;
use crate::limits::Limits;
use crate::metrics::Metrics;
use crate::peer::Peer;
use crate::problem::{Problem, ProblemType};
use crate::readiness::Readiness;
use crate::tls::{ClientCertificate, Tls};
use crate::waits::Waits;
use crate::wrong_tokens::{DELAY, WrongTokens};

/// How to serve a store.
#[derive(Clone)]
#[non_exhaustive]
pub struct Settings {
    /// The address to listen on.
    pub listen: SocketAddr,
    /// Who may do what.
    pub access: Access,
    /// The secret from which the ids of acquisitions are derived, together with idempotency keys. All servers of one
    /// store need the same secret, also after a restart. Otherwise a repeated request counts as a new one.
    pub secret: Vec<u8>,
    /// Additional names under which clients address the server.
    pub hosts: Vec<String>,
    /// The file of the audit log.
    pub audit: Option<PathBuf>,
    /// The address of the listener for metrics and probes.
    pub metrics: Option<SocketAddr>,
    /// How many connections clients may have. The requests that may wait and the event streams are parts of it.
    pub max_connections: usize,
    /// Whether clients connect through a reverse proxy. Otherwise, one address may have a quarter of the connections.
    pub behind_proxy: bool,
    /// The certificate of the server. Without it, the server speaks plain HTTP.
    pub tls: Option<Arc<Tls>>,
    /// Whether to listen beyond loopback without TLS, or without tokens, or for metrics.
    pub insecure: bool,
    /// Whether the dashboard is shown, and whether it may change anything.
    pub dashboard: Dashboard,
}

/// What the dashboard at `/ui/` may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dashboard {
    /// There is no dashboard.
    Off,
    /// The dashboard shows the locks and changes nothing.
    #[default]
    ReadOnly,
    /// Callers can evict holders, reserve locks and examine the store, as far as their rights permit.
    ReadWrite,
}

impl Settings {
    /// The default of [`max_connections`](Self::max_connections).
    pub const MAX_CONNECTIONS: usize = 4_096;

    /// Creates settings to listen on `listen`, with `access`. All other settings have their defaults.
    pub fn new(listen: SocketAddr, access: Access, secret: Vec<u8>) -> Self {
        Self {
            listen,
            access,
            secret,
            hosts: Vec::new(),
            audit: None,
            metrics: None,
            max_connections: Self::MAX_CONNECTIONS,
            behind_proxy: false,
            tls: None,
            insecure: false,
            dashboard: Dashboard::default(),
        }
    }
}

/// The state of a server. It holds nothing that a lock depends on.
pub(crate) struct App {
    pub(crate) locker: Locker,
    pub(crate) limits: Arc<Limits>,
    pub(crate) capacity: Capacity,
    pub(crate) changes: Arc<Changes>,
    pub(crate) waits: Arc<Waits>,
    pub(crate) feed: Arc<Feed>,
    pub(crate) grants: Grants,
    pub(crate) audit: Option<Audit>,
    wrong_tokens: WrongTokens,
    pub(crate) metrics: Arc<Metrics>,
    /// Cancelled when the server stops, so that waiting requests get their response.
    pub(crate) stopping: CancellationToken,
    pub(crate) dashboard: Dashboard,
    pub(crate) examiner: Examiner,
    pub(crate) readiness: Readiness,
    pub(crate) sessions: Sessions,
    access: Access,
    hosts: Hosts,
    /// The names of the listener for metrics.
    metrics_hosts: Hosts,
    secret: Vec<u8>,
}

pub(crate) type Shared = State<Arc<App>>;

impl App {
    pub(crate) fn new(locker: Locker, settings: Settings, address: SocketAddr, audit: Option<Audit>) -> Self {
        let metrics = Arc::new(Metrics::new(locker.capabilities().store));
        let locker = locker.observed_by(metrics.clone());
        let hosts =
            Hosts::of(address, &settings.hosts, settings.access.needs_token(), settings.tls.is_some());
        Self {
            feed: Arc::new(Feed::new(&locker)),
            grants: Grants::default(),
            wrong_tokens: WrongTokens::default(),
            changes: Arc::new(Changes::new(&locker)),
            capacity: Capacity::of(settings.max_connections),
            sessions: Sessions::new(&settings.access, &settings.secret),
            metrics_hosts: Hosts::without_tokens(&settings.hosts),
            metrics,
            audit,
            locker,
            limits: Arc::default(),
            waits: Arc::default(),
            stopping: CancellationToken::new(),
            dashboard: settings.dashboard,
            examiner: Examiner::default(),
            readiness: Readiness::default(),
            access: settings.access,
            hosts,
            secret: settings.secret,
        }
    }

    pub(crate) fn now(&self) -> Moment {
        self.locker.store().env().now()
    }

    /// Fetches the keys of the token issuers at intervals. Runs until it is dropped.
    pub(crate) async fn refresh_keys(&self) {
        self.access.refresh_keys(self.locker.store().env()).await;
    }

    /// Reports `event`, which the request `arrival` has caused, to viewers and the audit log. They also get it if the
    /// future is dropped.
    pub(crate) async fn report(&self, mut event: FeedEvent, arrival: &Arrival) {
        event.at_us = self.now().wall_us();
        let recorded = self.audit.as_ref().map(|audit| audit.record(&event, arrival.caller.name()));
        self.feed.publish(event);
        if let Some(recorded) = recorded
            && !recorded.await
        {
            self.metrics.not_audited();
        }
    }

    /// Writes to the logs, at intervals, what they keep for later. Runs until it is dropped.
    pub(crate) async fn flush_logs(&self) {
        loop {
            self.sleep(audit::FLUSH_INTERVAL).await;
            self.wrong_tokens.log(self.now());
            if let Some(audit) = &self.audit {
                audit.flush().await;
            }
        }
    }

    /// Counts a request with a wrong token from `peer`. Waits before the response if there are too many.
    pub(crate) async fn wrong_token(&self, peer: Option<Peer>) {
        self.metrics.unauthorized("wrong");
        let is_slow = peer.is_some_and(|Peer(address)| self.wrong_tokens.count(address, self.now()));
        if is_slow {
            tokio::select! {
                () = self.sleep(DELAY) => {}
                () = self.stopping.cancelled() => {}
            }
        }
    }

    /// Writes to the audit log that the request `arrival` was refused.
    pub(crate) fn report_refused(&self, name: &LockName, reason: &str, arrival: &Arrival) {
        if let Some(audit) = &self.audit {
            let (now, reason) = (self.now(), Some(reason.to_owned()));
            let event = FeedEvent { reason, at_us: now.wall_us(), ..FeedEvent::new("refused", name) };
            audit.refused(&event, arrival.caller.name(), now);
        }
    }

    pub(crate) async fn sleep(&self, pause: Duration) {
        self.locker.store().env().sleep(pause).await;
    }

    /// Returns the secret of the acquisition that `caller` names with an idempotency `key`. It cannot be computed without
    /// the server's own secret, because anyone who knows it can release the lock.
    ///
    /// A repeated request must have the same ttl, so the secret depends on the ttl.
    pub(crate) fn claim_secret(
        &self,
        caller: &Caller,
        name: &LockName,
        key: &str,
        ttl: Duration,
    ) -> Result<Secret, Problem> {
        let store = self.locker.url().unwrap_or_default();
        let ttl = ttl.as_millis().to_string();
        let seal = self.seal(&[caller.name(), store, name.as_str(), key, &ttl])?;
        let secret = seal.get(..32).and_then(|digits| digits.parse().ok());
        secret.ok_or_else(|| Problem::new(ProblemType::Failed, "the key could not be used"))
    }

    /// Returns a seal over `parts` that only servers with the same secret can create.
    pub(crate) fn seal(&self, parts: &[&str]) -> Result<String, Problem> {
        seal(&self.secret, &parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>())
            .ok_or_else(|| Problem::new(ProblemType::Failed, "the server has no secret"))
    }

    /// Returns whether `sealed` is the seal over `parts`.
    pub(crate) fn is_seal(&self, parts: &[&str], sealed: &str) -> bool {
        is_seal(&self.secret, &parts.iter().map(|part| part.as_bytes()).collect::<Vec<_>>(), sealed)
    }
}

/// The arrival of a request: when its head was complete, and who sent it.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) at: Moment,
    pub(crate) caller: Caller,
}

impl Arrival {
    pub(crate) fn require(&self, right: Right, name: &LockName) -> Result<(), Problem> {
        self.caller.require(right, name)
    }

    /// Returns `wait`, or less if the caller's token, certificate or session expires before.
    pub(crate) fn wait(&self, wait: Duration) -> Duration {
        self.caller.valid_for(self.at).map_or(wait, |valid| wait.min(valid))
    }

    /// Returns how long a lock with this `deadline` is certainly held, counted from any moment before its client sent
    /// this request.
    ///
    /// The moment of the client is before the arrival of this request, so the time since the arrival has passed for the
    /// client too. The remaining time is measured on the clock that shows more time passed. The time since the arrival
    /// is measured on the clock that shows less, minus 1 % for different clock rates of the two machines.
    pub(crate) fn valid(&self, deadline: Deadline, now: Moment) -> Duration {
        let remaining = deadline.remaining(now);
        if remaining.is_zero() {
            return Duration::ZERO;
        }
        remaining + now.shortest_since(self.at).mul_f64(0.99)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Arrival {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let missing = || Problem::new(ProblemType::Failed, "the request was not checked");
        parts.extensions.get::<Self>().cloned().ok_or_else(missing)
    }
}

/// The routes that need no token, for probes of a supervisor.
pub(crate) const PROBES: [&str; 2] = ["/healthz", "/readyz"];

/// Checks each request before its route: to which host it was addressed, and who sent it.
pub(crate) async fn admit(State(app): Shared, mut request: Request, next: Next) -> Response {
    let at = app.now();
    let mut response = if PROBES.contains(&request.uri().path()) {
        next.run(request).await
    } else {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let extensions = request.extensions();
        let (certificate, peer) = (extensions.get::<ClientCertificate>(), extensions.get::<Peer>().copied());
        let checked = arrived(&app, at, &path, request.headers(), certificate, peer).await;
        let principal = checked.as_ref().ok().map(|arrival| arrival.caller.name().to_owned());
        let response = match checked {
            Ok(arrival) => {
                let place = request.extensions().get::<Handle>().filter(|_| !arrival.caller.has_no_rights());
                let arriving = place.map(Arriving::new);
                if let Some(arriving) = &arriving {
                    if request.body().is_end_stream() {
                        arriving.arrived();
                    }
                    request.extensions_mut().insert(arriving.clone());
                }
                request.extensions_mut().insert(arrival);
                let response = next.run(request).await;
                match arriving.and_then(Arriving::into_progress) {
                    Some(in_progress) => in_progress.until_sent(response),
                    None => response,
                }
            }
            Err(problem) => problem.into_response(),
        };
        let (status, took) = (response.status().as_u16(), app.now().shortest_since(at));
        tracing::debug!(principal, status, ?took, "{method} {path}");
        response
    };
    let headers = response.headers_mut();
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

async fn arrived(
    app: &App,
    at: Moment,
    path: &str,
    headers: &HeaderMap,
    certificate: Option<&ClientCertificate>,
    peer: Option<Peer>,
) -> Result<Arrival, Problem> {
    app.hosts.check(headers)?;
    // The pages of the dashboard ask for a token where they need one.
    if is_dashboard(path) {
        let session = app.sessions.of(headers, at.wall_us());
        return Ok(Arrival { at, caller: app.access.browser(session, certificate, at.wall_us()) });
    }
    let caller = app.access.caller(headers, certificate, app.locker.store().env()).await;
    if caller.as_ref().is_err_and(|problem| problem.status() == StatusCode::UNAUTHORIZED) {
        match headers.contains_key(header::AUTHORIZATION) {
            true => app.wrong_token(peer).await,
            false => app.metrics.unauthorized("missing"),
        }
    }
    Ok(Arrival { at, caller: caller? })
}

/// Checks each request to the listener for metrics: to which host it was addressed. It needs no token.
pub(crate) async fn admit_to_metrics(State(app): Shared, request: Request, next: Next) -> Response {
    if !PROBES.contains(&request.uri().path())
        && let Err(problem) = app.metrics_hosts.check(request.headers())
    {
        return problem.into_response();
    }
    next.run(request).await
}

fn is_dashboard(path: &str) -> bool {
    path == "/" || path == "/ui" || path.starts_with("/ui/")
}

#[cfg(test)]
impl App {
    /// Creates the state of a server on the locks of `locker`, for tests.
    pub(crate) fn on(locker: &Locker, audit: Option<Audit>) -> Arc<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], 7420));
        let settings = Settings::new(address, Access::local("operator"), b"secret".to_vec());
        Arc::new(Self::new(locker.clone(), settings, address, audit))
    }

    /// Returns the arrival of a request without a token, or of the operator.
    pub(crate) async fn arrival(&self, is_operator: bool) -> Arrival {
        let bearer = (header::AUTHORIZATION, HeaderValue::from_static("Bearer operator"));
        let headers = HeaderMap::from_iter([bearer].into_iter().filter(|_| is_operator));
        let env = self.locker.store().env();
        Arrival { at: self.now(), caller: self.access.caller(&headers, None, env).await.unwrap() }
    }
}

#[cfg(test)]
mod tests {
    use leasehold::env::Env;

    use super::*;

    #[tokio::test]
    async fn an_id_depends_on_the_caller_the_lock_and_the_key() {
        const TTL: Duration = Duration::from_secs(30);
        let locker = Locker::open("mem:").await.unwrap();
        let address = "127.0.0.1:7420".parse().unwrap();
        let app = |secret: &[u8]| {
            App::new(
                locker.clone(),
                Settings::new(address, Access::local("t"), secret.to_vec()),
                address,
                None,
            )
        };
        let caller = Access::local("t").caller(&HeaderMap::new(), None, &Env::system()).await.unwrap();
        let id = |app: &App, name: &str, key: &str| {
            app.claim_secret(&caller, &LockName::new(name).unwrap(), key, TTL).unwrap()
        };
        let (one, other) = (app(b"one"), app(b"other"));
        assert_eq!(id(&one, "a", "k"), id(&one, "a", "k"));
        let ids = [
            id(&one, "a", "k"),
            id(&other, "a", "k"),
            id(&one, "b", "k"),
            id(&one, "a", "l"),
            id(&one, "ak", ""),
        ];
        let bearer = HeaderMap::from_iter([(header::AUTHORIZATION, HeaderValue::from_static("Bearer t"))]);
        let operator = Access::local("t").caller(&bearer, None, &Env::system()).await.unwrap();
        let of_another = one.claim_secret(&operator, &LockName::new("a").unwrap(), "k", TTL).unwrap();
        assert!(!ids.contains(&of_another), "the same key of another principal");
        let with_another_ttl = one.claim_secret(&caller, &LockName::new("a").unwrap(), "k", 2 * TTL).unwrap();
        assert!(!ids.contains(&with_another_ttl), "a repetition has the same ttl");
        let distinct: std::collections::HashSet<_> = ids.iter().map(|secret| secret.id()).collect();
        assert_eq!(distinct.len(), ids.len());
    }

    #[test]
    fn a_request_waits_no_longer_than_its_caller_is_valid() {
        let (at, second) = (Moment::from_raw(0, 0), Duration::from_secs(1));
        let mut caller = Caller::with_rights("ci", Vec::new());
        assert_eq!(Arrival { at, caller: caller.clone() }.wait(60 * second), 60 * second);
        caller.valid_until_us = Some(20_000_000);
        assert_eq!(Arrival { at, caller: caller.clone() }.wait(60 * second), 20 * second);
        assert_eq!(Arrival { at, caller }.wait(5 * second), 5 * second);
    }

    #[tokio::test]
    async fn validity_counts_from_before_the_clients_send() {
        let second = Duration::from_secs(1);
        let at =
            |seconds: u64| Moment::from_raw(seconds * 1_000_000_000, (seconds * 1_000_000_000).cast_signed());
        let caller = Access::local("t").caller(&HeaderMap::new(), None, &Env::system()).await.unwrap();
        let arrival = Arrival { at: at(10), caller };
        // The request waited for 20 s and was granted at 30 s.
        let deadline = Deadline::new(at(30), 9 * second);
        assert_eq!(arrival.valid(deadline, at(32)), 7 * second + (22 * second).mul_f64(0.99));
        assert_eq!(arrival.valid(deadline, at(39)), Duration::ZERO);
    }
}
