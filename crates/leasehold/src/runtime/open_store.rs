//! [`OpenStore`]: an open store with its observers.

use std::sync::Arc;

use crate::lease::LeaseStore;
use crate::lease::limiter::{Limiter, RENEWALS};
use crate::observe::{ObservedStore, Observer, Observers};

/// An open store, and the state that the renewers of all its grants share.
pub(crate) struct OpenStore {
    /// The store, whose requests are reported to the observers.
    pub(crate) store: Arc<dyn LeaseStore>,
    pub(crate) observers: Observers,
    /// The store itself.
    inner: Arc<dyn LeaseStore>,
    /// The URL that the store was opened with, without passwords.
    pub(crate) url: Option<String>,
    /// The part of the URL that identifies the store, for tickets.
    pub(crate) store_id: Option<String>,
    /// Limits concurrent renewals.
    pub(crate) renewals: Arc<Limiter>,
}

impl OpenStore {
    /// Creates the state of `store`, which was opened with `url` and is identified by `store_id`.
    pub(crate) fn new(store: Arc<dyn LeaseStore>, url: Option<String>, store_id: Option<String>) -> Self {
        let observers = Observers::default();
        Self {
            store: Arc::new(ObservedStore::new(store.clone(), observers.clone())),
            observers,
            inner: store,
            url,
            store_id,
            renewals: Limiter::new(RENEWALS),
        }
    }

    /// Returns the same store with one more observer.
    pub(crate) fn observed_by(&self, observer: Arc<dyn Observer>) -> Self {
        let observers = self.observers.with(observer);
        Self {
            store: Arc::new(ObservedStore::new(self.inner.clone(), observers.clone())),
            observers,
            inner: self.inner.clone(),
            url: self.url.clone(),
            store_id: self.store_id.clone(),
            renewals: self.renewals.clone(),
        }
    }

    /// Returns whether `other` is certainly the same store. Each `mem:` is a store of its own.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let id = |opened: &Self| opened.store_id.clone().filter(|id| !id.starts_with("mem:"));
        Arc::ptr_eq(&self.inner, &other.inner) || id(self).is_some_and(|own| id(other) == Some(own))
    }

    /// Returns the store's URL or its kind, for messages.
    pub(crate) fn shown(&self) -> String {
        self.url.clone().unwrap_or_else(|| self.store.capabilities().store.to_owned())
    }
}
