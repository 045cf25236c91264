//! [`PermitQueue`]: the queue for several permits.

use crate::clock::Moment;
use crate::types::{InvalidValue, LockName};

/// The queue for several permits. It is a lock: the process that gets the next permit holds it, and all other processes
/// wait in its line.
#[derive(Clone, Debug)]
pub(crate) struct PermitQueue {
    pub(crate) name: LockName,
    /// Since when the process of this claim has held the queue's lock, if it does.
    pub(crate) first_since: Option<Moment>,
}

impl PermitQueue {
    /// Creates the queue for the permits of a `kind` below `name`.
    pub(crate) fn new(name: &LockName, kind: &str) -> Result<Self, InvalidValue> {
        Ok(Self { name: LockName::new(format!("{name}/{kind}-queue"))?, first_since: None })
    }

    /// Returns whether the process of this claim gets the next permit.
    pub(crate) fn is_first(&self) -> bool {
        self.first_since.is_some()
    }
}
