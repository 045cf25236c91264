//! The page with recent activity: the store's history of each lock, and the operations of this server.

use std::borrow::Cow;
use std::collections::HashMap;

use axum::extract::State;
use axum::http::HeaderMap;
use leasehold::lease::End;
use leasehold::view::StateView;
use leasehold::{Holder, PastGrant};
use maud::{Markup, html};

use super::format::{capitalized, count, span, stamp, time};
use super::layout::{Head, Page};
use super::parts::{column, lock_link, name, note, unreadable};
use super::reading::{self, Reading, Seen};
use crate::access::Right;
use crate::app::{App, Arrival, Shared};
use crate::feed::Numbered;

/// How many entries are shown.
const MAX_ENTRIES: usize = 200;

/// Something that happened to a lock.
struct Entry<'a> {
    at_us: u64,
    kind: EntryKind,
    lock: &'a str,
    token: u64,
    who: Option<&'a Holder>,
    why: Option<Cow<'a, str>>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum EntryKind {
    Acquired,
    Released,
    Limit,
    Lapsed,
    Evicted,
    Lost,
}

impl EntryKind {
    fn word(self) -> &'static str {
        match self {
            Self::Acquired => "acquired",
            Self::Released => End::Released.as_str(),
            Self::Limit => End::Limit.as_str(),
            Self::Lapsed => End::Lapsed.as_str(),
            Self::Evicted => End::Evicted.as_str(),
            Self::Lost => "lost",
        }
    }
}

pub(super) async fn page(State(app): Shared, arrival: Arrival, headers: HeaderMap) -> Page {
    let head = Head::new(&app, &arrival, "/ui/activity");
    match reading::locks(&app, &arrival, &headers, "", |_, _| None).await {
        Ok(reading) => {
            let content = content(&app, &arrival, &reading);
            head.page("Activity", "/ui/activity", content).watching("")
        }
        Err(problem) => head.problem(&problem),
    }
}

/// Returns the entries, newest first.
fn entries<'a>(arrival: &Arrival, now_us: u64, events: &'a [Numbered], locks: &'a [Seen]) -> Vec<Entry<'a>> {
    let mut reasons: HashMap<(&str, u64), String> = HashMap::new();
    let mut entries = Vec::new();
    for numbered in events {
        let event = &numbered.event;
        let Some(token) = event.token else { continue };
        match (event.kind, &event.reason) {
            ("evicted", Some(reason)) => {
                let by = event.by.as_deref().unwrap_or("unknown");
                reasons.insert((&event.lock, token), format!("{reason} (by {by})"));
            }
            ("lost", reason) if arrival.caller.may(Right::Read, &event.lock) => entries.push(Entry {
                at_us: event.at_us,
                kind: EntryKind::Lost,
                lock: &event.lock,
                token,
                who: None,
                why: reason.as_deref().map(Cow::from),
            }),
            _ => {}
        }
    }
    for seen in locks {
        let lock = &seen.lock().lock;
        let mut add = |at_us, kind, token, who: &'a Holder, why: Option<Cow<'a, str>>| {
            entries.push(Entry { at_us, kind, lock, token, who: Some(who), why });
        };
        for past in seen.history() {
            if let Some(from_us) = past.from_us {
                add(
                    from_us,
                    EntryKind::Acquired,
                    past.token.get(),
                    &past.holder,
                    past.holder.note.as_deref().map(Cow::from),
                );
            }
            let (kind, why) = match past.end {
                End::Released => (EntryKind::Released, None),
                End::Limit => {
                    (EntryKind::Limit, Some(Cow::from("it was held for as long as its limit allows")))
                }
                End::Lapsed => (EntryKind::Lapsed, Some(Cow::from("not renewed in time"))),
                End::Evicted => (
                    EntryKind::Evicted,
                    why_evicted(past)
                        .or_else(|| reasons.get(&(&**lock, past.token.get())).cloned())
                        .map(Cow::from),
                ),
            };
            if let Some(until_us) = past.until_us {
                add(until_us, kind, past.token.get(), &past.holder, why);
            }
        }
        if let Some(held) = &seen.lock().held_by
            && matches!(seen.lock().state, StateView::Held | StateView::Lapsed)
            && let (Some(holder), Some(token), Some(held_ms)) = (&held.holder, held.token, held.held_ms)
        {
            add(
                now_us.saturating_sub((held_ms + seen.age_ms) * 1_000),
                EntryKind::Acquired,
                token.get(),
                holder,
                holder.note.as_deref().map(Cow::from),
            );
        }
    }
    entries.sort_by_key(|entry| std::cmp::Reverse((entry.at_us, entry.token, entry.kind)));
    entries.truncate(MAX_ENTRIES);
    entries
}

/// Returns why the holder was evicted and by whom, if the store has recorded it.
fn why_evicted(past: &PastGrant) -> Option<String> {
    let why = past.evicted.as_ref()?;
    Some(format!("{} (by {})", why.reason, why.by))
}

fn content(app: &App, arrival: &Arrival, reading: &Reading) -> Markup {
    let now_us = app.now().wall_us();
    let events = app.feed.latest();
    let entries = entries(arrival, now_us, &events, &reading.locks);
    html! {
        h1 { "Activity" }
        (unreadable(&reading.unreadable))
        p class="muted" {
            "The latest grants of each lock that the store has kept, and the evictions by this server with their reasons. "
            "Times are on the store's clock."
        }
        div data-key="scan" { (reading.scan()) }
        table class="cards activity" role="table" {
            caption data-key="caption" { "The latest " (count(entries.len(), "entry", "entries")) ", newest first." (reading.age()) }
            thead role="rowgroup" {
                tr role="row" {
                    (column("Time (UTC)")) (column("Event")) (column("Lock"))
                    th scope="col" role="columnheader" class="right" { "Token" }
                    (column("Holder")) (column("Note or reason"))
                }
            }
            tbody role="rowgroup" data-list="entries" {
                @for entry in &entries { (row(entry, now_us)) }
            }
        }
    }
}

fn row(entry: &Entry<'_>, now_us: u64) -> Markup {
    let word = entry.kind.word();
    let ago = now_us.saturating_sub(entry.at_us) / 1_000;
    html! {
        tr role="row" data-key={ (entry.lock) " " (entry.token) " " (word) } data-version=(entry.token)
            data-say={ (entry.lock) ": " (word) } {
            td role="cell" class="num c-time" data-label="Time (UTC)" {
                time datetime=(stamp(entry.at_us)) { (time(entry.at_us)) }
                " " span class="muted ago" { span data-up=(ago) { (span(ago)) } " ago" }
            }
            td role="cell" data-label="Event" { span class={ "end " (word) } { (capitalized(word)) } }
            td role="cell" class="c-name" data-label="Lock" { (lock_link(entry.lock)) }
            td role="cell" class="num right" data-label="Token" { (entry.token) }
            td role="cell" class="c-holder" data-label="Holder" {
                @match &entry.who { Some(who) => (name(who)), None => span class="none" { "–" } }
            }
            td role="cell" class="c-why" data-label="Note" {
                @match &entry.why { Some(why) => (note(why)), None => span class="none" { "–" } }
            }
        }
    }
}
