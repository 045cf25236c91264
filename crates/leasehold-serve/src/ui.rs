//! The dashboard: pages for people, rendered here and kept up to date by one script.
//!
//! Pages read the locks through the [feed](crate::feed), which has read them already while there are viewers. The
//! script gets events, and fetches the page again when one of them changed it, so that all markup comes from here.
//! Without the script, pages show the locks as they are at that moment.
//!
//! Names, notes and reasons are text from others. `maud` escapes them, and the script only ever sets text.

mod activity;
mod assets;
mod evict;
mod format;
mod icons;
mod layout;
mod lock;
mod locks;
mod parts;
mod reading;
mod reserve;
mod session;
mod store;
mod timeline;
mod waiting;

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Redirect, Response};
use axum::routing::get;

use crate::api::events::events;
use crate::app::App;

/// Nothing but the page's own files and requests.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// The routes of the dashboard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(home))
        .route("/ui", get(home))
        .route("/ui/", get(locks::page))
        .route("/ui/lock/{*name}", get(lock::page).post(lock::act))
        .route("/ui/waiting", get(waiting::page))
        .route("/ui/activity", get(activity::page))
        .route("/ui/store", get(store::page).post(store::examine))
        .route("/ui/evict/{*name}", get(evict::page).post(evict::evict))
        .route("/ui/events", get(events))
        .route("/ui/sign-in", get(session::page).post(session::sign_in))
        .route("/ui/sign-out", get(home).post(session::sign_out))
        .route("/ui/assets/{file}", get(assets::asset))
        .layer(middleware::from_fn(session::needed))
        .layer(middleware::from_fn(protected))
}

async fn home() -> Redirect {
    Redirect::temporary("/ui/")
}

/// Restricts what the browser lets the pages do.
async fn protected(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await.into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    // Not `no-referrer`: browsers then send forms with `Origin: null`, which is refused.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let own = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-opener-policy", own.clone());
    headers.insert("cross-origin-resource-policy", own);
    response
}
