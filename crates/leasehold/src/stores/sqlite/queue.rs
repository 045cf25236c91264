//! The requests that wait for the file.
//!
//! Callers put requests in here and await the answers. No future of theirs ever holds the file or a place in a queue, so
//! one that is kept and not polled delays nobody else.
//!
//! SQLite blocks, so requests run on tokio's threads for blocking work. A runtime with a paused clock then knows that
//! something is going on. The requests are served by a *runner*, one at a time. It ends when no request of its own
//! runtime waits, so that no runtime is kept from shutting down by the requests of another, and nothing is left when there
//! is nothing to do. Meanwhile it serves all of them, the most important first.
//!
//! A request has a limit. A *lookout*, a task in each runtime that has asked lately, answers those whose time is over.
//!
//! The rule that keeps every request moving: while the file is idle, a runner has been started in each runtime whose
//! requests wait. A runtime that shuts down, or has no thread to spare, delays its own requests only.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::runtime::{Handle, Id};

use super::file::File;
use super::identity::Closable;
use crate::clock::Moment;
use crate::env::Env;

/// What a request is for, the most important first. Of those who contend for locks or wait for them, at most one stands
/// before a renewal: the one that is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A renewal.
    Renew,
    /// A release, and whatever else a holder asks for.
    Release,
    /// Another write: an acquisition, an eviction.
    Write,
    /// A question.
    Read,
    /// The question of one who waits for a lock, and asks again.
    Poll,
}

const LANES: usize = 5;

/// The lanes of holders. They go first, always.
const HOLDERS: usize = 2;

/// One in so many of the other requests is the one that has waited for the longest, whatever its lane.
const AGED: u32 = 8;

impl Purpose {
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Renew | Self::Release | Self::Write)
    }
}

/// What is to be done with the file, and who waits for the answer.
pub(super) trait Work: Send {
    /// Does it, and keeps the answer. `Some` when the file was busy: to be done again after that pause.
    fn run(&mut self, file: &mut File) -> Option<Duration>;

    /// Sends the answer.
    fn answer(self: Box<Self>);
}

/// The way to the caller.
pub(super) trait Reply: Send + Sync {
    /// Whether the caller is still there.
    fn is_awaited(&self) -> bool;

    /// Says that there was no answer in time; `begun` if there may have been an effect.
    fn give_up(&self, begun: bool);
}

/// Who waits, where, and for how long.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) runtime: Handle,
    pub(super) env: Env,
    pub(super) start: Moment,
    pub(super) limit: Duration,
    pub(super) reply: Arc<dyn Reply>,
}

impl Caller {
    pub(super) fn left(&self) -> Duration {
        self.limit.saturating_sub(self.env.now().longest_since(self.start))
    }
}

/// A request.
pub(super) struct Request {
    purpose: Purpose,
    /// Counts arrivals.
    number: u64,
    caller: Caller,
    work: Box<dyn Work>,
}

impl Request {
    pub(super) fn new(purpose: Purpose, caller: Caller, work: Box<dyn Work>) -> Self {
        Self { purpose, number: 0, caller, work }
    }

    fn runtime(&self) -> Id {
        self.caller.runtime.id()
    }
}

/// The file, and who waits for it.
pub(super) struct Queue(Mutex<State>);

struct State {
    /// `None` while a runner has it.
    file: Option<File>,
    /// Whose request is being served.
    served: Option<Caller>,
    lanes: [VecDeque<Request>; LANES],
    /// Runtimes that have a lookout.
    watched: Vec<Id>,
    /// Runtimes in which a runner was started and has not begun.
    called: Vec<Id>,
    arrivals: u64,
    /// How many requests of others than holders were served.
    others: u32,
}

impl Closable for Queue {
    /// It is opened again when it is needed.
    fn close_if_idle(&self) {
        let open = self.state().file.as_mut().and_then(File::take_open);
        // Closing takes a while.
        drop(open);
    }
}

impl Queue {
    /// A queue for the file that `file` makes, which gets the queue that it is in.
    pub(super) fn new(file: impl FnOnce(Weak<Self>) -> File) -> Arc<Self> {
        Arc::new_cyclic(|queue| {
            Self(Mutex::new(State {
                file: Some(file(queue.clone())),
                served: None,
                lanes: Default::default(),
                watched: Vec::new(),
                called: Vec::new(),
                arrivals: 0,
                others: 0,
            }))
        })
    }

    /// Adds `request`, and sees to it that it will be served.
    pub(super) fn push(self: &Arc<Self>, request: Request) {
        let caller = request.caller.clone();
        let runtime = caller.runtime.id();
        let (call, watch) = {
            let mut state = self.state();
            state.add(request);
            (state.file.is_some() && add(&mut state.called, runtime), add(&mut state.watched, runtime))
        };
        // First: it starts another runner if this one cannot be started.
        if watch {
            let lookout = Lookout { queue: Arc::downgrade(self), runtime };
            caller.runtime.spawn(lookout.watch(caller.env));
        }
        if call {
            self.start_runner(&caller.runtime);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_runner(self: &Arc<Self>, runtime: &Handle) {
        let runner = Runner { queue: Arc::clone(self), runtime: runtime.id(), begun: false };
        // It panics when the system has no thread for the runtime's first one.
        let started = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(move || runner.run()))));
        if started.is_err() {
            tracing::warn!("no thread for SQLite's requests; trying again");
            self.state().called.retain(|&called| called != runtime.id());
        }
    }

    /// Starts a runner for the requests of `runtime` that wait while the file is idle: one could not be started before.
    fn start_missing_runner(self: &Arc<Self>, runtime: &Handle) {
        let missing = {
            let mut state = self.state();
            let waits = state.waiting().any(|request| request.runtime() == runtime.id());
            state.file.is_some() && waits && add(&mut state.called, runtime.id())
        };
        if missing {
            self.start_runner(runtime);
        }
    }
}

impl State {
    fn add(&mut self, mut request: Request) {
        self.arrivals += 1;
        request.number = self.arrivals;
        self.lanes[request.purpose as usize].push_back(request);
    }

    fn waiting(&self) -> impl Iterator<Item = &Request> {
        self.lanes.iter().flatten()
    }

    /// The next request to serve, for a runner in `runtime`; `None` when none of that runtime waits.
    fn next(&mut self, runtime: Id) -> Option<Request> {
        loop {
            self.waiting().find(|request| request.runtime() == runtime)?;
            let request = self.lane().and_then(|lane| self.lanes[lane].pop_front())?;
            if request.caller.reply.is_awaited() {
                self.served = Some(request.caller.clone());
                return Some(request);
            }
        }
    }

    /// The lane whose first request is served next.
    fn lane(&mut self) -> Option<usize> {
        let mut filled = (0..LANES).filter(|&lane| !self.lanes[lane].is_empty());
        let first = filled.next()?;
        if first < HOLDERS {
            return Some(first);
        }
        self.others = self.others.wrapping_add(1);
        if !self.others.is_multiple_of(AGED) {
            return Some(first);
        }
        filled.chain([first]).min_by_key(|&lane| self.lanes[lane].front().map(|request| request.number))
    }
}

/// Adds `item` to those that do not hold it yet.
fn add(items: &mut Vec<Id>, item: Id) -> bool {
    let new = !items.contains(&item);
    if new {
        items.push(item);
    }
    new
}

/// Serves the requests from a thread of `runtime`.
struct Runner {
    queue: Arc<Queue>,
    runtime: Id,
    begun: bool,
}

impl Runner {
    fn run(mut self) {
        self.begun = true;
        let file = {
            let mut state = self.queue.state();
            state.called.retain(|&runtime| runtime != self.runtime);
            state.file.take()
        };
        // Another runner has it, and calls for others when it ends.
        let Some(file) = file else { return };
        let mut turn = Turn { queue: Arc::clone(&self.queue), runtime: self.runtime, file: Some(file) };
        drop(self);
        let mut done: Option<Box<dyn Work>> = None;
        while let Some((mut request, file)) = turn.next() {
            if let Some(work) = done.take() {
                work.answer();
            }
            match request.work.run(file) {
                None => done = Some(request.work),
                Some(pause) => later(&turn.queue, request, pause),
            }
        }
        // Whoever has the last answer finds the file put back, and no trace of this runner.
        drop(turn);
        if let Some(work) = done {
            work.answer();
        }
    }
}

/// Puts `request` back after `pause`, without keeping the file meanwhile.
fn later(queue: &Arc<Queue>, request: Request, pause: Duration) {
    let queue = Arc::clone(queue);
    let Caller { runtime, env, .. } = request.caller.clone();
    runtime.spawn(async move {
        env.sleep(pause).await;
        queue.push(request);
    });
}

impl Drop for Runner {
    /// Its runtime shut down before it could begin.
    fn drop(&mut self) {
        if self.begun {
            return;
        }
        // Nothing is started from here: the runtime's own locks may be held.
        let mut lost = Vec::new();
        let mut state = self.queue.state();
        state.called.retain(|&runtime| runtime != self.runtime);
        for lane in &mut state.lanes {
            let (ended, rest) = lane.drain(..).partition(|request| request.runtime() == self.runtime);
            *lane = rest;
            lost.extend::<VecDeque<Request>>(ended);
        }
        drop(state);
        // Their callers hear of it.
        drop(lost);
    }
}

/// The file in the hands of a runner, put back whatever happens.
struct Turn {
    queue: Arc<Queue>,
    runtime: Id,
    file: Option<File>,
}

impl Turn {
    fn next(&mut self) -> Option<(Request, &mut File)> {
        let request = self.queue.state().next(self.runtime)?;
        Some((request, self.file.as_mut()?))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let runtimes: Vec<Handle> = {
            let mut state = self.queue.state();
            state.file = self.file.take();
            state.served = None;
            let waiting: Vec<Handle> =
                state.waiting().map(|request| request.caller.runtime.clone()).collect();
            waiting.into_iter().filter(|runtime| add(&mut state.called, runtime.id())).collect()
        };
        for runtime in &runtimes {
            self.queue.start_runner(runtime);
        }
    }
}

/// Answers the requests of a runtime whose time is over: callers have no timers of their own, which would be lost with
/// their runtime.
struct Lookout {
    queue: Weak<Queue>,
    runtime: Id,
}

/// How often a lookout looks. It ends when it finds nothing that waits.
const LOOK: Duration = Duration::from_millis(250);

impl Lookout {
    async fn watch(mut self, env: Env) {
        let mut pause = LOOK;
        loop {
            env.sleep(pause).await;
            match self.look() {
                Some(left) => pause = left.min(LOOK),
                None => {
                    // Another one may have begun.
                    self.queue = Weak::new();
                    return;
                }
            }
        }
    }

    /// The shortest time that is left to any request; `None` when there is none, and this lookout has ended.
    fn look(&self) -> Option<Duration> {
        let queue = self.queue.upgrade()?;
        if let Ok(runtime) = Handle::try_current() {
            queue.start_missing_runner(&runtime);
        }
        let mut state = queue.state();
        let ours = |caller: &&Caller| caller.runtime.id() == self.runtime && caller.reply.is_awaited();
        let begun = state.served.iter().map(|caller| (caller, true));
        let waiting = state.waiting().map(|request| (&request.caller, false));
        let callers = begun.chain(waiting).filter(|(caller, _)| ours(caller));
        let callers: Vec<_> =
            callers.map(|(caller, begun)| (caller.left(), caller.reply.clone(), begun)).collect();
        if callers.is_empty() {
            state.watched.retain(|&runtime| runtime != self.runtime);
        }
        drop(state);
        for (_, reply, begun) in callers.iter().filter(|(left, ..)| left.is_zero()) {
            reply.give_up(*begun);
        }
        callers.iter().map(|(left, ..)| *left).min()
    }
}

impl Drop for Lookout {
    fn drop(&mut self) {
        if let Some(queue) = self.queue.upgrade() {
            queue.state().watched.retain(|&runtime| runtime != self.runtime);
        }
    }
}

impl fmt::Debug for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}
