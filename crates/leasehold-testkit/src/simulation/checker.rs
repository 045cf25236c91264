//! The checker, and the store that it looks on: what a history must never show.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;
use leasehold::Guard;
use leasehold::clock::StoreTime;
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::Pace;
use leasehold::register::{Body, Cell, Deleted, Expect, Register, RegisterTraits, Version, Write};
use leasehold::stores::memory::MemoryRegister;

use super::History;
use super::games::Held;

/// Sees what nobody in the history sees.
#[derive(Debug, Default)]
pub(super) struct Checker(Mutex<Checked>);

#[derive(Debug, Default)]
pub(super) struct Checked {
    pub(super) history: History,
    /// The highest token that anybody has believed in.
    pub(super) believed: u64,
    /// The highest token that the store has committed, and in which grant.
    pub(super) committed: u64,
    grant: String,
    pub(super) deleted: bool,
    /// Until then, in true time, nobody is to begin the job.
    pub(super) rests_until: Duration,
    /// Whether the history is over, and no more harm is to be done.
    pub(super) concluded: bool,
    /// What the holder of each token that was granted advertises.
    pub(super) values: HashMap<u64, String>,
    /// Tokens of creates that landed too late to be used. Nobody may ever believe in them.
    stillborn: HashSet<u64>,
    /// What anybody holds, or has held, and how.
    pub(super) held: Vec<(Held, Weak<Guard>)>,
    pub(super) violation: Option<String>,
}

impl Checker {
    pub(super) fn lock(&self) -> std::sync::MutexGuard<'_, Checked> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn violated(&self, what: String) {
        self.lock().violation.get_or_insert(what);
    }

    pub(super) fn believed(&self, token: u64) {
        let mut checked = self.lock();
        checked.history.checks += 1;
        if token < checked.believed && !checked.deleted {
            let highest = checked.believed;
            checked.violation.get_or_insert(format!("I1: token {token} is believed in after {highest} was"));
        }
        if checked.stillborn.contains(&token) {
            checked
                .violation
                .get_or_insert(format!("I2: token {token} of a create that landed late is believed in"));
        }
        checked.believed = checked.believed.max(token);
    }

    /// The store committed `record`.
    fn committed(&self, record: &serde_json::Value) {
        let (Some("held"), Some(token)) = (record["state"].as_str(), record["token"].as_u64()) else {
            return;
        };
        let mut checked = self.lock();
        let grant = format!("{token}/{}", record["grant"]);
        if grant == checked.grant {
            return; // A renewal.
        }
        checked.history.grants += 1;
        checked.grant = grant;
        if let Some(value) = record["holder"]["value"].as_str() {
            checked.values.insert(token, value.to_owned());
        }
        if token <= checked.committed && record["newborn"] == true {
            checked.stillborn.insert(token);
            return;
        }
        if token <= checked.committed {
            let highest = checked.committed;
            checked.violation.get_or_insert(format!("I2: token {token} is granted after {highest} was"));
        }
        checked.committed = token;
    }
}

/// The store, with the checker looking on.
#[derive(Debug)]
pub(super) struct Witness {
    pub(super) inner: Arc<MemoryRegister>,
    pub(super) checker: Arc<Checker>,
    pub(super) by_existence: bool,
    /// Of the one lock whose tokens rise, if there is one.
    pub(super) key: Option<String>,
}

#[async_trait]
impl Register for Witness {
    async fn read(&self, key: &str) -> Result<Option<Cell>, StoreError> {
        self.inner.read(key).await
    }

    async fn write(&self, key: &str, expect: Expect<'_>, body: Body) -> Result<Write, StoreError> {
        if expect == Expect::Absent
            && !self.by_existence
            && self.key.as_deref() == Some(key)
            && self.inner.read(key).await?.is_none()
            && self.checker.lock().committed > 0
        {
            // The record was deleted by hand: exclusion is given up for, tokens are not.
            self.checker.lock().deleted = true;
        }
        let written = self.inner.write(key, expect, body.clone()).await;
        if let Ok(Write::Committed(version)) = &written
            && self.key.as_deref() == Some(key)
            && let Ok(mut record) = serde_json::from_slice::<serde_json::Value>(&body.bytes)
        {
            if self.by_existence && record["token"] == 0 {
                // The token of the grant that created an object is the object's own generation.
                record["token"] = version.as_str().parse::<u64>().unwrap().into();
            }
            self.checker.committed(&record);
        }
        written
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.inner.delete(key, version).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.inner.list(prefix)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.inner.store_time()
    }

    fn env(&self) -> &Env {
        self.inner.env()
    }

    fn traits(&self) -> RegisterTraits {
        // Of a store behind a network: with the memory's own, a history would be polls and little else.
        let pace = Pace { first: Duration::from_millis(50), most: Duration::from_millis(800) };
        RegisterTraits { pace, ..self.inner.traits() }
    }
}
