//! The page of one lock.

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Path, State};
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Redirect, Response};
use leasehold::lease::End;
use leasehold::view::{LockDetail, LockView, StateView, lasted_ms};
use leasehold::{LockName, PastGrant};
use maud::{Markup, html};

use super::format::{capitalized, last_argument, link, shell, stamp, time, took};
use super::layout::{Head, Page, alert};
use super::parts::{
    column, held_for, holder, lease, meaning, passing, permits, person, sentence, text, token,
};
use super::reading;
use super::reserve::{self, Reservation};
use super::timeline::timeline;
use super::trouble::Trouble;
use crate::access::Right;
use crate::app::{App, Arrival, Dashboard, Shared};
use crate::body::{Timely, lock_name};
use crate::problem::Problem;
use crate::view::version;
use crate::visible::hide;

pub(super) async fn page(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Page {
    let head = Head::new(&app, &arrival, &link("lock", &name));
    let name = match lock_name(&name) {
        Ok(name) => name,
        Err(problem) => return head.problem(&problem),
    };
    match reading::lock(&app, &arrival, &headers, &name).await {
        Ok(detail) => {
            let own = Reservation::of(&app, &arrival, &headers, &name);
            let content = content(&app, &arrival, &detail, own.as_ref(), None);
            head.page(name.as_str(), "/ui/", content).watching(name.as_str())
        }
        Err(problem) => head.problem(&problem),
    }
}

/// Reserves the lock, or renews or releases a reservation.
pub(super) async fn perform_action(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Path(name): Path<String>,
    Timely(form): Timely<Result<Form<reserve::Form>, FormRejection>>,
) -> Response {
    let head = Head::new(&app, &arrival, &link("lock", &name));
    let done = async {
        let name = lock_name(&name)?;
        reserve::check_allowed(&app, &arrival, &headers, &name)?;
        let Form(form) = form.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        match reserve::perform(&app, &arrival, &headers, &name, &form).await {
            Ok(own) => {
                let page = Redirect::to(&link("lock", name.as_str()));
                reserve::with_reservation_cookie(&app, &arrival, &headers, &name, own.as_ref(), page)
            }
            Err(problem) => failed(&app, &arrival, &headers, head.clone(), &name, form, &problem).await,
        }
    };
    done.await.unwrap_or_else(|problem: Problem| head.problem(&problem).into_response())
}

/// Returns the page of the lock with the problem, and the form as it was sent.
async fn failed(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    head: Head,
    name: &LockName,
    form: reserve::Form,
    problem: &Problem,
) -> Result<Response, Problem> {
    let form = form.after(problem);
    let Ok(detail) = app.feed.inspect(name).await else {
        let content = html! { h1 class="name" { (name) } (alert(None, problem)) (reserve::repeated_form(app, name, &form)) };
        return Ok(head.page(name.as_str(), "/ui/", content).with_status(problem.status()).into_response());
    };
    let detail = hide(detail, &arrival.caller);
    let own = Reservation::of(app, arrival, headers, name);
    let content = content(app, arrival, &detail, own.as_ref(), Some((form, problem)));
    let page = head.page(name.as_str(), "/ui/", content).watching(name.as_str());
    Ok(page.with_status(problem.status()).into_response())
}

fn content(
    app: &App,
    arrival: &Arrival,
    detail: &LockDetail,
    own: Option<&Reservation>,
    failed: Option<(reserve::Form, &Problem)>,
) -> Markup {
    let lock = &detail.lock;
    let own = own.filter(|own| own.holds(lock));
    let forms = reserve::section(app, arrival, lock, own, failed.as_ref().map(|(form, _)| form));
    let now_us = app.now().wall_us();
    html! {
        p class="crumbs" { a href="/ui/" { "Locks" } (crumbs(&lock.lock)) }
        h1 class="name" { (lock.lock) }
        @if let Some((form, problem)) = &failed { (alert(form.without_effect(problem), problem)) }
        section class="panel" data-key="now" data-lock=(lock.lock) data-version=(version(lock)) data-trouble=[lock.longer_than_usual.then_some("longer")] data-say=(sentence(lock)) aria-label="Now" {
            p { (meaning(lock)) (permits(lock)) }
            @if lock.longer_than_usual { p class="trouble" { (Trouble::LongerThanUsual.words()) } }
            (facts(lock))
        }
        label class="tell" hidden { input type="checkbox" id="tell"; " Notify me when the lock is free" }
        div class="columns" {
            section data-key="line" data-version=(version(lock)) {
                h2 { "Waiting in line" }
                (line(lock, app.locker.capabilities().fifo()))
            }
            section data-key="actions" data-version={ (version(lock)) (reserve::version(own)) } {
                h2 { "Actions" }
                (actions(app, arrival, lock, forms, own.is_some()))
            }
        }
        section data-key="history" data-version={ (version(lock)) (detail.history.len()) } {
            h2 { "Latest grants" }
            @if detail.history.is_empty() {
                p class="muted" { "No grant has ended yet." }
            } @else {
                (timeline(detail, now_us))
                (past(&detail.history))
            }
        }
    }
}

fn crumbs(name: &str) -> Markup {
    let ends: Vec<usize> = name.match_indices('/').map(|(at, _)| at + 1).collect();
    let mut begin = 0;
    html! {
        @for end in ends {
            span class="muted" { " › " }
            a href={ "/ui/?prefix=" (super::format::in_query(&name[..end])) } {
                (&name[std::mem::replace(&mut begin, end)..end])
            }
        }
    }
}

/// Returns a button that copies `what`. The script shows it if the browser can copy.
fn copy(what: &str, text: Option<String>) -> Markup {
    html! {
        @if let Some(text) = text {
            " " button type="button" class="quiet copy" data-copy=(text) data-focus={ "copy " (what) } hidden { "Copy" span class="sr" { " the " (what) } }
        }
    }
}

fn facts(lock: &LockView) -> Markup {
    let Some(held) = &lock.held_by else {
        return html! {
            dl class="facts" {
                div { dt { "Latest token" } dd { (token(lock.token)) } }
            }
        };
    };
    html! {
        dl class="facts" {
            div class="wide" { dt { "Holder" } dd { (holder(lock)) } }
            @if matches!(lock.state, StateView::Held | StateView::Lapsed) { div { dt { "Held for" } dd { (held_for(lock)) } } }
            div { dt { (if lock.state == StateView::Cooldown { "Cooldown" } else { "Lease" }) } dd { (lease(lock)) } }
            div { dt { "Token" } dd { (token(held.token)) (copy("token", held.token.map(|token| token.to_string()))) } }
        }
    }
}

fn line(lock: &LockView, has_order: bool) -> Markup {
    html! {
        @if !has_order {
            p class="muted" { "This store keeps no line of waiters." }
        } @else if lock.waiters.is_empty() {
            p class="muted" { "No process is waiting." }
        } @else {
            table role="table" class="plain" {
                caption class="sr" { "Processes that wait for this lock, first to last" }
                thead role="rowgroup" { tr role="row" { (column("Place")) (column("Process")) (column("Waiting for")) } }
                tbody role="rowgroup" {
                    @for (at, waiter) in lock.waiters.iter().enumerate() {
                        tr role="row" {
                            td role="cell" class="num" { (at + 1) }
                            td role="cell" { (person(&waiter.holder)) }
                            td role="cell" { @match waiter.waited_ms { Some(ms) => (passing(ms)), None => "–" } }
                        }
                    }
                }
            }
        }
    }
}

/// Returns the possible actions, as forms and links and as command lines.
fn actions(app: &App, arrival: &Arrival, lock: &LockView, forms: Option<Markup>, is_own: bool) -> Markup {
    let may_evict = arrival.caller.may(Right::Evict, &lock.lock);
    let evictable = lock.held_by.as_ref().and_then(|held| held.token).is_some();
    let url = app.locker.url().unwrap_or_default();
    let base = format!("leasehold -s {}", shell(url));
    let name = last_argument(&lock.lock);
    html! {
        @if app.dashboard == Dashboard::ReadWrite {
            @if let Some(forms) = &forms { (forms) }
            @if evictable && !is_own {
                p { a class="button danger" href=(link("evict", &lock.lock)) data-focus="evict" { "Evict the holder…" } }
                @if !may_evict { p class="muted" { "You will be asked to sign in first." } }
            } @else if forms.is_none() {
                p class="muted" { "There is no holder to evict." }
            }
        } @else {
            p class="muted" { "This dashboard is read-only. Start the server with " code { "--ui=rw" } " to acquire locks and evict holders here." }
        }
        p class="muted" { "The same in a terminal:" }
        pre class="commands" tabindex="0" aria-label="Commands" { code {
            (base) " show " (name) "\n"
            (base) " wait " (name)
            @if let Some(token) = lock.held_by.as_ref().and_then(|held| held.token) {
                "\n" (base) " evict --token " (token) " " (name)
            } @else if lock.state == StateView::Free {
                "\n" (base) " acquire --try --ttl 1h " (name)
            }
        } }
    }
}

/// Returns how a grant ended, for people.
pub(super) fn ended(end: End) -> Markup {
    html! { span class={ "end " (end.as_str()) } { (capitalized(end.as_str())) } }
}

fn past(history: &[PastGrant]) -> Markup {
    html! {
        table role="table" class="cards past" {
            caption class="sr" { "Grants that have ended, newest first" }
            thead role="rowgroup" {
                tr role="row" {
                    th scope="col" role="columnheader" class="right" { "Token" }
                    (column("Holder")) (column("From (UTC)")) (column("Held for")) (column("End"))
                }
            }
            tbody role="rowgroup" {
                @for past in history {
                    tr role="row" {
                        td role="cell" class="num right" data-label="Token" { (past.token) }
                        td role="cell" class="c-holder" data-label="Holder" { (person(&past.holder)) }
                        td role="cell" class="num" data-label="From (UTC)" {
                            @match past.from_us { Some(us) => time datetime=(stamp(us)) { (time(us)) }, None => "–" }
                        }
                        td role="cell" class="num" data-label="Held for" { (lasted_ms(past).map_or("–".to_owned(), took)) }
                        td role="cell" data-label="End" {
                            (ended(past.end))
                            @if let Some(why) = &past.evicted {
                                " " span class="muted" { "by " (text(&why.by)) }
                                @if !why.reason.is_empty() { span class="note" { (text(&why.reason)) } }
                            }
                        }
                    }
                }
            }
        }
    }
}
