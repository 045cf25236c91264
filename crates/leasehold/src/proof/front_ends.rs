//! A register as it is proven: through its front ends in turn, so that simultaneous requests go to all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;

use super::cells::{Cells, Profile, RACERS};
use super::checks::keeps_metadata;
use crate::clock::StoreTime;
use crate::diagnosis::Finding;
use crate::env::Env;
use crate::error::{Error, Fault, StoreError};
use crate::register::{Deleted, Precondition, Register, Version, Write};

/// The name of the doctor's check of front ends.
pub(super) const CHECK: &str = "endpoints";

/// A register whose requests go to its front ends in turn.
#[derive(Debug)]
pub(super) struct Fronts<'a> {
    first: &'a dyn Register,
    /// One register for each endpoint name. Verdicts are recorded by name.
    named: Vec<Arc<dyn Register>>,
    /// One register for each address of these names. If it is empty, `first` is used.
    chosen: Vec<Arc<dyn Register>>,
    findings: Vec<Finding>,
    next: AtomicUsize,
}

impl<'a> Fronts<'a> {
    /// Returns `first` alone, under its name.
    pub(super) fn only(first: &'a dyn Register) -> Self {
        Self { first, named: Vec::new(), chosen: Vec::new(), findings: Vec::new(), next: AtomicUsize::new(0) }
    }

    /// Opens `first` and the same objects through `endpoints`.
    pub(super) async fn open(first: &'a Arc<dyn Register>, endpoints: &[String]) -> Result<Self, Error> {
        let mut named = vec![first.clone()];
        for endpoint in endpoints {
            let other = first.through(endpoint)?;
            // The user may name the store's own endpoint again.
            if named.iter().all(|known| known.identity() != other.identity()) {
                named.push(other);
            }
        }
        if named.len() > RACERS {
            let message =
                format!("{} endpoints are too many: at most {RACERS} take part in a race", named.len());
            return Err(Error::invalid(message).with_help(format!(
                "examine at most {RACERS} at a time, such that each pair of endpoints is examined together once"
            )));
        }
        let Choice { chosen, unused } = choose(&names(&named)).await?;
        let mut findings = Vec::new();
        if chosen.len() > 1 {
            let shown: Vec<_> = chosen.iter().map(|front| front.shown.as_str()).collect();
            let seen = format!("tested one by one, and in races: {}", shown.join(", "));
            findings.push(Finding::passed(CHECK, seen));
        }
        findings.extend(unused);
        let chosen =
            chosen.into_iter().filter_map(|front| front.address.or_else(|| named.get(front.name).cloned()));
        let chosen = chosen.collect();
        Ok(Self { named, chosen, findings, ..Self::only(&**first) })
    }

    /// Returns one register for each endpoint name.
    pub(super) fn named(&self) -> Vec<&dyn Register> {
        names(&self.named)
    }

    /// Returns which front ends are used and which are not. Empty if there is only one.
    pub(super) fn findings(&self) -> &[Finding] {
        &self.findings
    }

    fn next(&self) -> &dyn Register {
        let turn = self.next.fetch_add(1, Ordering::Relaxed) % self.chosen.len().max(1);
        self.chosen.get(turn).map_or(self.first, |front| &**front)
    }
}

fn names(named: &[Arc<dyn Register>]) -> Vec<&dyn Register> {
    named.iter().map(|front| &**front).collect()
}

/// The front ends to use.
struct Choice {
    /// At most as many as there are racers, so that each race uses all of them.
    chosen: Vec<Front>,
    /// Findings on front ends that are not used.
    unused: Vec<Finding>,
}

struct Front {
    /// The name, for people.
    shown: String,
    /// The index of its name.
    name: usize,
    /// The register at one address of the name; `None` if the name itself is used.
    address: Option<Arc<dyn Register>>,
}

/// Chooses the first address of each name, then the second of each, and so on.
async fn choose(names: &[&dyn Register]) -> Result<Choice, Error> {
    let (mut by_name, mut silent, mut answering) = (Vec::new(), Vec::new(), 0);
    for (name, register) in names.iter().enumerate() {
        let identity = register.identity();
        let ends = register.fronts().await?;
        silent.extend(ends.silent.iter().map(|(address, why)| format!("{identity} at {address} ({why})")));
        let at = |(address, register)| Front {
            shown: format!("{identity} at {address}"),
            name,
            address: Some(register),
        };
        let mut fronts: VecDeque<_> = ends.answering.into_iter().map(at).collect();
        if fronts.is_empty() {
            fronts.push_back(Front { shown: identity, name, address: None });
        }
        answering += fronts.len() + ends.more;
        by_name.push(fronts);
    }
    let mut chosen = Vec::new();
    while chosen.len() < RACERS && by_name.iter().any(|fronts| !fronts.is_empty()) {
        let left = RACERS - chosen.len();
        chosen.extend(by_name.iter_mut().filter_map(VecDeque::pop_front).take(left));
    }
    let mut unused = Vec::new();
    if !silent.is_empty() {
        let seen = format!("not examined, because no connection was made: {}", silent.join(", "));
        unused.push(Finding::warning(CHECK, seen).with_help(
            "the result does not cover these addresses: run `leasehold doctor` again when they are up, on a machine \
             that reaches them",
        ));
    }
    if answering > chosen.len() {
        let seen = format!(
            "only {} of {answering} addresses were examined: at most {RACERS} take part in a race",
            chosen.len()
        );
        unused.push(Finding::warning(CHECK, seen).with_help(
            "the result does not cover the others: examine them with --endpoint, some at a time, if the certificate \
             allows it",
        ));
    }
    Ok(Choice { chosen, unused })
}

/// Logs the front ends that the probe of `identity` left out. Only the doctor reports them otherwise.
fn log(identity: &str, unused: &[Finding]) {
    for Finding { seen, help, .. } in unused {
        tracing::warn!(store = identity, "{seen}; {}", help.join("; "));
    }
}

#[async_trait]
impl Cells for Fronts<'_> {
    async fn read(&self, key: &str) -> Result<Option<(Bytes, Version)>, StoreError> {
        Ok(self.next().read(key).await?.map(|found| (found.value, found.version)))
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, bytes: Bytes) -> Result<Write, StoreError> {
        self.next().write(key, expect, bytes.into()).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.next().delete(key, version).await
    }

    async fn list(&self, prefix: &str) -> Result<(), StoreError> {
        self.next().list(prefix).next().await.transpose().map(drop)
    }

    async fn keeps_metadata(&self, key: &str) -> Option<Result<(), StoreError>> {
        self.first.capabilities().metadata?;
        Some(keeps_metadata(self.first, key).await)
    }

    async fn fronts(&self) -> Result<Option<Box<dyn Cells + '_>>, StoreError> {
        let Choice { chosen, unused } = choose(&[self.first]).await.map_err(|error| {
            let fault = Fault::new(error.kind(), error.to_string());
            fault.with_help(error.help().join("; ")).not_applied()
        })?;
        log(&self.identity(), &unused);
        let chosen: Vec<_> = chosen.into_iter().filter_map(|front| front.address).collect();
        let fronts = Self { chosen, ..Self::only(self.first) };
        Ok((!fronts.chosen.is_empty()).then(|| Box::new(fronts) as Box<dyn Cells + '_>))
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.first.store_time()
    }

    fn env(&self) -> &Env {
        self.first.env()
    }

    fn identity(&self) -> String {
        self.first.identity()
    }

    fn profile(&self) -> Profile {
        let capabilities = self.first.capabilities();
        let trusted = capabilities.trusted && self.chosen.iter().all(|front| front.capabilities().trusted);
        Profile { trusted, generations: capabilities.generations, ..Profile::REGISTER }
    }
}
