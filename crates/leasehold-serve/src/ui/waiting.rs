//! The page with all processes that wait, longest first.

use axum::extract::State;
use axum::http::HeaderMap;
use leasehold::view::{LockView, WaiterView};
use maud::{Markup, html};

use super::format::{count, span};
use super::layout::{Head, Page, age};
use super::parts::{column, holder, lease, lock_link, passing, person, unreadable};
use super::reading::{self, Reading};
use crate::app::{Arrival, Shared};
use crate::view::version;

pub(super) async fn page(State(app): Shared, arrival: Arrival, headers: HeaderMap) -> Page {
    let head = Head::new(&app, &arrival, "/ui/waiting");
    match reading::locks(&app, &arrival, &headers, "").await {
        Ok(reading) => {
            let content = content(&reading, app.locker.capabilities().fifo());
            head.page("Waiting", "/ui/waiting", content).watching("")
        }
        Err(problem) => head.problem(&problem),
    }
}

fn content(reading: &Reading, has_order: bool) -> Markup {
    let mut waiters: Vec<(&LockView, usize, &WaiterView)> = Vec::new();
    for detail in &reading.locks {
        waiters.extend(detail.lock.waiters.iter().enumerate().map(|(at, waiter)| (&detail.lock, at, waiter)));
    }
    waiters.sort_by_key(|(_, _, waiter)| std::cmp::Reverse(waiter.waited_ms));
    let locks = reading.locks.iter().filter(|detail| !detail.lock.waiters.is_empty()).count();
    let longest = waiters.first().and_then(|(_, _, waiter)| waiter.waited_ms);
    html! {
        h1 { "Waiting" }
        (unreadable(&reading.unreadable))
        @if !has_order {
            p class="notice" { "This store keeps no line of waiters, so it is not known which processes are waiting." }
        }
        table class="cards" role="table" {
            caption data-key="caption" {
                @match waiters.len() {
                    0 => "No process is waiting.",
                    number => {
                        (count(number, "process is waiting", "processes are waiting")) " for " (count(locks, "lock", "locks"))
                        @if let Some(ms) = longest { ", the longest for " (span(ms)) }
                        "."
                    }
                }
                (age(reading.age_ms))
            }
            thead role="rowgroup" {
                tr role="row" {
                    (column("Waits")) (column("Process")) (column("Place")) (column("Lock")) (column("Held by")) (column("Lease"))
                }
            }
            tbody role="rowgroup" data-list="waiters" {
                @for (lock, at, waiter) in &waiters {
                    tr role="row" data-key={ (lock.lock) " " (at) } data-lock=(lock.lock) data-version=(version(lock)) {
                        td role="cell" class="c-since" data-label="Waits" {
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
