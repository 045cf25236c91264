//! Records that are there only while they are held: a lock is an object, and its release deletes it, as simple clients
//! have it. Other objects than ours are held by somebody unknown.
//!
//! Rule 3 of the lease protocol (a release deletes nothing) keeps late requests from bringing back what is over. Here
//! the following does:
//!
//! - Every write and every delete expects a version, and no version comes twice: generations never do, and ETags of
//!   ours have a fresh nonce in what they are computed from. So a late renewal, takeover or delete finds the version
//!   that it expects, and is not late, or has no effect.
//! - A late create expects nothing, and may find that. What it leaves is an object that nobody believes in: its claim is
//!   over. Whoever sent it looks for it for a while and deletes it (see `leases/late_creates.rs`); else it lapses.
//! - Nothing tells the second grant of a claim from its first but what is in the record, so the beats of each object
//!   start at a random number (rule 8).

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{BoxStream, StreamExt};
use serde::Serialize;

use super::super::examine::examine_all;
use super::super::probe::trust::Trust;
use super::super::probe::{LIMIT, probe_deletes};
use super::super::record::{Content, Record, RecordState, parse, protocol};
use super::super::{Deleted, Precondition, Register, Version, VersionedValue, Write, probe};
use super::{Found, Records, Refusal, Written};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{Capabilities, Token};
use crate::types::LockName;

/// What objects of this protocol are marked with, so that nobody takes them for records of the other.
const PROTOCOL: &str = "existence";

/// The version of a record that was released: there is nothing.
const GONE: &str = "gone";

/// Objects that are no locks: those with which the store is examined.
const NO_LOCKS: &str = ".leasehold-probe";

/// How long the examinations of writes and of deletes may take.
const PROBES_LIMIT: Duration = LIMIT.saturating_mul(2);

/// The objects in a register.
#[derive(Debug)]
pub(crate) struct ExistenceRecords {
    register: Arc<dyn Register>,
    /// Whether the register was found to enforce its preconditions, those of deletes too.
    trust: Trust,
}

impl ExistenceRecords {
    /// Those in `register`, whose keys are the locks' names.
    pub(crate) fn new(register: Arc<dyn Register>) -> Self {
        Self { register, trust: Trust::default() }
    }

    /// Whether the version of an object can be the token of the grant that created it.
    fn has_tokens(&self) -> bool {
        self.register.traits().generations
    }

    /// Which grant is meant, where there are no tokens. At random, since nothing else makes two of them differ: a `Date`
    /// is true to a second, and a create is sent microseconds after the answer that brought it. Above all times, and with
    /// room above for takeovers, which count on.
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
                // Its clients would not understand that it is deleted.
                let about = "a lock record of leasehold's other protocol (protocol=lease)";
                return Ok((Content::Foreign(about.to_owned()), Token::default()));
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
        record.beat = u64::from(self.register.env().random.bits() as u32);
        record.token = match self.has_tokens() {
            // Not known yet: that of the object itself.
            true => Token::default(),
            false => self.number(),
        };
        self.put(name, Precondition::Absent, record).await
    }

    /// Over an object of ours: a renewal, which has its token, or another grant, whose token is counted.
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
        // That deletes are conditional is what the examination was for.
        Ok(match self.register.delete_unexamined(name.as_str(), version).await? {
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
        Ok(Some(Found { content, version: Tagged { token, version: cell.version }.to_version() }))
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        _before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        if name.as_str().starts_with(NO_LOCKS) {
            let message =
                format!("lock name \"{name}\" is that of an object leasehold examines the store with");
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
            // Never asked for: what is not there is free.
            (RecordState::Free, None) => Ok(Written::Conflict(Refusal::Absent)),
            (RecordState::Resting, _) => Err(Fault::new(
                ErrorKind::Unsupported,
                "a lock that is an object (protocol=existence) cannot rest: released, it is not there",
            )
            .with_help("release it without a rest, or use the default protocol")
            .not_applied()),
        }
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        examine_all(&self.register, true, examination).await
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
        if self.register.traits().trusted {
            return Ok(());
        }
        let register = self.register.clone();
        let examine = || {
            async move {
                probe(&*register).await?;
                probe_deletes(&*register).await
            }
            .boxed()
        };
        self.trust.settle(self.env(), PROBES_LIMIT, examine).await
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.register.store_time()
    }

    fn env(&self) -> &Env {
        self.register.env()
    }

    fn capabilities(&self) -> Capabilities {
        let traits = self.register.traits();
        let mut capabilities = Capabilities::new(traits.store, traits.pace);
        capabilities.tokens = traits.generations;
        capabilities.history = false;
        capabilities.rests = false;
        capabilities
    }
}

/// What is stored.
#[derive(Serialize)]
struct Object<'a> {
    protocol: &'static str,
    #[serde(flatten)]
    record: &'a Record,
}

/// A version, with the token of the record that has it: a write over it has to know both.
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

/// `record` without what nobody could tell later.
fn stored(record: &Record) -> Record {
    Record { newborn: false, history: Vec::new(), ..record.clone() }
}

fn generation(version: &Version) -> Result<Token, Fault> {
    version.as_str().parse().ok().and_then(Token::new).ok_or_else(|| {
        Fault::new(
            ErrorKind::Unsupported,
            format!(
                "the generation {:?} of the object is no fencing token: it is not below 2^53",
                version.as_str()
            ),
        )
        .with_help("use the default protocol, whose tokens do not depend on generations")
    })
}

/// The token of a grant over an object that has `version` and was granted as `before`: above all tokens so far, also if
/// the object is an old one that somebody brought back, since those were generations at most, and generations rise. And
/// not above the generation that this very write is given, so below the next token.
fn next_token(before: Token, version: &Version) -> Result<Token, Fault> {
    let highest = generation(version)?.max(before);
    Token::new(highest.get() + 1).ok_or_else(used_up)
}

fn used_up() -> Fault {
    Fault::new(ErrorKind::Corrupt, "the fencing tokens of this lock are used up")
        .with_help("look at the object's token; tokens stay below 2^53")
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
