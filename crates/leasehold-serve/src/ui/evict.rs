//! Evicting a holder: a page that explains it, and the form on it.

use axum::extract::rejection::FormRejection;
use axum::extract::{Form, Path, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Redirect, Response};
use leasehold::Token;
use leasehold::view::LockDetail;
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{count, link};
use super::layout::{Head, Page};
use super::parts::{held_for, holder, lease, meaning, person, text, token};
use super::reading;
use super::session::{check_origin, check_writable, sign_in_first};
use crate::access::Right;
use crate::api::evict::{Outcome, end_grant};
use crate::app::{Arrival, Shared};
use crate::body::{Timely, lock_name, number};
use crate::problem::Problem;
use crate::visible::hide;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Evict {
    token: String,
    confirm: String,
    reason: String,
}

pub(super) async fn page(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Path(name): Path<String>,
) -> Response {
    let head = Head::new(&app, &arrival, &link("evict", &name));
    let shown = async {
        check_writable(&app)?;
        let name = lock_name(&name)?;
        if !arrival.caller.may(Right::Evict, name.as_str()) && arrival.caller.principal.is_none() {
            return Ok(sign_in_first(&link("evict", name.as_str())).into_response());
        }
        arrival.require(Right::Evict, &name)?;
        let detail = reading::lock(&app, &arrival, &headers, &name).await?;
        Ok(form_page(head.clone(), &detail, &Evict::default(), None).into_response())
    };
    shown.await.unwrap_or_else(|problem: Problem| head.problem(&problem).into_response())
}

pub(super) async fn evict(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    Path(name): Path<String>,
    Timely(form): Timely<Result<Form<Evict>, FormRejection>>,
) -> Response {
    let head = Head::new(&app, &arrival, &link("lock", &name));
    let done = async {
        check_writable(&app)?;
        let name = lock_name(&name)?;
        check_origin(&headers)?;
        arrival.require(Right::Evict, &name)?;
        // The response may show the lock.
        arrival.require(Right::Read, &name)?;
        let Form(form) = form.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
        let token = number(&form.token).ok_or_else(|| Problem::invalid("the form has no token"))?;
        let flaw = if form.confirm.trim() != name.as_str() {
            Some("The name that you typed is not the lock's name.")
        } else if form.reason.trim().is_empty() {
            Some("A reason is missing.")
        } else {
            None
        };
        if flaw.is_some() {
            let detail = hide(app.feed.inspect(&name).await?, &arrival.caller);
            let page = form_page(head.clone(), &detail, &form, flaw).with_status(StatusCode::BAD_REQUEST);
            return Ok(page.into_response());
        }
        Ok(match end_grant(&app, &arrival, &name, token, &form.reason).await? {
            Outcome::Evicted => Redirect::to(&link("lock", name.as_str())).into_response(),
            Outcome::Changed(now) => {
                changed_page(head.clone(), &hide(*now, &arrival.caller), token).into_response()
            }
        })
    };
    done.await.unwrap_or_else(|problem: Problem| head.problem(&problem).into_response())
}

fn form_page(head: Head, detail: &LockDetail, form: &Evict, flaw: Option<&str>) -> Page {
    let lock = &detail.lock;
    let name = &lock.lock;
    let held = lock.held_by.as_ref().filter(|held| held.token.is_some());
    let content = html! {
        p class="crumbs" { a href="/ui/" { "Locks" } span class="muted" { " › " } a href=(link("lock", name)) { (name) } }
        h1 { "Evict the holder of " span class="name" { (name) } }
        @match held {
            None => {
                p { (meaning(lock)) }
                p { "There is no holder to evict. " a href=(link("lock", name)) { "Back to the lock" } }
            }
            Some(held) => {
                @if let Some(flaw) = flaw { p class="notice bad" role="alert" id="flaw" { (flaw) } }
                dl class="facts panel" {
                    div class="wide" { dt { "Holder" } dd { (holder(lock)) } }
                    div { dt { "Held for" } dd { (held_for(lock)) } }
                    div { dt { "Lease" } dd { (lease(lock)) } }
                    div { dt { "Token" } dd { (token(held.token)) } }
                }
                (consequence(detail))
                form method="post" action=(link("evict", name)) class="stack" data-confirm=(name) autocomplete="off" {
                    input type="hidden" name="token" value=(held.token.unwrap_or_default());
                    label for="confirm" { "Type the lock's name " code { (name) } }
                    input type="text" id="confirm" name="confirm" required value=(form.confirm) maxlength="256" autocapitalize="off" spellcheck="false"
                        aria-describedby=[flaw.is_some().then_some("flaw")];
                    label for="reason" { "Reason (shown to others)" }
                    input type="text" id="reason" name="reason" required value=(form.reason) maxlength="200";
                    div class="buttons" {
                        button type="submit" class="danger" { "Evict token " (held.token.unwrap_or_default()) }
                        a class="button quiet" href=(link("lock", name)) { "Cancel" }
                    }
                }
            }
        }
    };
    head.page(&format!("Evict the holder of {name}"), "/ui/", content)
}

/// Explains what an eviction does.
fn consequence(detail: &LockDetail) -> Markup {
    let waiters = &detail.lock.waiters;
    html! {
        div class="notice warn" {
            p { b { "The holder is not stopped." } " It detects the eviction only at its next renewal. Until then, it may still be working, at the same time as the next holder. Make sure first that it has stopped." }
            p {
                @match waiters.first() {
                    Some(first) => {
                        "Then " b { (text(&first.holder.name)) } @if !first.holder.host.is_empty() { "@" (text(&first.holder.host)) }
                        " gets the lock: it is the first of " (count(waiters.len(), "waiting process", "waiting processes")) "."
                    }
                    None => "No process is waiting, so the lock will be free.",
                }
            }
        }
    }
}

/// Returns the page for a lock that has changed since the form was created.
fn changed_page(head: Head, now: &LockDetail, token: Token) -> Page {
    let lock = &now.lock;
    let then = now.history.iter().find(|past| past.token == token);
    let content = html! {
        h1 { "Nothing was evicted" }
        div class="notice warn" role="alert" {
            p {
                "The lock " a class="name" href=(link("lock", &lock.lock)) { (lock.lock) }
                " is not held with token " b class="num" { (token) } " any more. It has changed in the meantime:"
            }
        }
        table role="table" class="plain changes" {
            caption class="sr" { "What has changed" }
            thead role="rowgroup" { tr role="row" { th scope="col" role="columnheader" { "" } th scope="col" role="columnheader" { "Then" } th scope="col" role="columnheader" { "Now" } } }
            tbody role="rowgroup" {
                tr role="row" { th scope="row" role="rowheader" { "Token" } td role="cell" { (token) } td role="cell" { (super::parts::token(lock.token)) } }
                tr role="row" {
                    th scope="row" role="rowheader" { "Holder" }
                    td role="cell" { @match then { Some(then) => { (person(&then.holder)) " " (super::lock::ended(then.end)) }, None => "–" } }
                    td role="cell" { (holder(lock)) }
                }
                tr role="row" { th scope="row" role="rowheader" { "State" } td role="cell" { "Held" } td role="cell" { (super::icons::badge(lock.state)) } }
            }
        }
        p { a class="button" href=(link("lock", &lock.lock)) { "Show the lock" } }
    };
    head.page("Nothing was evicted", "/ui/", content).with_status(StatusCode::PRECONDITION_FAILED)
}
