//! Several locks that are held together: all or none. An exclusive hold of a readers-writer lock and [`Locks`] are held
//! in this way.
//!
//! [`Locks`]: crate::Locks

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all, try_join_all};

use crate::clock::timeout;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::{Guard, release_all};
use crate::lease::{Claim, HolderInfo, Loss};
use crate::lock::Lock;
use crate::primitives::blockers::Blockers;
use crate::runtime::outage::WaitLimit;
use crate::types::LockName;

/// For how long an acquisition waits for other processes.
pub(crate) enum Patience {
    /// It does not wait.
    None,
    Limited(WaitLimit),
    Unlimited,
}

impl Patience {
    /// Limits the wait of an acquisition with the settings of `lock`, which begins now.
    pub(crate) fn within(limit: Duration, lock: &Lock) -> Self {
        Self::Limited(lock.wait_limit(Some(limit)))
    }
}

/// Called with the name and the holder of the lock that an acquisition waits for.
pub(crate) type OnWaitFor = dyn Fn(&LockName, &HolderInfo) + Send + Sync;

/// Locks to hold together, with the settings for acquiring each of them.
pub(crate) struct Together {
    lock: Lock,
    /// The limit of the whole hold. It does not include the time until all locks are acquired.
    max_hold: Option<Duration>,
    /// The names, in the order of acquisition. Those of one step are acquired at once.
    steps: Vec<Vec<LockName>>,
    /// Whether the caller named each lock.
    are_named: bool,
    on_wait_for: Option<Arc<OnWaitFor>>,
}

impl Together {
    pub(crate) fn new(lock: &Lock, steps: Vec<Vec<LockName>>) -> Self {
        let (lock, max_hold) = lock.clone().without_limit();
        Self { lock, max_hold, steps, are_named: false, on_wait_for: None }
    }

    /// Marks the locks as ones that the caller named. `on_wait_for` is called with each that it waits for.
    pub(crate) fn named(self, on_wait_for: Option<Arc<OnWaitFor>>) -> Self {
        Self { are_named: true, on_wait_for, ..self }
    }

    /// Acquires all locks or none: after an error, releases what it has acquired. If a lock is lost before the last one
    /// is acquired, starts again, or fails if it does not wait. `seen` then has the known holders. Must run in a task.
    pub(crate) async fn acquire(&self, patience: &Patience, seen: &Blockers) -> Result<Guard> {
        loop {
            let mut held = Vec::new();
            let stopped = self.acquire_in_order(&mut held, patience, seen).await;
            let error = match stopped.and_then(|()| held.iter().try_for_each(Guard::check)) {
                Ok(()) => {
                    let whole = Guard::together(held, self.are_named);
                    let whole = whole.ok_or_else(|| Error::invalid("no lock name given"))?;
                    if let Some(max_hold) = self.max_hold {
                        whole.limit_to(max_hold);
                    }
                    return Ok(whole);
                }
                Err(error) => error,
            };
            give_back(&self.lock, held).await;
            if error.kind() != ErrorKind::Lost || matches!(patience, Patience::None) {
                return Err(error);
            }
            tracing::warn!(%error, "a lock was lost before all locks were acquired together; acquiring them again");
        }
    }

    async fn acquire_in_order(
        &self,
        held: &mut Vec<Guard>,
        patience: &Patience,
        seen: &Blockers,
    ) -> Result<()> {
        for step in &self.steps {
            let (acquired, error) = tokio::select! {
                biased;
                // If a lock is lost, another process may hold it and wait for the others that this one holds.
                loss = first_loss(held) => return Err(Error::lost(loss)),
                acquired = self.acquire_at_once(step, held, patience, seen) => acquired,
            };
            held.extend(acquired);
            if let Some(error) = error {
                return Err(error);
            }
        }
        Ok(())
    }

    /// Acquires the locks called `names` at once. Returns those that it has acquired, and an error if these are not all.
    async fn acquire_at_once(
        &self,
        names: &[LockName],
        held: &[Guard],
        patience: &Patience,
        seen: &Blockers,
    ) -> (Vec<Guard>, Option<Error>) {
        let attempts = names.iter().map(|name| self.acquire_one(name, held, patience, seen));
        if let Patience::Unlimited = patience {
            // The other attempts may wait for any length of time after an error. They are withdrawn.
            return match try_join_all(attempts).await {
                Ok(acquired) => (acquired, None),
                Err(error) => (Vec::new(), Some(error)),
            };
        }
        let (mut acquired, mut first) = (Vec::new(), None::<Error>);
        for outcome in join_all(attempts).await {
            match outcome {
                Ok(guard) => acquired.push(guard),
                // An outage explains more than a holder.
                Err(error) if first.as_ref().is_none_or(|first| first.kind() == ErrorKind::Held) => {
                    first = Some(error);
                }
                Err(_) => {}
            }
        }
        (acquired, first)
    }

    /// Acquires the lock called `name`, while `held` are held.
    async fn acquire_one(
        &self,
        name: &LockName,
        held: &[Guard],
        patience: &Patience,
        seen: &Blockers,
    ) -> Result<Guard> {
        let mut lock = seen.noting(name, &self.lock);
        if self.are_named {
            lock = held.iter().fold(lock.holding_like(&self.lock), Lock::while_holding);
        }
        if let Some(on_wait_for) = self.on_wait_for.clone() {
            let name = name.clone();
            lock = lock.noting(move |held| on_wait_for(&name, held));
        }
        let acquired = match patience {
            Patience::None => lock.try_acquire().await,
            Patience::Limited(limit) => lock.acquire_within(limit.left()).await,
            Patience::Unlimited => lock.acquire().await,
        };
        let guard = acquired.map_err(|error| seen.explained(name, error))?;
        seen.forget(name);
        Ok(guard)
    }
}

/// Releases locks that the caller does not get. The caller may be about to exit, so this waits for the store, but not for
/// long.
pub(crate) async fn give_back(lock: &Lock, held: Vec<Guard>) {
    let env = lock.locker().store().env();
    // After that, the release continues in the background.
    match timeout(&*env.clock, Claim::FIRST_RESPONSE, release_all(held, Guard::release)).await {
        Some(Ok(_)) => {}
        Some(Err(error)) => {
            tracing::debug!(%error, "locks that the caller does not get are not released; they lapse");
        }
        None => tracing::debug!("no response to the release of locks that the caller does not get"),
    }
}

/// Completes when one of the locks is lost.
async fn first_loss(held: &[Guard]) -> Loss {
    if held.is_empty() {
        return std::future::pending().await;
    }
    select_all(held.iter().map(|guard| Box::pin(guard.lost()))).await.0
}
