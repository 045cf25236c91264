//! Lists register keys page by page.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::Arc;

use futures_util::stream::{self, BoxStream, StreamExt};

use super::Keys;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::retry::retry;

/// A page of object keys.
pub(in crate::stores) struct Page {
    pub(in crate::stores) objects: Vec<String>,
    /// The token for the next page. `None` on the last page.
    pub(in crate::stores) next: Option<String>,
}

/// Lists the register keys that start with `prefix`. `fetch` returns the next page of the objects with a prefix, given
/// the token of the previous page. It is called again after a transient error.
pub(in crate::stores) fn listing<'a, F>(
    env: &'a Env,
    keys: &'a Keys,
    prefix: &str,
    fetch: impl Fn(String, Option<String>) -> F + Send + Sync + 'a,
) -> BoxStream<'a, Result<String, StoreError>>
where
    F: Future<Output = Result<Page, StoreError>> + Send + 'a,
{
    let pages = Pages { prefix: keys.object(prefix), page: VecDeque::new(), next: Next::First };
    let fetch = Arc::new(fetch);
    stream::try_unfold(pages, move |pages| next_listed(env, keys, pages, fetch.clone())).boxed()
}

/// The state of a listing.
struct Pages {
    prefix: String,
    page: VecDeque<String>,
    next: Next,
}

enum Next {
    First,
    After(String),
    None,
}

async fn next_listed<F>(
    env: &Env,
    keys: &Keys,
    mut pages: Pages,
    fetch: Arc<impl Fn(String, Option<String>) -> F>,
) -> Result<Option<(String, Pages)>, StoreError>
where
    F: Future<Output = Result<Page, StoreError>>,
{
    loop {
        while let Some(object) = pages.page.pop_front() {
            // Skips objects whose keys do not decode: leasehold did not write them.
            if let Some(key) = keys.register(&object) {
                return Ok(Some((key, pages)));
            }
        }
        let token = match std::mem::replace(&mut pages.next, Next::None) {
            Next::First => None,
            Next::After(token) => Some(token),
            Next::None => return Ok(None),
        };
        let Page { objects, next } = retry(env, || fetch(pages.prefix.clone(), token.clone())).await?;
        pages.next = match next {
            None => Next::None,
            // A repeated token would list the same page forever.
            Some(next) if Some(&next) == token.as_ref() => return Err(endless()),
            Some(next) => Next::After(next),
        };
        pages.page = objects.into();
    }
}

fn endless() -> StoreError {
    Fault::new(ErrorKind::Corrupt, "the store's listing does not end: a page names itself as the next one")
        .with_help("check that the endpoint is one of the store's")
        .not_applied()
}
