//! Several front ends of one store, asked in turn: requests that are sent at once go to all of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::{Body, Cell, Deleted, Expect, Register, RegisterTraits, Stat, Version, Write};
use crate::clock::StoreTime;
use crate::doctor::Examined;
use crate::env::Env;
use crate::error::{Error, StoreError};

/// A register whose requests go to its front ends in turn.
#[derive(Debug)]
pub(super) struct Fronts {
    first: Arc<dyn Register>,
    others: Vec<Arc<dyn Register>>,
    next: AtomicUsize,
}

impl Fronts {
    /// `first`, and the same objects through `endpoints`.
    pub(super) fn open(first: &Arc<dyn Register>, endpoints: &[String]) -> Result<Self, Error> {
        let mut others: Vec<Arc<dyn Register>> = Vec::new();
        for endpoint in endpoints {
            let other = first.through(endpoint)?;
            // Naming the store's own endpoint too does no harm.
            if other.place() != first.place() && others.iter().all(|known| known.place() != other.place()) {
                others.push(other);
            }
        }
        Ok(Self { first: first.clone(), others, next: AtomicUsize::new(0) })
    }

    /// Each front end.
    pub(super) fn all(&self) -> impl Iterator<Item = &dyn Register> {
        std::iter::once(&self.first).chain(&self.others).map(|front| &**front)
    }

    fn next(&self) -> &dyn Register {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % (1 + self.others.len());
        match turn.checked_sub(1).and_then(|other| self.others.get(other)) {
            Some(other) => &**other,
            None => &*self.first,
        }
    }
}

#[async_trait]
impl Register for Fronts {
    async fn read(&self, key: &str) -> Result<Option<Cell>, StoreError> {
        self.next().read(key).await
    }

    async fn stat(&self, key: &str) -> Result<Option<Stat>, StoreError> {
        self.next().stat(key).await
    }

    async fn write(&self, key: &str, expect: Expect<'_>, body: Body) -> Result<Write, StoreError> {
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

    fn traits(&self) -> RegisterTraits {
        RegisterTraits { trusted: self.all().all(|front| front.traits().trusted), ..self.first.traits() }
    }

    fn place(&self) -> String {
        self.first.place()
    }
}
