//! [`ObservedStore`]: reports the requests to a store, and opens a span for each request.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{BoxStream, StreamExt, TryStreamExt, once, poll_fn};
use tracing::field::Empty;
use tracing::{Instrument, Span, debug_span};

use super::{Event, Observers, Operation, Outcome, elapsed};
use crate::clock::Moment;
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Eviction, Grant, HolderInfo, LeaseStore, Released, Renewal,
    Status, Swept, Token, Watch,
};
use crate::types::LockName;
use crate::worker::callers_runtime;

/// A store whose requests are reported to observers.
pub(crate) struct ObservedStore {
    store: Arc<dyn LeaseStore>,
    /// The kind of store, for spans.
    kind: &'static str,
    observers: Observers,
}

/// A request in progress. Dropping this value reports the request.
struct Request<'a> {
    store: &'a ObservedStore,
    operation: Operation,
    lock: Option<&'a LockName>,
    /// When the request began. `None` if there are no observers.
    began: Option<Moment>,
    span: Span,
    outcome: Outcome,
}

impl ObservedStore {
    pub(crate) fn new(store: Arc<dyn LeaseStore>, observers: Observers) -> Self {
        let kind = store.capabilities().store;
        Self { store, kind, observers }
    }

    fn begin<'a>(&'a self, operation: Operation, lock: Option<&'a LockName>) -> Request<'a> {
        let began = (!self.observers.is_empty()).then(|| self.store.env().now());
        let span = debug_span!(
            "leasehold.request",
            otel.kind = "client",
            store = self.kind,
            operation = operation.as_str(),
            lock = lock.map(tracing::field::display),
            outcome = Empty
        );
        // If the request is dropped before there is a response, it is reported as given up.
        Request { store: self, operation, lock, began, span, outcome: Outcome::GivenUp }
    }

    /// Awaits the response to a request. `judge` determines its outcome.
    async fn asked<T>(
        &self,
        operation: Operation,
        lock: Option<&LockName>,
        answer: Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + '_>>,
        judge: fn(&T) -> Outcome,
    ) -> Result<T, StoreError> {
        callers_runtime().map_err(Fault::not_applied)?;
        let mut request = self.begin(operation, lock);
        let answer = answer.instrument(request.span.clone()).await;
        request.outcome = answer.as_ref().map_or_else(failed, judge);
        answer
    }

    /// Awaits the response to an eviction. `why` is its reason.
    async fn evicted(
        &self,
        lock: &LockName,
        token: Token,
        why: Option<&Eviction>,
        answer: Pin<Box<dyn Future<Output = Result<Evicted, StoreError>> + Send + '_>>,
    ) -> Result<Evicted, StoreError> {
        let judge = |evicted: &Evicted| match evicted {
            Evicted::Evicted => Outcome::Done,
            Evicted::Changed => Outcome::Lost,
        };
        let evicted = self.asked(Operation::Evict, Some(lock), answer, judge).await?;
        if evicted == Evicted::Evicted {
            self.observers.report(&Event::Evicted { lock, token, why });
        }
        Ok(evicted)
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.span.record("outcome", self.outcome.as_str());
        let Some(began) = self.began else { return };
        let took = elapsed(began, self.store.env().now());
        let Self { operation, lock, outcome, .. } = *self;
        self.store.observers.report(&Event::Request { operation, lock, took, outcome });
    }
}

fn failed(error: &StoreError) -> Outcome {
    Outcome::Failed(error.fault().kind)
}

fn done<T>(_: &T) -> Outcome {
    Outcome::Done
}

#[async_trait]
impl LeaseStore for ObservedStore {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let asked = self.store.try_acquire(claim);
        self.asked(Operation::Acquire, Some(&claim.name), asked, |outcome| match outcome {
            AcquireOutcome::Granted(_) => Outcome::Done,
            AcquireOutcome::Held(_) => Outcome::Held,
            AcquireOutcome::Lost(_) => Outcome::Lost,
        })
        .await
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let name = grant.name.clone();
        self.asked(Operation::Renew, Some(&name), self.store.renew(grant), |renewal| match renewal {
            Renewal::Renewed => Outcome::Done,
            Renewal::Lost(_) => Outcome::Lost,
        })
        .await
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        let name = grant.name.clone();
        let asked = self.store.release(grant, cooldown);
        self.asked(Operation::Release, Some(&name), asked, |released| match released {
            Released::Released => Outcome::Done,
            Released::AlreadyLost => Outcome::Lost,
        })
        .await
    }

    fn may_have_place(&self, claim: &Claim) -> bool {
        self.store.may_have_place(claim)
    }

    async fn stop_waiting(&self, claim: &Claim) -> Result<(), StoreError> {
        self.asked(Operation::StopWaiting, Some(&claim.name), self.store.stop_waiting(claim), done).await
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        let name = grant.name.clone();
        self.asked(Operation::Detach, Some(&name), self.store.detach(grant), done).await
    }

    async fn add_processes(&self, name: &LockName, pids: &[u32]) -> Result<(), StoreError> {
        let asked = self.store.add_processes(name, pids);
        self.asked(Operation::AddProcesses, Some(name), asked, done).await
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        self.evicted(name, token, why, self.store.evict(name, token, why)).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        self.asked(Operation::Inspect, Some(name), self.store.inspect(name), done).await
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let names = self.store.list(prefix);
        // Determined when the stream is polled: it may be created outside of the runtime.
        let mut names = once(async { callers_runtime().map(|_| names).map_err(Fault::not_applied) })
            .try_flatten()
            .boxed();
        let mut request = self.begin(Operation::List, None);
        // A caller that needs no more names drops the stream. That does not count as giving up.
        poll_fn(move |context| {
            let next = request.span.in_scope(|| names.poll_next_unpin(context));
            next.map(|next| {
                request.outcome = match &next {
                    Some(Err(error)) => failed(error),
                    Some(Ok(_)) => Outcome::Done,
                    // After an error, the outcome remains that error.
                    None if request.outcome == Outcome::GivenUp => Outcome::Done,
                    None => request.outcome,
                };
                next
            })
        })
        .boxed()
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.asked(Operation::Init, None, self.store.init(), done).await
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        let asked = self.store.sweep(name, older_than, dry_run);
        self.asked(Operation::Sweep, Some(name), asked, done).await
    }

    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn env(&self) -> &Env {
        self.store.env()
    }
}

#[async_trait]
impl Watch for ObservedStore {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        self.store.changed(name, seen).await
    }

    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        self.store.turn(claim, seen).await
    }

    async fn ended(&self, grant: &Grant) {
        self.store.ended(grant).await;
    }

    async fn holder_changed(&self, name: &LockName, seen: &Status) {
        self.store.holder_changed(name, seen).await;
    }
}

#[async_trait]
impl Diagnose for ObservedStore {
    async fn examine(&self, examination: &Examination) -> Examined {
        self.store.examine(examination).await
    }

    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        self.store.discard(name).await
    }
}

impl fmt::Debug for ObservedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.store.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    /// If a method with a default body were not forwarded, the store's own implementation would never be called.
    #[test]
    fn every_method_of_a_store_is_forwarded() {
        let here = include_str!("store.rs");
        let methods = |source: &str, r#trait: &str| -> Vec<String> {
            let body = source.split(&format!("pub trait {}", r#trait)).nth(1).unwrap();
            let body = body.split("\n}").next().unwrap();
            let lines = body.lines().map(str::trim).filter(|line| !line.starts_with("//"));
            lines.filter_map(|line| line.split("fn ").nth(1)?.split('(').next().map(str::to_owned)).collect()
        };
        let traits = [
            (include_str!("../lease.rs"), "LeaseStore", 14),
            (include_str!("../lease/watch.rs"), "Watch", 4),
            (include_str!("../diagnosis.rs"), "Diagnose", 2),
        ];
        for (source, name, at_least) in traits {
            let methods = methods(source, name);
            assert!(methods.len() >= at_least, "{name}: {methods:?}");
            for method in methods {
                assert!(here.contains(&format!("self.store.{method}(")), "{name}::{method} is not forwarded");
            }
        }
    }
}
