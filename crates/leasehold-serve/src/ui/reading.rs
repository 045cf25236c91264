//! The locks that a page shows: the latest looks of the feed, or fresh reads.

use std::time::Duration;

use axum::http::HeaderMap;
use futures_util::{StreamExt as _, stream};
use leasehold::LockName;
use leasehold::view::{LockDetail, ms};

use crate::access::Right;
use crate::app::{App, Arrival};
use crate::feed::{Look, MAX_LOCKS, is_of_record};
use crate::problem::Problem;
use crate::view::aged;
use crate::visible::hide;

/// How many locks are read concurrently.
const CONCURRENCY: usize = 8;

/// The locks of a page, in the order of their names.
pub(super) struct Reading {
    pub(super) locks: Vec<LockDetail>,
    /// The locks whose records cannot be read.
    pub(super) unreadable: Vec<LockName>,
    /// Whether there are more locks than a page shows.
    pub(super) has_more: bool,
    /// The age of the oldest data, in milliseconds.
    pub(super) age_ms: u64,
}

/// Returns whether the script requests an update of a page that is already shown.
fn is_update(headers: &HeaderMap) -> bool {
    headers.contains_key("leasehold-update")
}

/// Returns the locks under `prefix` that the caller may see.
pub(super) async fn locks(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    prefix: &str,
) -> Result<Reading, Problem> {
    let prefixes = arrival.caller.readable(prefix);
    let seen = if is_update(headers) { app.feed.seen(&prefixes) } else { None };
    if seen.as_ref().is_none_or(|seen| seen.iter().any(|(_, look)| look.is_none())) {
        app.limits.admit(arrival.caller.name(), arrival.at)?;
    }
    let mut locks = match seen {
        Some(seen) => seen,
        None => listed(app, &prefixes).await?.into_iter().map(|name| (name, None)).collect(),
    };
    let has_more = locks.len() > MAX_LOCKS;
    locks.truncate(MAX_LOCKS);
    let read = |(name, look): (LockName, Option<Look>)| async move {
        let read = match look {
            Some(look) => Ok(aged_now(app, look)),
            None => app.feed.inspect(&name).await.map(|detail| (detail, Duration::ZERO)),
        };
        (name, read)
    };
    let mut read = stream::iter(locks).map(read).buffered(CONCURRENCY);
    let mut reading = Reading { locks: Vec::new(), unreadable: Vec::new(), has_more, age_ms: 0 };
    while let Some((name, lock)) = read.next().await {
        match lock {
            Ok((lock, age)) => {
                reading.age_ms = reading.age_ms.max(ms(age));
                reading.locks.push(hide(lock, &arrival.caller));
            }
            Err(error) if is_of_record(&error) => reading.unreadable.push(name),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(reading)
}

/// Returns the names that begin with one of `prefixes`, but at most one more than a page shows.
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
    if is_update(headers)
        && let Some(look) = app.feed.seen_one(name)
    {
        return Ok(hide(aged_now(app, look).0, &arrival.caller));
    }
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    Ok(hide(app.feed.inspect(name).await?, &arrival.caller))
}

fn aged_now(app: &App, look: Look) -> (LockDetail, Duration) {
    let age = app.now().shortest_since(look.at);
    (aged(look.detail, age), age)
}
