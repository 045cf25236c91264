//! Listings that a store returns page by page.

use std::future::Future;
use std::sync::Arc;

use futures_util::future::ready;
use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use crate::env::Env;
use crate::error::StoreError;
use crate::retry::retry;
use crate::types::LockName;

/// A page of a listing.
pub(super) struct Page<T, P> {
    pub(super) items: Vec<T>,
    /// The position of the next page. `None` on the last page.
    pub(super) next: Option<P>,
}

#[cfg(feature = "_table")]
impl<T: Clone> Page<T, T> {
    /// Returns the page of `items`, which has at most `most`. The next one begins after the last item.
    pub(super) fn of_at_most(most: usize, items: Vec<T>) -> Self {
        let next = if items.len() == most { items.last().cloned() } else { None };
        Self { items, next }
    }
}

/// Lists the items of all pages. `fetch` returns the page at a position, and the first page for `None`. It is called
/// again after a transient error. If a page names itself as the next one, the listing fails with `endless`, because it
/// would repeat that page forever.
pub(super) fn items<'a, T, P, F>(
    env: &'a Env,
    fetch: impl Fn(Option<P>) -> F + Send + Sync + 'a,
    endless: fn() -> StoreError,
) -> BoxStream<'a, Result<T, StoreError>>
where
    T: Send + 'a,
    P: Clone + PartialEq + Send + Sync + 'a,
    F: Future<Output = Result<Page<T, P>, StoreError>> + Send + 'a,
{
    let fetch = Arc::new(fetch);
    // The position of the next page. `None` after the last page.
    let pages = stream::try_unfold(Some(None), move |position: Option<Option<P>>| {
        let fetch = fetch.clone();
        async move {
            let Some(position) = position else { return Ok(None) };
            let Page { items, next } = retry(env, || fetch(position.clone())).await?;
            if next.is_some() && next == position {
                return Err(endless());
            }
            Ok(Some((items, next.map(Some))))
        }
    });
    pages.map_ok(|items| stream::iter(items.into_iter().map(Ok))).try_flatten().boxed()
}

/// Lists the names of locks that begin with `prefix`, like [`items`]. Skips names that are not lock names: leasehold did
/// not write them.
#[allow(dead_code, reason = "only stores that sort names need it")]
pub(super) fn lock_names<'a, F>(
    env: &'a Env,
    prefix: &str,
    fetch: impl Fn(String, Option<String>) -> F + Send + Sync + 'a,
    endless: fn() -> StoreError,
) -> BoxStream<'a, Result<LockName, StoreError>>
where
    F: Future<Output = Result<Page<String, String>, StoreError>> + Send + 'a,
{
    let prefix = prefix.to_owned();
    items(env, move |from| fetch(prefix.clone(), from), endless)
        .try_filter_map(|name| ready(Ok(LockName::new(name).ok())))
        .boxed()
}
