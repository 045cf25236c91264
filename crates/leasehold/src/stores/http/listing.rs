//! Lists the names of all locks, page by page.

use futures_util::stream::{self, BoxStream, StreamExt, TryStreamExt};

use super::HttpLeases;
use super::answers::Page;
use super::client::{Request, query};
use crate::error::StoreError;
use crate::retry::retry;
use crate::types::LockName;

/// The number of locks in a page. The server reads each lock of a page.
const PAGE: usize = 200;

impl HttpLeases {
    pub(super) fn listed(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let prefix = prefix.to_owned();
        // The last name of the previous page. `None` after the last page.
        let pages = stream::try_unfold(Some(String::new()), move |after: Option<String>| {
            let prefix = prefix.clone();
            async move {
                let Some(after) = after else { return Ok(None) };
                let target =
                    format!("/v1/locks?prefix={}&cursor={}&limit={PAGE}", query(&prefix), query(&after));
                let request = Request::get(target, "cannot list the locks".to_owned());
                let page: Page =
                    retry(&self.client.env, || async { Ok(self.client.ask(&request).await?.1) }).await?;
                let rises = |next: &String| *next > after;
                if !page.next.as_ref().is_none_or(rises) {
                    return Err(self.client.incomprehensible(&request, "its pages do not end"));
                }
                let named = page.locks.into_iter().map(|named| named.lock).chain(page.unreadable);
                let names: Option<Vec<_>> = named
                    .map(|name| LockName::new(name).ok().filter(|name| name.as_str().starts_with(&prefix)))
                    .collect();
                let mut names = names.ok_or_else(|| {
                    self.client.incomprehensible(&request, "it contains an unexpected name")
                })?;
                names.sort_unstable();
                Ok(Some((names, page.next)))
            }
        });
        pages.map_ok(|names| stream::iter(names.into_iter().map(Ok))).try_flatten().boxed()
    }
}
