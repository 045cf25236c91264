//! A simulated Kubernetes cluster: its API server, and another client that takes the same Lease.

use std::sync::Arc;
use std::time::Duration;

use leasehold::RegisterLeases;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use serde_json::Value;

use super::LOCK;
use super::checker::Checker;
use super::plan::FOREIGN_LEASE;
use super::recorder::Recorder;
use super::wire::{Backend, Served, Wire};
use crate::fakes::kubernetes::FakeKubernetes;
use crate::machine::Machine;

/// The other client.
const STRANGER: &str = "another client";

/// The API server, and the end of the networks to it.
pub(super) struct Cluster {
    server: Arc<FakeKubernetes>,
    served: Arc<Served>,
}

impl Cluster {
    /// Creates a cluster whose commits the checker observes.
    pub(super) fn new(env: Env, commits: Arc<Recorder>) -> Self {
        let committed = move |before: Option<&Value>, after: Option<&Value>| {
            let recorded = |lease: Option<&Value>| lease.and_then(|lease| recorded(&lease.to_string()));
            let before = recorded(before);
            match (recorded(after), &before) {
                (Some((name, record)), _) => {
                    let before = before.as_ref().map(|(_, before)| &**before);
                    commits.commits(&name, before, &record, false);
                }
                (None, Some((name, before))) => commits.deleted(name, before),
                (None, None) => {}
            }
        };
        let server = Arc::new(FakeKubernetes::new(env.clone(), committed));
        Self { served: Arc::new(Served { server: server.clone(), env }), server }
    }

    /// Lets the other client take the lock if it may, or lead on, or resign.
    pub(super) fn other_client(&self, random: &mut fastrand::Rng, checker: &Checker, now: Duration) {
        let (seconds, drops) = (random.u64(1..=FOREIGN_LEASE.as_secs()), random.bool());
        if random.bool() && self.server.resign(LOCK, STRANGER) {
            checker.taken(LOCK, now);
        } else if self.server.campaign(LOCK, STRANGER, seconds, drops) {
            checker.taken(LOCK, now + Duration::from_secs(seconds));
        }
    }
}

impl Backend for Cluster {
    fn leases(&self, network: Arc<Machine>, options: StoreOptions) -> RegisterLeases {
        open(Wire { network, served: self.served.clone() }, options)
    }

    fn served(&self) -> Arc<Served> {
        self.served.clone()
    }

    fn delete(&self) -> bool {
        self.server.delete(LOCK)
    }

    fn line(&self, lock: &str) -> Option<Value> {
        let lease = self.server.lease(&format!("lh--line.{lock}"))?;
        serde_json::from_str(lease["metadata"]["annotations"]["leasehold/line"].as_str()?).ok()
    }
}

#[cfg(feature = "kubernetes")]
fn open(wire: Wire, options: StoreOptions) -> RegisterLeases {
    let wire = Arc::new(wire);
    let carrier = move |request| {
        let wire = wire.clone();
        Box::pin(async move { wire.exchange(request).await }) as _
    };
    let leases = leasehold::stores::kubernetes::simulated(Arc::new(carrier), options);
    leases.unwrap_or_else(|error| unreachable!("no client: {error}"))
}

/// Returns the lock and the record of a Lease.
#[cfg(feature = "kubernetes")]
fn recorded(lease: &str) -> Option<(String, bytes::Bytes)> {
    let (name, record) = leasehold::stores::kubernetes::recorded(lease.as_bytes())?;
    Some((name.to_string(), record))
}

#[cfg(not(feature = "kubernetes"))]
fn open(_wire: Wire, _options: StoreOptions) -> RegisterLeases {
    unreachable!("the feature kubernetes is off")
}

#[cfg(not(feature = "kubernetes"))]
fn recorded(_lease: &str) -> Option<(String, bytes::Bytes)> {
    None
}
