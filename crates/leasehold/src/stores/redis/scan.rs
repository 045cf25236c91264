//! The names of the locks of a cluster. Each shard is searched, because no key of one shard lists the locks of all.

use std::collections::HashSet;

use futures_util::future::ready;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt};

use super::answer::unreadable;
use super::errors;
use super::records::{PAGE, RECORD, RedisRecords};
use crate::error::StoreError;
use crate::stores::hosts::Host;
use crate::stores::pages::{self, Page};
use crate::types::LockName;

/// A position in the keys of a shard.
type Position = (Host, u64);

impl RedisRecords {
    /// Lists the names that begin with `prefix`. A search can return a key twice.
    pub(super) fn scan(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let (prefix, mut seen) = (prefix.to_owned(), HashSet::new());
        let fetch = move |from| self.scanned(prefix.clone(), from);
        let names = pages::items(&self.env, fetch, || unreadable().not_applied());
        names.try_filter(move |name| ready(seen.insert(name.clone()))).boxed()
    }

    async fn scanned(
        &self,
        prefix: String,
        from: Option<Position>,
    ) -> Result<Page<LockName, Position>, StoreError> {
        let mut hosts = self.slots(from.is_none()).await?.hosts();
        hosts.sort_by_key(ToString::to_string);
        let position = from.or_else(|| Some((hosts.first()?.clone(), 0)));
        let (host, cursor) = position.ok_or_else(|| errors::without_server("all").not_applied())?;
        let shard = self.shard_at(&host, false).await?;
        let pattern = format!("*{}*{RECORD}", escaped(&self.lock(&prefix)));
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE);
        let mut connection = shard.link.connection.clone();
        let found =
            shard.links.run(&shard.link, scan.query_async::<(u64, Vec<Vec<u8>>)>(&mut connection)).await;
        let (cursor, keys) = found.map_err(|error| errors::of_request(&error))?;
        let name = |key: Vec<u8>| self.name_of(std::str::from_utf8(&key).ok()?);
        let items = keys.into_iter().filter_map(name).filter(|name| name.as_str().starts_with(&prefix));
        let after = hosts.iter().find(|other| other.to_string() > host.to_string());
        let next = if cursor > 0 { Some((host, cursor)) } else { after.map(|host| (host.clone(), 0)) };
        Ok(Page { items: items.collect(), next })
    }

    /// Returns the lock whose record is `key`.
    fn name_of(&self, key: &str) -> Option<LockName> {
        let lock = key.strip_suffix(RECORD)?;
        let plain = lock.strip_prefix('{').and_then(|lock| lock.strip_suffix('}'));
        let names = [plain, Some(lock)].into_iter().flatten();
        let mut names = names.filter_map(|lock| LockName::new(lock.strip_prefix(&self.lock(""))?).ok());
        names.find(|name| self.record_of(name).is_ok_and(|record| record == key))
    }
}

/// Escapes what has a meaning in a pattern.
fn escaped(text: &str) -> String {
    let escape =
        |c| if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^' | '-') { vec!['\\', c] } else { vec![c] };
    text.chars().flat_map(escape).collect()
}
