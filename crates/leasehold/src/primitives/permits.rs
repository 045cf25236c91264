//! Permits: a set of locks, of which a holder needs any one. Semaphores and readers-writer locks are built from
//! permits.
//!
//! The locks alone provide safety. This module finds a free permit with few requests, and waits for any of them. For
//! each set of permits, a process is one contender, which serves its tasks in the order of their arrival.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_all;
use tokio::sync::Notify;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::lease::{Holder, HolderInfo, PermitQueue, State};
use crate::lock::Lock;
use crate::primitives::blockers::Blockers;
use crate::primitives::together::give_back;
use crate::runtime::outage::Outage;
use crate::runtime::queue::{Entry, Queue, Turn};
use crate::runtime::renewer::Hold;
use crate::runtime::task;
use crate::types::LockName;

/// What permits are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Permits of a semaphore.
    Permit,
    /// Shared holds of a readers-writer lock.
    Shared,
}

impl Kind {
    /// Returns the word in the names of the permits.
    const fn as_str(self) -> &'static str {
        match self {
            Self::Permit => "permit",
            Self::Shared => "shared",
        }
    }

    /// Returns the plural of the permits, for people.
    const fn plural(self) -> &'static str {
        match self {
            Self::Permit => "permits",
            Self::Shared => "shared permits",
        }
    }

    /// Returns what their number counts, for people.
    pub(crate) const fn counted(self) -> &'static str {
        match self {
            Self::Permit => "permits",
            Self::Shared => "readers",
        }
    }

    /// Returns the error for a store that does not keep their number.
    pub(crate) fn not_kept(self, store: &str) -> Error {
        Error::unsupported(format!("{store} does not keep the number of {}", self.counted()))
            .with_help("docs/semaphores.md lists the stores that do")
    }

    /// Returns the permit below `name` with this number.
    fn permit(self, name: &LockName, number: usize) -> Result<LockName> {
        Ok(LockName::new(format!("{name}/{}-{number}", self.as_str()))?)
    }

    /// Returns the first permit below `name`. Its record has the size.
    pub(crate) fn first(self, name: &LockName) -> Result<LockName> {
        self.permit(name, 1)
    }
}

/// The result of a try of each permit.
enum Round {
    Granted(Guard),
    /// All are held.
    Held,
    /// One was free, but the first permit has no size yet.
    Unsized,
}

/// The permits `NAME/KIND-1` to `NAME/KIND-N`.
#[derive(Clone)]
pub(crate) struct Permits {
    /// The settings for acquiring each permit.
    lock: Lock,
    name: LockName,
    permits: Vec<LockName>,
    kind: Kind,
    /// Whether an acquisition first waits until the lock `NAME` itself is free.
    gated: bool,
}

impl Permits {
    /// Creates `count` permits below the name of `lock`.
    ///
    /// # Errors
    /// Returns [`ErrorKind::Invalid`] if the settings of `lock` are invalid.
    pub(crate) fn new(lock: &Lock, kind: Kind, count: usize) -> Result<Self> {
        let name = lock.checked()?;
        let permits = (1..=count).map(|number| kind.permit(&name, number)).collect::<Result<Vec<_>>>()?;
        let (lock, capabilities) = (lock.clone(), lock.locker().capabilities());
        let lock = if capabilities.permits_in_order { lock } else { lock.barge() };
        // The waiters for a single permit use its line.
        let queues = capabilities.queues_permits && count > 1 && !lock.barges();
        let queue = queues.then(|| PermitQueue::new(&name, kind.as_str())).transpose()?;
        let permits = Self { lock: lock.queued(queue), name, permits, kind, gated: false };
        Ok(Self { lock: permits.sized(&permits.lock), ..permits })
    }

    /// Returns `lock`, so that its acquisition of the first permit records how many there are.
    pub(crate) fn sized(&self, lock: &Lock) -> Lock {
        match self.permits.first() {
            Some(first) if lock.locker().capabilities().sizes => {
                lock.clone().sized(first.clone(), self.count())
            }
            _ => lock.clone(),
        }
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
            return Err(self.refused(&seen, HolderInfo::default()));
        }
        let mut round = self.round(&seen, false).await?;
        if matches!(round, Round::Unsized) {
            round = self.round(&seen, true).await?;
        }
        if let Round::Granted(guard) = round {
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
        let mut attempt =
            Attempt { permits: self.clone(), tried: false, lacks_size: false, may_queue: true, first: None };
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
        if !self.gated {
            return Ok(false);
        }
        self.pass(&self.name, turn, seen, outage).await
    }

    /// Waits until the lock `name` is free, or until it has a size, if it is a permit. Returns whether it waited.
    async fn pass(
        &self,
        name: &LockName,
        turn: &Turn<Hold>,
        seen: &Blockers,
        outage: &mut Outage,
    ) -> Result<bool> {
        let (store, mut waited) = (self.lock.locker().store(), false);
        loop {
            let status = store.inspect(name).await?;
            let State::Held(held) = status.state else { break };
            if status.size.is_some() && *name != self.name {
                break;
            }
            seen.note(name, held.clone());
            turn.report_holder(held.clone());
            self.lock.report_holder(&held);
            waited = true;
            // Ignore a transient error: the next poll has its own timeout.
            if let Err(error) = store.changed(name, &held).await
                && !error.is_transient()
            {
                return Err(error.into());
            }
            // The time was spent waiting for the holder, not for the store.
            outage.end();
        }
        outage.end();
        seen.forget(name);
        Ok(waited)
    }

    /// Tries each permit once. Starts with a random permit, so that processes that start together do not all try the
    /// same one first, or with the first one.
    async fn round(&self, seen: &Blockers, from_first: bool) -> Result<Round> {
        let count = self.permits.len();
        let start = (self.lock.locker().store().env().random.fraction() * count as f64) as usize;
        let start = if from_first { 0 } else { start };
        for permit in self.permits.iter().cycle().skip(start).take(count) {
            match seen.free(permit, self.lock.renamed(permit).try_acquire().await)? {
                Some(guard) => {
                    return Ok(self.settled(guard).await?.map_or(Round::Unsized, Round::Granted));
                }
                None => continue,
            }
        }
        // A held permit has the size of the first one. Without this, the acquisition would wait to learn it.
        match seen.other_size(self.count()) {
            Some(stored) => Err(self.other_size(stored)),
            None => Ok(Round::Held),
        }
    }

    /// Returns how many permits there are.
    pub(crate) fn count(&self) -> u64 {
        self.permits.len() as u64
    }

    /// Returns the error for permits that have another size in the store.
    pub(crate) fn other_size(&self, stored: u64) -> Error {
        Error::other_size(&self.name, self.kind.counted(), self.count(), stored)
    }

    /// Compares the size in the store with that of this acquisition, which holds `guard`: any permit, or all of them.
    /// Returns `None` if the store has none. The guard is released then, and after an error.
    ///
    /// The size stands in the record of the first permit. It is read *after* the grant of the other permit, and is changed
    /// only by a [resize](super::resize), which holds all permits. So while the guard is held, the size stays the same. The
    /// next renewal or release also records it in the other permit. The next grant of that permit then needs no read: it is
    /// cleared before the first permit changes.
    pub(crate) async fn settled(&self, guard: Guard) -> Result<Option<Guard>> {
        let asked = self.count();
        let is_known = guard.parts().is_empty() && guard.size() == Some(asked);
        if is_known || !self.lock.locker().capabilities().sizes {
            return Ok(Some(guard));
        }
        let name = self.kind.first(&self.name)?;
        let first = guard.part(&name);
        let stored = match first {
            Some(first) => first.size(),
            None => self.lock.locker().inspect(&name).await?.size,
        };
        match (stored, first) {
            (Some(stored), _) if stored != asked => {
                give_back(&self.lock, vec![guard]).await;
                return Err(self.other_size(stored));
            }
            (Some(_), Some(_)) => {}
            (Some(_), None) => guard.set_size(asked),
            // Another task of this process has passed it on, which acquired it as a plain lock.
            (None, Some(first)) => first.record_size(asked).await?,
            (None, None) => {
                give_back(&self.lock, vec![guard]).await;
                return Ok(None);
            }
        }
        Ok(Some(guard))
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
            several => format!("all {several} {} of `{}` are held", self.kind.plural(), self.name),
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
    /// Whether a permit was free, but the first one had no size.
    lacks_size: bool,
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
        let mut waited = self.permits.pass_gate(turn, seen, outage).await?;
        if self.lacks_size {
            // A plain lock may hold it. Until it is free, no permit can be used.
            let first = self.permits.kind.first(&self.permits.name)?;
            waited |= self.permits.pass(&first, turn, seen, outage).await?;
        }
        if waited || !self.tried {
            self.tried = true;
            let from_first = std::mem::take(&mut self.lacks_size);
            return match self.permits.round(seen, from_first).await? {
                Round::Granted(guard) => Ok(Some(guard)),
                Round::Held => Ok(None),
                Round::Unsized => {
                    if from_first {
                        let store = self.permits.lock.locker().store();
                        store.env().sleep(store.capabilities().poll_interval.min).await;
                    }
                    self.noted(None)
                }
            };
        }
        let Some(queue) = self.permits.lock.queue_of_permits().filter(|_| self.may_queue) else {
            let guard = self.permits.first_of_all(turn, seen).await?;
            let settled = self.permits.settled(guard).await?;
            return self.noted(settled);
        };
        if self.permits.are_of_this_process()
            && let Some(guard) = self.permits.first_of_this_process(turn, seen).await?
        {
            let settled = self.permits.settled(guard).await?;
            return self.noted(settled);
        }
        let queue = queue.clone();
        self.queue_up(queue, turn, seen).await;
        Ok(None)
    }

    /// Returns a permit whose size is the one in the store. Without one, the next step begins with the first permit.
    fn noted(&mut self, settled: Option<Guard>) -> Result<Option<Guard>> {
        if settled.is_none() {
            (self.lacks_size, self.tried) = (true, false);
        }
        Ok(settled)
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
