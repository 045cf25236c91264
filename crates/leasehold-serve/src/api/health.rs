//! Probes for supervisors.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use leasehold::LockName;
use leasehold::clock::timeout;

use crate::app::Shared;
use crate::problem::Problem;

/// How long the store may take to respond.
const LIMIT: Duration = Duration::from_secs(3);

/// Whether the process responds. Sends no request to the store.
#[utoipa::path(get, path = "/healthz", responses((status = 204)))]
pub(crate) async fn healthz() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Whether the server can serve: it does not stop, and the store responds.
#[utoipa::path(get, path = "/readyz", responses((status = 204), (status = 503, body = Problem, content_type = "application/problem+json")))]
pub(crate) async fn readyz(State(app): Shared) -> Result<StatusCode, Problem> {
    let unready = |detail: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, "unready", detail);
    if app.stopping.is_cancelled() {
        return Err(unready("this server is shutting down".to_owned()));
    }
    let name = LockName::new("leasehold-ready").map_err(leasehold::Error::from)?;
    match timeout(&*app.locker.store().env().clock, LIMIT, app.locker.inspect(&name)).await {
        Some(Ok(_)) => Ok(StatusCode::NO_CONTENT),
        Some(Err(error)) => Err(unready(error.to_string())),
        None => Err(unready(format!("the store did not respond within {LIMIT:?}"))),
    }
}
