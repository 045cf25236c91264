//! Permits: a set of locks, of which a holder needs any one. Semaphores and readers-writer locks are built from
//! permits.
//!
//! The locks alone provide safety. This module finds a free permit with few requests, and waits for any of them. For
//! each set of permits, a process is one contender, which serves its tasks in the order of their arrival.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::Notify;

use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{Holder, HolderInfo, LossReason, PermitQueue, State};
use crate::lock::Lock;
use crate::runtime::outage::Outage;
use crate::runtime::queue::{Entry, Queue, Turn};
use crate::runtime::renewer::Hold;
use crate::runtime::task;
use crate::types::LockName;

/// The maximum number of holders that an error names.
const MAX_NAMED: usize = 4;

/// The permits `NAME/KIND-1` to `NAME/KIND-N`.
#[derive(Clone)]
pub(crate) struct Permits {
    /// The settings for acquiring each permit.
    lock: Lock,
    name: LockName,
    permits: Vec<LockName>,
    /// The plural name of the permits, for people.
    plural: &'static str,
    /// Whether an acquisition first waits until the lock `NAME` itself is free.
    gated: bool,
}

impl Permits {
    /// Creates `count` permits below the name of `lock`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`] if the settings of `lock` are invalid.
    pub(crate) fn new(lock: &Lock, kind: &str, plural: &'static str, count: usize) -> Result<Self> {
        let name = lock.checked()?;
        let permit = |number| LockName::new(format!("{name}/{kind}-{number}"));
        let permits = (1..=count).map(permit).collect::<std::result::Result<Vec<_>, _>>()?;
        let (lock, capabilities) = (lock.clone(), lock.locker().capabilities());
        let lock = if capabilities.permits_in_order { lock } else { lock.barge() };
        // The waiters for a single permit use its line.
        let queues = capabilities.queues_permits && count > 1 && !lock.barges();
        let queue = queues.then(|| PermitQueue::new(&name, kind)).transpose()?;
        Ok(Self { lock: lock.queued(queue), name, permits, plural, gated: false })
    }

    /// Puts the permits behind a gate: an acquisition first waits until the lock `NAME` is free. This gives the holder
    /// of the gate priority, but does not exclude other processes.
    pub(crate) fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    /// Returns the name of the lock, which prefixes the names of the permits.
    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the names of the permits.
    pub(crate) fn names(&self) -> &[LockName] {
        &self.permits
    }

    /// Acquires any permit, waiting for as long as it takes. Cancel safe.
    pub(crate) async fn acquire(&self) -> Result<Guard> {
        let (permits, entry) = (self.clone(), self.queue().enter(None));
        task::run(async move { permits.acquire_seeing(entry, &Blockers::default()).await }).await
    }

    /// Acquires any permit, if one is free. Cancel safe.
    pub(crate) async fn try_acquire(&self) -> Result<Guard> {
        let permits = self.clone();
        task::run(async move { permits.try_in_turn().await }).await
    }

    async fn try_in_turn(&self) -> Result<Guard> {
        let seen = Blockers::default();
        let _turn = match self.queue().turn_unless_waiting().await {
            Ok(turn) => turn,
            Err(held) => return Err(self.refused(&seen, held)),
        };
        if self.gated
            && let State::Held(held) = self.lock.locker().inspect(&self.name).await?.state
        {
            seen.note(&self.name, held);
        } else if let Some(guard) = self.round(&seen).await? {
            return Ok(guard);
        }
        Err(self.refused(&seen, HolderInfo::default()))
    }

    /// Acquires any permit, waiting for at most `limit`. Cancel safe.
    pub(crate) async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        let (permits, entry) =
            (Self { lock: self.lock.with_own_last_error(), ..self.clone() }, self.queue().enter(None));
        task::run(async move {
            let (seen, queue) = (Blockers::default(), permits.queue());
            let limit = permits.lock.wait_limit(Some(limit));
            // Keep the acquisition alive until the queue has been read: dropping it gives up the turn and discards the
            // known holder.
            let mut acquisition = pin!(permits.acquire_seeing(entry, &seen));
            tokio::select! {
                biased;
                outcome = acquisition.as_mut() => return outcome,
                () = limit.passed() => {}
            }
            // The queue knows a holder only if the gate or all permits were seen held.
            if let Some(held) = queue.latest() {
                return Err(permits.refused(&seen, held));
            }
            // Like an attempt that does not wait.
            let last_error = queue.last_error();
            tokio::select! {
                biased;
                outcome = acquisition.as_mut() => outcome,
                held = queue.until_seen() => Err(permits.refused(&seen, held)),
                () = limit.given_up(&last_error) => {
                    let shown = permits.lock.locker().opened().shown();
                    Err(limit.unanswered(&permits.name, &shown, last_error.get()))
                }
            }
        })
        .await
    }

    async fn acquire_seeing(&self, entry: Entry<Hold>, seen: &Blockers) -> Result<Guard> {
        let turn = self.queue().turn(entry, self.lock.on_waiting()).await;
        turn.notes_errors_in(self.lock.last_error());
        let mut outage = self.lock.outage();
        let mut attempt = Attempt { permits: self.clone(), tried: false, may_queue: true, first: None };
        loop {
            match attempt.advance(&turn, seen, &mut outage).await {
                Ok(Some(guard)) => return Ok(guard),
                // Check the gate again. If it is held by now, its holder has all permits, and waiting for the gate
                // alone is cheaper.
                Ok(None) => outage.end(),
                Err(error) => outage.pause_after(error).await?,
            }
        }
    }

    /// Returns the queue of this process for these permits. A different number of permits has a different queue.
    fn queue(&self) -> Arc<Queue<Hold>> {
        self.lock.locker().permit_queues().of(self.permits.last().unwrap_or(&self.name))
    }

    /// Waits until the gate is free. Returns whether it was held.
    async fn pass_gate(&self, turn: &Turn<Hold>, seen: &Blockers, outage: &mut Outage) -> Result<bool> {
        let (store, mut waited) = (self.lock.locker().store(), false);
        if !self.gated {
            return Ok(false);
        }
        while let State::Held(held) = store.inspect(&self.name).await?.state {
            seen.note(&self.name, held.clone());
            turn.report_holder(held.clone());
            self.lock.report_holder(&held);
            waited = true;
            // Ignore a transient error: the next poll has its own timeout.
            if let Err(error) = store.changed(&self.name, &held).await
                && !error.is_transient()
            {
                return Err(error.into());
            }
            // The time was spent waiting for the holder, not for the store.
            outage.end();
        }
        outage.end();
        seen.forget(&self.name);
        Ok(waited)
    }

    /// Tries each permit once. Starts with a random permit, so that processes that start together do not all try the
    /// same one first.
    async fn round(&self, seen: &Blockers) -> Result<Option<Guard>> {
        let count = self.permits.len();
        let start = (self.lock.locker().store().env().random.fraction() * count as f64) as usize;
        for permit in self.permits.iter().cycle().skip(start).take(count) {
            match seen.free(permit, self.lock.renamed(permit).try_acquire().await)? {
                Some(guard) => return Ok(Some(guard)),
                None => continue,
            }
        }
        Ok(None)
    }

    /// Waits for all permits at once, and returns the first that is granted. If permits are granted in order, the task
    /// has a place in the line of each permit. The task that has waited longest is the first in all lines, so it gets
    /// the first permit that becomes free. Then it leaves the other lines. If another permit is granted at the same
    /// moment, it is released when its guard is dropped.
    async fn first_of_all(&self, turn: &Turn<Hold>, seen: &Blockers) -> Result<Guard> {
        turn.report_holder(seen.soonest().unwrap_or_default());
        let waiting = self.permits.iter().map(|permit| {
            let lock = seen.noting(permit, &self.lock);
            Box::pin(async move { lock.acquire().await })
        });
        select_all(waiting).await.0
    }

    /// Returns whether tasks of this process hold or wait for each of the permits.
    fn are_of_this_process(&self) -> bool {
        let queues = self.lock.locker().queues();
        self.permits.iter().all(|permit| queues.of(permit).is_taken())
    }

    /// Waits for a permit that another task of this process passes on. Returns `None` once another process holds a
    /// permit or waits for one.
    async fn first_of_this_process(&self, turn: &Turn<Hold>, seen: &Blockers) -> Result<Option<Guard>> {
        let refused = Arc::new(Notify::new());
        let lock = {
            let (refused, lock) = (refused.clone(), self.lock.clone());
            self.lock.noting(move |held| {
                if held.reserved || !lock.is_of_this_process(held) {
                    refused.notify_one();
                }
            })
        };
        let permits = Self { lock, ..self.clone() };
        tokio::select! {
            biased;
            guard = permits.first_of_all(turn, seen) => guard.map(Some),
            () = refused.notified() => Ok(None),
        }
    }

    /// Returns the error for permits that are all held. It names the holders in `seen` or, if `seen` is empty, `held`.
    fn refused(&self, seen: &Blockers, held: HolderInfo) -> Error {
        if let Some(held) = seen.of(&self.name) {
            return Error::held(&self.name, held);
        }
        let message = match self.permits.len() {
            1 => format!("the permit of `{}` is held", self.name),
            several => format!("all {several} {} of `{}` are held", self.plural, self.name),
        };
        match seen.soonest() {
            Some(soonest) => Error::held_as(format!("{message}: {}", seen.described()), soonest),
            // The queue reported the holder, but not whether it holds the gate or a permit.
            None if self.gated => Error::held(&self.name, held),
            None => Error::held_as(format!("{message}, among others by {held}"), held),
        }
    }
}

/// An acquisition that waits if necessary.
struct Attempt {
    permits: Permits,
    /// Whether each permit was tried since the last wait.
    tried: bool,
    may_queue: bool,
    /// The guard of the lock of the [`PermitQueue`], once this process is the first in the queue.
    first: Option<Guard>,
}

impl Attempt {
    /// Performs one step of the acquisition. Returns a permit, or `None` if further steps are needed.
    async fn advance(
        &mut self,
        turn: &Turn<Hold>,
        seen: &Blockers,
        outage: &mut Outage,
    ) -> Result<Option<Guard>> {
        let waited = self.permits.pass_gate(turn, seen, outage).await?;
        if waited || !self.tried {
            self.tried = true;
            return self.permits.round(seen).await;
        }
        let Some(queue) = self.permits.lock.queue_of_permits().filter(|_| self.may_queue) else {
            return self.permits.first_of_all(turn, seen).await.map(Some);
        };
        if self.permits.are_of_this_process()
            && let Some(guard) = self.permits.first_of_this_process(turn, seen).await?
        {
            return Ok(Some(guard));
        }
        let queue = queue.clone();
        self.queue_up(queue, turn, seen).await;
        Ok(None)
    }

    /// Waits until this process is the first in the queue for the permits. When this attempt is dropped, after a grant,
    /// the next process becomes the first. If the queue's lock cannot be acquired, permits are granted in any order.
    async fn queue_up(&mut self, queue: PermitQueue, turn: &Turn<Hold>, seen: &Blockers) {
        turn.report_holder(seen.soonest().unwrap_or_default());
        let (seen, reporter) = (seen.clone(), self.permits.lock.clone());
        let lock = self.permits.lock.for_queue(&queue.name).on_wait(move |first| {
            let holder = seen.soonest().unwrap_or_else(|| first.clone());
            // The holder of the queue's lock also waits for a permit, before all waiters in the lock's line.
            let ahead = first.ahead.map(|ahead| ahead + 1);
            let holds = || first.holder.as_ref().map(Holder::of_the_past);
            let waiter_ahead = ahead.and_then(|_| first.waiter_ahead.clone().or_else(holds));
            reporter.report_holder(&HolderInfo { ahead, waiter_ahead, ..holder });
        });
        let store = self.permits.lock.locker().store().clone();
        let asked = store.env().now();
        let first = lock.acquire().await;
        let now = store.env().now();
        if let Err(error) = &first {
            tracing::warn!(
                lock = %queue.name, %error,
                "the permit queue is unavailable; permits are granted in any order"
            );
        }
        // Permits may have been released in the meantime.
        self.tried = now.longest_since(asked) < store.capabilities().poll_interval.min;
        self.may_queue = false;
        self.first = first.ok();
        let first_since = Some(now);
        self.permits.lock = self.permits.lock.clone().queued(Some(PermitQueue { first_since, ..queue }));
    }
}

/// The known holders that prevent one acquisition. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Blockers(Arc<Mutex<BTreeMap<LockName, HolderInfo>>>);

impl Blockers {
    fn known(&self) -> MutexGuard<'_, BTreeMap<LockName, HolderInfo>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `name` is held by `held`.
    pub(crate) fn note(&self, name: &LockName, held: HolderInfo) {
        self.known().insert(name.clone(), held);
    }

    /// Records that `name` no longer prevents the acquisition.
    pub(crate) fn forget(&self, name: &LockName) {
        self.known().remove(name);
    }

    /// Returns `lock`, renamed to `name`, with a callback that records its holder here.
    pub(crate) fn noting(&self, name: &LockName, lock: &Lock) -> Lock {
        let (seen, of) = (self.clone(), name.clone());
        lock.renamed(name).noting(move |held| seen.note(&of, held.clone()))
    }

    /// Evaluates an attempt to acquire `name`. If `name` is held, records the holder and returns `None`.
    pub(crate) fn free(&self, name: &LockName, tried: Result<Guard>) -> Result<Option<Guard>> {
        match tried.map_err(|error| self.noted(name, error)) {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if error.kind() == ErrorKind::Held => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// If `error` says that `name` is held, records the holder. A lock that was granted unnoticed, and that another
    /// process then took over, counts as held.
    pub(crate) fn noted(&self, name: &LockName, error: Error) -> Error {
        let (error, by) = match (error.kind(), error.loss().map(|loss| &loss.reason)) {
            (ErrorKind::Held, _) => {
                let by = error.holder().cloned().unwrap_or_default();
                (error, by)
            }
            (ErrorKind::Lost, reason) => {
                let by = match reason {
                    Some(LossReason::TakenOver { by }) => by.clone(),
                    _ => HolderInfo::default(),
                };
                (Error::held(name, by.clone()), by)
            }
            _ => return error,
        };
        self.note(name, by);
        error
    }

    /// Returns the holder of `name`.
    pub(crate) fn of(&self, name: &LockName) -> Option<HolderInfo> {
        self.known().get(name).cloned()
    }

    /// Returns the holder whose lease can end first.
    pub(crate) fn soonest(&self) -> Option<HolderInfo> {
        let known = self.known();
        known.values().min_by_key(|held| held.lapses_within.unwrap_or(Duration::MAX)).cloned()
    }

    /// Returns a list of the holders, for people.
    pub(crate) fn described(&self) -> String {
        let known = self.known();
        let mut holders: Vec<_> =
            known.iter().take(MAX_NAMED).map(|(name, held)| format!("`{name}` by {held}")).collect();
        if let Some(more) = known.len().checked_sub(MAX_NAMED).filter(|more| *more > 0) {
            holders.push(format!("and {more} more"));
        }
        holders.join("; ")
    }
}
