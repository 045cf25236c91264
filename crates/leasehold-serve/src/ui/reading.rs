//! The locks that a page shows: as the feed read them last, or read now.

use std::time::Duration;

use axum::http::HeaderMap;
use futures_util::{StreamExt as _, stream};
use leasehold::LockName;

use crate::access::Right;
use crate::app::{App, Arrival};
use crate::feed::{Look, MOST_LOCKS};
use crate::problem::Problem;
use crate::view::{LockDetail, ms};

/// How many locks are read at a time.
const AT_ONCE: usize = 8;

/// The locks of a page, in the order of their names.
pub(super) struct Reading {
    pub(super) locks: Vec<LockDetail>,
    /// Whether there are more locks than a page shows.
    pub(super) has_more: bool,
    /// How old the oldest of it is, in milliseconds.
    pub(super) age_ms: u64,
}

/// Whether the script asks for a page that is shown already.
fn is_update(headers: &HeaderMap) -> bool {
    headers.contains_key("leasehold-update")
}

/// The locks under `prefix` that the caller may see.
pub(super) async fn locks(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    prefix: &str,
) -> Result<Reading, Problem> {
    let prefixes = arrival.caller.readable(prefix);
    if is_update(headers)
        && let Some(looks) = app.feed.seen(&prefixes)
    {
        let (locks, ages): (Vec<_>, Vec<_>) = looks.into_iter().map(|look| aged(app, look)).unzip();
        let has_more = locks.len() >= MOST_LOCKS;
        return Ok(Reading { locks, has_more, age_ms: ages.into_iter().max().map_or(0, ms) });
    }
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    let mut names = Vec::new();
    for prefix in &prefixes {
        names.extend(app.feed.names(prefix, MOST_LOCKS + 1 - names.len()).await?);
        if names.len() > MOST_LOCKS {
            break;
        }
    }
    let has_more = names.len() > MOST_LOCKS;
    names.truncate(MOST_LOCKS);
    let mut reads =
        stream::iter(names).map(|name| async move { app.feed.inspect(&name).await }).buffered(AT_ONCE);
    let mut locks = Vec::new();
    while let Some(lock) = reads.next().await {
        locks.push(lock?);
    }
    Ok(Reading { locks, has_more, age_ms: 0 })
}

/// The lock `name`, which the caller must be allowed to see.
pub(super) async fn lock(
    app: &App,
    arrival: &Arrival,
    headers: &HeaderMap,
    name: &LockName,
) -> Result<LockDetail, Problem> {
    arrival.must(Right::Read, name)?;
    if is_update(headers)
        && let Some(look) = app.feed.seen_one(name)
    {
        return Ok(aged(app, look).0);
    }
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    Ok(app.feed.inspect(name).await?)
}

fn aged(app: &App, look: Look) -> (LockDetail, Duration) {
    let age = app.now().shortest_since(look.at);
    (look.detail.aged(age), age)
}
