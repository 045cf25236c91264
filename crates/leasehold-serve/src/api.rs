//! The routes.

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
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use utoipa::OpenApi;

use crate::app::{App, Shared, admit};
use crate::body::MAX_BODY;
use crate::problem::Problem;
use crate::trace::trace;

/// Returns all routes: those of the API and `pages`.
pub(crate) fn router(app: Arc<App>, pages: Router<Arc<App>>) -> Router {
    Router::new()
        .merge(pages)
        .route("/v1/holds", post(holds::acquire::acquire))
        .route("/v1/holds/renew", post(holds::renew).layer(DefaultBodyLimit::max(holds::MAX_RENEWAL_BODY)))
        .route("/v1/holds/release", post(holds::release))
        .route("/v1/holds/check", post(holds::check))
        .route("/v1/holds/withdraw", post(holds::withdraw))
        .route("/v1/locks", get(locks::list))
        .route("/v1/locks/{*name}", get(locks::show))
        .route("/v1/evict", post(evict::evict))
        .route("/v1/fence/{*name}", get(fence::fence))
        .route("/v1/events", get(events::events))
        .route("/v1/store", get(store::store))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/openapi.json", get(openapi))
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "not-found", "there is no such page")
                .with_help("/openapi.json lists the routes")
        })
        .method_not_allowed_fallback(async || {
            Problem::new(
                StatusCode::METHOD_NOT_ALLOWED,
                "not-allowed",
                "this route does not support this method",
            )
        })
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(from_fn_with_state(app.clone(), admit))
        .layer(from_fn(trace))
        .with_state(app)
}

/// Returns the route of the listener for metrics.
pub(crate) fn metrics_router(app: Arc<App>) -> Router {
    Router::new().route("/metrics", get(metrics)).with_state(app)
}

async fn metrics(State(app): Shared) -> impl IntoResponse {
    let text = app.metrics.text(app.limits.waiters(), app.feed.viewers());
    ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "leasehold",
        description = "Distributed locks over HTTP. Clients renew their holds themselves."
    ),
    paths(
        holds::acquire::acquire,
        holds::renew,
        holds::release,
        holds::check,
        holds::withdraw,
        locks::list,
        locks::show,
        evict::evict,
        fence::fence,
        events::events,
        store::store,
        health::healthz,
        health::readyz,
    )
)]
struct Description;

async fn openapi() -> impl IntoResponse {
    let text = Description::openapi().to_json().unwrap_or_default();
    ([(header::CONTENT_TYPE, "application/json")], text)
}
