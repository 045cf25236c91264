//! [`StoreTrouble`]: why a store does not respond.

use std::sync::{Arc, Mutex, PoisonError};

use crate::error::StoreError;

/// The reason why the store does not currently respond to a [`Claim`](super::Claim), for error messages when an
/// acquisition times out. Clones share it.
///
/// ```
/// use leasehold::{error::Fault, lease::StoreTrouble};
///
/// let trouble = StoreTrouble::default();
/// trouble.note(&Fault::unavailable("connection refused").maybe_applied());
/// assert_eq!(trouble.cause().as_deref(), Some("connection refused"));
/// trouble.clear();
/// assert_eq!(trouble.cause(), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct StoreTrouble(Arc<Mutex<Option<String>>>);

impl StoreTrouble {
    /// Records that a request failed with `error` and will be sent again.
    pub fn note(&self, error: &StoreError) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.to_string());
    }

    /// Records that the store has responded.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Returns the latest error, or `None` if there was none since the last response.
    pub fn cause(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
