//! Shows the simulation what the driver sends and sees, whatever form the store keeps its records in.

use std::fmt;

use super::super::record::Record;
use super::RegisterLeases;
use crate::clock::StoreTime;
use crate::types::LockName;

/// How a record passes between a process and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passing {
    /// The process is about to send a write of it.
    Sent,
    /// The process is about to send a request to delete it.
    Deleted,
    /// A response shows that it is stored.
    Seen,
    /// A response shows that the process's write of it was committed.
    Written,
}

/// Observes what a process sends and sees. For the simulation, which compares it with what the store commits.
pub trait Tap: fmt::Debug + Send + Sync {
    /// The record of the lock `name` passes. It is JSON, as a register has it, whatever the store's own form is.
    fn passes(&self, passing: Passing, name: &LockName, record: &[u8]);

    /// The process uses the store's time to decide something.
    fn knows(&self, time: StoreTime);
}

impl RegisterLeases {
    pub(super) fn tap(&self, passing: Passing, name: &LockName, record: &Record) {
        if let Some(tap) = &self.tap
            && let Ok(bytes) = record.to_bytes()
        {
            tap.passes(passing, name, &bytes);
        }
    }
}
