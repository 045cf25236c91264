//! The table of leases whose renewers that have nothing to do yet, and therefore no task.
//!
//! Most locks are released before their first renewal is due. Until then a renewer lies here, and a release gives it a task. One
//! task for all renewers of a store and a runtime, the *caller*, looks at them four times a second, and starts those that are
//! due, each with its watchdog.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;

use super::{Command, Renewer};
use crate::clock::Moment;
use crate::env::Env;

/// The caller looks at this interval. Short enough that its sleeps need no lookout: see [`clock`](crate::clock).
const ROUND: Duration = Duration::from_millis(250);
/// So long before it is due a renewer is started: a caller that misses a round calls in time all the same.
pub(crate) const AHEAD: Duration = ROUND.saturating_mul(2);

/// The renewers without a task, of one store.
#[derive(Default)]
pub(crate) struct LeaseTable(Mutex<HashMap<Id, Line>>);

/// Those of one runtime, by where they are in memory: nothing else is there as long as somebody has one.
type Line = HashMap<usize, Arc<Slot>>;

/// Where a renewer is.
struct Slot(Mutex<SlotState>);

enum SlotState {
    /// Here, and nobody has called it yet.
    Idle(Box<Renewer>),
    /// In a task, which does what it is told by this.
    Busy(oneshot::Sender<Command>),
    /// Whoever it worked for has taken it, or its runtime has shut down.
    Gone,
}

/// A guard's hold on its renewer. When this is dropped, the lock is released, or passed on, in the background.
pub(crate) struct RenewerHandle {
    post: Arc<Slot>,
    lease_table: Arc<LeaseTable>,
    runtime: Handle,
}

impl Slot {
    /// Where it is in memory.
    fn place(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self).addr()
    }

    fn keeping(&self) -> MutexGuard<'_, SlotState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take(&self) -> SlotState {
        std::mem::replace(&mut *self.keeping(), SlotState::Gone)
    }

    fn is_due(&self, now: Moment) -> bool {
        match &*self.keeping() {
            SlotState::Idle(renewer) => renewer.is_due(now, AHEAD),
            SlotState::Busy(_) | SlotState::Gone => true,
        }
    }

    /// Gives the renewer a task. In its runtime.
    fn call(&self) {
        let mut keeping = self.keeping();
        match std::mem::replace(&mut *keeping, SlotState::Gone) {
            SlotState::Idle(renewer) => *keeping = SlotState::Busy(renewer.start()),
            other => *keeping = other,
        }
    }
}

impl LeaseTable {
    fn lines(&self) -> MutexGuard<'_, HashMap<Id, Line>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what `renewer` is for: from here until it is due, unless it has to have a task at once. Must be called inside a
    /// tokio runtime.
    pub(crate) fn keep(self: &Arc<Self>, env: &Env, renewer: Box<Renewer>) -> RenewerHandle {
        let runtime = Handle::current();
        let at_once = renewer.is_due(env.now(), AHEAD);
        let post = Arc::new(Slot(Mutex::new(SlotState::Idle(renewer))));
        if at_once {
            post.call();
        } else if self.enter(runtime.id(), &post) {
            // Without the lock: in a runtime that is shutting down the duty ends here.
            let duty =
                Round { lease_table: self.clone(), env: env.clone(), runtime: runtime.id(), is_over: false };
            runtime.spawn(duty.call());
        }
        RenewerHandle { post, lease_table: self.clone(), runtime }
    }

    /// Whether it is the first one there.
    fn enter(&self, runtime: Id, post: &Arc<Slot>) -> bool {
        let mut lines = self.lines();
        let is_first = !lines.contains_key(&runtime);
        lines.entry(runtime).or_default().insert(post.place(), post.clone());
        is_first
    }

    /// Takes those of `runtime` that are due out of the line; `None` when nobody is left, and the line with them.
    fn due(&self, runtime: Id, now: Moment) -> Option<Vec<Arc<Slot>>> {
        let mut lines = self.lines();
        let line = lines.get_mut(&runtime)?;
        if line.is_empty() {
            lines.remove(&runtime);
            return None;
        }
        Some(line.extract_if(|_, post| post.is_due(now)).map(|(_, post)| post).collect())
    }

    /// Perhaps long after it was called, when there are others.
    fn leave(&self, runtime: Id, post: &Arc<Slot>) {
        let left = self.lines().get_mut(&runtime).and_then(|line| line.remove(&post.place()));
        drop(left);
    }
}

/// The caller's.
struct Round {
    lease_table: Arc<LeaseTable>,
    env: Env,
    runtime: Id,
    is_over: bool,
}

impl Round {
    async fn call(mut self) {
        loop {
            self.env.sleep(ROUND).await;
            let Some(due) = self.lease_table.due(self.runtime, self.env.now()) else { break };
            due.iter().for_each(|post| post.call());
        }
        self.is_over = true;
    }
}

impl Drop for Round {
    /// The runtime shuts down. Without it renewers are of no use, and others get their turns.
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        let line = self.lease_table.lines().remove(&self.runtime);
        // Without the lock: with them, turns go on to others.
        for (_, post) in line.into_iter().flatten() {
            drop(post.take());
        }
    }
}

impl RenewerHandle {
    /// Tells the renewer `command`, and gives what it answers, or nothing if it is gone. Dropping the future goes on with it in
    /// the background.
    pub(crate) async fn tell<T>(self, command: Command, answer: oneshot::Receiver<T>) -> Option<T> {
        match self.take() {
            // In a task: the caller may stop polling. If the runtime has shut down, the task is dropped, and so is the answer.
            SlotState::Idle(renewer) => {
                self.runtime.spawn(renewer.serve(Some(command)));
            }
            SlotState::Busy(renewer) => {
                // When it is gone, so is what it answers by.
                let _ = renewer.send(command);
            }
            SlotState::Gone => return None,
        }
        answer.await.ok()
    }

    /// The runtime that its renewer works in.
    pub(crate) fn runtime(&self) -> Handle {
        self.runtime.clone()
    }

    fn take(&self) -> SlotState {
        let keeping = self.post.take();
        if let SlotState::Idle(_) = keeping {
            self.lease_table.leave(self.runtime.id(), &self.post);
        }
        keeping
    }
}

impl Drop for RenewerHandle {
    fn drop(&mut self) {
        // A task that is busy hears of it by the end of its channel.
        if let SlotState::Idle(renewer) = self.take() {
            self.runtime.spawn(renewer.serve(None));
        }
    }
}

impl fmt::Debug for LeaseTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let idle: usize = self.lines().values().map(Line::len).sum();
        f.debug_struct("LeaseTable").field("idle", &idle).finish()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::clock::{Clock, TestClock};
    use crate::lease::{Released, StoreOptions};
    use crate::stores::memory::MemoryRegister;
    use crate::{Guard, Locker, RegisterLeases};

    const SECOND: Duration = Duration::from_secs(1);

    fn site() -> (Arc<TestClock>, Locker) {
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let leases = RegisterLeases::new(
            Arc::new(MemoryRegister::new(env.clone())),
            StoreOptions { env, ..StoreOptions::default() },
        );
        (clock, Locker::new(Arc::new(leases)))
    }

    async fn taken(locker: &Locker, name: &str, ttl: Duration) -> Guard {
        locker.lock(name).ttl(ttl).acquire().await.unwrap()
    }

    fn tasks() -> usize {
        Handle::current().metrics().num_alive_tasks()
    }

    /// In short sleeps: long ones have a task of their own, the clock's lookout.
    async fn pass(clock: &TestClock, seconds: u32) {
        for _ in 0..4 * seconds {
            clock.sleep(SECOND / 4).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn no_lock_has_a_task_before_its_first_renewal_is_due_and_each_has_two_then() {
        let (clock, locker) = site();
        drop(taken(&locker, "warm", SECOND).await);
        pass(&clock, 3).await;
        assert_eq!(tasks(), 0, "whoever called is gone with the last lock");
        for _ in 0..10 {
            taken(&locker, "x", SECOND * 30).await.release().await.unwrap();
        }
        let mut guards = Vec::new();
        for n in 0..10 {
            guards.push(taken(&locker, &format!("x{n}"), SECOND * 30).await);
        }
        pass(&clock, 8).await;
        assert_eq!(tasks(), 1, "who calls them");
        pass(&clock, 4).await;
        assert!(tasks() >= 20, "{}", tasks());
        pass(&clock, 100).await;
        assert!(guards.iter().all(|guard| guard.check().is_ok()));
        for guard in guards {
            guard.release().await.unwrap();
        }
        pass(&clock, 2).await;
        assert_eq!(tasks(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_keeper_with_little_time_has_its_task_at_once() {
        let (_clock, locker) = site();
        let _guard = taken(&locker, "x", SECOND).await;
        assert!(tasks() >= 2, "its own and the watchdog's: {}", tasks());
    }

    /// Others in this process may contend for it then.
    #[tokio::test(start_paused = true)]
    async fn who_is_lost_before_its_first_renewal_is_called_too() {
        let (clock, locker) = site();
        let lost = taken(&locker, "x", SECOND * 600).await;
        clock.suspend(SECOND * 601);
        assert!(lost.check().is_err());
        clock.sleep(SECOND).await;
        assert!(locker.queues().of(lost.name()).try_turn().is_some());
        drop(lost);
    }

    /// As the parts of one hold are, some with a long time to go.
    #[tokio::test(start_paused = true)]
    async fn who_is_lost_with_another_is_called_at_once() {
        let (clock, locker) = site();
        let with = taken(&locker, "with", SECOND).await;
        locker.evict(with.name(), with.token().unwrap()).await.unwrap();
        let lost = taken(&locker, "x", SECOND * 600).await.bound_to(vec![with]);
        pass(&clock, 2).await;
        assert!(lost.check().is_err());
        assert!(locker.queues().of(lost.name()).try_turn().is_some());
    }

    /// The thread that takes a renewer may be held up before it leaves the line, which others have cleared meanwhile.
    #[tokio::test]
    async fn who_leaves_late_takes_nobody_else_along() {
        let (clock, runtime, lease_table) =
            (TestClock::default(), Handle::current().id(), LeaseTable::default());
        let [taken, other] = [(); 2].map(|()| Arc::new(Slot(Mutex::new(SlotState::Gone))));
        assert!(lease_table.enter(runtime, &taken));
        assert_eq!(lease_table.due(runtime, clock.now()).unwrap().len(), 1);
        assert!(lease_table.due(runtime, clock.now()).is_none());
        assert!(lease_table.enter(runtime, &other));
        lease_table.leave(runtime, &taken);
        assert_eq!(lease_table.due(runtime, clock.now()).unwrap().len(), 1, "it is called");
    }

    #[test]
    fn a_lock_may_be_released_outside_of_its_runtime() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let guard = runtime.block_on(async {
            let locker = Locker::open("mem:").await.unwrap();
            taken(&locker, "x", SECOND * 30).await
        });
        // The runtime does the work, and the caller need not be in it.
        let mut release = Box::pin(guard.release());
        assert!(release.as_mut().now_or_never().is_none());
        runtime.block_on(tokio::task::yield_now());
        assert_eq!(release.now_or_never().unwrap().unwrap(), Released::Released);
    }

    #[test]
    fn with_their_runtime_keepers_go_and_others_have_their_turns() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_time().start_paused(true).build().unwrap()
        };
        let first = runtime();
        let (_, locker) = first.block_on(async { site() });
        let guard = first.block_on(taken(&locker, "x", SECOND * 30));
        assert!(locker.queues().of(guard.name()).try_turn().is_none());
        drop(first);
        assert!(locker.queues().of(guard.name()).try_turn().is_some());
        // It was not told of that, and is of no use any more.
        runtime().block_on(async { assert!(guard.release().await.is_ok()) });
    }
}
