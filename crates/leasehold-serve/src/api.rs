//! The routes.

mod description;
pub(crate) mod events;
pub(crate) mod evict;
mod fence;
mod health;
pub(crate) mod holds;
mod locks;
mod store;

use std::sync::Arc;

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::header;
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};

use crate::app::{App, Shared, admit, admit_to_metrics};
use crate::body::{MAX_BODY, MAX_LONG_BODY};
use crate::problem::{Problem, ProblemType};
use crate::trace::trace;

/// Returns all routes: those of the API and `pages`.
pub(crate) fn router(app: Arc<App>, pages: Router<Arc<App>>) -> Router {
    let for_long_bodies = || DefaultBodyLimit::max(MAX_LONG_BODY);
    Router::new()
        .merge(pages)
        .route("/v1/holds", post(holds::acquire::acquire).layer(for_long_bodies()))
        .route("/v1/holds/renew", post(holds::renew).layer(for_long_bodies()))
        .route("/v1/holds/renew-all", post(holds::renew_all).layer(for_long_bodies()))
        .route("/v1/holds/release", post(holds::release).layer(for_long_bodies()))
        .route("/v1/holds/check", post(holds::check).layer(for_long_bodies()))
        .route("/v1/holds/withdraw", post(holds::withdraw))
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/{*name}", get(locks::show))
        .route("/v1/evict", post(evict::evict))
        .route("/v1/fence/{*name}", get(fence::fence))
        .route("/v1/events", get(events::events))
        .route("/v1/store", get(store::store))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/openapi.json", get(description::openapi))
        .fallback(async || {
            Problem::new(ProblemType::NotFound, "there is no such page")
                .with_help("/openapi.json lists the routes")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(ProblemType::NotAllowed, "this route does not support this method")
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn(trace))
        .layer(from_fn_with_state(app.clone(), admit))
        .with_state(app)
}

/// Returns the routes of the listener for metrics. Clients of the API cannot reach it, so it also has the probes.
pub(crate) fn metrics_router(app: Arc<App>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .layer(from_fn_with_state(app.clone(), admit_to_metrics))
        .with_state(app)
}

async fn metrics(State(app): Shared) -> impl IntoResponse {
    let text = app.metrics.text(&app.capacity);
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}
