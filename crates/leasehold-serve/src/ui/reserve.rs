//! Reserving a lock. A person holds it for some time, like any other holder.
//!
//! The ticket is in a cookie for the page of this lock. A seal ties the cookie to the store and to the session's
//! principal. Pages, addresses and logs never contain the ticket.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use leasehold::lease::Id;
use leasehold::view::{LockView, StateView};
use leasehold::{LockName, Ticket};
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{in_query, link, stamp, time};
use super::session::{check_origin, check_writable, with_cookie};
use crate::access::{Right, cookies};
use crate::api::holds::acquire::acquire_one;
use crate::api::holds::{AcquireRequest, release_one, renew_one};
use crate::app::{App, Arrival, Dashboard};
use crate::problem::{Problem, ProblemType};

const COOKIE: &str = "leasehold-reservation";
/// The ttls that the form offers. The longest is `Ttl::MAX`.
const TIMES: [(&str, &str); 4] =
    [("15m", "15 minutes"), ("1h", "1 hour"), ("8h", "8 hours"), ("24h", "24 hours")];

/// The content of a form on the page of a lock.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct Form {
    action: String,
    /// The idempotency key of the acquisition, so that a form that is sent twice reserves only once.
    key: String,
    ttl: String,
    note: String,
}

impl Form {
    /// Returns the form to show again after `problem`, with the user's input.
    pub(super) fn after(mut self, problem: &Problem) -> Self {
        // Keep the key after a server error. The lock may have been acquired, and a repetition with the same key gets
        // that hold.
        if !problem.status().is_server_error() {
            self.key.clear();
        }
        self
    }

    /// Returns what is certain about the lock after `problem`.
    pub(super) fn without_effect(&self, problem: &Problem) -> Option<&'static str> {
        (self.action == "reserve" && !problem.status().is_server_error()).then_some("Nothing was acquired.")
    }
}

/// A lock that the caller has reserved in this browser.
pub(super) struct Reservation {
    ticket: Ticket,
    /// The time until which the reservation is certain, in microseconds since the Unix epoch.
    until_us: u64,
}

impl Reservation {
    fn new(arrival: &Arrival, ticket: Ticket, valid_ms: u64) -> Self {
        let until_us = arrival.at.wall_us().saturating_add(valid_ms.saturating_mul(1_000));
        // Omit the store, because a cookie has at most 4 KiB. The seal covers the store.
        Self { ticket: ticket.without_store(), until_us }
    }

    /// Returns the reservation of `name` in the cookies of the request.
    pub(super) fn of(app: &App, arrival: &Arrival, headers: &HeaderMap, name: &LockName) -> Option<Self> {
        cookies(headers, COOKIE).find_map(|value| {
            let (text, seal) = value.rsplit_once('.')?;
            let is_own = app.is_seal(&sealed(app, arrival, text)?, seal);
            let (until, ticket) = text.split_once('.').filter(|_| is_own)?;
            let (until_us, ticket): (_, Ticket) = (until.parse().ok()?, ticket.parse().ok()?);
            // The page of `a/b` also gets the cookie of the page of `a`.
            (ticket.name() == name).then_some(Self { ticket, until_us })
        })
    }

    /// Returns whether this reservation still holds the lock.
    pub(super) fn holds(&self, lock: &LockView) -> bool {
        let token = lock.held_by.as_ref().and_then(|held| held.token);
        matches!(lock.state, StateView::Held | StateView::Lapsed) && token == Some(self.ticket.token())
    }

    fn cookie(&self, app: &App, arrival: &Arrival) -> Result<String, Problem> {
        let text = format!("{}.{}", self.until_us, self.ticket);
        let parts = sealed(app, arrival, &text).ok_or_else(unknown)?;
        Ok(format!("{COOKIE}={text}.{}", app.seal(&parts)?))
    }
}

/// Returns the parts that the seal of the cookie's `text` covers.
fn sealed<'a>(app: &'a App, arrival: &'a Arrival, text: &'a str) -> Option<[&'a str; 4]> {
    let principal = arrival.caller.principal.as_deref()?;
    Some(["leasehold reservation", app.locker.url().unwrap_or_default(), principal, text])
}

/// Returns the problem for a caller without a name.
fn unknown() -> Problem {
    Problem::new(ProblemType::Forbidden, "a lock is acquired in your name: sign in first")
}

/// Fails if the caller may not send a form about the lock `name`.
pub(super) fn check_allowed(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    name: &LockName,
) -> Result<(), Problem> {
    check_writable(app)?;
    check_origin(headers)?;
    if arrival.caller.principal.is_none() {
        return Err(unknown());
    }
    // The response is the page of the lock, so check the right to read. The right to acquire is checked during the
    // acquisition.
    arrival.require(Right::Read, name)
}

/// Reserves, renews or releases `name`, according to `form`. Returns the reservation, or `None` if it has ended.
pub(super) async fn perform(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    name: &LockName,
    form: &Form,
) -> Result<Option<Reservation>, Problem> {
    if form.action == "reserve" {
        let note = Some(form.note.trim()).filter(|note| !note.is_empty()).map(str::to_owned);
        let request = AcquireRequest::new(name.to_string(), form.ttl.clone(), note);
        let hold = acquire_one(app, arrival, Some(form.key.as_bytes()), &request).await;
        let hold = hold.map_err(|problem| match problem.word() {
            "key-spent" => {
                Problem::new(ProblemType::KeySpent, "this form was already sent, and the hold has ended")
                    .with_help("send it again to acquire the lock again")
            }
            _ => problem,
        })?;
        return Ok(Some(Reservation::new(arrival, hold.ticket.parse()?, hold.valid_ms)));
    }
    let own = Reservation::of(app, arrival, headers, name).ok_or_else(|| {
        Problem::new(ProblemType::NotReserved, "you have not acquired this lock in this browser")
    })?;
    let ticket = own.ticket.to_string();
    match form.action.as_str() {
        "renew" => {
            let renewed = renew_one(app, arrival, &ticket).await?;
            Ok(Some(Reservation::new(arrival, own.ticket, renewed.valid_ms)))
        }
        "release" => {
            release_one(app, arrival, &ticket, None, false).await?;
            Ok(None)
        }
        _ => Err(Problem::invalid("`action` must be `reserve`, `renew` or `release`")),
    }
}

/// Adds the cookie of `reservation` to `response`. Without a reservation, deletes the cookie.
pub(super) fn with_reservation_cookie(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    name: &LockName,
    reservation: Option<&Reservation>,
    response: impl IntoResponse,
) -> Result<Response, Problem> {
    let (cookie, seconds) = match reservation {
        // Keep the cookie longer than the lease, because a lapsed lease can still be renewed if no other process has
        // taken over the lock.
        Some(own) => (own.cookie(app, arrival)?, own.ticket.ttl().as_secs().max(1) * 2),
        None => (format!("{COOKIE}="), 0),
    };
    Ok(with_cookie(headers, &cookie, &link("lock", name.as_str()), seconds, response))
}

/// Returns a number that changes when the content of [`section`] changes for a reason other than the lock.
pub(super) fn version(own: Option<&Reservation>) -> u64 {
    own.map_or(0, |own| own.until_us)
}

/// Returns the forms for `lock`, which the caller holds by `own`, if any. Returns `None` if there is nothing to reserve
/// or release.
///
/// `flawed` is a form that failed and is shown again.
pub(super) fn section(
    app: &App,
    arrival: &Arrival,
    lock: &LockView,
    own: Option<&Reservation>,
    flawed: Option<&Form>,
) -> Option<Markup> {
    if app.dashboard != Dashboard::ReadWrite || !arrival.caller.may(Right::Acquire, &lock.lock) {
        return None;
    }
    if let Some(own) = own {
        return Some(reserved(app, lock, own));
    }
    let flawed = flawed.filter(|form| form.action == "reserve");
    if lock.state != StateView::Free && flawed.is_none() {
        return None;
    }
    let page = link("lock", &lock.lock);
    Some(html! {
        @if arrival.caller.principal.is_none() {
            p { a class="button" href={ "/ui/sign-in?to=" (in_query(&page)) } data-focus="reserve" { "Acquire the lock…" } }
            p class="muted" { "You will be asked to sign in first." }
        } @else {
            (form(app, &page, flawed))
        }
    })
}

/// Returns the form as it was sent, for a page without the state of the lock.
pub(super) fn repeated_form(app: &App, name: &LockName, sent: &Form) -> Markup {
    html! { @if sent.action == "reserve" { (form(app, &link("lock", name.as_str()), Some(sent))) } }
}

fn form(app: &App, page: &str, flawed: Option<&Form>) -> Markup {
    let empty = Form::default();
    let sent = flawed.unwrap_or(&empty);
    let key = Some(sent.key.clone()).filter(|key| !key.is_empty());
    let key = key.unwrap_or_else(|| Id::random(&app.locker.store().env().random).to_string());
    let chosen = if TIMES.iter().any(|(value, _)| *value == sent.ttl) { &sent.ttl } else { "1h" };
    html! {
        p { "Acquire the lock for manual work. It is not renewed automatically: when the time is over, others can acquire it." }
        form method="post" action=(page) class="stack" autocomplete="off" {
            input type="hidden" name="action" value="reserve";
            input type="hidden" name="key" value=(key);
            label for="ttl" { "For" }
            select id="ttl" name="ttl" data-focus="ttl" {
                @for (value, name) in TIMES { option value=(value) selected[value == chosen] { (name) } }
            }
            label for="note" { "Note (optional, shown to others)" }
            input type="text" id="note" name="note" value=(sent.note) maxlength="200" data-focus="note";
            div class="buttons" { button type="submit" data-focus="reserve" { "Acquire" } }
        }
    }
}

fn reserved(app: &App, lock: &LockView, own: &Reservation) -> Markup {
    let page = link("lock", &lock.lock);
    let is_certain = own.until_us > app.now().wall_us();
    html! {
        p class=(if is_certain { "notice" } else { "notice warn" }) {
            @if is_certain { b { "Held by you" } " until " } @else { b { "Your lease" } " ended at " }
            time datetime=(stamp(own.until_us)) { (time(own.until_us)) " UTC" } "."
            @if !is_certain { " Another process may take the lock over, unless you renew it first." }
        }
        form method="post" action=(page) class="buttons" {
            button type="submit" name="action" value="renew" data-focus="renew" { "Renew for " (humantime::format_duration(own.ticket.ttl())) }
            button type="submit" name="action" value="release" data-focus="release" { "Release" }
        }
    }
}
