//! The queue of one process for one lock: tasks take turns in the order of their arrival, so that a hundred waiting
//! tasks are one contender at the store.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use crate::lease::Held;
use crate::name::LockName;

/// The queues of a [`Locker`](crate::Locker), made when first asked for and gone with their last user.
#[derive(Debug, Default)]
pub(crate) struct Queues {
    queues: Mutex<Registry>,
}

#[derive(Debug, Default)]
struct Registry {
    by_name: HashMap<LockName, Weak<Queue>>,
    /// At this size the dead entries are swept out.
    sweep_at: usize,
}

impl Queues {
    /// The queue of `name`.
    pub(crate) fn of(&self, name: &LockName) -> Arc<Queue> {
        let mut registry = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(queue) = registry.by_name.get(name).and_then(Weak::upgrade) {
            return queue;
        }
        if registry.by_name.len() >= registry.sweep_at {
            registry.by_name.retain(|_, queue| queue.strong_count() > 0);
            registry.sweep_at = 2 * registry.by_name.len() + 64;
        }
        let queue = Arc::new(Queue { turns: Arc::new(Semaphore::new(1)), seen: watch::Sender::new(None) });
        registry.by_name.insert(name.clone(), Arc::downgrade(&queue));
        queue
    }
}

/// One lock's queue in this process.
#[derive(Debug)]
pub(crate) struct Queue {
    /// One permit, handed on first come, first served.
    turns: Arc<Semaphore>,
    /// Who has the lock, as far as whoever has the turn knows.
    seen: watch::Sender<Option<Held>>,
}

impl Queue {
    /// Waits for the turn. Cancel safe: dropping the future gives up the place.
    pub(crate) async fn turn(self: &Arc<Self>, mut on_wait: impl FnMut(&Held)) -> Turn {
        let mut seen = self.seen.subscribe();
        seen.mark_changed();
        let turn = self.turns.clone().acquire_owned();
        tokio::pin!(turn);
        loop {
            tokio::select! {
                biased;
                permit = &mut turn => return Turn { queue: self.clone(), permit: permit.ok() },
                Ok(()) = seen.changed() => {
                    // Cloned: the caller's code must not run under the channel's lock.
                    let held = seen.borrow_and_update().clone();
                    if let Some(held) = held {
                        on_wait(&held);
                    }
                }
            }
        }
    }

    /// Completes when whoever has the turn knows that the lock rests. Cancel safe.
    pub(crate) async fn rests(&self) -> Held {
        let mut seen = self.seen.subscribe();
        let resting = seen.wait_for(|held| held.as_ref().is_some_and(|held| held.resting)).await;
        // Never closed while this queue lives.
        resting.map_or_else(|_| None, |held| held.clone()).unwrap_or_default()
    }

    /// The turn, as soon as whoever has it has not been refused; else who is in the way. Cancel safe.
    pub(crate) async fn turn_unless_waiting(self: &Arc<Self>) -> Result<Turn, Held> {
        let mut seen = self.seen.subscribe();
        tokio::select! {
            biased;
            turn = self.turn(|_| {}) => Ok(turn),
            Ok(held) = seen.wait_for(Option::is_some) => Err(held.clone().unwrap_or_default()),
        }
    }

    /// The turn, if nobody has it.
    pub(crate) fn try_turn(self: &Arc<Self>) -> Option<Turn> {
        let permit = self.turns.clone().try_acquire_owned().ok()?;
        Some(Turn { queue: self.clone(), permit: Some(permit) })
    }

    /// Who has the lock, if anybody in this process knows.
    pub(crate) fn seen(&self) -> Option<Held> {
        self.seen.borrow().clone()
    }
}

/// The right to contend for a lock at the store, and then to hold it. Dropping it lets the next task go on.
#[derive(Debug)]
pub(crate) struct Turn {
    queue: Arc<Queue>,
    /// `None` only if the semaphore was closed, which nobody does.
    permit: Option<OwnedSemaphorePermit>,
}

impl Turn {
    /// Tells those who wait in this process who has the lock.
    pub(crate) fn tell(&self, held: Held) {
        self.queue.seen.send_replace(Some(held));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.queue.seen.send_replace(None);
        drop(self.permit.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn turns_are_taken_in_the_order_of_arrival_and_dead_queues_are_swept_out() {
        let queues = Queues::default();
        let name = LockName::new("x").unwrap();
        let first = queues.of(&name).try_turn().unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for n in 0..10 {
            let (queue, order) = (queues.of(&name), order.clone());
            tasks.push(tokio::spawn(async move {
                let _turn = queue.turn(|_| {}).await;
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
