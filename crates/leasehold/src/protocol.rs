//! The lease protocol on records: what a lock record contains, who may write it, and the driver that sends the writes.
//!
//! [`RegisterLeases`] implements [`LeaseStore`](crate::lease::LeaseStore) on every [`Register`](crate::Register). A
//! store with records in a format that is not a register's implements [`Records`](records::Records) instead, and gets
//! the same protocol.

mod driver;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
pub(crate) mod line;
#[cfg(feature = "_raw")]
pub mod raw;
pub(crate) mod record;
mod record_cache;
pub(crate) mod records;
pub(crate) mod rules;

pub use self::driver::{Passing, RegisterLeases, Tap};
