//! The queue of one process for one lock. Tasks take turns in the order of their arrival, so a hundred waiting tasks
//! are one contender at the store. The task that has the turn may also pass the lock itself (a `T`) on to the next
//! task.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};

use crate::clock::Moment;
use crate::lease::{HolderInfo, LastError};
use crate::runtime::hand_off::{CohortPolicy, Terms};
use crate::types::LockName;

/// The queues of a [`Locker`](crate::Locker), created on first use. Unused queues are removed only some time later, so
/// that a process that takes a lock again and again is recognised.
#[derive(Debug)]
pub(crate) struct Queues<T> {
    queues: Mutex<Registry<T>>,
}

#[derive(Debug)]
struct Registry<T> {
    by_name: HashMap<LockName, Arc<Queue<T>>>,
    /// At this size, unused queues are removed.
    sweep_at: usize,
}

impl<T> Default for Queues<T> {
    fn default() -> Self {
        Self { queues: Mutex::new(Registry { by_name: HashMap::new(), sweep_at: 0 }) }
    }
}

impl<T> Queues<T> {
    /// Returns the queue of `name`.
    pub(crate) fn of(&self, name: &LockName) -> Arc<Queue<T>> {
        let mut registry = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = registry.by_name.get(name) {
            return queue.clone();
        }
        if registry.by_name.len() >= registry.sweep_at {
            registry.by_name.retain(|_, queue| Arc::strong_count(queue) > 1);
            registry.sweep_at = 2 * registry.by_name.len() + 64;
        }
        let queue = Queue::alone();
        registry.by_name.insert(name.clone(), queue.clone());
        queue
    }
}

/// The queue of this process for one lock.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    state: Mutex<QueueState<T>>,
    /// The holder of the lock, as last seen by the task that has the turn.
    seen: watch::Sender<Option<HolderInfo>>,
}

#[derive(Debug)]
struct QueueState<T> {
    /// Whether a task has the turn.
    taken: bool,
    /// The waiting tasks, in the order of their arrival.
    waiting: VecDeque<WaitingTask<T>>,
    /// The number of the next task that waits.
    next: u64,
    /// How long this process has kept the lock, and when it backs off.
    policy: CohortPolicy,
    /// The holder that was reported last, also by tasks that no longer have the turn. `None` if no task has the turn.
    latest: Option<HolderInfo>,
    /// Why the store does not respond to the task that has the turn.
    last_error: LastError,
}

impl<T> Default for QueueState<T> {
    fn default() -> Self {
        Self {
            taken: false,
            waiting: VecDeque::new(),
            next: 0,
            policy: CohortPolicy::default(),
            latest: None,
            last_error: LastError::default(),
        }
    }
}

impl<T> QueueState<T> {
    /// Takes the turn. Returns whether it was free.
    fn take_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.taken, true)
    }
}

/// The settings with which a task takes the lock from another task, and when it began to acquire the lock.
pub(crate) type Wish<'a> = (&'a Terms, Moment);

/// A waiting task.
#[derive(Debug)]
struct WaitingTask<T> {
    number: u64,
    /// `None` if it takes only the turn, and not the lock itself.
    wish: Option<(Terms, Moment)>,
    served: oneshot::Sender<Served<T>>,
}

/// The result of waiting.
#[derive(Debug)]
pub(crate) enum Served<T> {
    /// The turn: the right to contend for the lock.
    Turn(Turn<T>),
    /// The lock itself, from the task that had it.
    Lock(T),
}

/// Called with the holder of the lock while a task waits.
pub(crate) type OnWait = dyn Fn(&HolderInfo) + Send + Sync;

impl<T> Queue<T> {
    /// Returns a queue for one task, which no other task finds.
    pub(crate) fn alone() -> Arc<Self> {
        Arc::new(Self { state: Mutex::default(), seen: watch::Sender::new(None) })
    }

    fn state(&self) -> MutexGuard<'_, QueueState<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the turn if it is free. Otherwise, adds the task to the end of the queue. Does not wait, so tasks are
    /// served in the order in which they call this.
    pub(crate) fn enter(self: &Arc<Self>, wish: Option<Wish<'_>>) -> Entry<T> {
        let mut state = self.state();
        if state.take_turn() {
            return Entry::Served(Turn { queue: Some(self.clone()) });
        }
        let number = state.next;
        state.next += 1;
        let (served, answer) = oneshot::channel();
        state.waiting.push_back(WaitingTask {
            number,
            wish: wish.map(|(terms, began)| (terms.clone(), began)),
            served,
        });
        Entry::Waiting(Queued { queue: self.clone(), number }, answer)
    }

    /// Waits for the turn, with an `entry` that was made without a wish. Cancel safe: dropping the future removes
    /// the task from the queue.
    pub(crate) async fn turn(self: &Arc<Self>, mut entry: Entry<T>, on_wait: Option<&OnWait>) -> Turn<T> {
        loop {
            // Only an entry with a wish gets a lock.
            if let Served::Turn(turn) = self.served(entry, None, on_wait).await {
                return turn;
            }
            entry = self.enter(None);
        }
    }

    /// Waits until `entry`, which was made with `wish`, is served. Cancel safe, like [`turn`](Self::turn).
    pub(crate) async fn served(
        self: &Arc<Self>,
        mut entry: Entry<T>,
        wish: Option<Wish<'_>>,
        on_wait: Option<&OnWait>,
    ) -> Served<T> {
        loop {
            let (_queued, mut answer) = match entry {
                Entry::Served(turn) => return Served::Turn(turn),
                Entry::Waiting(queued, answer) => (queued, answer),
            };
            let mut seen = self.seen.subscribe();
            seen.mark_changed();
            loop {
                tokio::select! {
                    biased;
                    served = &mut answer => match served {
                        Ok(served) => return served,
                        // The task that should serve this one has ended with its runtime.
                        Err(_) => break,
                    },
                    Ok(()) = seen.changed(), if on_wait.is_some() => {
                        // Cloned, because the caller's code must not run under the channel's lock.
                        let held = seen.borrow_and_update().clone();
                        if let Some((held, on_wait)) = held.zip(on_wait) {
                            on_wait(&held);
                        }
                    }
                }
            }
            entry = self.enter(wish);
        }
    }

    /// Completes when the task that has the turn reports that the lock is in a cooldown. Cancel safe.
    pub(crate) async fn cooldown(&self) -> HolderInfo {
        let mut seen = self.seen.subscribe();
        let in_cooldown = seen.wait_for(|held| held.as_ref().is_some_and(|held| held.in_cooldown)).await;
        // The channel is never closed while this queue exists.
        in_cooldown.map_or_else(|_| None, |held| held.clone()).unwrap_or_default()
    }

    /// Waits for the turn. If the task that has the turn reports a holder, returns that holder instead. Cancel safe.
    pub(crate) async fn turn_unless_waiting(self: &Arc<Self>) -> Result<Turn<T>, HolderInfo> {
        let mut seen = self.seen.subscribe();
        tokio::select! {
            biased;
            turn = self.turn(self.enter(None), None) => Ok(turn),
            Ok(held) = seen.wait_for(Option::is_some) => Err(held.clone().unwrap_or_default()),
        }
    }

    /// Takes the turn if it is free.
    pub(crate) fn try_turn(self: &Arc<Self>) -> Option<Turn<T>> {
        self.state().take_turn().then(|| Turn { queue: Some(self.clone()) })
    }

    /// Returns whether a task has the turn.
    pub(crate) fn is_taken(&self) -> bool {
        self.state().taken
    }

    /// Returns the holder of the lock, if a task of this process knows it.
    pub(crate) fn seen(&self) -> Option<HolderInfo> {
        self.seen.borrow().clone()
    }

    /// Returns the latest known holder of the lock. It may have released the lock.
    pub(crate) fn latest(&self) -> Option<HolderInfo> {
        self.seen().or_else(|| self.state().latest.clone())
    }

    /// Completes when a task of this process knows the holder of the lock. Cancel safe.
    pub(crate) async fn until_seen(&self) -> HolderInfo {
        let mut seen = self.seen.subscribe();
        let held = seen.wait_for(Option::is_some).await;
        // The channel is never closed while this queue exists.
        held.map_or_else(|_| None, |held| held.clone()).unwrap_or_default()
    }

    /// Returns the record of the latest error of the task that has the turn.
    pub(crate) fn last_error(&self) -> LastError {
        self.state().last_error.clone()
    }

    /// Gives the turn to the next task. If no task waits, the turn is free.
    fn pass_on(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state();
                let next = state.waiting.pop_front();
                state.taken = next.is_some();
                if next.is_none() {
                    state.latest = None;
                }
                next
            };
            let Some(next) = next else { return };
            match next.served.send(Served::Turn(Turn { queue: Some(self.clone()) })) {
                // That task has just gone away. Dropping its turn must not pass the turn on a second time.
                Err(Served::Turn(mut turn)) => turn.queue = None,
                Err(Served::Lock(_)) | Ok(()) => return,
            }
        }
    }
}

/// The state of a task that wants the turn.
pub(crate) enum Entry<T> {
    Served(Turn<T>),
    Waiting(Queued<T>, oneshot::Receiver<Served<T>>),
}

/// A task that is in the queue. Dropping this removes the task from the queue.
pub(crate) struct Queued<T> {
    queue: Arc<Queue<T>>,
    number: u64,
}

impl<T> Drop for Queued<T> {
    fn drop(&mut self) {
        let mut state = self.queue.state();
        // A task that was served is no longer in the queue.
        if let Ok(at) = state.waiting.binary_search_by_key(&self.number, |task| task.number) {
            state.waiting.remove(at);
        }
    }
}

/// The right to contend for a lock at the store, and then to hold it. Dropping it gives the turn to the next task.
#[derive(Debug)]
pub(crate) struct Turn<T> {
    /// `None` once another task has the turn.
    queue: Option<Arc<Queue<T>>>,
}

impl<T> Turn<T> {
    /// Reports the holder of the lock to the waiting tasks of this process.
    pub(crate) fn report_holder(&self, held: HolderInfo) {
        if let Some(queue) = &self.queue {
            queue.state().latest = Some(held.clone());
            queue.seen.send_replace(Some(held));
        }
    }

    /// Returns the latest known holder of the lock. It may have released the lock.
    pub(crate) fn latest(&self) -> Option<HolderInfo> {
        self.queue.as_ref()?.latest()
    }

    /// Sets the record of the errors of the task that has the turn.
    pub(crate) fn notes_errors_in(&self, last_error: &LastError) {
        if let Some(queue) = &self.queue {
            queue.state().last_error = last_error.clone();
        }
    }

    /// Calls `body` with the cohort policy of the lock, and with whether tasks wait for it.
    pub(crate) fn policy<O>(&self, body: impl FnOnce(&mut CohortPolicy, bool) -> O) -> Option<O> {
        let mut state = self.queue.as_ref()?.state();
        let awaited = !state.waiting.is_empty();
        Some(body(&mut state.policy, awaited))
    }

    /// Returns how many tokens a grant with `terms` can use.
    pub(crate) fn demand(&self, terms: &Terms) -> u64 {
        let in_queue = 1 + self.followers(terms) as u64;
        self.policy(|policy, _| policy.demand(in_queue)).unwrap_or(1)
    }

    /// Returns how many tasks at the front of the queue take the lock with `terms`.
    pub(crate) fn followers(&self, terms: &Terms) -> usize {
        let Some(queue) = &self.queue else { return 0 };
        let state = queue.state();
        let follows =
            |task: &&WaitingTask<T>| task.wish.as_ref().is_some_and(|(its_terms, _)| its_terms == terms);
        state.waiting.iter().take_while(follows).count()
    }

    /// Removes the next task from the queue if it takes the lock with `terms`. Returns the task and when it began to
    /// acquire the lock.
    pub(crate) fn next_on(&self, terms: &Terms) -> Option<(oneshot::Sender<Served<T>>, Moment)> {
        let mut state = self.queue.as_ref()?.state();
        match state.waiting.pop_front()? {
            WaitingTask { wish: Some((its_terms, began)), served, .. } if its_terms == *terms => {
                Some((served, began))
            }
            other => {
                state.waiting.push_front(other);
                None
            }
        }
    }
}

impl<T> Drop for Turn<T> {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.take() {
            queue.seen.send_replace(None);
            queue.pass_on();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_follow_the_order_of_arrival_and_dead_queues_are_swept() {
        let queues: Queues<()> = Queues::default();
        let name = LockName::new("x").unwrap();
        let first = queues.of(&name).try_turn().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..10 {
            let (queue, order) = (queues.of(&name), order.clone());
            tasks.push(tokio::spawn(async move {
                let _turn = queue.turn(queue.enter(None), None).await;
                order.lock().unwrap().push(n);
            }));
            tokio::task::yield_now().await;
        }
        assert!(queues.of(&name).try_turn().is_none());
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());

        for n in 0..1_000 {
            drop(queues.of(&LockName::new(n.to_string()).unwrap()));
        }
        assert!(queues.queues.lock().unwrap().by_name.len() < 200);
    }
}
