//! The locks that a page shows: the latest looks of the feed, or fresh reads.

use std::sync::Arc;
use std::time::Duration;

use axum::http::HeaderMap;
use futures_util::{StreamExt as _, stream};
use leasehold::view::{LockDetail, LockView, ms};
use leasehold::{LockName, PastGrant};
use maud::{Markup, html};

use super::format::{count, number, span};
use crate::access::{Caller, Right};
use crate::app::{App, Arrival};
use crate::feed::{self, Latest, Look, MAX_LOCKS, is_of_record};
use crate::problem::{Problem, ProblemType};
use crate::view::aged;
use crate::visible::hide;

/// How many locks are read concurrently.
const CONCURRENCY: usize = 8;
/// How many locks are read for a page, and how many rows it shows.
pub(super) const MAX_ROWS: usize = 500;
/// Age of data from which on a page mentions it.
const MENTIONED_MS: u64 = 15_000;

/// A lock as it was read.
pub(super) struct Seen {
    detail: Arc<LockDetail>,
    /// How long ago it was read.
    pub(super) age_ms: u64,
}

impl Seen {
    fn new(app: &App, look: Look) -> Self {
        Self { age_ms: ms(app.now().shortest_since(look.at)), detail: look.detail }
    }

    /// Returns the lock as it was when it was read.
    pub(super) fn lock(&self) -> &LockView {
        &self.detail.lock
    }

    /// Returns its latest grants that have ended, newest first.
    pub(super) fn history(&self) -> &[PastGrant] {
        &self.detail.history
    }

    /// Returns the lock as it is now if nothing has happened, without what `caller` may not see.
    pub(super) fn now(&self, caller: &Caller) -> LockDetail {
        hide(aged(LockDetail::clone(&self.detail), Duration::from_millis(self.age_ms)), caller)
    }
}

/// The locks under a prefix.
pub(super) struct Reading {
    /// All names, in order.
    pub(super) names: Vec<LockName>,
    /// The locks that have been read, in the order of their names.
    pub(super) locks: Vec<Seen>,
    /// The locks whose records cannot be read.
    pub(super) unreadable: Vec<LockName>,
    /// Whether there may be more names.
    pub(super) has_more: bool,
}

impl Reading {
    /// Returns how many locks have not been read yet.
    pub(super) fn unread(&self) -> usize {
        self.names.len() - self.locks.len() - self.unreadable.len()
    }

    /// Returns `of` things with their unit: `1 lock`, `2 locks`, `2+ locks` if there may be more among the locks that
    /// have not been read yet.
    pub(super) fn count(&self, of: usize, one: &str, many: &str) -> String {
        match self.unread() {
            0 => count(of, one, many),
            _ => format!("{}+ {many}", number(of)),
        }
    }

    /// Returns a note about the age of the data, if it is old enough to mention.
    pub(super) fn age(&self) -> Markup {
        let oldest = self.locks.iter().map(|seen| seen.age_ms).max().unwrap_or(0);
        html! {
            @if oldest > MENTIONED_MS && self.names.len() <= MAX_ROWS { " Some of this data was read " (span(oldest)) " ago." }
        }
    }

    /// Returns a notice about how much has been read and when, if a page does not read all locks at once. While it is on
    /// a page, the script refreshes the page more often.
    pub(super) fn scan(&self) -> Markup {
        let (all, unread) = (self.names.len(), self.unread());
        if all <= MAX_ROWS {
            return html! {};
        }
        let oldest = self.locks.iter().map(|seen| seen.age_ms).max().unwrap_or(0);
        let rest = feed::pause(all) * u32::try_from(unread).unwrap_or(u32::MAX);
        html! {
            p class="notice" data-scan {
                @if self.has_more { "There are " (number(all)) " locks or more: choose a prefix to see the others. " }
                @if unread == 0 {
                    "All " (count(all, "lock", "locks")) " have been read, each within the last " b { (span(oldest)) } "."
                } @else {
                    b { "The states of " (number(unread)) " of " (count(all, "lock", "locks")) " are not known yet." }
                    " While this page is open, the server reads them, which takes at least " (span(ms(rest)))
                    ". Until then, numbers with a + count only the locks that have been read."
                }
            }
        }
    }
}

/// Returns whether the script requests an update of a page that is already shown. While the store does not respond,
/// updates fail without a request to it: the feed asks it again, so the number of viewers does not matter.
fn is_update(app: &App, headers: &HeaderMap) -> Result<bool, Problem> {
    let is_update = headers.contains_key("leasehold-update");
    match app.feed.outage().filter(|_| is_update) {
        Some(reason) => Err(Problem::new(ProblemType::Unavailable, reason)),
        None => Ok(is_update),
    }
}

/// Returns the locks under `prefix` that the caller may see.
///
/// A page that was opened reads all its locks. If there are more than [`MAX_ROWS`], it reads those with the lowest
/// `rank`, which gets the latest look at each, and then those that were not read yet; the feed reads the others.
pub(super) async fn locks(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    prefix: &str,
    rank: impl Fn(&LockName, Option<&LockView>) -> Option<u8>,
) -> Result<Reading, Problem> {
    let prefixes = arrival.caller.readable(prefix);
    let is_opened = !is_update(app, headers)?;
    let seen = if is_opened { None } else { app.feed.seen(&prefixes) };
    let is_watched = seen.is_some();
    let mut found = match seen {
        Some(seen) => seen,
        None => {
            app.limits.admit(arrival.caller.name(), arrival.at)?;
            app.feed.latest_of(listed(app, &prefixes).await?)
        }
    };
    found.truncate(MAX_LOCKS);
    let has_more = found.len() == MAX_LOCKS;
    let is_small = found.len() <= MAX_ROWS;
    let mut due: Vec<(u8, usize)> = Vec::new();
    for (at, (name, latest)) in found.iter().enumerate() {
        let rank = || rank(name, latest.look().map(|look| &look.detail.lock));
        let rank = match latest {
            _ if is_small && !is_watched => Some(0),
            Latest::Unread if is_small => Some(0),
            Latest::Unread if is_opened => Some(rank().unwrap_or(u8::MAX)),
            Latest::Look(_) if is_opened => rank(),
            _ => None,
        };
        due.extend(rank.map(|rank| (rank, at)));
    }
    due.sort_unstable();
    due.truncate(MAX_ROWS);
    if is_watched && !due.is_empty() {
        app.limits.admit(arrival.caller.name(), arrival.at)?;
    }
    let names: Vec<LockName> = found.iter().map(|(name, _)| name.clone()).collect();
    let read = |(_, at): (u8, usize)| {
        let name = &names[at];
        async move { (at, app.feed.look(name).await) }
    };
    let mut reads = stream::iter(due).map(read).buffer_unordered(CONCURRENCY);
    while let Some((at, look)) = reads.next().await {
        found[at].1 = match look {
            Ok(look) => Latest::Look(look),
            Err(error) if is_of_record(&error) => Latest::Unreadable,
            Err(error) => return Err(error.into()),
        };
    }
    drop(reads);
    let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
    for (name, latest) in found {
        match latest {
            Latest::Look(look) => locks.push(Seen::new(app, look)),
            Latest::Unreadable => unreadable.push(name),
            Latest::Unread => {}
        }
    }
    Ok(Reading { names, locks, unreadable, has_more })
}

/// Returns the names that begin with one of `prefixes`, in order, but at most one more than a page covers.
async fn listed(app: &App, prefixes: &[String]) -> leasehold::Result<Vec<LockName>> {
    let mut names = Vec::new();
    for prefix in prefixes {
        names.extend(app.feed.names(prefix, MAX_LOCKS + 1 - names.len()).await?);
        if names.len() > MAX_LOCKS {
            break;
        }
    }
    Ok(names)
}

/// Returns the lock `name`. Fails if the caller may not see it.
pub(super) async fn lock(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    name: &LockName,
) -> Result<LockDetail, Problem> {
    arrival.require(Right::Read, name)?;
    if is_update(app, headers)?
        && let Some(look) = app.feed.seen_one(name)
    {
        return Ok(Seen::new(app, look).now(&arrival.caller));
    }
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    Ok(hide(app.feed.inspect(name).await?, &arrival.caller))
}
