//! The parts that all pages have in common.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use maud::{DOCTYPE, Markup, html};

use super::assets::{ICON, SCRIPT, STYLE};
use super::format::{in_query, stamp, time};
use crate::app::{App, Arrival, Dashboard};
use crate::problem::Problem;

/// A page of the dashboard.
pub(super) struct Page {
    pub(super) title: String,
    /// The path of its entry in the navigation.
    pub(super) entry: &'static str,
    /// The prefix of the locks whose events change the page, or `None` if it never changes.
    pub(super) watches: Option<String>,
    pub(super) status: StatusCode,
    pub(super) content: Markup,
    head: Head,
}

/// The content of the top and the bottom of a page.
#[derive(Clone)]
pub(super) struct Head {
    /// The kind of the store and its URL. `None` if the caller has no rights.
    store: Option<(&'static str, String)>,
    dashboard: Dashboard,
    principal: Option<String>,
    now_us: u64,
    path: String,
}

const ENTRIES: [(&str, &str); 4] =
    [("/ui/", "Locks"), ("/ui/waiting", "Waiting"), ("/ui/activity", "Activity"), ("/ui/store", "Store")];

impl Head {
    pub(super) fn new(app: &App, arrival: &Arrival, path: &str) -> Self {
        Self {
            store: (!arrival.caller.has_no_rights())
                .then(|| (app.locker.capabilities().store, app.locker.url().unwrap_or_default().to_owned())),
            dashboard: app.dashboard,
            principal: arrival.caller.principal.clone(),
            now_us: app.now().wall_us(),
            path: path.to_owned(),
        }
    }

    pub(super) fn page(self, title: &str, entry: &'static str, content: Markup) -> Page {
        Page { title: title.to_owned(), entry, watches: None, status: StatusCode::OK, content, head: self }
    }

    /// Returns a page that shows what went wrong.
    pub(super) fn problem(self, problem: &Problem) -> Page {
        let status = problem.status();
        let title = match status {
            StatusCode::SERVICE_UNAVAILABLE => "The store does not respond",
            StatusCode::FORBIDDEN => "Not allowed",
            StatusCode::BAD_REQUEST => "Invalid request",
            StatusCode::TOO_MANY_REQUESTS => "Too many requests",
            _ => "The request failed",
        };
        let content = html! {
            h1 { (title) }
            (alert(None, problem))
            p { a href=(self.path) { "Try again" } " or go to " a href="/ui/" { "all locks" } "." }
        };
        Page { status, ..self.page(title, "", content) }
    }
}

impl Page {
    pub(super) fn watching(mut self, prefix: &str) -> Self {
        self.watches = Some(prefix.to_owned());
        self
    }

    pub(super) fn with_status(mut self, status: StatusCode) -> Self {
        self.status = status;
        self
    }

    fn events(&self) -> Option<String> {
        let prefix = self.watches.as_ref()?;
        Some(format!("/ui/events?looks=true&prefix={}", in_query(prefix)))
    }

    fn render(&self) -> Markup {
        let head = &self.head;
        html! {
            (DOCTYPE)
            html lang="en" {
                head {
                    meta charset="utf-8";
                    meta name="viewport" content="width=device-width, initial-scale=1";
                    meta name="color-scheme" content="light dark";
                    title { (self.title) " · leasehold" }
                    link rel="icon" href=(ICON.path()) type="image/svg+xml";
                    link rel="stylesheet" href=(STYLE.path());
                    script type="module" src=(SCRIPT.path()) {}
                }
                body data-events=[self.events()] {
                    a class="skip" href="#content" { "Skip to content" }
                    header class="top" {
                        a class="brand" href="/ui/" {
                            img src=(ICON.path()) alt="" width="20" height="20";
                            "leasehold"
                        }
                        nav aria-label="Pages" {
                            @for (path, name) in ENTRIES {
                                a href=(path) aria-current=[(path == self.entry).then_some("page")] { (name) }
                            }
                        }
                        div class="about" {
                            span class="live" id="live" data-live="off" hidden { "Live" }
                            @match &head.principal {
                                Some(principal) => {
                                    form method="post" action="/ui/sign-out" class="inline" {
                                        span class="muted" { span class="long" { "Signed in as " } b { (principal) } }
                                        button class="quiet" type="submit" { "Sign out" }
                                    }
                                }
                                None if head.dashboard == Dashboard::ReadWrite => {
                                    a href="/ui/sign-in" { "Sign in" }
                                }
                                None => span class="muted" { "Read-only" }
                            }
                        }
                    }
                    div class="banner" id="banner" role="alert" hidden {}
                    main id="content" tabindex="-1" { (self.content) }
                    p class="sr" id="say" role="status" aria-live="polite" {}
                    footer {
                        span {
                            @if let Some((store, url)) = &head.store { (store) " · " span class="url" { (url) } }
                        }
                        span id="asof" {
                            "As of " time datetime=(stamp(head.now_us)) { (time(head.now_us)) " UTC" }
                        }
                    }
                }
            }
        }
    }
}

impl IntoResponse for Page {
    fn into_response(self) -> Response {
        let body = self.render().into_string();
        (self.status, [(header::CONTENT_TYPE, "text/html; charset=utf-8")], body).into_response()
    }
}

/// Returns a notice with the problem and what to do about it. `effect` describes what was or was not done.
pub(super) fn alert(effect: Option<&str>, problem: &Problem) -> Markup {
    html! {
        div class="notice bad" role="alert" {
            @if let Some(effect) = effect { p { b { (effect) } } }
            p { (problem.detail()) }
            @for help in problem.help() { p class="muted" { (help) } }
        }
    }
}
