//! The page with all locks: those that need attention first, those that are free only on request.

use std::collections::BTreeMap;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use leasehold::LockName;
use leasehold::view::{LockView, StateView};
use maud::{Markup, html};
use serde::Deserialize;

use super::format::{count, in_query, number, shell};
use super::icons::{self, STATES};
use super::layout::{Head, Page};
use super::parts::{
    column, held_for, holder_alone, lease, lock_link, note as linked, permits, sentence, text, token,
    unreadable,
};
use super::reading::{self, MAX_ROWS, Reading, Seen};
use super::trouble::Trouble;
use crate::access::Caller;
use crate::app::{App, Arrival, Shared};
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

/// The values of `state` besides the words for states. Without a value, the page shows the locks that are not free.
const ALL: &str = "all";
const PROBLEMS: &str = "problems";
const WAITED_FOR: &str = "waiting";
/// How many prefixes are shown.
const MAX_PREFIXES: usize = 12;

impl Filter {
    fn shows(&self, lock: &LockView) -> bool {
        is_in(&self.state, lock)
    }

    fn finds(&self, lock: &LockView) -> bool {
        let wanted = self.find.trim().to_lowercase();
        if wanted.is_empty() {
            return true;
        }
        let has = |text: &str| text.to_lowercase().contains(&wanted);
        let holder = lock.held_by.as_ref().and_then(|held| held.holder.as_ref());
        let by_holder = holder.is_some_and(|holder| {
            has(&holder.name) || has(&holder.host) || holder.note.as_deref().is_some_and(has)
        });
        has(&lock.lock) || by_holder
    }

    /// Returns which locks to read first: those that the page shows, problems first, and those whose name was searched.
    fn rank(&self, name: &str, lock: Option<&LockView>) -> Option<u8> {
        match lock {
            Some(lock) if self.finds(lock) && self.shows(lock) => {
                Some(if Trouble::of(lock).is_some() { 0 } else { 1 })
            }
            Some(_) => None,
            None => {
                let wanted = self.find.trim().to_lowercase();
                let is_searched = !wanted.is_empty() && name.to_lowercase().contains(&wanted);
                is_searched.then_some(0)
            }
        }
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

    /// Orders locks that are ordered by name.
    fn order(&self, locks: &mut [&Seen]) {
        let held = |seen: &&Seen| Some(seen.lock().held_by.as_ref()?.held_ms? + seen.age_ms);
        let left = |seen: &&Seen| {
            let left = seen.lock().held_by.as_ref().and_then(|held| held.lapses_within_ms);
            left.map_or(u64::MAX, |left| left.saturating_sub(seen.age_ms))
        };
        match &*self.sort {
            "name" => {}
            "held" => locks.sort_by_key(|seen| std::cmp::Reverse(held(seen))),
            "lease" => locks.sort_by_key(left),
            "waiting" => locks.sort_by_key(|seen| std::cmp::Reverse(seen.lock().waiters.len())),
            _ => locks.sort_by_key(|seen| {
                let trouble = Trouble::of(seen.lock());
                (trouble.is_none(), trouble)
            }),
        }
    }
}

/// Returns whether the page with this value of `state` shows the lock.
fn is_in(state: &str, lock: &LockView) -> bool {
    match state {
        "" => lock.state != StateView::Free,
        ALL => true,
        PROBLEMS => Trouble::of(lock).is_some(),
        WAITED_FOR => !lock.waiters.is_empty(),
        state => lock.state.as_str() == state,
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
    let rank = |name: &LockName, lock: Option<&LockView>| filter.rank(name.as_str(), lock);
    match reading::locks(&app, &arrival, &headers, &filter.prefix, rank).await {
        Ok(reading) => {
            let content = content(&app, &arrival.caller, &filter, &reading);
            head.page("Locks", "/ui/", content).watching(&filter.prefix)
        }
        Err(problem) => head.problem(&problem),
    }
}

fn content(app: &App, caller: &Caller, filter: &Filter, reading: &Reading) -> Markup {
    let found: Vec<&Seen> = reading.locks.iter().filter(|seen| filter.finds(seen.lock())).collect();
    let mut shown: Vec<&Seen> = found.iter().filter(|seen| filter.shows(seen.lock())).copied().collect();
    filter.order(&mut shown);
    let hidden = if filter.state.is_empty() { found.len() - shown.len() } else { 0 };
    html! {
        div class="heading" {
            h1 { "Locks" }
            (search(filter))
        }
        (states(filter, reading, &found))
        (prefixes(filter, &reading.names))
        (unreadable(&reading.unreadable))
        div data-key="scan" { (reading.scan()) }
        p class="muted" data-key="hidden" {
            @if hidden > 0 {
                (reading.count(hidden, "free lock is", "free locks are")) " hidden. "
                a href=(filter.address(|filter| ALL.clone_into(&mut filter.state))) data-focus="all" { "Show all" }
            }
        }
        table class="cards" role="table" {
            caption data-key="caption" { (caption(filter, reading, shown.len())) }
            thead role="rowgroup" {
                tr role="row" {
                    (sorted(filter, "", "State", "ascending"))
                    (sorted(filter, "name", "Lock", "ascending"))
                    (column("Holder"))
                    (column("Note"))
                    (sorted(filter, "held", "Held for", "descending"))
                    (sorted(filter, "lease", "Lease", "ascending"))
                    th scope="col" role="columnheader" class="right" { "Token" }
                    (sorted(filter, "waiting", "Waiting", "descending"))
                }
            }
            tbody role="rowgroup" data-list="locks" {
                @for seen in shown.iter().take(MAX_ROWS) {
                    (row(&seen.now(caller).lock, Trouble::of(seen.lock())))
                }
            }
        }
        div data-key="empty" { @if shown.is_empty() { (empty(app, filter, reading)) } }
    }
}

fn caption(filter: &Filter, reading: &Reading, shown: usize) -> Markup {
    html! {
        (reading.count(shown, "lock", "locks"))
        @if !filter.prefix.is_empty() { " under " code { (filter.prefix) } }
        @if filter.sort.is_empty() && shown > 1 { ", problems first" }
        "."
        @if shown > MAX_ROWS { " The page shows " (MAX_ROWS) " of them: choose a prefix or a state, or search." }
        (reading.age())
    }
}

fn row(lock: &LockView, trouble: Option<Trouble>) -> Markup {
    let note =
        lock.held_by.as_ref().and_then(|held| held.holder.as_ref()).and_then(|holder| holder.note.as_deref());
    // The badge already says that a lock has lapsed.
    let words = trouble.filter(|trouble| *trouble != Trouble::Lapsed).map(Trouble::words);
    html! {
        tr role="row" data-key=(lock.lock) data-lock=(lock.lock) data-version=(version(lock)) data-trouble=[trouble.map(Trouble::words)]
            data-say=(sentence(lock)) class=(lock.state.as_str()) {
            td role="cell" class="c-state" {
                (icons::badge(lock.state))
                @if let Some(words) = words { " " span class="trouble" { (words) } }
            }
            td role="cell" class="c-name" { (lock_link(&lock.lock)) (permits(lock)) }
            td role="cell" class="c-holder" data-label="Holder" { (holder_alone(lock)) }
            td role="cell" class="c-note" data-label="Note" {
                @match note { Some(note) => (linked(note)), None => span class="none" { "–" } }
            }
            td role="cell" class="c-since" data-label="Held for" { (held_for(lock)) }
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
                span class="pill" { (number(lock.waiters.len())) }
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
            // A search also finds free locks.
            @let state = if filter.state.is_empty() { ALL } else { &*filter.state };
            @for (key, value) in [("prefix", &*filter.prefix), ("state", state), ("sort", &*filter.sort)] {
                @if !value.is_empty() { input type="hidden" name=(key) value=(value); }
            }
            label class="sr" for="find" { "Find a lock, a holder or a note" }
            input type="search" id="find" name="find" value=(filter.find) placeholder="Lock, holder or note" maxlength="100";
            button type="submit" { "Find" }
        }
    }
}

/// Returns the number of locks in each state, as links. Numbers that may still grow have a `+`.
fn states(filter: &Filter, reading: &Reading, found: &[&Seen]) -> Markup {
    let more = if reading.unread() > 0 { "+" } else { "" };
    let link = |state: &str, content: Markup| {
        let is_current = filter.state == state;
        let of = found.iter().filter(|seen| is_in(state, seen.lock())).count();
        let (of, more) =
            if state == ALL && filter.find.is_empty() { (reading.names.len(), "") } else { (of, more) };
        let to = filter.address(|filter| state.clone_into(&mut filter.state));
        html! {
            a href=(to) class={ (state) @if of == 0 { " zero" } } aria-current=[is_current.then_some("true")] data-focus={ "state " (state) } {
                (content) span class="number" { (number(of)) (more) }
            }
        }
    };
    html! {
        nav class="states" aria-label="States" data-key="states" {
            (link(PROBLEMS, html! { "Problems" }))
            (link("", html! { "Not free" }))
            @for state in STATES { (link(state.as_str(), icons::badge(state))) }
            (link(WAITED_FOR, html! { "With waiters" }))
            (link(ALL, html! { "All" }))
        }
    }
}

/// Returns links to the prefixes above, and to those one level below with the numbers of their locks.
fn prefixes(filter: &Filter, names: &[LockName]) -> Markup {
    let mut below: BTreeMap<&str, usize> = BTreeMap::new();
    for name in names {
        if let Some((segment, _)) =
            name.as_str().strip_prefix(&filter.prefix).and_then(|rest| rest.split_once('/'))
        {
            *below.entry(segment).or_default() += 1;
        }
    }
    let mut below: Vec<(&str, usize)> = below.into_iter().collect();
    let others = below.len().saturating_sub(MAX_PREFIXES);
    if others > 0 {
        below.sort_by_key(|(_, number)| std::cmp::Reverse(*number));
        below.truncate(MAX_PREFIXES);
        below.sort_unstable();
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
            @for (segment, locks) in below {
                a class="chip" href=(to(&format!("{}{segment}/", filter.prefix))) data-focus={ "below " (segment) } {
                    (segment) "/" span class="number" { (number(locks)) }
                }
            }
            @if others > 0 { span class="muted" { "and " (count(others, "more prefix", "more prefixes")) } }
        }
    }
}

fn empty(app: &App, filter: &Filter, reading: &Reading) -> Markup {
    let has_no_locks = reading.names.is_empty();
    let read = if reading.locks.len() < reading.names.len() { " that have been read" } else { "" };
    let url = app.locker.url().unwrap_or_default();
    html! {
        div class="empty" {
            @if has_no_locks && filter.prefix.is_empty() {
                p { "There are no locks here yet. The store is " (app.locker.capabilities().store) ", " code class="url" { (url) } "." }
                p class="muted" { "Acquire the first one:" }
                pre tabindex="0" aria-label="Command" { code { "leasehold -s " (shell(url)) " run demo -- sleep 60" } }
            } @else if has_no_locks {
                p { "There are no locks under " code { (filter.prefix) } ". " a href="/ui/" { "Show all prefixes" } }
            } @else if filter.state.is_empty() && filter.find.is_empty() {
                p { "All locks" (read) " are free." }
            } @else {
                p { "None of the locks" (read) " matches. " a href="/ui/?state=all" { "Show all locks" } }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use axum::http::{HeaderValue, StatusCode};
    use futures_util::TryStreamExt as _;
    use leasehold::lease::StoreOptions;
    use leasehold::register::Precondition;
    use leasehold::{Error, ErrorKind, Locker, Register as _, RegisterLeases};

    use super::*;
    use crate::feed::{NO_RESPONSE, paused_store};
    use crate::unreliable::Unreliable;

    async fn load(app: &Arc<App>, filter: Filter, headers: HeaderMap) -> Page {
        page(State(app.clone()), app.arrival(false).await, headers, Ok(Query(filter))).await
    }

    fn of_update() -> HeaderMap {
        HeaderMap::from_iter([("leasehold-update".parse().unwrap(), HeaderValue::from_static("1"))])
    }

    /// Loads the page again, as the script does. Returns its status, its text, and how many requests it caused.
    async fn updated(app: &Arc<App>) -> (StatusCode, String, u64) {
        let before = app.feed.meter().total();
        let page = load(app, Filter::default(), of_update()).await;
        (page.status, page.content.into_string(), app.feed.meter().total() - before)
    }

    /// Returns the page, the text of its numbers, and how many requests it caused.
    async fn shown(app: &Arc<App>, filter: Filter) -> (String, String, u64) {
        let before = app.feed.meter().total();
        let page = load(app, filter, HeaderMap::new()).await;
        let text = page.content.into_string();
        let numbers = text.split("aria-label=\"States\"").nth(1).unwrap().split("</nav>").next().unwrap();
        let number = |part: &str| part.split('<').next().unwrap().to_owned();
        let numbers: Vec<_> = numbers.split("class=\"number\">").skip(1).map(number).collect();
        (text, numbers.join(" "), app.feed.meter().total() - before)
    }

    #[tokio::test]
    async fn a_page_of_many_locks_reads_a_part_and_says_so() {
        let locker = Locker::open("mem:").await.unwrap();
        let mut held = Vec::new();
        for at in 0..700 {
            let guard = locker.lock(format!("t{}/{at:04}", at % 3)).acquire().await.unwrap();
            held.push(guard);
            if at % 7 > 0 {
                held.pop().unwrap().release().await.unwrap();
            }
        }
        let app = App::on(&locker, None);
        let (page, numbers, requests) = shown(&app, Filter::default()).await;
        assert_eq!(requests, 501, "one list and at most 500 locks");
        // Problems, not free, held, lapsed, reserved, cooldown, free, with waiters, all
        assert_eq!(numbers, "0+ 72+ 72+ 0+ 0+ 0+ 428+ 0+ 700");
        assert!(page.contains("The states of 200 of 700 locks"), "{page}");
        assert!(page.contains("t0/<span class=\"number\">234<"), "prefixes count all names: {page}");
        assert!(
            page.contains("428+ free locks are hidden") && page.contains(">72+ locks, problems"),
            "{page}"
        );

        // A search reads the locks with this name first, and finds free locks.
        let find = |find: &str| Filter { find: find.to_owned(), state: ALL.to_owned(), ..Filter::default() };
        let app = App::on(&locker, None);
        let (page, ..) = shown(&app, find("0698")).await;
        assert!(page.contains("data-lock=\"t2/0698\""), "{page}");
        let (page, ..) = shown(&App::on(&locker, None), find("nothing")).await;
        assert!(page.contains("None of the locks that have been read matches."), "{page}");
        let (page, ..) = shown(&app, Filter { prefix: "u/".to_owned(), ..Filter::default() }).await;
        assert!(page.contains("There are no locks under <code>u/</code>."), "{page}");

        // The second page reads the rest. From then on, a page reads again only the locks that it shows.
        shown(&app, find("nothing")).await;
        let (page, numbers, requests) = shown(&app, Filter::default()).await;
        assert_eq!((&*numbers, requests), ("0 100 100 0 0 0 600 0 700", 101));
        assert!(page.contains("All 700 locks have been read"), "{page}");
    }

    #[tokio::test]
    async fn an_outage_costs_no_requests_for_each_viewer() {
        let app = App::on(&Locker::open("mem:").await.unwrap(), None);
        app.feed.record_response(Some(&Error::new(ErrorKind::Unavailable, "cannot read a/b: no response")));
        let (status, text, requests) = updated(&app).await;
        assert_eq!((status, requests), (StatusCode::SERVICE_UNAVAILABLE, 0), "{text}");
        assert!(text.contains(NO_RESPONSE) && !text.contains("a/b"), "{text}");
        let name = LockName::new("a").unwrap();
        let lock = reading::lock(&app, &app.arrival(false).await, &of_update(), &name).await;
        assert_eq!((lock.unwrap_err().word(), app.feed.meter().total()), ("unavailable", 0));
        app.feed.record_response(None);
        assert_eq!(updated(&app).await.0, StatusCode::OK);
    }

    #[tokio::test(start_paused = true)]
    async fn updates_do_not_read_a_damaged_record_again() {
        let mut options = StoreOptions::default();
        options.env = paused_store().await.store().env().clone();
        let register = Unreliable::new(options.env.clone());
        let store = RegisterLeases::new(register.clone(), options);
        let app = App::on(&Locker::new(Arc::new(store)), None);
        for name in ["bad", "good"] {
            app.locker.lock(name).acquire().await.unwrap().release().await.unwrap();
        }
        let key = register.list("").try_collect::<Vec<_>>().await.unwrap().remove(0);
        let version = register.read(&key).await.unwrap().unwrap().version;
        let damaged = r#"{"leasehold":1}"#.into();
        register.write(&key, Precondition::Version(&version), damaged).await.unwrap();
        let _viewer = app.feed.view(vec![String::new()], None);
        tokio::select! {
            () = app.feed.watch() => panic!("it never ends"),
            () = app.locker.store().env().sleep(Duration::from_secs(10)) => {}
        }
        let (status, text, requests) = updated(&app).await;
        assert_eq!((status, requests), (StatusCode::OK, 0), "{text}");
        assert!(
            text.contains("cannot be read") && text.contains("All locks that have been read are free."),
            "{text}"
        );
    }

    #[test]
    fn problems_come_first_and_free_locks_are_hidden() {
        let filter = |state: &str| Filter { state: state.to_owned(), ..Filter::default() };
        let lock = |state: &str, longer: bool| -> LockView {
            let lock = serde_json::json!({ "lock": "a", "state": state, "token": 1, "held_by": null, "longer_than_usual": longer });
            serde_json::from_value(lock).unwrap()
        };
        let (free, held, long, lapsed) =
            (lock("free", false), lock("held", false), lock("held", true), lock("lapsed", false));
        let shows = |state: &str| [&free, &held, &long, &lapsed].map(|lock| filter(state).shows(lock));
        assert_eq!(shows(""), [false, true, true, true]);
        assert_eq!(shows(ALL), [true; 4]);
        assert_eq!(shows(PROBLEMS), [false, false, true, true]);
        assert_eq!(shows("free"), [true, false, false, false]);
    }
}
