//! Permits: a number of locks of which any one will do. Semaphores and shared holds are made of them.
//!
//! Safety is that of the locks alone. What is added here is how to find a free one with few requests, and how to wait
//! for any of them: one contender for each process and each set of slots, in the order in which its tasks arrived.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::select_all;

use crate::clock::timeout;
use crate::error::{Error, ErrorKind, Result};
use crate::guard::Guard;
use crate::lease::{Held, LossReason, State};
use crate::lock::Lock;
use crate::runtime::outage::Outage;
use crate::runtime::queue::{Entry, Queue, Turn};
use crate::runtime::renewer::Hold;
use crate::runtime::task;
use crate::types::LockName;

/// How many holders an error names.
const MOST_NAMED: usize = 4;

/// `NAME/KIND-1` to `NAME/KIND-N`.
#[derive(Clone)]
pub(crate) struct Permits {
    /// What every slot is asked for with.
    lock: Lock,
    name: LockName,
    slots: Vec<LockName>,
    /// What they are called together, for people.
    plural: &'static str,
    /// Whether the lock `NAME` itself is waited for first.
    gated: bool,
}

impl Permits {
    /// `count` slots below the name of `lock`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for settings that no lock can be asked for with.
    pub(crate) fn new(lock: &Lock, kind: &str, plural: &'static str, count: usize) -> Result<Self> {
        let name = lock.checked()?;
        let slot = |number| LockName::new(format!("{name}/{kind}-{number}"));
        let slots = (1..=count).map(slot).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self { lock: lock.clone(), name, slots, plural, gated: false })
    }

    /// The same, behind a gate: whoever comes waits first until nobody holds the lock `NAME`. A courtesy to its holder,
    /// which excludes nobody.
    pub(crate) fn gated(self) -> Self {
        Self { gated: true, ..self }
    }

    /// The lock whose name they stand below.
    pub(crate) fn name(&self) -> &LockName {
        &self.name
    }

    /// The names of the slots.
    pub(crate) fn names(&self) -> &[LockName] {
        &self.slots
    }

    /// One of them, waiting for as long as it takes. Cancel safe.
    pub(crate) async fn acquire(&self) -> Result<Guard> {
        let (slots, entry) = (self.clone(), self.queue().enter(None));
        task::run(async move { slots.acquire_seeing(entry, &Seen::default()).await }).await
    }

    /// One of them, if one is free. Cancel safe.
    pub(crate) async fn try_acquire(&self) -> Result<Guard> {
        let slots = self.clone();
        task::run(async move { slots.try_in_turn().await }).await
    }

    async fn try_in_turn(&self) -> Result<Guard> {
        let seen = Seen::default();
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
        Err(self.refused(&seen, Held::default()))
    }

    /// One of them, waiting for at most `limit`. Cancel safe.
    pub(crate) async fn acquire_within(&self, limit: Duration) -> Result<Guard> {
        let (slots, entry) =
            (Self { lock: self.lock.with_own_trouble(), ..self.clone() }, self.queue().enter(None));
        task::run(async move {
            let (seen, queue) = (Seen::default(), slots.queue());
            let clock = slots.lock.locker().store().env().clock.clone();
            // Lives until the queue has been asked, as with a lock.
            let mut acquisition = pin!(slots.acquire_seeing(entry, &seen));
            match timeout(&*clock, limit, acquisition.as_mut()).await {
                Some(outcome) => outcome,
                // What is told in the queue was true of all of them.
                None => match queue.seen() {
                    Some(held) => Err(slots.refused(&seen, held)),
                    None => Err(slots.lock.unanswered(&slots.name, limit)),
                },
            }
        })
        .await
    }

    async fn acquire_seeing(&self, entry: Entry<Hold>, seen: &Seen) -> Result<Guard> {
        let turn = self.queue().turn(entry, self.lock.on_waiting()).await;
        let mut outage = self.lock.outage();
        let mut tried = false;
        loop {
            match self.acquire_in_turn(&turn, seen, tried, &mut outage).await {
                Ok(Some(guard)) => return Ok(guard),
                // Perhaps the gate was closed meanwhile, and its holder has them all: cheaper to wait for it alone.
                Ok(None) => {
                    tried = true;
                    outage.end();
                }
                Err(error) => outage.pause_after(error).await?,
            }
        }
    }

    async fn acquire_in_turn(
        &self,
        turn: &Turn<Hold>,
        seen: &Seen,
        tried: bool,
        outage: &mut Outage,
    ) -> Result<Option<Guard>> {
        let waited = self.pass_gate(turn, seen, outage).await?;
        if tried && !waited {
            return self.first_of_all(turn, seen).await.map(Some);
        }
        self.round(seen).await
    }

    /// The queue of this process in front of these slots: another for another number of them.
    fn queue(&self) -> Arc<Queue<Hold>> {
        self.lock.locker().places().of(self.slots.last().unwrap_or(&self.name))
    }

    /// Waits until nobody holds the gate; says whether anybody did.
    async fn pass_gate(&self, turn: &Turn<Hold>, seen: &Seen, outage: &mut Outage) -> Result<bool> {
        let (store, mut waited) = (self.lock.locker().store(), false);
        if !self.gated {
            return Ok(false);
        }
        while let State::Held(held) = store.inspect(&self.name).await?.state {
            seen.note(&self.name, held.clone());
            turn.tell(held.clone());
            self.lock.tell(&held);
            waited = true;
            // Trouble that passes: the next look is as patient as any.
            if let Err(error) = store.changed(&self.name, &held).await
                && !error.is_transient()
            {
                return Err(error.into());
            }
            // The wait was for the holder, and not for the store.
            outage.end();
        }
        outage.end();
        seen.forget(&self.name);
        Ok(waited)
    }

    /// Tries each once, from anywhere on, so that processes that come at the same time do not all begin with the first.
    async fn round(&self, seen: &Seen) -> Result<Option<Guard>> {
        let count = self.slots.len();
        let start = (self.lock.locker().store().env().random.fraction() * count as f64) as usize;
        for slot in self.slots.iter().cycle().skip(start).take(count) {
            match seen.free(slot, self.lock.renamed(slot).try_acquire().await)? {
                Some(guard) => return Ok(Some(guard)),
                None => continue,
            }
        }
        Ok(None)
    }

    /// Waits for all of them at once. What is granted in the same moment as the first goes back as its guard is dropped.
    async fn first_of_all(&self, turn: &Turn<Hold>, seen: &Seen) -> Result<Guard> {
        turn.tell(seen.soonest().unwrap_or_default());
        let waiting = self.slots.iter().map(|slot| {
            let lock = seen.noting(slot, &self.lock);
            Box::pin(async move { lock.acquire().await })
        });
        select_all(waiting).await.0
    }

    /// The error of who found all of them held: by `seen`, or, if that says nothing, by `held` among others.
    fn refused(&self, seen: &Seen, held: Held) -> Error {
        if let Some(held) = seen.of(&self.name) {
            return Error::held_as(format!("lock `{}` is held by {held}", self.name), held);
        }
        let message = match self.slots.len() {
            1 => format!("the permit of `{}` is held", self.name),
            several => format!("all {several} {} of `{}` are held", self.plural, self.name),
        };
        match seen.soonest() {
            Some(soonest) => Error::held_as(format!("{message}: {}", seen.told()), soonest),
            // Heard in the queue, where it is not said whether the gate was closed.
            None if self.gated => Error::held_as(format!("lock `{}` is held by {held}", self.name), held),
            None => Error::held_as(format!("{message}, among others by {held}"), held),
        }
    }
}

/// Who is in the way of one acquisition, as far as it has heard. Clones share what they know.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen(Arc<Mutex<BTreeMap<LockName, Held>>>);

impl Seen {
    fn known(&self) -> MutexGuard<'_, BTreeMap<LockName, Held>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `name` is held by `held`.
    pub(crate) fn note(&self, name: &LockName, held: Held) {
        self.known().insert(name.clone(), held);
    }

    /// `name` is in the way no more.
    pub(crate) fn forget(&self, name: &LockName) {
        self.known().remove(name);
    }

    /// `lock`, renamed to `name`, which notes here who has it.
    pub(crate) fn noting(&self, name: &LockName, lock: &Lock) -> Lock {
        let (seen, of) = (self.clone(), name.clone());
        lock.renamed(name).noting(move |held| seen.note(&of, held.clone()))
    }

    /// What came of a try of `name`: `None`, and a note of who has it, when it is not free.
    pub(crate) fn free(&self, name: &LockName, tried: Result<Guard>) -> Result<Option<Guard>> {
        let error = match tried {
            Ok(guard) => return Ok(Some(guard)),
            Err(error) => error,
        };
        let by = match (error.kind(), error.loss().map(|loss| &loss.reason)) {
            (ErrorKind::Held, _) => error.holder().cloned(),
            // Granted without our hearing of it, and passed on since.
            (ErrorKind::Lost, Some(LossReason::TakenOver { by })) => Some(by.clone()),
            (ErrorKind::Lost, _) => None,
            _ => return Err(error),
        };
        self.note(name, by.unwrap_or_default());
        Ok(None)
    }

    /// Who has `name`.
    pub(crate) fn of(&self, name: &LockName) -> Option<Held> {
        self.known().get(name).cloned()
    }

    /// The one whose lease can end first.
    pub(crate) fn soonest(&self) -> Option<Held> {
        let known = self.known();
        known.values().min_by_key(|held| held.lapses_within.unwrap_or(Duration::MAX)).cloned()
    }

    /// Who has what, for people.
    pub(crate) fn told(&self) -> String {
        let known = self.known();
        let mut told: Vec<_> =
            known.iter().take(MOST_NAMED).map(|(name, held)| format!("`{name}` by {held}")).collect();
        if let Some(more) = known.len().checked_sub(MOST_NAMED).filter(|more| *more > 0) {
            told.push(format!("and {more} more"));
        }
        told.join("; ")
    }
}
