//! The page about the store, and the requests that this dashboard causes.

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Redirect, Response};
use leasehold::doctor::{CheckStatus, Finding, RESERVED, Report};
use leasehold::lease::printable;
use maud::{Markup, html};

use super::format::{count, number, shell, span, stamp, time, took};
use super::icons;
use super::layout::{Head, Page};
use super::parts::{column, text};
use super::reading::MAX_ROWS;
use super::session::{check_origin, check_writable};
use crate::access::Right;
use crate::app::{App, Arrival, Dashboard, Shared};
use crate::examiner::{Examinations, Examined, LIMIT, Request};
use crate::feed::Measured;
use crate::problem::{Problem, ProblemType};

pub(super) async fn page(State(app): Shared, arrival: Arrival) -> Page {
    let head = Head::new(&app, &arrival, "/ui/store");
    if arrival.caller.has_no_rights() {
        return head.problem(&Problem::new(ProblemType::Forbidden, "you may not see this store"));
    }
    head.page("Store", "/ui/store", content(&app, &arrival))
}

/// Runs the doctor, and redirects to the page when it has ended.
pub(super) async fn examine(State(app): Shared, arrival: Arrival, headers: HeaderMap) -> Response {
    let done = async {
        check_writable(&app)?;
        check_origin(&headers)?;
        if !may_examine(&arrival) {
            let detail = format!("{} may not examine this store", arrival.caller.name());
            return Err(Problem::new(ProblemType::Forbidden, detail).with_help(format!(
                "sign in with a token that may evict the holders of all locks, or of those that begin with `{RESERVED}`"
            )));
        }
        app.limits.admit(arrival.caller.name(), arrival.at)?;
        tokio::select! {
            biased;
            done = app.examiner.examine(&app.locker, arrival.caller.name()) => done,
            () = app.stopping.cancelled() => Ok(()),
        }
    };
    match done.await {
        Ok(()) => Redirect::to("/ui/store").into_response(),
        Err(problem) => Head::new(&app, &arrival, "/ui/store").problem(&problem).into_response(),
    }
}

/// Returns whether the caller may start an examination, which acquires and evicts locks below `RESERVED`.
fn may_examine(arrival: &Arrival) -> bool {
    arrival.caller.may(Right::Evict, RESERVED)
}

fn content(app: &App, arrival: &Arrival) -> Markup {
    let capabilities = app.locker.capabilities();
    let url = app.locker.url().unwrap_or("given by the program");
    let watching = match app.dashboard {
        Dashboard::ReadWrite => "read-write: locks can be acquired, holders evicted",
        Dashboard::ReadOnly | Dashboard::Off => "read-only",
    };
    html! {
        h1 { "Store" }
        dl class="facts panel" {
            div { dt { "Kind" } dd { (capabilities.store) } }
            div class="wide" { dt { "URL" } dd { code class="url" { (url) } } }
            div { dt { "Server" } dd { "leasehold " (env!("CARGO_PKG_VERSION")) } }
            div { dt { "Dashboard" } dd { (watching) } }
        }
        div class="columns" {
            section { h2 { "What this store can do" } (abilities(app)) }
            section { h2 { "Requests of this dashboard" } (cost(app)) }
        }
        section {
            h2 { "Is the store safe?" }
            p {
                "The doctor tests the store's preconditions, clock and permissions. It sends up to 1,700 requests, and writes records whose names begin with "
                code { (RESERVED) } " or " code { ".leasehold-probe" } "."
            }
            (doctor(app, arrival))
            p class="muted" { "The same in a terminal:" }
            pre tabindex="0" aria-label="Command" { code { "leasehold -s " (shell(url)) " doctor" } }
        }
    }
}

/// Returns the button that starts an examination, and the latest result.
fn doctor(app: &App, arrival: &Arrival) -> Markup {
    let Examinations { running, last } = app.examiner.examinations();
    html! {
        @if app.dashboard != Dashboard::ReadWrite {
            p class="muted" { "This dashboard is read-only. Start the server with " code { "--ui=rw" } " to examine the store here." }
        } @else if let Some(running) = &running {
            p class="notice" role="status" { "An examination is running: " (requested_by(running)) ". Reload this page to see the result." }
        } @else if may_examine(arrival) {
            form method="post" action="/ui/store" class="buttons" { button type="submit" { "Examine the store" } }
            p class="muted" { "It takes a few seconds, at most " (LIMIT.as_secs() / 60) " minutes." }
        } @else if arrival.caller.principal.is_none() {
            p { a class="button" href="/ui/sign-in?to=/ui/store" { "Examine the store…" } }
            p class="muted" { "You will be asked to sign in first." }
        } @else {
            p class="muted" { "You may not examine the store: this requires the right to evict the holders of all locks." }
        }
        @match &last {
            None => p class="muted" { "This server has not examined the store since it started." },
            Some(last) => (result(last)),
        }
    }
}

fn requested_by(request: &Request) -> Markup {
    html! {
        b { (text(&request.by)) } " asked for it at "
        time datetime=(stamp(request.at_us)) { (time(request.at_us)) " UTC" }
    }
}

fn result(last: &Examined) -> Markup {
    html! {
        h3 { "Latest result" }
        p class="muted" { "This server keeps it in memory, until it stops." }
        @match &last.report {
            None => p class="notice bad" {
                "The examination had not ended after " (span(last.took_ms)) " and was stopped: " (requested_by(&last.request))
                ". Records whose names begin with " code { (RESERVED) } " or " code { ".leasehold-probe" } " may remain. They affect no lock."
            },
            Some(report) => {
                p class=(if report.is_safe() { "notice" } else { "notice bad" }) { b { (summary(report)) } " " (requested_by(&last.request)) "; it took " (took(last.took_ms)) "." }
                (findings(&report.findings))
            }
        }
    }
}

fn summary(report: &Report) -> String {
    let number = |status| report.findings.iter().filter(|finding| finding.verdict == status).count();
    let failed = match number(CheckStatus::Failed) {
        0 => "The store is safe for locks".to_owned(),
        failed => format!("The store is not safe for locks: {} failed", count(failed, "check", "checks")),
    };
    match number(CheckStatus::Warning) {
        0 => format!("{failed}."),
        warnings => format!("{failed}; {}.", count(warnings, "warning", "warnings")),
    }
}

fn findings(findings: &[Finding]) -> Markup {
    // As in the command, treat the responses of the store as text from other parties.
    let shown = |text: &str| printable(text, 400);
    html! {
        table role="table" class="cards findings" {
            caption class="sr" { "What the doctor found" }
            thead role="rowgroup" { tr role="row" { (column("Result")) (column("Check")) (column("Finding")) } }
            tbody role="rowgroup" {
                @for finding in findings {
                    tr role="row" {
                        td role="cell" class="c-state" { (icons::verdict(finding.verdict)) }
                        td role="cell" class="c-name" { b { (finding.check) } }
                        td role="cell" {
                            (shown(&finding.seen))
                            @for help in finding.help.iter().flat_map(|help| help.lines()) {
                                span class="note" { "Help: " (shown(help)) }
                            }
                        }
                    }
                }
            }
        }
    }
}

fn abilities(app: &App) -> Markup {
    let can = app.locker.capabilities();
    let rows = [
        (
            "Fencing tokens",
            can.tokens,
            "each grant has a higher token than all earlier grants",
            "grants have no tokens",
        ),
        (
            "Waiters in order of arrival",
            can.fifo(),
            "the store keeps a line of waiters",
            "any waiter may be next",
        ),
        (
            "Permits in order",
            can.permits_in_order,
            "also for semaphores and shared holds",
            "any waiter for a semaphore or a shared hold may be next",
        ),
        (
            "History",
            can.history,
            "the store keeps the latest grants of each lock",
            "the store keeps no ended grants",
        ),
        (
            "Cooldowns",
            can.cooldowns,
            "a release can delay the next grant",
            "a release cannot delay the next grant",
        ),
        ("Notifies waiters", can.watches, "waiters do not poll", "waiters ask the store at intervals"),
        (
            "Detects dead processes",
            can.sees_dead_processes,
            "on the same machine, without waiting for the end of the lease",
            "the lock of a dead process is taken over when its lease has ended",
        ),
    ];
    html! {
        table role="table" class="plain" {
            caption class="sr" { "Capabilities" }
            thead role="rowgroup" { tr role="row" { (column("Capability")) (column("Here")) (column("Meaning")) } }
            tbody role="rowgroup" {
                @for (name, has, with, without) in rows {
                    tr role="row" {
                        th scope="row" role="rowheader" { (name) }
                        td role="cell" { @if has { span class="yes" { "✓ yes" } } @else { span class="muted" { "no" } } }
                        td role="cell" class="muted" { (if has { with } else { without }) }
                    }
                }
            }
        }
    }
}

fn cost(app: &App) -> Markup {
    let minute = app.feed.meter().last_minute(app.now());
    let failed = minute.iter().filter(|request| request.failed).count();
    let total = app.feed.meter().total();
    html! {
        dl class="facts" {
            div { dt { "Viewers now" } dd class="num" data-viewers=(app.feed.viewers()) { (app.feed.viewers()) } }
            div { dt { "Requests, last minute" } dd class="num" { (number(minute.len())) } }
            div { dt { "Failed" } dd class="num" { (failed) } }
            div { dt { "Since the server started" } dd class="num" data-total=(total) { (number(usize::try_from(total).unwrap_or(usize::MAX))) } }
        }
        p class="muted" {
            "While pages are open and visible, the server reads their locks with at most 5 requests per second, or 50 if there are more than 500 locks, shared by all viewers. A listing counts as one, although some stores read each record for it. "
            "Otherwise it sends none. Opening a page reads its locks once, at most " (MAX_ROWS) "."
        }
        (latency(&app.feed.meter().latest()))
    }
}

/// Returns a chart of how long the latest requests took.
fn latency(latest: &[Measured]) -> Markup {
    const SHOWN: usize = 120;
    const HEIGHT: f64 = 80.0;
    const TOP: f64 = 18.0;
    // The rest is for the labels of the axis, in percent.
    const WIDTH: f64 = 86.0;
    let shown = &latest[latest.len().saturating_sub(SHOWN)..];
    let mut ms: Vec<f64> = shown.iter().map(|request| request.took.as_secs_f64() * 1_000.0).collect();
    let most = ms.iter().copied().fold(0.1_f64, f64::max);
    let bars: Vec<(f64, bool)> =
        ms.iter().zip(shown).map(|(ms, request)| (ms / most * HEIGHT, request.failed)).collect();
    ms.sort_by(f64::total_cmp);
    let share =
        |share: f64| ms.get(((ms.len().max(1) - 1) as f64 * share) as usize).copied().unwrap_or_default();
    html! {
        @if shown.is_empty() {
            p class="muted" { "No requests have been measured yet." }
        } @else {
            figure class="latency" {
                svg width="100%" height=(TOP + HEIGHT + 20.0) role="img"
                    aria-label={ "Duration of the latest requests: median " (format!("{:.1}", share(0.5))) " ms, longest " (format!("{most:.1}")) " ms" } {
                    @for (share, class) in [(0.0, "axis"), (0.5, "grid"), (1.0, "grid")] {
                        @let y = TOP + HEIGHT * (1.0 - share) + 1.0;
                        line class=(class) x1="0" x2="100%" y1=(y) y2=(y) {}
                        @if share > 0.0 { text x="100%" y=(y - 3.0) text-anchor="end" { (format!("{:.1} ms", most * share)) } }
                    }
                    text x="0" y=(TOP + HEIGHT + 16.0) { "oldest request" }
                    text x="100%" y=(TOP + HEIGHT + 16.0) text-anchor="end" { "newest" }
                    @for (at, (height, failed)) in bars.iter().enumerate() {
                        rect class=(if *failed { "failed" } else { "request" })
                            x={ (format!("{:.2}", at as f64 * WIDTH / SHOWN as f64)) "%" } width="0.5%"
                            y=(format!("{:.1}", TOP + HEIGHT - height.max(1.0))) height=(format!("{:.1}", height.max(1.0))) {}
                    }
                }
                figcaption class="muted" {
                    "The latest " (count(shown.len(), "request", "requests")) ": median " b class="num" { (format!("{:.1}", share(0.5))) " ms" }
                    ", 95 % within " b class="num" { (format!("{:.1}", share(0.95))) " ms" }
                    ", longest " b class="num" { (format!("{most:.1}")) " ms" } "."
                }
            }
        }
    }
}
