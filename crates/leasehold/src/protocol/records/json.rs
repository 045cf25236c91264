//! Records as JSON objects `<name>.lock` in a register.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::stream::{BoxStream, Stream, StreamExt};

use super::super::record::{Content, Record, RecordState, parse, protocol};
use super::{Found, Records, Refusal, Written};
use crate::clock::StoreTime;
use crate::diagnosis::{Examination, Examined};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::{Capabilities, Id};
use crate::proof::trust::Trust;
use crate::proof::{Subject, examine_register};
use crate::register::{Deleted, Precondition, Register, Version, Write};
use crate::types::LockName;

/// The suffix of a lock's key, after the lock's name.
const SUFFIX: &str = ".lock";
/// The suffix of the key of a lock's line of waiters.
const LINE: &str = ".line";

/// The records in a register.
#[derive(Debug)]
pub(crate) struct JsonRecords {
    register: Arc<dyn Register>,
    /// Whether the register was found to enforce its preconditions.
    trust: Trust,
    /// Whether the register was found to enforce the preconditions of deletes.
    trust_in_deletes: Trust,
}

impl JsonRecords {
    /// Returns whether `key` is that of a lock's record or line.
    #[allow(dead_code, reason = "only a directory refuses objects with such keys")]
    pub(crate) fn is_key(key: &str) -> bool {
        key.ends_with(SUFFIX) || key.ends_with(LINE)
    }

    /// Creates the records of `register`.
    pub(crate) fn new(register: Arc<dyn Register>) -> Self {
        Self { register, trust: Trust::default(), trust_in_deletes: Trust::default() }
    }
}

#[async_trait]
impl Records for JsonRecords {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        let key = key(name);
        let Some(cell) = self.register.read(&key).await? else { return Ok(None) };
        let mut content = parse(&cell.value).map_err(|fault| at_key(fault, &key).not_applied())?;
        if let (Content::Record(_), Some(protocol)) = (&content, protocol(&cell.value)) {
            // Clients of that protocol treat a missing object as free and would not understand a free record.
            content = Content::foreign(format!("a lock of leasehold's protocol={protocol}"));
        }
        Ok(Some(Found { content, version: cell.version, line: None }))
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        _before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let bytes = record.to_bytes().map_err(Fault::not_applied)?;
        Ok(match self.register.write(&key(name), expect, bytes.into()).await? {
            Write::Committed(version) => Written::Committed { record: Box::new(record.clone()), version },
            Write::Conflict => Written::Conflict(Refusal::Unexplained),
        })
    }

    async fn freed(&self, name: &LockName, _claim: Option<Id>) {
        until_free(self.register.watch(&key(name))).await;
    }

    fn has_lines(&self) -> bool {
        true
    }

    async fn read_line(&self, name: &LockName) -> Result<Option<(Bytes, Version)>, StoreError> {
        let line = self.register.read(&line_key(name)).await?;
        Ok(line.map(|line| (line.value, line.version)))
    }

    async fn write_line(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        line: Bytes,
    ) -> Result<bool, StoreError> {
        let written = self.register.write(&line_key(name), expect, line.into()).await?;
        Ok(matches!(written, Write::Committed(_)))
    }

    async fn delete_line(&self, name: &LockName, version: &Version) -> Result<(), StoreError> {
        self.register.delete(&line_key(name), version).await.map(drop)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let names = self.register.list(prefix).filter_map(async |key| match key {
            // Skips keys that are not lock keys.
            Ok(key) => LockName::new(key.strip_suffix(SUFFIX)?).ok().map(Ok),
            Err(error) => Some(Err(error)),
        });
        names.boxed()
    }

    async fn discard(&self, name: &LockName, version: &Version) -> Result<bool, StoreError> {
        Ok(self.register.delete(&key(name), version).await? == Deleted::Deleted)
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        examine_register(&self.register, false, examination).await
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.register.init().await
    }

    async fn trust(&self) -> Result<(), StoreError> {
        self.trust.prove(&self.register, &[Subject::Writes]).await
    }

    async fn trust_deletes(&self) -> Result<(), StoreError> {
        self.trust_in_deletes.prove(&self.register, &[Subject::Deletes]).await
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
        capabilities.sizes = true;
        capabilities.line = Some("the object `NAME.line`");
        (capabilities.permits_in_order, capabilities.queues_permits) = (true, true);
        capabilities
    }
}

/// Waits for a value that is no held record, or for the end of the values.
async fn until_free(mut values: impl Stream<Item = Bytes> + Unpin) {
    while let Some(value) = values.next().await {
        match parse(&value) {
            Ok(Content::Record(record)) if record.state == RecordState::Held => {}
            _ => return,
        }
    }
}

fn key(name: &LockName) -> String {
    format!("{name}{SUFFIX}")
}

fn line_key(name: &LockName) -> String {
    format!("{name}{LINE}")
}

fn at_key(mut fault: Fault, key: &str) -> Fault {
    fault.message = format!("{}: {}", key, fault.message);
    fault
}

#[cfg(test)]
mod tests {
    use futures_util::{FutureExt, stream};

    use super::*;

    #[test]
    fn a_held_record_wakes_no_waiter() {
        let held = include_str!("../../../tests/records/1-awaited.json");
        let free = include_str!("../../../tests/records/1-free.json");
        let wake = |values: Vec<&'static str>| {
            let values = stream::iter(values).map(Bytes::from).chain(stream::pending());
            until_free(values).now_or_never().is_some()
        };
        assert!(!wake(vec![held, held]));
        // A deleted key, and another program's value.
        for value in [free, "", "theirs"] {
            assert!(wake(vec![held, value]), "{value:?}");
        }
        assert!(until_free(stream::empty()).now_or_never().is_some(), "values may have been missed");
    }
}
