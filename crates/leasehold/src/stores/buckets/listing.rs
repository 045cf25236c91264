//! Lists register keys.

use std::future::{Future, ready};

use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};

use super::Keys;
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::stores::pages;

/// A page of object keys.
pub(in crate::stores) type Page = pages::Page<String, String>;

/// Lists the register keys that start with `prefix`. `fetch` returns the page of the objects with a prefix that the token
/// of the previous page names. It is called again after a transient error.
pub(in crate::stores) fn listing<'a, F>(
    env: &'a Env,
    keys: &'a Keys,
    prefix: &str,
    fetch: impl Fn(String, Option<String>) -> F + Send + Sync + 'a,
) -> BoxStream<'a, Result<String, StoreError>>
where
    F: Future<Output = Result<Page, StoreError>> + Send + 'a,
{
    let prefix = keys.object(prefix);
    pages::items(env, move |token| fetch(prefix.clone(), token), endless)
        // Skips objects whose keys do not decode: leasehold did not write them.
        .try_filter_map(move |object| ready(Ok(keys.register(&object))))
        .boxed()
}

fn endless() -> StoreError {
    Fault::new(ErrorKind::Corrupt, "the store's listing does not end: a page names itself as the next one")
        .with_help("check that the endpoint is one of the store's")
        .not_applied()
}
