//! The routes.

pub(crate) mod events;
pub(crate) mod evict;
mod fence;
mod health;
pub(crate) mod holds;
mod locks;
mod store;

use std::sync::{Arc, LazyLock};

use axum::Router;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::middleware::{from_fn, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::{Content, Ref};
use utoipa::{Modify, OpenApi};

use crate::app::{App, PROBES, Shared, admit, admit_to_metrics};
use crate::body::{MAX_BODY, MAX_LONG_BODY};
use crate::problem::Problem;
use crate::trace::trace;

/// Returns all routes: those of the API and `pages`.
pub(crate) fn router(app: Arc<App>, pages: Router<Arc<App>>) -> Router {
    let for_long_bodies = || DefaultBodyLimit::max(MAX_LONG_BODY);
    Router::new()
        .merge(pages)
        .route("/v1/holds", post(holds::acquire::acquire).layer(for_long_bodies()))
        .route("/v1/holds/renew", post(holds::renew).layer(for_long_bodies()))
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
    ),
    modifiers(&CommonProblems)
)]
struct Description;

/// Adds the problems that every request except a probe can get, where the description of the route lacks them.
struct CommonProblems;

const COMMON_PROBLEMS: [(&str, &str); 6] = [
    ("401", "The token is missing, unknown or expired"),
    ("403", "The caller does not have this right, or a page of another site sent the request"),
    ("421", "`Host` names another server"),
    ("500", "A record cannot be read, or the server failed"),
    ("502", "The store refused the request"),
    ("503", "The store does not respond, or the server cannot check the token or is stopping"),
];

impl Modify for CommonProblems {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut openapi.paths.paths {
            if PROBES.contains(&path.as_str()) {
                continue;
            }
            for operation in [&mut item.get, &mut item.post].into_iter().flatten() {
                for (status, description) in COMMON_PROBLEMS {
                    let responses = &mut operation.responses.responses;
                    responses.entry(status.to_owned()).or_insert_with(|| problem(description).into());
                }
            }
        }
    }
}

fn problem(description: &str) -> Response {
    let content = Content::new(Some(Ref::from_schema_name("Problem")));
    ResponseBuilder::new().description(description).content("application/problem+json", content).build()
}

/// The description as JSON. Created once, because that takes a while.
static DESCRIPTION: LazyLock<String> = LazyLock::new(|| Description::openapi().to_json().unwrap_or_default());

async fn openapi() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DESCRIPTION.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_but_probes_describes_common_problems() {
        let description = serde_json::to_value(Description::openapi()).unwrap();
        assert!(description["components"]["schemas"]["Problem"].is_object());
        for (path, item) in description["paths"].as_object().unwrap() {
            let operation = item.get("get").or(item.get("post")).unwrap();
            if PROBES.contains(&path.as_str()) {
                assert!(operation["responses"].get("421").is_none(), "{path}");
                continue;
            }
            for (status, _) in COMMON_PROBLEMS {
                let content = &operation["responses"][status]["content"]["application/problem+json"];
                assert_eq!(content["schema"]["$ref"], "#/components/schemas/Problem", "{path}: {status}");
            }
        }
        let released = &description["paths"]["/v1/holds/release"]["post"]["responses"];
        assert_eq!(released["501"]["description"], "The store has no cooldowns");
    }
}
