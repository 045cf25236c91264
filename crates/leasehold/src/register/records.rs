//! Where lock records lie: as JSON objects in a register, or as a store's own items. The lease protocol stands on this.

mod existence;
mod json;
#[cfg(test)]
mod tests;

use std::fmt;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

pub(crate) use self::existence::ExistenceRecords;
pub(crate) use self::json::JsonRecords;
use super::record::{Content, Record};
use super::{Precondition, Version};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::Capabilities;
use crate::types::LockName;

/// One record for each lock, written conditionally. What holds for a [`Register`](super::Register) holds here.
#[async_trait]
pub(crate) trait Records: fmt::Debug + Send + Sync + 'static {
    /// Reads the record of `name`; `None` when there is nothing. Strongly consistent.
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError>;

    /// Writes `record` if what is there is as expected, atomically. `before` is the record that was seen there in the expected
    /// version: what has not changed since need not be sent again.
    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError>;

    /// Grants `record` over a free record that was not read: one request where a read and a write would be two. The
    /// store itself counts the token on from that of the free record.
    ///
    /// A conflict when there is no record, or it is held, resting, newborn or foreign, or was granted for this very claim
    /// the last time: then this is a late copy. Only asked for when [`claims`](Self::claims).
    async fn claim(&self, name: &LockName, record: &Record) -> Result<Written, StoreError> {
        let _ = (name, record);
        Ok(Written::Conflict(Refusal::Unexplained))
    }

    /// Whether the store can grant over a record that was not read.
    fn claims(&self) -> bool {
        false
    }

    /// Notes in the store that `version` was there at `seen_us` on the store's clock, an upper bound: for a held record
    /// that does not say when it was written. From now on its [`Record::renewed_at_us`] is read as that, and a job that
    /// only tries can see it lapse. Changes nothing that its holder minds, nor its version.
    ///
    /// `false` when it was not there any more, or the store cannot do this.
    async fn stamp(&self, name: &LockName, version: &Version, seen_us: u64) -> Result<bool, StoreError> {
        let _ = (name, version, seen_us);
        Ok(false)
    }

    /// Whether tokens are counted from the record before, or the store's clock, and not given by the store in its answers.
    fn counts_tokens(&self) -> bool {
        true
    }

    /// Whether a free record is none: a release deletes. Then nothing tells of a grant once it is over.
    fn deletes(&self) -> bool {
        false
    }

    /// Whether records come and go without a hand: other clients of the same records delete what they release. A create then
    /// tells nothing of the tokens that were granted before it, and is written once more before anybody is told of it.
    fn others_delete(&self) -> bool {
        false
    }

    /// The names of the locks that have a record, those starting with `prefix`, page by page.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>>;

    /// Deletes the record of a lock that nobody else knows of, if it has this version. `false` where it stays.
    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let _ = (name, version);
        Ok(false)
    }

    /// Deletes the record of a lock that others know of, if it has this version. `false` where it has not. Refused where deletes
    /// are not known to be conditional.
    async fn sweep(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let _ = (name, version);
        let message = format!("records in {} cannot be swept", self.capabilities().store);
        Err(Fault::new(ErrorKind::Unsupported, message).not_applied())
    }

    /// What only this store can be asked when it is examined.
    async fn examine(&self, examination: &Examination) -> Examined {
        let _ = examination;
        Examined::default()
    }

    /// Makes sure, once, that preconditions are enforced.
    async fn trust(&self) -> Result<(), StoreError>;

    /// Creates what the store needs.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Bounds on the store's own clock now.
    fn store_time(&self) -> Option<StoreTime>;

    /// The clock and the randomness that the store runs on.
    fn env(&self) -> &Env;

    /// What leases on these records can and cannot do.
    fn capabilities(&self) -> Capabilities;
}

/// What lies under a lock's name, and its version.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) content: Content,
    pub(crate) version: Version,
}

/// The answer to a conditional write.
#[derive(Clone, Debug)]
pub(crate) enum Written {
    /// Written; as it lies there now, which may be with another token than was sent.
    Committed { record: Box<Record>, version: Version },
    /// What is there was not as expected, and this request changed nothing.
    Conflict(Refusal),
}

/// What a refused write tells of what is there.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "only some stores tell, and each is a feature")]
pub(crate) enum Refusal {
    /// Nothing: a read has to tell.
    Unexplained,
    /// There is no record.
    Absent,
    /// This is there.
    Found(Found),
}
