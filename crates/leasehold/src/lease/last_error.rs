//! [`LastError`]: the latest error of a store that does not respond.

use std::sync::Arc;

use tokio::sync::watch;

use crate::error::StoreError;

const CHECKING: &str = "leasehold has not finished checking the store";

/// The latest error of a store that does not currently respond to a [`Claim`](super::Claim), for the error message when
/// an acquisition times out. Clones share it.
///
/// ```
/// use leasehold::{error::Fault, lease::LastError};
///
/// let last_error = LastError::default();
/// last_error.set(&Fault::unavailable("connection refused").maybe_applied());
/// assert_eq!(last_error.get().as_deref(), Some("connection refused"));
/// last_error.clear();
/// assert_eq!(last_error.get(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct LastError(Arc<watch::Sender<Known>>);

/// What is known of the store's responses.
#[derive(Debug, Default)]
struct Known {
    error: Option<String>,
    /// Whether `error` is a failure of the store, and not a conflict with other clients.
    fails: bool,
    /// Whether the store has responded since the acquisition began.
    answered: bool,
    /// Whether leasehold is checking the store.
    checks: bool,
}

impl LastError {
    /// Records that a request failed with `error` and will be sent again.
    pub fn set(&self, error: &StoreError) {
        self.0.send_modify(|known| {
            (known.error, known.fails) = (Some(error.to_string()), !error.fault().contended);
        });
    }

    /// Records that the store has responded.
    pub fn clear(&self) {
        self.0.send_modify(|known| {
            (known.error, known.fails, known.answered) = (None, false, true);
        });
    }

    /// Records that the store has responded to a request, although other requests may still fail.
    pub(crate) fn answered(&self) {
        self.0.send_if_modified(|known| !std::mem::replace(&mut known.answered, true));
    }

    /// Records whether leasehold is checking the store. If there is no error, [`get`](Self::get) reports this.
    pub(crate) fn checks(&self, checks: bool) {
        self.0.send_modify(|known| known.checks = checks);
    }

    /// Returns the latest error, or `None` if there was none since the last response.
    pub fn get(&self) -> Option<String> {
        let known = self.0.borrow();
        known.error.clone().or_else(|| known.checks.then(|| CHECKING.to_owned()))
    }

    /// Returns the latest error if the store fails.
    pub(crate) fn failure(&self) -> Option<String> {
        let known = self.0.borrow();
        known.error.clone().filter(|_| known.fails)
    }

    /// Completes when the store fails. Cancel safe.
    pub(crate) async fn until_failing(&self) {
        // The channel is never closed while `self` exists.
        let _ = self.0.subscribe().wait_for(|known| known.fails).await;
    }

    /// Returns whether the store has responded since the acquisition began.
    pub(crate) fn has_answer(&self) -> bool {
        self.0.borrow().answered
    }
}
