//! Lists the names of all locks, page by page.

use super::HttpLeases;
use super::answers::Page;
use super::client::{Request, query};
use crate::native::{Ask, Outcome};
use crate::types::LockName;

/// The number of locks in a page. The server reads each lock of a page.
const PAGE: usize = 200;

impl HttpLeases {
    /// Returns the page of the names after `after`, and the last name of the page if another one follows.
    pub(super) async fn page(
        &self,
        prefix: &str,
        after: Option<String>,
        ask: &mut Ask<'_>,
    ) -> Outcome<(Vec<LockName>, Option<String>)> {
        let after = after.unwrap_or_default();
        let target = format!("/v1/locks?prefix={}&cursor={}&limit={PAGE}", query(prefix), query(&after));
        let request = Request::get(target, "cannot list the locks".to_owned());
        let page: Page = ask.read(|| async { Ok(self.client.ask(&request).await?.1) }).await?;
        if page.next.as_ref().is_some_and(|next| *next <= after) {
            return Err(self.client.incomprehensible(&request, "its pages do not end"));
        }
        let named = page.locks.into_iter().map(|named| named.lock).chain(page.unreadable);
        let names: Option<Vec<_>> = named
            .map(|name| LockName::new(name).ok().filter(|name| name.as_str().starts_with(prefix)))
            .collect();
        let mut names =
            names.ok_or_else(|| self.client.incomprehensible(&request, "it contains an unexpected name"))?;
        names.sort_unstable();
        Ok((names, page.next))
    }
}
