//! The stores that the host uses, each opened once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::Locker;
use leasehold::lease::StoreOptions;
use tokio::sync::OnceCell;

use super::refusal::Refusal;
use crate::config::Settings;

/// The largest number of open stores.
pub(super) const MAX_STORES: usize = 64;
/// The longest URL, in bytes.
const MAX_URL: usize = 8 << 10;

/// Opened stores, by their URL.
#[derive(Debug)]
pub(super) struct Stores {
    settings: Settings,
    /// The option `--store`.
    default_store: Option<String>,
    opened: Mutex<HashMap<String, Arc<OnceCell<Locker>>>>,
}

impl Stores {
    pub(super) fn new(settings: Settings, default_store: Option<String>) -> Self {
        Self { settings, default_store, opened: Mutex::default() }
    }

    /// Returns the store with this URL or alias, or by default the default store of the command.
    pub(super) async fn open(&self, given: Option<String>) -> Result<Locker, Refusal> {
        self.open_within(given, None).await
    }

    /// Opens a store like [`open`](Self::open). Keeps trying one that does not respond for `limit`.
    pub(super) async fn open_within(
        &self,
        given: Option<String>,
        limit: Option<Duration>,
    ) -> Result<Locker, Refusal> {
        if given.as_ref().is_some_and(|given| given.len() > MAX_URL) {
            return Err(Refusal::invalid(format!("`store` is longer than {MAX_URL} bytes")));
        }
        if given.as_deref() == Some("") {
            return Err(Refusal::invalid("`store` is empty"));
        }
        let url = self.settings.store(given.or_else(|| self.default_store.clone()))?.url;
        let cell = self.cell(&url)?;
        let mut options = StoreOptions::default();
        options.open_timeout = limit.unwrap_or(options.open_timeout);
        let opened = cell.get_or_try_init(async || Locker::open_with(&url, options).await).await;
        if opened.is_err() {
            self.opened(|stores| {
                // Remove only the failed attempt, because a later one may have succeeded.
                if stores.get(&url).is_some_and(|other| Arc::ptr_eq(other, &cell) && !cell.initialized()) {
                    stores.remove(&url);
                }
            });
        }
        Ok(opened?.clone())
    }

    fn cell(&self, url: &str) -> Result<Arc<OnceCell<Locker>>, Refusal> {
        self.opened(|stores| match stores.get(url) {
            Some(cell) => Ok(Arc::clone(cell)),
            None if stores.len() >= MAX_STORES => {
                Err(Refusal::limit(format!("too many stores are open (maximum {MAX_STORES})"))
                    .with_help("use one store with names like app/task, or start another agent"))
            }
            None => Ok(Arc::clone(stores.entry(url.to_owned()).or_default())),
        })
    }

    fn opened<T>(&self, body: impl FnOnce(&mut HashMap<String, Arc<OnceCell<Locker>>>) -> T) -> T {
        body(&mut self.opened.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
