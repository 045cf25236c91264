//! The page with all locks.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use leasehold::view::{LockView, StateView};
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{count, in_query};
use super::icons::{self, STATES};
use super::layout::{Head, Page, age};
use super::parts::{
    column, holder_alone, lease, limit, lock_link, passing, sentence, text, token,
    unreadable as unreadable_locks,
};
use super::reading::{self, Reading};
use crate::app::{Arrival, Shared};
use crate::feed::MAX_LOCKS;
use crate::problem::Problem;
use crate::view::version;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Filter {
    /// Only locks whose names begin with this.
    prefix: String,
    /// Only locks with this text in the name, the holder or the note.
    find: String,
    state: String,
    sort: String,
}

/// The value of `state` that shows the locks that processes wait for.
const WAITED_FOR: &str = "waiting";

impl Filter {
    fn shows(&self, lock: &LockView) -> bool {
        match &*self.state {
            "" => true,
            WAITED_FOR => !lock.waiters.is_empty(),
            state => icons::word(lock.state) == state,
        }
    }

    fn finds(&self, lock: &LockView) -> bool {
        let wanted = self.find.trim().to_lowercase();
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let holder = lock.held_by.as_ref().and_then(|held| held.holder.as_ref());
        let by_holder = holder.is_some_and(|holder| {
            has(&holder.name) || has(&holder.host) || holder.note.as_deref().is_some_and(has)
        });
        wanted.is_empty() || has(&lock.lock) || by_holder
    }

    /// Returns the address of this page with a changed filter.
    fn address(&self, change: impl FnOnce(&mut Self)) -> String {
        let mut changed = self.clone();
        change(&mut changed);
        let Self { prefix, find, state, sort } = changed;
        let parts = [("prefix", prefix), ("find", find), ("state", state), ("sort", sort)];
        let parts: Vec<String> = parts
            .iter()
            .filter(|(_, value)| !value.is_empty())
            .map(|(key, value)| format!("{key}={}", in_query(value)))
            .collect();
        if parts.is_empty() { "/ui/".to_owned() } else { format!("/ui/?{}", parts.join("&")) }
    }

    fn order(&self, locks: &mut [LockView]) {
        let held = |lock: &LockView| lock.held_by.as_ref().and_then(|held| held.held_ms);
        let left = |lock: &LockView| {
            lock.held_by.as_ref().and_then(|held| held.lapses_within_ms).unwrap_or(u64::MAX)
        };
        match &*self.sort {
            "held" => locks.sort_by_key(|lock| std::cmp::Reverse(held(lock))),
            "lease" => locks.sort_by_key(left),
            "waiting" => locks.sort_by_key(|lock| std::cmp::Reverse(lock.waiters.len())),
            _ => {}
        }
    }
}

pub(super) async fn page(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    query: Result<Query<Filter>, QueryRejection>,
) -> Page {
    let head = Head::new(&app, &arrival, "/ui/");
    let filter = match query {
        Ok(Query(filter)) => filter,
        Err(rejection) => return head.problem(&Problem::invalid(rejection.body_text())),
    };
    match reading::locks(&app, &arrival, &headers, &filter.prefix).await {
        Ok(reading) => {
            let content = content(&filter, reading);
            head.page("Locks", "/ui/", content).watching(&filter.prefix)
        }
        Err(problem) => head.problem(&problem),
    }
}

fn content(filter: &Filter, reading: Reading) -> Markup {
    let Reading { locks, unreadable, has_more, age_ms } = reading;
    let all: Vec<LockView> = locks.into_iter().map(|detail| detail.lock).collect();
    let mut found: Vec<LockView> = all.iter().filter(|lock| filter.finds(lock)).cloned().collect();
    filter.order(&mut found);
    let shown = found.iter().filter(|lock| filter.shows(lock)).count();
    html! {
        div class="heading" {
            h1 { "Locks" }
            (search(filter))
        }
        (prefixes(filter, &all))
        (states(filter, &found))
        (unreadable_locks(&unreadable))
        @if has_more {
            p class="notice" {
                "There are more locks. This page shows " (MAX_LOCKS) " of them: choose a prefix to see the others."
            }
        }
        table class="cards" role="table" {
            caption data-key="caption" {
                (count(shown, "lock", "locks")) @if !filter.state.is_empty() || !filter.find.is_empty() { " of " (all.len()) }
                @if !filter.prefix.is_empty() { " under " code { (filter.prefix) } }
                "." (age(age_ms))
            }
            thead role="rowgroup" {
                tr role="row" {
                    (column("State"))
                    (sorted(filter, "", "Lock", "ascending"))
                    (column("Holder"))
                    (column("Note"))
                    (sorted(filter, "held", "Since", "descending"))
                    (sorted(filter, "lease", "Lease", "ascending"))
                    th scope="col" role="columnheader" class="right" { "Token" }
                    (sorted(filter, "waiting", "Waiting", "descending"))
                }
            }
            tbody role="rowgroup" data-list="locks" {
                @for lock in found.iter().filter(|lock| filter.shows(lock)) { (row(lock)) }
            }
        }
        div data-key="empty" { @if shown == 0 { (empty(filter, all.is_empty())) } }
    }
}

fn row(lock: &LockView) -> Markup {
    let held_ms = lock.held_by.as_ref().and_then(|held| held.held_ms);
    let note =
        lock.held_by.as_ref().and_then(|held| held.holder.as_ref()).and_then(|holder| holder.note.as_deref());
    html! {
        tr role="row" data-key=(lock.lock) data-lock=(lock.lock) data-version=(version(lock)) data-say=(sentence(lock)) class=(icons::word(lock.state)) {
            td role="cell" class="c-state" { (icons::badge(lock.state)) }
            td role="cell" class="c-name" { (lock_link(&lock.lock)) }
            td role="cell" class="c-holder" data-label="Holder" { (holder_alone(lock)) }
            td role="cell" class="c-note" data-label="Note" {
                @match note { Some(note) => (text(note)), None => span class="none" { "–" } }
            }
            td role="cell" class="c-since" data-label="Since" {
                @match held_ms { Some(ms) => (passing(ms)), None => span class="none" { "–" } }
                (limit(lock))
            }
            td role="cell" class="c-lease" data-label="Lease" { (lease(lock)) }
            td role="cell" class="c-token right" data-label="Token" { (token(lock.token)) }
            td role="cell" class="c-waiting" data-label="Waiting" { (line(lock)) }
        }
    }
}

/// Returns how many processes wait, and which is first.
fn line(lock: &LockView) -> Markup {
    html! {
        @match lock.waiters.first() {
            Some(first) => {
                span class="pill" { (lock.waiters.len()) }
                " " span class="muted first" { (text(&first.holder.name)) }
            }
            None => span class="none" { "–" },
        }
    }
}

fn sorted(filter: &Filter, sort: &str, title: &str, direction: &str) -> Markup {
    let is_current = filter.sort == sort;
    html! {
        th scope="col" role="columnheader" aria-sort=[is_current.then_some(direction)] {
            a href=(filter.address(|filter| sort.clone_into(&mut filter.sort))) title={ "Sort by " (title.to_lowercase()) } {
                (title)
                @if is_current { span class="arrow" aria-hidden="true" { @if direction == "ascending" { "↑" } @else { "↓" } } }
            }
        }
    }
}

fn search(filter: &Filter) -> Markup {
    html! {
        form method="get" action="/ui/" role="search" class="search" {
            @for (key, value) in [("prefix", &filter.prefix), ("state", &filter.state), ("sort", &filter.sort)] {
                @if !value.is_empty() { input type="hidden" name=(key) value=(value); }
            }
            label class="sr" for="find" { "Find a lock, a holder or a note" }
            input type="search" id="find" name="find" value=(filter.find) placeholder="Lock, holder or note" maxlength="100";
            button type="submit" { "Find" }
        }
    }
}

/// Returns the number of locks in each state, as links.
fn states(filter: &Filter, found: &[LockView]) -> Markup {
    let waited_for = found.iter().filter(|lock| !lock.waiters.is_empty()).count();
    let of = |state: StateView| found.iter().filter(|lock| lock.state == state).count();
    let link = |state: &str, content: Markup, number: usize| {
        let is_current = filter.state == state;
        let to = filter.address(|filter| state.clone_into(&mut filter.state));
        html! {
            a href=(to) class=(if number == 0 { "zero" } else { "" }) aria-current=[is_current.then_some("true")] data-focus={ "state " (state) } {
                (content) span class="number" { (number) }
            }
        }
    };
    html! {
        nav class="states" aria-label="States" data-key="states" {
            (link("", html! { "All" }, found.len()))
            @for state in STATES { (link(icons::word(state), icons::badge(state), of(state))) }
            (link(WAITED_FOR, html! { "With waiters" }, waited_for))
        }
    }
}

/// Returns links to the prefixes above, and to those one level below with the numbers of their locks.
fn prefixes(filter: &Filter, all: &[LockView]) -> Markup {
    let mut below: BTreeMap<&str, usize> = BTreeMap::new();
    for lock in all {
        if let Some((segment, _)) =
            lock.lock.strip_prefix(&filter.prefix).and_then(|rest| rest.split_once('/'))
        {
            *below.entry(segment).or_default() += 1;
        }
    }
    let ups: Vec<(usize, &str)> =
        filter.prefix.match_indices('/').map(|(at, _)| (at + 1, &filter.prefix[..=at])).collect();
    let mut begin = 0;
    let to = |prefix: &str| filter.address(|filter| prefix.clone_into(&mut filter.prefix));
    html! {
        nav class="prefixes" aria-label="Prefixes" data-key="prefixes" {
            @if !filter.prefix.is_empty() {
                a href=(to("")) data-focus="prefix" { "All prefixes" }
                @for (end, up) in &ups {
                    span class="muted" aria-hidden="true" { "›" }
                    a href=(to(up)) aria-current=[(*up == filter.prefix).then_some("true")] data-focus={ "prefix " (up) } {
                        (&filter.prefix[std::mem::replace(&mut begin, *end)..*end])
                    }
                }
                @if begin < filter.prefix.len() {
                    span class="muted" aria-hidden="true" { "›" } span { (&filter.prefix[begin..]) "…" }
                }
            }
            @if !filter.prefix.is_empty() && !below.is_empty() { span class="muted" aria-hidden="true" { "›" } }
            @for (segment, number) in below {
                a class="chip" href=(to(&format!("{}{segment}/", filter.prefix))) data-focus={ "below " (segment) } {
                    (segment) "/" span class="number" { (number) }
                }
            }
        }
    }
}

fn empty(filter: &Filter, is_store_empty: bool) -> Markup {
    html! {
        div class="empty" {
            @if is_store_empty && filter.prefix.is_empty() {
                p { "There are no locks here yet." }
                p class="muted" { "Acquire one:" }
                pre { code { "leasehold run demo -- sleep 60" } }
            } @else {
                p { "No lock matches. " a href="/ui/" { "Show all locks" } }
            }
        }
    }
}
