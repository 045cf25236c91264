//! Reading locks.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use leasehold::LockName;
use leasehold::view::{LockDetail, LockView, StateView};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::access::Right;
use crate::app::{Arrival, Shared};
use crate::body::{Parameters, PathName, duration};
use crate::changes::Read;
use crate::feed::is_of_record;
use crate::problem::Problem;
use crate::view::version;
use crate::visible::{hide, hide_in_lock};

/// How many locks are read concurrently.
const CONCURRENCY: usize = 8;
/// How many locks one response contains: by default, and at most.
const DEFAULT_LIMIT: usize = 100;
const MAX_LIMIT: usize = 1_000;
/// Maximum wait for a change.
const MAX_WAIT: Duration = Duration::from_secs(60);

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListQuery {
    /// Only locks whose names begin with this prefix.
    #[serde(default)]
    prefix: String,
    /// Only locks in this state. A page has the matching ones of `limit` locks, so it may be empty although there are
    /// more pages.
    state: Option<StateView>,
    /// The value of `next` in the previous response.
    cursor: Option<String>,
    /// How many locks the server reads for this page, from 1 to 1,000. 100 if it is missing.
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// A page of locks, in the order of their names.
#[derive(Serialize, ToSchema)]
pub(crate) struct LockPage {
    /// The locks that can be read.
    locks: Vec<LockView>,
    /// The locks whose records cannot be read, because they are damaged or this server does not support them.
    unreadable: Vec<String>,
    /// The `cursor` of the next page; null on the last page.
    #[schema(required)]
    next: Option<String>,
}

/// Lists locks.
#[utoipa::path(get, path = "/v1/locks", operation_id = "listLocks", tag = "locks", params(ListQuery),
    responses((status = 200, description = "A page of locks", body = LockPage)))]
pub(crate) async fn list(
    State(app): Shared,
    arrival: Arrival,
    Parameters(query): Parameters<ListQuery>,
) -> Result<Json<LockPage>, Problem> {
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if !(1..=MAX_LIMIT).contains(&limit) {
        return Err(Problem::invalid(format!("`limit` is not between 1 and {MAX_LIMIT}")));
    }
    let prefixes = arrival.caller.require_readable(&query.prefix)?;
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    let after = query.cursor.as_deref().unwrap_or_default();
    let mut names: Vec<LockName> = Vec::new();
    for prefix in prefixes {
        let listed = app.locker.list(&prefix).try_filter(|name| std::future::ready(name.as_str() > after));
        names.extend(listed.try_collect::<Vec<_>>().await?);
    }
    names.sort_unstable();
    let is_last = names.len() <= limit;
    names.truncate(limit);
    let next = names.last().filter(|_| !is_last).map(LockName::to_string);
    let (mut locks, mut unreadable) = (Vec::new(), Vec::new());
    let mut statuses = stream::iter(names)
        .map(|name| {
            let app = &app;
            async move {
                let status = app.locker.inspect(&name).await;
                (name, status)
            }
        })
        .buffered(CONCURRENCY);
    while let Some((name, status)) = statuses.next().await {
        match status {
            Ok(status) => locks.push(hide_in_lock(LockView::of(&status), &arrival.caller)),
            Err(error) if is_of_record(&error) => unreadable.push(name.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    drop(statuses);
    locks.retain(|lock| query.state.is_none_or(|state| state == lock.state));
    Ok(Json(LockPage { locks, unreadable, next }))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ShowQuery {
    /// With `If-None-Match`: how long to wait for a change, at most 60s.
    #[param(example = "25s")]
    wait: Option<String>,
}

/// Shows one lock: its holder, its waiters and its latest grants.
///
/// The header `ETag` changes when the lock changes hands or its waiters change. With `If-None-Match` and `wait`, the
/// response is sent at the next change. If there is none in that time, it is 304.
#[utoipa::path(get, path = "/v1/locks/{name}", operation_id = "getLock", tag = "locks",
    params(("name" = String, Path, description = "The lock's name; its slashes may be encoded or not"), ShowQuery,
        ("If-None-Match" = Option<String>, Header, description = "The `ETag` of an earlier response")),
    responses(
        (status = 200, description = "The lock", body = LockDetail,
            headers(("ETag" = String, description = "Changes with the holder and the waiters"))),
        (status = 304, description = "The lock has not changed",
            headers(("ETag" = String, description = "The same as in the request")))))]
pub(crate) async fn show(
    State(app): Shared,
    arrival: Arrival,
    headers: HeaderMap,
    PathName(name): PathName,
    Parameters(query): Parameters<ShowQuery>,
) -> Result<Response, Problem> {
    arrival.require(Right::Read, &name)?;
    let wait = query.wait.as_deref().map_or(Ok(Duration::ZERO), |wait| duration("wait", wait, MAX_WAIT))?;
    app.limits.admit(arrival.caller.name(), arrival.at)?;
    let known = headers.get(header::IF_NONE_MATCH).and_then(|known| known.to_str().ok());
    let first = app.changes.read(&name).await;
    let began = first.began;
    if let Some(changed) = unless_known(first, known, &arrival)? {
        return Ok(changed);
    }
    let is_stopping = app.stopping.is_cancelled();
    let wait = arrival.wait(wait).saturating_sub(app.now().longest_since(arrival.at));
    if !wait.is_zero() && !is_stopping {
        let _open = app.capacity.polls.enter(&arrival.caller, None)?;
        let mut changes = app.changes.follow(&name);
        let changed = async {
            while let Some(read) = changes.read_after(began).await {
                if let Some(changed) = unless_known(read, known, &arrival)? {
                    return Ok(Some(changed));
                }
            }
            Ok(None)
        };
        let changed: Result<_, Problem> = tokio::select! {
            changed = changed => changed,
            () = app.sleep(wait) => Ok(None),
            () = app.stopping.cancelled() => Ok(None),
        };
        if let Some(changed) = changed? {
            return Ok(changed);
        }
    }
    let tag = known.and_then(|known| HeaderValue::from_str(known).ok());
    let mut unchanged = StatusCode::NOT_MODIFIED.into_response();
    unchanged.headers_mut().extend(tag.map(|tag| (header::ETAG, tag)));
    Ok(unchanged)
}

/// Returns the lock as a response to `arrival`, or `None` if its `ETag` is `known`.
fn unless_known(read: Read, known: Option<&str>, arrival: &Arrival) -> Result<Option<Response>, Problem> {
    let detail = read.result?;
    let tag = format!("\"{}\"", version(&detail.lock));
    if known == Some(&*tag) {
        return Ok(None);
    }
    let tag = HeaderValue::from_str(&tag).unwrap_or(HeaderValue::from_static("\"\""));
    let shown = hide(LockDetail::clone(&detail), &arrival.caller);
    Ok(Some(([(header::ETAG, tag)], Json(shown)).into_response()))
}

#[cfg(test)]
mod tests {
    use leasehold::Locker;

    use super::*;
    use crate::app::App;

    fn query(text: &str) -> Parameters<ListQuery> {
        Parameters(serde_json::from_str(text).unwrap())
    }

    /// Returns how many requests of this kind the store got.
    fn requests(app: &App, operation: &str) -> usize {
        let text = app.metrics.text(&app.capacity);
        let line = format!("leasehold_store_requests_total{{operation=\"{operation}\",outcome=\"done\"}} ");
        text.lines().find_map(|found| found.strip_prefix(&line)).unwrap().parse().unwrap()
    }

    #[tokio::test]
    async fn a_page_reads_no_more_locks_than_its_limit() {
        let locker = Locker::open("mem:").await.unwrap();
        for number in 0..10 {
            locker.lock(format!("{number}")).acquire().await.unwrap().release().await.unwrap();
        }
        let app = App::on(&locker, None);
        let page = async |text: &str| {
            list(State(app.clone()), app.arrival(false).await, query(text)).await.ok().unwrap().0
        };
        let first = page(r#"{ "state": "held", "limit": 4 }"#).await;
        assert!(first.locks.is_empty() && first.next.as_deref() == Some("3"), "{:?}", first.next);
        assert_eq!(requests(&app, "inspect"), 4);
        let last = page(r#"{ "state": "free", "limit": 4, "cursor": "7" }"#).await;
        assert_eq!((last.locks.len(), last.next), (2, None));
        assert_eq!(requests(&app, "inspect"), 6);
    }

    #[tokio::test]
    async fn callers_list_only_what_they_may_read() {
        let locker = Locker::open("mem:").await.unwrap();
        for name in ["a/1", "b/1", "b/2", "c"] {
            locker.lock(name).acquire().await.unwrap().release().await.unwrap();
        }
        let app = App::on(&locker, None);
        let listed = async |rights: &[(&str, Right)]| {
            let mut arrival = app.arrival(false).await;
            arrival.caller.set_rights(rights);
            let page = list(State(app.clone()), arrival, query("{}")).await;
            page.map(|page| page.0.locks.into_iter().map(|lock| lock.lock).collect::<Vec<_>>())
        };
        for rights in [&[][..], &[("", Right::Acquire)]] {
            assert_eq!(listed(rights).await.unwrap_err().word(), "forbidden");
        }
        assert_eq!((requests(&app, "list"), requests(&app, "inspect")), (0, 0));
        assert_eq!(listed(&[("b/", Right::Read), ("a/", Right::Read)]).await.unwrap(), ["a/1", "b/1", "b/2"]);
        assert_eq!(requests(&app, "inspect"), 3);
    }
}
