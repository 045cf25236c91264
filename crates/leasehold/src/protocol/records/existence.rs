//! Records that exist only while they are held. A lock is an object, and a release deletes it, as in simple lock
//! clients. An object that leasehold did not write is held by an unknown holder.
//!
//! Rule 3 of the lease protocol (a release deletes nothing) keeps late requests from bringing back an ended grant. The
//! following replaces it here:
//!
//! - Every write and every delete expects a version, and no version occurs twice. Generations never recur. ETags of
//!   leasehold's objects are computed from a body with a fresh nonce. So a late renewal, takeover or delete has no
//!   effect, because the version that it expects is gone.
//! - A late create expects that there is no object, and may find none. Its claim has ended, so no process uses the
//!   object that it leaves. Its sender looks for the object for a while and deletes it (`driver/late_creates.rs`).
//!   Otherwise the object lapses.
//! - Only the contents of the record distinguish the second grant of a claim from the first. So the heartbeats of each
//!   object start at a random number (rule 8).

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use serde::Serialize;

use super::super::record::{Content, Record, RecordState, parse, protocol};
use super::{Found, Records, Refusal, Written};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Capabilities, Token};
use crate::proof::trust::Trust;
use crate::proof::{Subject, examine_register};
use crate::register::{Deleted, Precondition, Register, Version, VersionedValue, Write};
use crate::types::LockName;

/// The mark of this protocol's objects. It distinguishes them from the records of the other protocol.
const PROTOCOL: &str = "existence";

/// The version of a released record, which has no object.
const GONE: &str = "gone";

/// The prefix of keys that are not locks: the objects that a probe or an examination writes.
const NO_LOCKS: &str = ".leasehold-probe";

/// The lock objects in a register.
#[derive(Debug)]
pub(crate) struct ExistenceRecords {
    register: Arc<dyn Register>,
    /// Whether the register was found to enforce its preconditions, including those of deletes.
    trust: Trust,
}

impl ExistenceRecords {
    /// Creates the records of `register`, whose keys are the names of the locks.
    pub(crate) fn new(register: Arc<dyn Register>) -> Self {
        Self { register, trust: Trust::default() }
    }

    /// Returns whether the version of an object can be the token of the grant that created it.
    fn has_tokens(&self) -> bool {
        self.register.capabilities().generations
    }

    /// Returns a number that identifies a grant on a store without tokens. It is random, because the store's time
    /// cannot distinguish two grants: a `Date` is accurate to a second, and a create is sent microseconds after the
    /// previous response. The number is above all times and leaves room for takeovers, which increment it.
    fn number(&self) -> Token {
        let bits = self.register.env().random.bits() as u64;
        Token::new(Token::LIMIT / 2 + bits % (Token::LIMIT / 4)).unwrap_or_default()
    }

    fn content(&self, cell: &VersionedValue) -> Result<(Content, Token), Fault> {
        let content = match parse(&cell.value)? {
            Content::Record(record)
                if protocol(&cell.value).as_deref() != Some(PROTOCOL)
                    || record.state != RecordState::Held =>
            {
                // The other protocol's clients would not understand that the record is deleted.
                let about = "a lock record of leasehold's other protocol (protocol=lease)";
                return Ok((Content::foreign(about), Token::default()));
            }
            other => other,
        };
        let Content::Record(mut record) = content else { return Ok((content, Token::default())) };
        if self.has_tokens() && record.token == Token::default() {
            record.token = generation(&cell.version)?;
        }
        let token = record.token;
        Ok((Content::Record(record), token))
    }

    async fn create(&self, name: &LockName, record: &Record) -> Result<Written, StoreError> {
        let mut record = stored(record);
        record.heartbeat = u64::from(self.register.env().random.bits() as u32);
        record.token = match self.has_tokens() {
            // Not known yet, because it is the generation of the object itself.
            true => Token::default(),
            false => self.number(),
        };
        self.put(name, Precondition::Absent, record).await
    }

    /// Writes over an object of leasehold. A renewal keeps the object's token. Another grant gets a new one.
    async fn replace(
        &self,
        name: &LockName,
        version: &Version,
        before: Token,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let mut record = stored(record);
        if record.token != before && self.has_tokens() {
            record.token = next_token(before, version).map_err(Fault::not_applied)?;
        }
        self.put(name, Precondition::Version(version), record).await
    }

    async fn put(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        mut record: Record,
    ) -> Result<Written, StoreError> {
        let object = Object { protocol: PROTOCOL, record: &record };
        let bytes = serde_json::to_vec(&object).map(Bytes::from).map_err(|error| {
            Fault::new(ErrorKind::Invalid, format!("the lock record cannot be written: {error}"))
                .not_applied()
        })?;
        let version = match self.register.write(name.as_str(), expect, bytes.into()).await? {
            Write::Conflict => return Ok(Written::Conflict(Refusal::Unexplained)),
            Write::Committed(version) => version,
        };
        if self.has_tokens() && record.token == Token::default() {
            record.token = generation(&version).map_err(Fault::maybe_applied)?;
        }
        let version = Tagged { token: record.token, version }.to_version();
        Ok(Written::Committed { record: Box::new(record), version })
    }

    async fn delete(
        &self,
        name: &LockName,
        version: &Version,
        record: &Record,
    ) -> Result<Written, StoreError> {
        self.trust().await?;
        // `trust` has made sure that deletes are conditional.
        Ok(match self.register.delete(name.as_str(), version).await? {
            Deleted::Deleted => {
                Written::Committed { record: Box::new(stored(record)), version: Version::new(GONE) }
            }
            Deleted::Conflict => Written::Conflict(Refusal::Unexplained),
        })
    }
}

#[async_trait]
impl Records for ExistenceRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let Some(cell) = self.register.read(name.as_str()).await? else { return Ok(None) };
        let (content, token) = self.content(&cell).map_err(|mut fault| {
            fault.message = format!("{name}: {}", fault.message);
            fault.not_applied()
        })?;
        Ok(Some(Found { content, version: Tagged { token, version: cell.version }.to_version(), line: None }))
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        _before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        if name.as_str().starts_with(NO_LOCKS) {
            let message = format!("lock name \"{name}\" is reserved for examinations of the store");
            return Err(Fault::new(ErrorKind::Invalid, message).with_help("use another name").not_applied());
        }
        let known = match expect {
            Precondition::Absent => None,
            Precondition::Version(version) if version.as_str() == GONE => None,
            Precondition::Version(version) => Some(Tagged::from_version(version)?),
        };
        match (record.state, known) {
            (RecordState::Held, None) => self.create(name, record).await,
            (RecordState::Held, Some(known)) => self.replace(name, &known.version, known.token, record).await,
            (RecordState::Free, Some(known)) => self.delete(name, &known.version, record).await,
            // Never requested, because a missing object is a free lock.
            (RecordState::Free, None) => Ok(Written::Conflict(Refusal::Absent)),
            (RecordState::Cooldown, _) => Err(Fault::new(
                ErrorKind::Unsupported,
                "a lock that is an object (protocol=existence) has no cooldown, because its release deletes the object",
            )
            .with_help("release it without a cooldown, or use the default protocol")
            .not_applied()),
        }
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        examine_register(&self.register, true, examination).await
    }

    fn counts_tokens(&self) -> bool {
        false
    }

    fn deletes(&self) -> bool {
        true
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let names = self.register.list(prefix).filter_map(async |key| match key {
            Ok(key) if key.starts_with(NO_LOCKS) => None,
            Ok(key) => LockName::new(key).ok().map(Ok),
            Err(error) => Some(Err(error)),
        });
        names.boxed()
    }

    async fn trust(&self) -> Result<(), StoreError> {
        self.trust.prove(&self.register, &[Subject::Writes, Subject::Deletes]).await
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.register.store_time()
    }

    fn env(&self) -> &Env {
        self.register.env()
    }

    fn capabilities(&self) -> Capabilities {
        let register = self.register.capabilities();
        let mut capabilities = Capabilities::new(register.store, register.poll_interval);
        capabilities.tokens = register.generations;
        capabilities.history = false;
        capabilities.cooldowns = false;
        capabilities
    }
}

/// The stored JSON.
#[derive(Serialize)]
struct Object<'a> {
    protocol: &'static str,
    #[serde(flatten)]
    record: &'a Record,
}

/// A version and the token of the record that has it. A write over that record needs both.
struct Tagged {
    token: Token,
    version: Version,
}

impl Tagged {
    fn to_version(&self) -> Version {
        Version::new(format!("{} {}", self.token, self.version.as_str()))
    }

    fn from_version(tagged: &Version) -> Result<Self, StoreError> {
        let parts = tagged.as_str().split_once(' ').and_then(|(token, version)| {
            Some(Self { token: Token::new(token.parse().ok()?)?, version: Version::new(version) })
        });
        parts.ok_or_else(|| Fault::new(ErrorKind::Invalid, "a version of another store").not_applied())
    }
}

/// Returns `record` without the fields that this protocol does not store.
fn stored(record: &Record) -> Record {
    Record { unconfirmed: false, history: Vec::new(), ..record.clone() }
}

fn generation(version: &Version) -> Result<Token, Fault> {
    let number = version.as_str().split('-').next().and_then(|number| number.parse().ok());
    number.and_then(Token::new).ok_or_else(|| {
        Fault::new(
            ErrorKind::Unsupported,
            format!(
                "the generation {:?} of the object is not a fencing token: it is not below 2^53",
                version.as_str()
            ),
        )
        .with_help("use the default protocol, whose tokens do not depend on generations")
    })
}

/// Returns the token of a grant over an object that has `version` and whose grant has the token `before`. It is above
/// all earlier tokens, even if a user restored an old copy of the object, because earlier tokens were at most
/// generations, and generations rise. It is not above the generation that this write gets, so it is below the next
/// token.
fn next_token(before: Token, version: &Version) -> Result<Token, Fault> {
    let highest = generation(version)?.max(before);
    Token::new(highest.get() + 1).ok_or_else(used_up)
}

fn used_up() -> Fault {
    Fault::new(ErrorKind::Corrupt, "the fencing tokens of this lock are used up")
        .with_help("inspect the object's token; tokens must be below 2^53")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::{assert_written, golden, golden_record};
    use crate::register::Metadata;
    use crate::stores::memory::MemoryRegister;

    #[test]
    fn the_golden_object_is_read_and_written() {
        let record = stored(&golden_record("1-held.json"));
        let object = Object { protocol: PROTOCOL, record: &record };
        assert_written("1-existence.json", &serde_json::to_string(&object).unwrap());
        let value = Bytes::from(golden("1-existence.json"));
        let cell = VersionedValue { value, version: Version::new("7"), metadata: Metadata::default() };
        let records = ExistenceRecords::new(Arc::new(MemoryRegister::new(Env::system())));
        let (content, token) = records.content(&cell).unwrap();
        assert_eq!((content, token), (Content::Record(Box::new(record.clone())), record.token));
    }
}
