//! Signing in: the user pastes a token once, and a cookie replaces it.

use axum::extract::rejection::{FormRejection, QueryRejection};
use axum::extract::{Extension, Form, Query, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use maud::html;
use serde::Deserialize;

use super::format::in_query;
use super::layout::{Head, Page};
use crate::access::{SESSION_LIFETIME, Sessions};
use crate::app::{App, Arrival, Dashboard, Shared};
use crate::body::Timely;
use crate::peer::Peer;
use crate::problem::{Problem, ProblemType};

/// The path of the pages for which a session is valid.
const PAGES: &str = "/ui/";

#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct To {
    /// The page to show after signing in.
    to: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SignIn {
    token: String,
    #[serde(default)]
    to: String,
}

/// Asks callers without any rights for a token, except on the sign-in page and for assets.
pub(super) async fn require_sign_in(request: Request, next: Next) -> Response {
    let path = request.uri().path();
    let is_open = path == "/ui/sign-in" || path.starts_with("/ui/assets/");
    let has_no_rights =
        request.extensions().get::<Arrival>().is_none_or(|arrival| arrival.caller.has_no_rights());
    if is_open || !has_no_rights {
        return next.run(request).await;
    }
    if path == "/ui/events" {
        return Problem::new(ProblemType::Unauthorized, "the session has ended").into_response();
    }
    let to = request.uri().path_and_query().map_or("/ui/", |path| path.as_str());
    sign_in_first(to).into_response()
}

pub(super) fn sign_in_first(to: &str) -> Redirect {
    Redirect::to(&format!("/ui/sign-in?to={}", in_query(to)))
}

/// Fails if no page of this server sent the form. Browsers send `Origin` with each form. An earlier check ensures that
/// it is the origin of this server.
pub(super) fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    if headers.contains_key(header::ORIGIN) {
        return Ok(());
    }
    Err(Problem::new(ProblemType::CrossOrigin, "the form was sent without the header `Origin`")
        .with_help("programs use the API: see /openapi.json"))
}

/// Fails if this dashboard is read-only.
pub(super) fn check_writable(app: &App) -> Result<(), Problem> {
    if app.dashboard == Dashboard::ReadWrite {
        return Ok(());
    }
    Err(Problem::new(ProblemType::ReadOnly, "this dashboard is read-only")
        .with_help("start the server with --ui=rw, or use the command `leasehold` in a terminal"))
}

/// Returns `to` if it is a page of this dashboard, or else the first page.
fn own_page(to: &str) -> &str {
    let is_own = to.starts_with("/ui/") && to.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'\\');
    if is_own { to } else { "/ui/" }
}

pub(super) async fn page(
    State(app): Shared,
    arrival: Arrival,
    query: Result<Query<To>, QueryRejection>,
) -> Page {
    let to = query.map(|Query(query)| query.to).unwrap_or_default();
    form_page(Head::new(&app, &arrival, "/ui/sign-in"), own_page(&to), None)
}

fn form_page(head: Head, to: &str, flaw: Option<&str>) -> Page {
    let content = html! {
        h1 { "Sign in" }
        p { "Paste the token that " code { "leasehold serve" } " printed at startup, or your own token if the server has an access file." }
        @if let Some(flaw) = flaw { p class="notice bad" role="alert" id="flaw" { (flaw) } }
        form method="post" action="/ui/sign-in" class="stack" {
            input type="hidden" name="to" value=(to);
            label for="token" { "Token" }
            input type="password" id="token" name="token" required autocomplete="off" maxlength="8192" spellcheck="false"
                aria-describedby=[flaw.is_some().then_some("flaw")];
            div class="buttons" { button type="submit" { "Sign in" } }
        }
        p class="muted" { "The session lasts for 12 hours. The token is not stored in the browser." }
    };
    head.page("Sign in", "", content)
}

pub(super) async fn sign_in(
    State(app): Shared,
    arrival: Arrival,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
    Timely(form): Timely<Result<Form<SignIn>, FormRejection>>,
) -> Response {
    let head = Head::new(&app, &arrival, "/ui/sign-in");
    // Drop the text of the rejection, because it may quote the input.
    let form = check_origin(&headers)
        .and_then(|()| form.map_err(|_| Problem::invalid("the form could not be read")));
    let Form(form) = match form {
        Ok(form) => form,
        Err(problem) => return head.problem(&problem).into_response(),
    };
    let to = own_page(&form.to);
    match app.sessions.open(form.token.trim(), app.now().wall_us()) {
        Some(cookie) => with_cookie(&headers, &cookie, PAGES, SESSION_LIFETIME.as_secs(), Redirect::to(to)),
        None => {
            app.wrong_token(peer.map(|Extension(peer)| peer)).await;
            form_page(head, to, Some("This token is unknown. After a restart, the server prints a new one. Tokens of an issuer (OIDC) cannot be used here."))
                .with_status(StatusCode::UNAUTHORIZED)
                .into_response()
        }
    }
}

pub(super) async fn sign_out(State(app): Shared, arrival: Arrival, headers: HeaderMap) -> Response {
    match check_origin(&headers) {
        Ok(()) => {
            app.sessions.end(&headers, app.now().wall_us());
            with_cookie(&headers, &Sessions::no_session(), PAGES, 0, Redirect::to(PAGES))
        }
        Err(problem) => Head::new(&app, &arrival, "/ui/").problem(&problem).into_response(),
    }
}

/// Adds a `cookie` to `response` that lasts for `seconds` and is valid for the pages below `path`. Scripts cannot read
/// it, and browsers do not send it with requests of other sites.
pub(super) fn with_cookie(
    headers: &HeaderMap,
    cookie: &str,
    path: &str,
    seconds: u64,
    response: impl IntoResponse,
) -> Response {
    let is_https =
        headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https://"));
    let secure = if is_https { "; Secure" } else { "" };
    let cookie = format!("{cookie}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    match HeaderValue::from_str(&cookie) {
        Ok(cookie) => ([(header::SET_COOKIE, cookie)], response).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sign_in_redirects_only_to_pages_of_this_server() {
        assert_eq!(own_page("/ui/lock/a?x=1"), "/ui/lock/a?x=1");
        for other in [
            "",
            "https://evil.example/ui/",
            "//evil.example/ui/",
            "/ui",
            "/ui/\\evil",
            "/ui/\r\nX: y",
            "/v1/locks",
        ] {
            assert_eq!(own_page(other), "/ui/", "{other}");
        }
    }
}
