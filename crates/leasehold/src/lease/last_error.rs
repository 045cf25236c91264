//! [`LastError`]: the latest error of a store that does not respond.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::StoreError;

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
pub struct LastError(Arc<Mutex<Option<String>>>);

impl LastError {
    /// Records that a request failed with `error` and will be sent again.
    pub fn set(&self, error: &StoreError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    /// Records that the store has responded.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Removes the error `text`, unless it was replaced.
    pub(crate) fn remove(&self, text: &str) {
        let mut error = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if error.as_deref() == Some(text) {
            *error = None;
        }
    }

    /// Returns the latest error, or `None` if there was none since the last response.
    pub fn get(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
