//! Single conditional requests on a few records, beside the locks: some workers read, create, replace and delete them,
//! without the lease protocol. The checker decides whether their history is linearizable.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use fastrand::Rng;
use leasehold::LockName;
use leasehold::clock::{Clock, SystemClock, timeout};
use leasehold::error::StoreError;
use leasehold::lease::Id;
use leasehold::random::Random;
use leasehold::raw::{RawRecord, RawRecords};
use serde_json::json;

use super::history::History;

/// The names of the records.
const NAMES: [&str; 2] = ["register-0", "register-1"];

/// The longest pause between a read and the write that follows it, and between rounds.
const THINK_MS: u64 = 60;
const PAUSE_MS: u64 = 1_500;

/// How long a request may take. After that, its outcome is unknown.
const LIMIT: Duration = Duration::from_secs(2);

/// The pause after a failure.
const RETRY: Duration = Duration::from_millis(200);

/// Returns whether the worker `who` also exercises registers. Three in eight do, one of them with each client.
pub fn exercises(who: &str) -> bool {
    ["w0.", "w3.", "w7."].iter().any(|of| who.starts_with(of))
}

/// Registers with conditional writes: the records of a store. A register with a flaw does one of the requests in its own
/// way.
#[async_trait]
pub trait Registers: Send + Sync {
    /// Returns the records.
    fn records(&self) -> &RawRecords;

    /// Reads a record.
    async fn read(&self, name: &LockName) -> Result<Option<RawRecord>, StoreError> {
        self.records().read(name).await
    }

    /// Writes a record over `over`, or creates it. Returns `None` on a conflict.
    async fn write(
        &self,
        name: &LockName,
        over: Option<&RawRecord>,
        value: Id,
    ) -> Result<Option<RawRecord>, StoreError> {
        self.records().write(name, over, value).await
    }

    /// Deletes `over`. Returns `false` on a conflict.
    async fn delete(&self, name: &LockName, over: &RawRecord) -> Result<bool, StoreError> {
        self.records().delete(name, over).await
    }
}

#[async_trait]
impl Registers for RawRecords {
    fn records(&self) -> &RawRecords {
        self
    }
}

/// Returns whether deletes in the store at `url` are known to be conditional. Otherwise they would have to be examined
/// first, with hundreds of requests.
pub fn deletes_are_known(url: &str) -> bool {
    let is_bucket = ["s3:", "gs:", "azblob:"].iter().any(|scheme| url.starts_with(scheme));
    // Locks by existence are deleted, so they were examined for them.
    !is_bucket || url.contains("protocol=existence")
}

/// What one worker does with the registers.
pub struct Exercise {
    registers: Arc<dyn Registers>,
    history: History,
    random: Rng,
    may_delete: bool,
    /// The number of writes that were sent.
    sent: u64,
}

impl Exercise {
    /// Prepares a worker that records in `history`.
    pub fn new(registers: Arc<dyn Registers>, history: History, seed: u64, may_delete: bool) -> Self {
        Self { registers, history, random: Rng::with_seed(seed), may_delete, sent: 0 }
    }

    /// Exercises the registers. Never ends.
    pub async fn run(mut self) {
        while self.registers.records().trust().await.is_err() {
            SystemClock.sleep(RETRY).await;
        }
        let names = NAMES.map(|name| name.parse::<LockName>().expect("a name"));
        let mut seen = [const { Vec::new() }; NAMES.len()];
        loop {
            let n = self.random.usize(..names.len());
            self.round(&names[n], &mut seen[n]).await;
            self.pause(PAUSE_MS).await;
        }
    }

    /// Reads a record, and writes over what it has read, or sometimes over what it read before. `seen` is what this
    /// process has seen of the record.
    async fn round(&mut self, name: &LockName, seen: &mut Vec<Option<RawRecord>>) {
        let from = self.history.now();
        let Some(Ok(found)) = timeout(&SystemClock, LIMIT, self.registers.read(name)).await else {
            return SystemClock.sleep(RETRY).await;
        };
        let state = found.as_ref().map(|record| record.value().to_string());
        self.history.record("seen", from, json!({ "register": name.as_str(), "state": state }));
        if seen.last().map(|last| last.as_ref().map(RawRecord::value))
            != Some(found.as_ref().map(RawRecord::value))
        {
            seen.push(found);
        }
        seen.drain(..seen.len().saturating_sub(4));
        self.pause(THINK_MS).await;
        let back = if self.random.u8(..6) == 0 { self.random.usize(..seen.len()) } else { 0 };
        let over = seen[seen.len() - 1 - back].clone();
        match over {
            Some(over) if self.may_delete && self.random.u8(..6) == 0 => {
                let change = self.send(name, Some(&over), None);
                let deleted = timeout(&SystemClock, LIMIT, self.registers.delete(name, &over)).await;
                self.answered(change, deleted);
            }
            over => {
                let value = Id::random(&Random::from_os());
                let change = self.send(name, over.as_ref(), Some(value));
                let written =
                    timeout(&SystemClock, LIMIT, self.registers.write(name, over.as_ref(), value)).await;
                let is_written = written.map(|written| {
                    written.map(|record| {
                        let is_written = record.is_some();
                        seen.extend(record.map(Some));
                        is_written
                    })
                });
                self.answered(change, is_written);
            }
        }
    }

    /// Records that a write is sent, in case that no response arrives. Returns its number.
    fn send(&mut self, name: &LockName, over: Option<&RawRecord>, value: Option<Id>) -> u64 {
        self.sent += 1;
        let over = over.map(|over| over.value().to_string());
        let to = value.map(|value| value.to_string());
        let event = json!({ "register": name.as_str(), "change": self.sent, "over": over, "to": to });
        self.history.record("sent", self.history.now(), event);
        self.sent
    }

    /// Records the response to a write. Records nothing if its outcome is unknown.
    fn answered(&self, change: u64, outcome: Option<Result<bool, StoreError>>) {
        let what = match outcome {
            Some(Ok(true)) => "applied",
            Some(Ok(false)) => "conflict",
            Some(Err(StoreError::NotApplied(_))) => "refused",
            Some(Err(StoreError::MaybeApplied(_))) | None => return,
        };
        self.history.record("answered", self.history.now(), json!({ "change": change, "outcome": what }));
    }

    async fn pause(&mut self, most_ms: u64) {
        SystemClock.sleep(Duration::from_millis(self.random.u64(..=most_ms))).await;
    }
}
