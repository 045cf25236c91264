//! Probes for supervisors.

use axum::extract::State;
use axum::http::StatusCode;

use crate::app::Shared;
use crate::problem::{Problem, ProblemType};

/// Reports whether the process responds.
///
/// Sends no request to the store.
#[utoipa::path(get, path = "/healthz", operation_id = "getHealth", tag = "server", security(()),
    responses((status = 204, description = "The process responds")))]
pub(crate) async fn healthz() -> StatusCode {
    StatusCode::NO_CONTENT
}

/// Reports whether the server is ready.
///
/// It is if it is not stopping, the store responds, and the audit log can be written. Probes need no token, so the
/// response does not say what the store responded. The log says it.
#[utoipa::path(get, path = "/readyz", operation_id = "getReadiness", tag = "server", security(()), responses(
    (status = 204, description = "The server is ready"),
    (status = 503, description = "The server is not ready")))]
pub(crate) async fn readyz(State(app): Shared) -> Result<StatusCode, Problem> {
    let unready = |detail| Problem::new(ProblemType::Unready, detail);
    if app.stopping.is_cancelled() {
        return Err(unready("this server is shutting down"));
    }
    app.readiness.check(&app.locker).await.map_err(unready)?;
    if let Some(audit) = &app.audit
        && !audit.is_writable().await
    {
        return Err(unready("the audit log cannot be written"));
    }
    Ok(StatusCode::NO_CONTENT)
}
