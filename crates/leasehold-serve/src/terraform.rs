//! The state of Terraform or OpenTofu over HTTP, for `leasehold terraform`: the server of their backend `http`.
//!
//! The listener is for one command on this machine, which knows its password. [`StateBackend`] has the lock and the
//! state.

mod backend;
mod lock_info;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{DefaultBodyLimit, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{RequestExt as _, Router};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::register::MAX_OBJECT_BYTES;
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use self::backend::{Acquire, Closed, StateBackend, Warn};
use self::backend::{Answer, Asked};
use crate::connections::{Connections, Handle, MostConnections};
use crate::server::{ServeError, listen};

/// How many connections the listener may have.
const CONNECTIONS: MostConnections = MostConnections { in_total: 64, per_address: 64 };

const USER: &str = "leasehold";

/// The paths of the state, to lock it, and to unlock it.
const STATE: &str = "/state";
const LOCK: &str = "/lock";
const UNLOCK: &str = "/unlock";

/// The listener of a [`StateBackend`], with a password that only this process and its command know.
pub struct StateListener {
    listener: TcpListener,
    address: SocketAddr,
    password: String,
}

impl StateListener {
    /// Listens on a free port of this machine. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// The machine permits no further listener.
    pub fn bind() -> Result<Self, ServeError> {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = listen(address, "TMPDIR")?;
        let address = listener.local_addr().unwrap_or(address);
        Ok(Self { listener, address, password: Id::random(&Random::from_os()).to_string() })
    }

    /// Returns the variables with which Terraform finds the state. They contain the password.
    pub fn variables(&self) -> Vec<(&'static str, String)> {
        let address = |path| format!("http://{}{path}", self.address);
        vec![
            ("TF_HTTP_ADDRESS", address(STATE)),
            ("TF_HTTP_UPDATE_METHOD", "POST".to_owned()),
            ("TF_HTTP_LOCK_ADDRESS", address(LOCK)),
            ("TF_HTTP_LOCK_METHOD", "LOCK".to_owned()),
            ("TF_HTTP_UNLOCK_ADDRESS", address(UNLOCK)),
            ("TF_HTTP_UNLOCK_METHOD", "UNLOCK".to_owned()),
            ("TF_HTTP_USERNAME", USER.to_owned()),
            ("TF_HTTP_PASSWORD", self.password.clone()),
        ]
    }

    /// Answers requests in the background, until the runtime shuts down.
    pub fn serve(self, backend: Arc<StateBackend>) {
        let clock = backend.clock();
        let server = Server { backend, key: digest(&authorization(&self.password)) };
        let (router, stopping) = (server.router(), CancellationToken::new());
        tokio::spawn(
            Connections { router, tls: None, clock, stopping, most: CONNECTIONS }.serve(self.listener),
        );
    }
}

#[derive(Clone)]
struct Server {
    backend: Arc<StateBackend>,
    /// The hash of the header that a request must have.
    key: [u8; 32],
}

#[derive(Deserialize)]
struct Parameters {
    #[serde(rename = "ID")]
    id: Option<String>,
}

impl Server {
    fn router(self) -> Router {
        let limit = DefaultBodyLimit::max(MAX_OBJECT_BYTES);
        Router::new().fallback(answer).layer(limit).with_state(self)
    }

    fn admits(&self, headers: &HeaderMap) -> bool {
        let given = headers.get(header::AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        // The time that the comparison of hashes takes says nothing about the password.
        digest(given) == self.key
    }
}

fn authorization(password: &str) -> Vec<u8> {
    format!("Basic {}", STANDARD.encode(format!("{USER}:{password}"))).into_bytes()
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

async fn answer(State(server): State<Server>, mut request: Request) -> Response {
    if !server.admits(request.headers()) {
        return (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Basic")]).into_response();
    }
    // Other users of this machine must not have this connection closed by opening many.
    let in_progress = request.extensions().get::<Handle>().map(Handle::begin);
    let (method, path) = (request.method().as_str().to_owned(), request.uri().path().to_owned());
    let parameters = request.extract_parts::<Query<Parameters>>().await;
    let id = parameters.ok().and_then(|Query(parameters)| parameters.id);
    let response = match request.extract::<Bytes, _>().await {
        Err(rejection) => rejection.into_response(),
        Ok(body) => {
            let asked = match (&*path, &*method) {
                (STATE, "GET") => Some(Asked::Read),
                (STATE, "POST") => Some(Asked::Write { id, state: body }),
                (LOCK, "LOCK") => Some(Asked::Lock(body)),
                (UNLOCK, "UNLOCK") => Some(Asked::Unlock(body)),
                _ => None,
            };
            match asked {
                Some(asked) => respond(server.backend.handle(asked).await),
                None => not_allowed(&server.backend, &path, &method),
            }
        }
    };
    match in_progress {
        Some(in_progress) => in_progress.until_sent(response),
        None => response,
    }
}

/// Refuses a request that another configuration of the backend causes. In particular, no DELETE empties the state: with
/// `unlock_method = "DELETE"`, it would mean an unlock.
fn not_allowed(backend: &StateBackend, path: &str, method: &str) -> Response {
    let option = match path {
        STATE => "update_method",
        LOCK => "lock_method",
        UNLOCK => "unlock_method",
        _ => "address",
    };
    let why = format!(
        "the request {method} {path} was refused: remove {option} from the block `backend \"http\"` of the \
         configuration, then run init -reconfigure"
    );
    backend.refuse(&why);
    (StatusCode::METHOD_NOT_ALLOWED, why).into_response()
}

fn respond(answer: Answer) -> Response {
    let json = [(header::CONTENT_TYPE, "application/json")];
    match answer {
        Answer::Done => StatusCode::OK.into_response(),
        Answer::State(Some(state)) => (json, Body::from(state)).into_response(),
        Answer::State(None) => StatusCode::NO_CONTENT.into_response(),
        Answer::Locked(info) => (StatusCode::LOCKED, json, info).into_response(),
        Answer::Invalid(why) => (StatusCode::BAD_REQUEST, why).into_response(),
        Answer::Refused(why) => (StatusCode::CONFLICT, why).into_response(),
        // Terraform repeats a request with this response.
        Answer::Failed(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}

#[cfg(test)]
mod tests;
