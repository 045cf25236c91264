//! Several front ends of one store, used in turn, so that simultaneous requests go to all of them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::{
    Body, Deleted, Head, Precondition, Register, RegisterCapabilities, Version, VersionedValue, Write,
};
use crate::clock::StoreTime;
use crate::diagnosis::{Examined, Finding};
use crate::env::Env;
use crate::error::{Error, StoreError};

/// The name of the doctor's check of front ends.
pub(super) const CHECK: &str = "endpoints";

/// A register whose requests go to its front ends in turn.
#[derive(Debug)]
pub(super) struct Fronts {
    first: Arc<dyn Register>,
    /// One register for each endpoint name. Verdicts are recorded by name.
    named: Vec<Arc<dyn Register>>,
    /// One register for each address of these names.
    chosen: Vec<Arc<dyn Register>>,
    findings: Vec<Finding>,
    next: AtomicUsize,
}

impl Fronts {
    /// Opens `first` and the same objects through `endpoints`, for races of `racers` requests.
    pub(super) async fn open(
        first: &Arc<dyn Register>,
        endpoints: &[String],
        racers: usize,
    ) -> Result<Self, Error> {
        let mut named = vec![first.clone()];
        for endpoint in endpoints {
            let other = first.through(endpoint)?;
            // The user may name the store's own endpoint again.
            if named.iter().all(|known| known.identity() != other.identity()) {
                named.push(other);
            }
        }
        if named.len() > racers {
            let message =
                format!("{} endpoints are too many: at most {racers} take part in a race", named.len());
            return Err(Error::invalid(message).with_help(format!(
                "examine at most {racers} at a time, such that each pair of endpoints is examined together once"
            )));
        }
        let Choice { chosen, unused } = choose(&names(&named), racers).await?;
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
        Ok(Self { first: first.clone(), named, chosen, findings, next: AtomicUsize::new(0) })
    }

    /// Returns the addresses of `register`'s own endpoint, for races of `racers` requests, or `None` if there is only
    /// one. Also returns the findings on addresses that are not used.
    pub(super) async fn of(
        register: &dyn Register,
        racers: usize,
    ) -> Result<(Option<Self>, Vec<Finding>), Error> {
        let Choice { chosen, unused } = choose(&[register], racers).await?;
        let chosen: Vec<_> = chosen.into_iter().filter_map(|front| front.address).collect();
        let fronts = chosen.first().cloned().map(|first| Self {
            first,
            named: Vec::new(),
            chosen,
            findings: Vec::new(),
            next: AtomicUsize::new(0),
        });
        Ok((fronts, unused))
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
        &**self.chosen.get(turn).unwrap_or(&self.first)
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
async fn choose(names: &[&dyn Register], racers: usize) -> Result<Choice, Error> {
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
    while chosen.len() < racers && by_name.iter().any(|fronts| !fronts.is_empty()) {
        let left = racers - chosen.len();
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
            "only {} of {answering} addresses were examined: at most {racers} take part in a race",
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
pub(super) fn log(identity: &str, unused: &[Finding]) {
    for Finding { seen, help, .. } in unused {
        tracing::warn!(store = identity, "{seen}; {}", help.join("; "));
    }
}

#[async_trait]
impl Register for Fronts {
    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.next().read(key).await
    }

    async fn head(&self, key: &str) -> Result<Option<Head>, StoreError> {
        self.next().head(key).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.next().write(key, expect, body).await
    }

    async fn delete(&self, key: &str, version: &Version) -> Result<Deleted, StoreError> {
        self.next().delete(key, version).await
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

    fn capabilities(&self) -> RegisterCapabilities {
        RegisterCapabilities {
            trusted: self.chosen.iter().all(|front| front.capabilities().trusted),
            ..self.first.capabilities()
        }
    }

    fn identity(&self) -> String {
        self.first.identity()
    }
}
