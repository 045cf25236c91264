//! The page with all processes that wait, longest first.

use axum::extract::State;
use axum::http::HeaderMap;
use leasehold::LockName;
use leasehold::view::{LockView, WaiterView};
use maud::{Markup, html};

use super::format::span;
use super::layout::{Head, Page};
use super::parts::{column, holder, lease, lock_link, passing, person, unreadable};
use super::reading::{self, MAX_ROWS, Reading, Seen};
use crate::access::Caller;
use crate::app::{Arrival, Shared};
use crate::view::version;

pub(super) async fn page(State(app): Shared, arrival: Arrival, headers: HeaderMap) -> Page {
    let head = Head::new(&app, &arrival, "/ui/waiting");
    let rank = |_: &LockName, lock: Option<&LockView>| (!lock?.waiters.is_empty()).then_some(0);
    match reading::locks(&app, &arrival, &headers, "", rank).await {
        Ok(reading) => {
            let content = content(&reading, &arrival.caller, app.locker.capabilities().fifo());
            head.page("Waiting", "/ui/waiting", content).watching("")
        }
        Err(problem) => head.problem(&problem),
    }
}

fn content(reading: &Reading, caller: &Caller, has_order: bool) -> Markup {
    let is_waited_for = |seen: &&Seen| !seen.lock().waiters.is_empty();
    let locks: Vec<LockView> =
        reading.locks.iter().filter(is_waited_for).map(|seen| seen.now(caller).lock).collect();
    let mut waiters: Vec<(&LockView, usize, &WaiterView)> = Vec::new();
    for lock in &locks {
        waiters.extend(lock.waiters.iter().enumerate().map(|(at, waiter)| (lock, at, waiter)));
    }
    waiters.sort_by_key(|(_, _, waiter)| std::cmp::Reverse(waiter.waited_ms));
    let longest = waiters.first().and_then(|(_, _, waiter)| waiter.waited_ms);
    html! {
        h1 { "Waiting" }
        (unreadable(&reading.unreadable))
        @if !has_order {
            p class="notice" { "This store keeps no line of waiters, so it is not known which processes are waiting." }
        }
        div data-key="scan" { (reading.scan()) }
        table class="cards" role="table" {
            caption data-key="caption" {
                @match waiters.len() {
                    0 if reading.unread() == 0 => "No process is waiting.",
                    all => {
                        (reading.count(all, "process is waiting", "processes are waiting"))
                        " for " (reading.count(locks.len(), "lock", "locks"))
                        @if let Some(ms) = longest { ", the longest for " (span(ms)) }
                        "."
                    }
                }
                @if waiters.len() > MAX_ROWS { " The page shows the first " (MAX_ROWS) "." }
                (reading.age())
            }
            thead role="rowgroup" {
                tr role="row" {
                    (column("Waiting for")) (column("Process")) (column("Place")) (column("Lock")) (column("Held by")) (column("Lease"))
                }
            }
            tbody role="rowgroup" data-list="waiters" {
                @for (lock, at, waiter) in waiters.iter().take(MAX_ROWS) {
                    tr role="row" data-key={ (lock.lock) " " (at) } data-lock=(lock.lock) data-version=(version(lock)) {
                        td role="cell" class="c-since" data-label="Waiting for" {
                            @match waiter.waited_ms { Some(ms) => (passing(ms)), None => "–" }
                        }
                        td role="cell" class="c-holder" data-label="Process" { (person(&waiter.holder)) }
                        td role="cell" class="num" data-label="Place" { (at + 1) " of " (lock.waiters.len()) }
                        td role="cell" class="c-name" data-label="Lock" { (lock_link(&lock.lock)) }
                        td role="cell" class="c-holder" data-label="Held by" { (holder(lock)) }
                        td role="cell" class="c-lease" data-label="Lease" { (lease(lock)) }
                    }
                }
            }
        }
    }
}
