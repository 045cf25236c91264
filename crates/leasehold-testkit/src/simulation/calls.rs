//! Simulates a store with its own leases, such as SQLite. Whole calls are lost, late or duplicated, as when a file is
//! busy, a thread is slow, or a process dies in the middle.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::{BoxFuture, FutureExt};
use leasehold::clock::{Clock as _, TestClock};
use leasehold::env::Env;
use leasehold::error::{Fault, StoreError};
use leasehold::lease::{AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, Renewal, attempt_limit};
use leasehold::{LockName, Released};

use super::checker::{Checker, Write};
use super::network::Network;
use crate::fault::{Chaos, Outcome};
use crate::layer::LeaseLayer;

/// How long operations without their own store timeout wait for a store that does not respond.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// The store as one process reaches it. The checker observes it.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) store: Arc<dyn LeaseStore>,
    /// The process's environment.
    pub(super) env: Env,
    /// True time.
    pub(super) clock: Arc<TestClock>,
    pub(super) checker: Arc<Checker>,
    pub(super) script: Arc<Script>,
}

/// The outcomes of calls, and the calls that have not arrived yet.
#[derive(Default)]
pub(super) struct Script(Mutex<Fates>);

#[derive(Default)]
struct Fates {
    every: Option<Outcome>,
    throttled: Option<Duration>,
    chaos: Option<Chaos>,
    held: VecDeque<BoxFuture<'static, ()>>,
}

impl Script {
    fn fates(&self) -> std::sync::MutexGuard<'_, Fates> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn draw(&self) -> Outcome {
        let mut fates = self.fates();
        let outcome = fates.every.clone().or_else(|| fates.throttled.map(Outcome::Throttled));
        outcome.or_else(|| fates.chaos.as_mut().map(Chaos::draw)).unwrap_or(Outcome::Fine)
    }
}

impl std::fmt::Debug for Script {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Script").field("held", &self.fates().held.len()).finish_non_exhaustive()
    }
}

#[async_trait]
impl Network for Script {
    fn disconnect(&self) {
        self.fates().every = Some(Outcome::Dropped);
    }

    fn stall(&self) {
        self.fates().every = Some(Outcome::Stalled);
    }

    fn heal(&self) {
        let mut fates = self.fates();
        (fates.every, fates.chaos) = (None, None);
    }

    fn chaos(&self, chaos: Chaos) {
        self.fates().chaos = Some(chaos);
    }

    fn throttle(&self, wait: Option<Duration>) {
        self.fates().throttled = wait;
    }

    async fn deliver(&self) -> bool {
        let held = self.fates().held.pop_front();
        match held {
            Some(call) => {
                call.await;
                true
            }
            None => false,
        }
    }
}

impl Calls {
    /// Performs `call` never, once or twice, now or later. A call that is stalled fails after `limit`.
    async fn carry<T: Send + 'static>(
        &self,
        limit: Duration,
        call: impl Fn() -> BoxFuture<'static, Result<T, StoreError>> + Send + Sync + 'static,
    ) -> Result<T, StoreError> {
        let hold_back = |call: BoxFuture<'static, Result<T, StoreError>>| {
            self.script.fates().held.push_back(call.map(|_| ()).boxed());
        };
        let reply = match self.script.draw() {
            Outcome::AppliedLost => {
                let _ = call().await;
                Err(lost())
            }
            Outcome::AppliedRefused => {
                let _ = call().await;
                Err(Fault::unavailable("injected: refused for now").not_applied())
            }
            Outcome::Dropped => Err(lost()),
            Outcome::HeldBack => {
                hold_back(call());
                Err(lost())
            }
            Outcome::Stalled | Outcome::AnswerStalled => {
                hold_back(call());
                self.env.sleep(limit).await;
                Err(lost())
            }
            Outcome::Twice => {
                let first = call().await;
                let _ = call().await;
                first
            }
            Outcome::TwiceSecondAnswer => {
                let _ = call().await;
                call().await
            }
            Outcome::TwiceLate => {
                let reply = call().await;
                hold_back(call());
                reply
            }
            Outcome::Delayed(delay) => {
                let (clock, call) = (self.clock.clone(), call());
                let carrier = tokio::spawn(async move {
                    clock.sleep(delay).await;
                    call.await
                });
                carrier.await.unwrap_or_else(|_| Err(lost()))
            }
            Outcome::AnswerDelayed(delay) => {
                let reply = call().await;
                self.clock.sleep(delay).await;
                reply
            }
            Outcome::NotApplied | Outcome::Throttled(_) | Outcome::Denied => {
                Err(Fault::unavailable("injected: refused for now").not_applied())
            }
            Outcome::Fine => call().await,
        };
        // A process that stands still receives no response.
        self.env.sleep(Duration::ZERO).await;
        reply
    }

    fn now(&self) -> Duration {
        self.clock.now().since_boot()
    }
}

fn lost() -> StoreError {
    Fault::unavailable("injected: the response was lost").maybe_applied()
}

/// Copies a grant, for a call that may outlive its caller.
fn copy(grant: &Grant) -> Grant {
    let mut copy = grant.without_memo();
    (copy.after, copy.at_limit, copy.size) = (grant.after, grant.at_limit, grant.size);
    // The store is SQLite, which only checks whether there is a memo.
    copy.memo = grant.memo.as_ref().map(|_| Box::new(()) as Box<_>);
    copy
}

/// Reports to the checker what the store has committed.
fn committed(checker: &Checker, grant: &Grant, note: Option<&str>, now: Duration) {
    let (id, ttl_ms) = (grant.id.to_string(), grant.ttl.as_millis());
    let (token, unconfirmed, value) = (grant.token.get(), false, None);
    checker.committed(
        grant.name.as_str(),
        &Write { token, grant: &id, nonce: "", ttl_ms, unconfirmed, note, value },
        now,
    );
}

#[async_trait]
impl LeaseLayer for Calls {
    fn inner(&self) -> &dyn LeaseStore {
        &*self.store
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let (store, checker, clock) = (self.store.clone(), self.checker.clone(), self.clock.clone());
        let (claim, patience) = (claim.clone(), claim.store_timeout);
        let id = claim.id.to_string();
        let (note, ttl_ms) = (claim.holder.note.as_deref(), claim.ttl.as_millis());
        let write = Write { token: 0, grant: &id, nonce: "", ttl_ms, unconfirmed: false, note, value: None };
        self.checker.sends(claim.name.as_str(), &write, self.now());
        self.carry(patience, move || {
            let (store, checker, claim) = (store.clone(), checker.clone(), claim.clone());
            let clock = clock.clone();
            async move {
                let verdict = store.try_acquire(&claim).await;
                if let Ok(AcquireOutcome::Granted(grant)) = &verdict {
                    committed(&checker, grant, claim.holder.note.as_deref(), clock.now().since_boot());
                }
                verdict
            }
            .boxed()
        })
        .await
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let (store, checker, clock) = (self.store.clone(), self.checker.clone(), self.clock.clone());
        let (id, ttl_ms) = (grant.id.to_string(), grant.ttl.as_millis());
        let token = grant.token.get();
        let write =
            Write { token, grant: &id, nonce: "", ttl_ms, unconfirmed: false, note: None, value: None };
        self.checker.sends(grant.name.as_str(), &write, self.now());
        let limit = grant.deadline.remaining(self.env.now()).min(2 * attempt_limit(grant.ttl));
        let copied = copy(grant);
        let (renewal, prolonged) = self
            .carry(limit, move || {
                let (store, mut grant) = (store.clone(), copy(&copied));
                let (checker, clock) = (checker.clone(), clock.clone());
                async move {
                    let renewal = store.renew(&mut grant).await?;
                    if let Renewal::Renewed = renewal {
                        committed(&checker, &grant, None, clock.now().since_boot());
                    }
                    Ok((renewal, grant.deadline))
                }
                .boxed()
            })
            .await?;
        grant.deadline = prolonged;
        Ok(renewal)
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        let (store, copied) = (self.store.clone(), copy(grant));
        grant.memo = Some(Box::new(()));
        self.carry(STORE_TIMEOUT, move || {
            let (store, mut grant) = (store.clone(), copy(&copied));
            async move { store.release(&mut grant, cooldown).await }.boxed()
        })
        .await
    }

    fn env(&self) -> &Env {
        &self.env
    }

    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let changed = self.store.changed(name, seen).await;
        self.env.sleep(Duration::ZERO).await;
        changed
    }

    async fn turn(&self, claim: &Claim, seen: &HolderInfo) -> Result<(), StoreError> {
        let turn = self.store.turn(claim, seen).await;
        self.env.sleep(Duration::ZERO).await;
        turn
    }
}
