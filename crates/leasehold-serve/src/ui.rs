//! The dashboard: pages for people, rendered here and kept up to date by one script.
//!
//! Pages read the locks through the [feed](crate::feed), which already knows them while there are viewers. The script
//! receives events and fetches the page again when an event changes it, so that all markup comes from here. Without the
//! script, a page shows the locks as they are when it is loaded.
//!
//! Names, notes and reasons are text from other parties. `maud` escapes them, and the script only sets text, never
//! markup.

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
mod trouble;
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

/// The content security policy: a page may use only its own files and requests.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
form-action 'self'; frame-ancestors 'none'; base-uri 'none'";

/// Returns the routes of the dashboard.
pub(crate) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/", get(home))
        .route("/ui", get(home))
        .route("/ui/", get(locks::page))
        .route("/ui/lock/{*name}", get(lock::page).post(lock::perform_action))
        .route("/ui/waiting", get(waiting::page))
        .route("/ui/activity", get(activity::page))
        .route("/ui/store", get(store::page).post(store::examine))
        .route("/ui/evict/{*name}", get(evict::page).post(evict::evict))
        .route("/ui/events", get(events))
        .route("/ui/sign-in", get(session::page).post(session::sign_in))
        .route("/ui/sign-out", get(home).post(session::sign_out))
        .route("/ui/assets/{file}", get(assets::asset))
        // An address from memory, such as /ui/locks.
        .route("/ui/{*other}", get(home))
        .layer(middleware::from_fn(session::require_sign_in))
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
    // With `no-referrer`, browsers would send forms with `Origin: null`, which is refused.
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("same-origin"));
    headers.insert(header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY"));
    let own = HeaderValue::from_static("same-origin");
    headers.insert("cross-origin-opener-policy", own.clone());
    headers.insert("cross-origin-resource-policy", own);
    response
}
