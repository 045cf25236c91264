//! Storage of lock records: JSON objects in a register, or a store's own items. The lease protocol is built on it.

mod existence;
mod json;
#[cfg(test)]
mod tests;

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::BoxStream;
use serde::{Deserialize, Serialize};

pub(crate) use self::existence::ExistenceRecords;
pub(crate) use self::json::JsonRecords;
use super::line::{Line, Waiter};
use super::record::{Content, Record, RecordState};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Capabilities, HolderInfo, Id, Token};
use crate::register::{Precondition, Version};
use crate::types::LockName;

/// One record for each lock, with conditional writes. The contract of [`Register`](crate::Register) applies here too.
#[async_trait]
pub(crate) trait Records: fmt::Debug + Send + Sync + 'static {
    /// Reads the record of `name`. Returns `None` if there is none. Strongly consistent.
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError>;

    /// Writes `record` atomically if the stored record is as expected. `before` is the record that was read at the
    /// expected version. Fields that have not changed since need not be sent again.
    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError>;

    /// Grants `record` over a free record that was not read. This is one request instead of a read and a write. The
    /// store itself computes the token from that of the free record. If it can, it adds up to `tokens` to it, and reports
    /// the token before.
    ///
    /// The result is a conflict if the record is held, in a cooldown, unconfirmed or foreign, and, unless the store
    /// claims [in turn](Claims::InTurn), if there is no record. It is also a conflict if this very claim got the latest
    /// grant, because the request is then a late copy. Never called if the store does not [`claim`](Self::claims).
    ///
    /// If the store claims in turn, the result is also a conflict if another claim is the first that waits in the line,
    /// unless this one `barges`. If this claim is the first, [`Record::served`] becomes its number.
    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        tokens: u64,
        barges: bool,
    ) -> Result<Written, StoreError> {
        let _ = (name, record, tokens, barges);
        Ok(Written::Conflict(Refusal::Unexplained))
    }

    /// Returns when the store can grant over a record that was not read.
    fn claims(&self) -> Claims {
        Claims::Never
    }

    /// Adds `waiter` to the end of the line, with the next number and with its pause multiplied by its place, up to
    /// `most_ms`. Returns the record and the line. The line stays as it is if the claim is already in it, or if it is
    /// full. Only called if the store claims [in turn](Claims::InTurn).
    async fn join(
        &self,
        name: &LockName,
        waiter: &Waiter,
        most_ms: u64,
    ) -> Result<Option<Found>, StoreError> {
        let _ = (name, waiter, most_ms);
        Ok(None)
    }

    /// Removes `claim` from the line. Only called if the store claims [in turn](Claims::InTurn).
    async fn leave(&self, name: &LockName, claim: Id) -> Result<(), StoreError> {
        let _ = (name, claim);
        Ok(())
    }

    /// Returns whether other clients may hold a lock after its lease has lapsed, and leave no trace. A lapsed grant is
    /// then over, even if no other grant has replaced it. The store neither renews it nor grants it again.
    fn others_leave_no_trace(&self) -> bool {
        false
    }

    /// Returns whether the store can lose its latest writes, for example in a failover.
    fn loses_writes(&self) -> bool {
        false
    }

    /// Makes sure that an earlier write of this process to `name`, which a read has just found, is as durable as one whose
    /// response arrived. The read has returned `version`, or another client's lock. Returns `false` if that is no longer
    /// stored: a failover may have lost it since.
    async fn settle(&self, name: &LockName, version: Option<&Version>) -> Result<bool, StoreError> {
        let _ = (name, version);
        Ok(true)
    }

    /// Records that `version` was stored at `seen_us` on the store's clock (an upper bound). This is for a held record
    /// that does not contain when it was written. From then on, reads return that time as [`Record::renewed_at_us`], so
    /// that a process that does not wait can see the lease lapse. A stamp changes neither the version nor anything that
    /// the holder depends on.
    ///
    /// Returns `false` if that version was no longer stored, or if the store cannot do this.
    async fn stamp(&self, name: &LockName, version: &Version, seen_us: u64) -> Result<bool, StoreError> {
        let _ = (name, version, seen_us);
        Ok(false)
    }

    /// Sets [`Record::awaited`] in `record`, which was read at `version`. Changes nothing else, not even the nonce, so
    /// that the holder recognizes its own record when it renews or releases the lock.
    async fn mark_awaited(
        &self,
        name: &LockName,
        version: &Version,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let marked = Record { awaited: true, ..record.clone() };
        self.write(name, Precondition::Version(version), Some(record), &marked).await
    }

    /// Returns whether a line with waiters shows in the version of the record, because the record is marked. Otherwise, a
    /// record that was read before does not tell whether a claim waits now.
    fn marks_awaited(&self) -> bool {
        self.claims() != Claims::InTurn
    }

    /// Waits until the store reports that the lock is free, or, unless it [calls the first](Self::calls_the_first), that
    /// it has to be read. Never ends if the store cannot report it. Waiters poll anyway. `claim` is the waiter, if it may
    /// be in the line. Cancel safe.
    async fn freed(&self, name: &LockName, claim: Option<Id>) {
        let _ = (name, claim);
        std::future::pending().await
    }

    /// Returns whether the store calls the first claim in the line, and no other, when the lock becomes free.
    fn calls_the_first(&self) -> bool {
        false
    }

    /// Returns whether the store keeps a line of waiters with or beside each record.
    fn has_lines(&self) -> bool {
        self.claims() == Claims::InTurn
    }

    /// Reads the line of the waiters for `name`. Strongly consistent.
    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let _ = name;
        Ok(None)
    }

    /// Writes the line of `name` if the stored line is as expected. Returns whether it was written.
    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let _ = (name, expect, line);
        Ok(false)
    }

    /// Deletes the line of `name` if it has this version.
    async fn delete_line(&self, name: &LockName, version: &Version) -> Result<(), StoreError> {
        let _ = (name, version);
        Ok(())
    }

    /// Returns whether leasehold computes tokens, from the previous record or the store's clock. Otherwise the store
    /// assigns them.
    fn counts_tokens(&self) -> bool {
        true
    }

    /// Returns whether a release deletes the record, so that no free record exists. An ended grant then leaves no
    /// trace.
    fn deletes(&self) -> bool {
        false
    }

    /// Returns whether other clients of the same records delete a record when they release the lock. A create then does
    /// not know which tokens were granted before it, so the record is written once more before the grant is reported.
    fn others_delete(&self) -> bool {
        false
    }

    /// Returns whether other clients of the same records drop leasehold's token when they use a lock, with the record or
    /// without it. A grant over a record without a token that counts then takes the [next token](Self::next_token), or
    /// waits until its token is certainly new.
    fn others_drop_tokens(&self) -> bool {
        self.others_delete()
    }

    /// Returns a token that is above all that were granted for `name` before its record was last read or written.
    /// Returns `None` if only the store's clock can show one. Only called if others [drop
    /// tokens](Self::others_drop_tokens).
    async fn next_token(&self, name: &LockName) -> Result<Option<u64>, StoreError> {
        let _ = name;
        Ok(None)
    }

    /// Lists the names of the locks that have a record and start with `prefix`, page by page.
    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>>;

    /// Deletes the record of a lock if it has this version. Returns `false` if it was not deleted. If other clients
    /// know of the lock, [`trust_deletes`](Self::trust_deletes) must be called first.
    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        let _ = (name, version);
        Ok(false)
    }

    /// Fails if records must not be swept at all, because other clients rely on them.
    async fn check_sweep(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Runs the doctor's checks that are specific to this store.
    async fn examine(&self, examination: &Examination) -> Examined {
        let _ = examination;
        Examined::default()
    }

    /// Learns what the first request needs to know, such as the key of a table. May be repeated.
    async fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Makes sure that the store enforces preconditions. Once the store has passed the probe, it is not probed again.
    async fn trust(&self) -> Result<(), StoreError>;

    /// Makes sure that deletes are conditional too, like [`trust`](Self::trust). Fails if records cannot be swept.
    async fn trust_deletes(&self) -> Result<(), StoreError> {
        let message = format!("records in {} cannot be swept", self.capabilities().store);
        Err(Fault::new(ErrorKind::Unsupported, message).not_applied())
    }

    /// Creates what the store needs.
    async fn init(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Returns the current bounds of the store's own clock.
    fn store_time(&self) -> Option<StoreTime>;

    /// Returns the clock and the source of randomness that the store uses.
    fn env(&self) -> &Env;

    /// Returns what leases on these records can do.
    fn capabilities(&self) -> Capabilities;
}

/// The content that is stored under a lock's name, and its version.
#[derive(Clone, Debug)]
pub(crate) struct Found {
    pub(crate) content: Content,
    pub(crate) version: Version,
    /// The line of waiters, if the store claims [in turn](Claims::InTurn).
    pub(crate) line: Option<Line>,
}

/// The result of a conditional write.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "only some stores return some of these, and each store is a feature")]
pub(crate) enum Written {
    /// Written. `record` is what is stored now. Its token may differ from the one that was sent.
    Committed { record: Box<Record>, version: Version },
    /// The same for a [claim](Records::claim), with the token before this grant.
    Granted { record: Box<Record>, version: Version, after: Option<Token> },
    /// The stored record was not as expected. This request changed nothing.
    Conflict(Refusal),
    /// The store may have lost a grant, so it grants nothing for this time. This request changed nothing.
    Withheld(Box<HolderInfo>),
}

/// What a write of a record changes, for a store whose conditions depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Change {
    /// It grants the lock.
    Grant,
    /// It prolongs the grant that holds the lock.
    Renew,
    /// It frees the lock, at once or after a cooldown.
    Free,
}

impl Change {
    /// Returns what a write of `record` over `before` changes.
    pub(crate) fn of(before: Option<&Record>, record: &Record) -> Self {
        let is_same = |before: &Record| before.grant == record.grant && before.state == RecordState::Held;
        match record.state {
            RecordState::Held if before.is_some_and(is_same) => Self::Renew,
            RecordState::Held => Self::Grant,
            RecordState::Free | RecordState::Cooldown => Self::Free,
        }
    }

    /// Returns whether it makes a lease, or makes it last longer. `before` and `after`: for how long the records before and
    /// after it keep others out. A renewal keeps the ttl, but a repetition of a claim may have a longer one.
    #[allow(dead_code, reason = "only some stores use it")]
    pub(crate) fn lengthens(self, before: Duration, after: Duration) -> bool {
        self == Self::Grant || self == Self::Renew && after > before
    }

    #[allow(dead_code, reason = "only some stores use it")]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Grant => "grant",
            Self::Renew => "renew",
            Self::Free => "free",
        }
    }
}

/// When a store can grant over a record that was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "only some stores do, and each store is a feature")]
pub(crate) enum Claims {
    Never,
    /// If there is a free record, and the claim is not repeatable.
    Free,
    /// Also if there is no record, and in the order of the line, which the store keeps with the record. So the record
    /// need not be [marked](Records::mark_awaited) as awaited. A claim that was granted before, as far as the history
    /// shows, is refused. A refusal contains the record and costs as much as a read.
    InTurn,
}

/// What a refused write reports about the stored record.
#[derive(Clone, Debug)]
#[allow(dead_code, reason = "only some stores report it, and each store is a feature")]
pub(crate) enum Refusal {
    /// Nothing. A read is needed.
    Unexplained,
    /// There is no record.
    Absent,
    /// The record that is stored.
    Found(Found),
}

/// Returns an id for another client's lock: the 128-bit FNV-1a hash of a text that the client changes with every write.
#[allow(dead_code, reason = "only stores that share records with other clients use it")]
pub(crate) fn foreign_id(text: &str) -> Option<Id> {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let hash = text.bytes().fold(BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME));
    format!("{hash:032x}").parse().ok()
}
