//! The records of a store, without the lease protocol: single conditional requests. `./chaos` checks whether their
//! history is linearizable (`docs/chaos.md`), and the testkit whether simulated servers answer like real ones. Not part of
//! the public interface.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::RegisterLeases;
use super::record::{Content, Record, RecordState};
use super::records::{Claims, Found, Records, Refusal, Written};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Holder, Id, LeaseStore, Token, Ttl};
use crate::register::{Precondition, Version};
use crate::types::LockName;

/// The records of a store, as registers with the operations read, create, replace and delete. All but the first are
/// conditional. No operation is repeated.
#[derive(Clone, Debug)]
pub struct RawRecords(Arc<dyn Records>);

/// The ttl of created records. Nothing depends on it, because the later writes need no lease.
const TTL: Duration = Duration::from_secs(2);

/// A record that was read or written.
#[derive(Clone, Debug)]
pub struct RawRecord {
    record: Box<Record>,
    version: Version,
}

impl RawRecord {
    /// Returns the value that it was written with.
    pub fn value(&self) -> Id {
        self.record.nonce
    }
}

impl RawRecords {
    /// Returns the records of `store`, which [`open`](crate::stores::open) returned. Returns `None` if the store has
    /// leases of its own.
    pub fn of(store: &dyn LeaseStore) -> Option<Self> {
        let store: &dyn Any = store;
        store.downcast_ref::<RegisterLeases>().map(|leases| Self(leases.records.clone()))
    }

    /// Makes sure that the store enforces the preconditions of writes. To be called before the first operation.
    ///
    /// # Errors
    /// Returns an error if the store did not respond, or does not enforce them.
    pub async fn trust(&self) -> Result<(), StoreError> {
        self.0.prepare().await?;
        self.0.trust().await
    }

    /// Reads the record of `name`.
    ///
    /// # Errors
    /// Returns the error of the store.
    pub async fn read(&self, name: &LockName) -> Result<Option<RawRecord>, StoreError> {
        self.0.read(name).await?.map(raw).transpose()
    }

    /// Writes a record with `value` over `over`, or creates it. Returns `None` if the record was not as expected, which
    /// excludes that this request has changed anything. `value` must be new.
    ///
    /// # Errors
    /// Returns the error of the store. Also returns an error, which says that the write has no effect, if the store
    /// refused it for another reason: after a failover, or because it arrived late.
    pub async fn write(
        &self,
        name: &LockName,
        over: Option<&RawRecord>,
        value: Id,
    ) -> Result<Option<RawRecord>, StoreError> {
        let written = match over {
            Some(RawRecord { record: before, version }) => {
                // The write of a free record has no other condition. By existence, it would be a delete.
                let state = if self.0.deletes() { RecordState::Held } else { RecordState::Free };
                // No store grants an unconfirmed record unread.
                let record =
                    Record { state, nonce: value, unconfirmed: true, awaited: false, ..(**before).clone() };
                self.0.write(name, Precondition::Version(version), Some(before), &record).await?
            }
            None => {
                // Only a grant creates a record.
                let now_us = self.0.store_time().map(|time| time.hi_us);
                let record = Record {
                    state: RecordState::Held,
                    token: Token::new(1).unwrap_or_default(),
                    grant: value,
                    nonce: value,
                    ttl_ms: Ttl::new(TTL).unwrap_or_default().as_millis(),
                    holder: Holder::this_process(),
                    granted_at_us: now_us,
                    renewed_at_us: now_us,
                    unconfirmed: false,
                    awaited: false,
                    ..Record::never_granted()
                };
                match self.0.claims() {
                    Claims::InTurn => self.0.claim(name, &record, 1, true).await?,
                    Claims::Never | Claims::Free => {
                        self.0.write(name, Precondition::Absent, None, &record).await?
                    }
                }
            }
        };
        match written {
            Written::Committed { record, version } | Written::Granted { record, version, .. } => {
                Ok(Some(RawRecord { record, version }))
            }
            Written::Conflict(Refusal::Found(found))
                if over.is_none_or(|over| over.version != found.version) =>
            {
                Ok(None)
            }
            Written::Conflict(Refusal::Absent | Refusal::Unexplained) if over.is_some() => Ok(None),
            Written::Conflict(Refusal::Unexplained) if self.0.claims() != Claims::InTurn => Ok(None),
            Written::Conflict(_) | Written::Withheld(_) => {
                Err(Fault::contended("refused, although the record may be as expected").not_applied())
            }
        }
    }

    /// Deletes the record `over`. Returns whether it was there, unchanged. Some stores ignore the condition.
    ///
    /// # Errors
    /// Returns the error of the store.
    pub async fn delete(&self, name: &LockName, over: &RawRecord) -> Result<bool, StoreError> {
        if !self.0.deletes() {
            return self.0.discard(name, &over.version).await;
        }
        let free = Record { state: RecordState::Free, ..(*over.record).clone() };
        let expect = Precondition::Version(&over.version);
        let written = self.0.write(name, expect, Some(&over.record), &free).await?;
        Ok(matches!(written, Written::Committed { .. }))
    }
}

/// A request of the lease protocol. Records and waiters are JSON.
#[derive(Clone, Debug)]
pub enum RawStep<'a> {
    /// Reads the record.
    Read,
    /// Writes a record over the one that was read at this version, or creates it.
    Write(Option<(&'a Version, &'a Value)>, Value),
    /// Grants a record unread, with so many tokens. May ignore the line.
    Claim(Value, u64, bool),
    /// Adds a waiter to the line, whose longest pause is in milliseconds.
    Join(Value, u64),
    /// Removes the waiter with this claim from the line.
    Leave(Id),
    /// Reads the line.
    ReadLine,
    /// Replaces the line of this version, or creates it.
    WriteLine(Option<&'a Version>, Value),
    /// Deletes the record of this version.
    Discard(&'a Version),
}

/// The answer to a [`RawStep`]: what became of it, and what it shows of the lock.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
#[non_exhaustive]
pub struct RawAnswer {
    pub outcome: &'static str,
    pub record: Option<Value>,
    pub version: Option<Version>,
    pub line: Option<Value>,
}

impl RawRecords {
    /// Sends one request for the lock `name`, as the lease protocol does.
    ///
    /// # Errors
    /// Returns the error of the store. JSON that is no record, waiter or line is an error too.
    pub async fn step(&self, name: &LockName, step: RawStep<'_>) -> Result<RawAnswer, StoreError> {
        let records = &self.0;
        let done =
            |is_done| RawAnswer { outcome: if is_done { "done" } else { "refused" }, ..RawAnswer::default() };
        let written = match step {
            RawStep::Read => return shown("read", records.read(name).await?),
            RawStep::Write(over, record) => {
                let expect = over.map_or(Precondition::Absent, |(version, _)| Precondition::Version(version));
                let before = over.map(|(_, before)| of_json::<Record>(before.clone())).transpose()?;
                records.write(name, expect, before.as_ref(), &of_json(record)?).await?
            }
            RawStep::Claim(record, tokens, barges) => {
                records.claim(name, &of_json(record)?, tokens, barges).await?
            }
            RawStep::Join(waiter, most_ms) => {
                return shown("joined", records.join(name, &of_json(waiter)?, most_ms).await?);
            }
            RawStep::Leave(claim) => return records.leave(name, claim).await.map(|()| done(true)),
            RawStep::ReadLine => {
                let found = records.read_line(name).await?;
                let line = found.as_ref().map(|(line, _)| serde_json::from_slice(line)).transpose();
                let line = line.map_err(|error| unreadable(&error))?;
                return Ok(RawAnswer { version: found.map(|(_, version)| version), line, ..done(true) });
            }
            RawStep::WriteLine(expect, line) => {
                let expect = expect.map_or(Precondition::Absent, Precondition::Version);
                return records.write_line(name, expect, line.to_string().into()).await.map(done);
            }
            RawStep::Discard(version) => return records.discard(name, version).await.map(done),
        };
        let (outcome, record, version) = match written {
            Written::Committed { record, version } => ("committed", record, version),
            Written::Granted { record, version, after: None } => ("granted", record, version),
            Written::Granted { record, version, after: Some(_) } => ("granted after", record, version),
            Written::Conflict(Refusal::Found(found)) => return shown("found", Some(found)),
            Written::Conflict(Refusal::Absent) => return shown("absent", None),
            Written::Conflict(Refusal::Unexplained) => return shown("unexplained", None),
            Written::Withheld(_) => return shown("withheld", None),
        };
        shown(outcome, Some(Found { content: Content::Record(record), version, line: None }))
    }
}

fn shown(outcome: &'static str, found: Option<Found>) -> Result<RawAnswer, StoreError> {
    let Some(Found { content, version, line }) = found else {
        return Ok(RawAnswer { outcome, ..RawAnswer::default() });
    };
    let record = match &content {
        Content::Record(record) => Some(serde_json::to_value(record).map_err(|error| unreadable(&error))?),
        Content::Foreign { .. } => None,
    };
    let line = line.map(serde_json::to_value).transpose().map_err(|error| unreadable(&error))?;
    Ok(RawAnswer { outcome, record, version: Some(version), line })
}

fn of_json<T: DeserializeOwned>(value: Value) -> Result<T, StoreError> {
    serde_json::from_value(value).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> StoreError {
    Fault::new(ErrorKind::Invalid, error.to_string()).not_applied()
}

fn raw(found: Found) -> Result<RawRecord, StoreError> {
    match found.content {
        Content::Record(record) => Ok(RawRecord { record, version: found.version }),
        Content::Foreign { what, .. } => Err(Fault::new(ErrorKind::Corrupt, what).not_applied()),
    }
}
