//! Several front ends of one store, asked in turn: requests that are sent at once go to all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::{
    Body, Deleted, Precondition, Register, RegisterCapabilities, Stat, Version, VersionedValue, Write,
};
use crate::clock::StoreTime;
use crate::diagnosis::Examined;
use crate::env::Env;
use crate::error::{Error, StoreError};

/// A register whose requests go to its front ends in turn.
#[derive(Debug)]
pub(super) struct Fronts {
    first: Arc<dyn Register>,
    /// Each by the name of its endpoint: the verdict is recorded of names.
    named: Vec<Arc<dyn Register>>,
    /// Each at every address of its name.
    asked: Vec<Arc<dyn Register>>,
    /// What is asked, for people.
    shown: Vec<String>,
    next: AtomicUsize,
}

impl Fronts {
    /// `first`, and the same objects through `endpoints`.
    pub(super) async fn open(first: &Arc<dyn Register>, endpoints: &[String]) -> Result<Self, Error> {
        let mut named = vec![first.clone()];
        for endpoint in endpoints {
            let other = first.through(endpoint)?;
            // Naming the store's own endpoint too does no harm.
            if named.iter().all(|known| known.place() != other.place()) {
                named.push(other);
            }
        }
        let (mut asked, mut shown) = (Vec::new(), Vec::new());
        for front in &named {
            let fronts = front.fronts().await?;
            if fronts.is_empty() {
                asked.push(front.clone());
                shown.push(front.place());
            }
            for (address, front) in fronts {
                shown.push(format!("{} at {address}", front.place()));
                asked.push(front);
            }
        }
        Ok(Self { first: first.clone(), named, asked, shown, next: AtomicUsize::new(0) })
    }

    /// The addresses of `register`'s own endpoint; `None` where they are not several.
    pub(super) async fn of(register: &dyn Register) -> Result<Option<Self>, Error> {
        let asked: Vec<_> = register.fronts().await?.into_iter().map(|(_, front)| front).collect();
        Ok(asked.first().cloned().map(|first| Self {
            first,
            named: Vec::new(),
            asked,
            shown: Vec::new(),
            next: AtomicUsize::new(0),
        }))
    }

    /// Each by its name.
    pub(super) fn named(&self) -> Vec<&dyn Register> {
        self.named.iter().map(|front| &**front).collect()
    }

    /// What is asked in turn, for people.
    pub(super) fn shown(&self) -> &[String] {
        &self.shown
    }

    fn next(&self) -> &dyn Register {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.asked.len().max(1);
        &**self.asked.get(turn).unwrap_or(&self.first)
    }
}

#[async_trait]
impl Register for Fronts {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.next().read(key).await
    }

    async fn stat(&self, key: &str) -> Result<Option<Stat>, StoreError> {
        self.next().stat(key).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.next().write(key, expect, body).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.next().delete(key, version).await
    }

    async fn delete_unexamined(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.next().delete_unexamined(key, version).await
    }

    async fn examine(&self) -> Examined {
        self.first.examine().await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<String, StoreError>> {
        self.next().list(prefix)
    }

    fn version_of(&self, bytes: &[u8]) -> Option<Version> {
        self.first.version_of(bytes)
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.first.store_time()
    }

    fn env(&self) -> &Env {
        self.first.env()
    }

    fn traits(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            trusted: self.asked.iter().all(|front| front.traits().trusted),
            ..self.first.traits()
        }
    }

    fn place(&self) -> String {
        self.first.place()
    }
}
