//! The queue of requests that wait for the file.
//!
//! Callers add requests to the queue and await the results. Their futures never hold the file or a place in the queue
//! themselves, so a future that is kept but not polled delays no other request.
//!
//! SQLite blocks, so requests run on tokio's threads for blocking work. A runtime with a paused clock then knows that
//! work is in progress. A *runner* serves the requests one at a time, most important first. It serves the requests of
//! all runtimes, and ends when no request of its own runtime waits. So the requests of one runtime do not keep another
//! from shutting down, and an idle queue has no runner.
//!
//! A request has a time limit. Each runtime that has sent requests lately has a *monitor*. This task reports a timeout
//! to the requests whose time limit has passed.
//!
//! One invariant makes sure that every request is served: while the file is idle, a runner has been started in each
//! runtime whose requests wait. A runtime that shuts down, or has no free thread, delays only its own requests.

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

/// The purposes of requests, most important first. A renewal waits for at most one request of a contender or waiter:
/// the one that is being served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    /// A renewal.
    Renew,
    /// A release, and any other request of a holder.
    Release,
    /// Another write: an acquisition or an eviction.
    Write,
    /// A read.
    Read,
    /// A repeated read by a waiter.
    Poll,
}

const LANES: usize = 5;

/// The number of lanes for holders. They always go first.
const HOLDERS: usize = 2;

/// One in this many of the other requests is the oldest one, regardless of its lane.
const AGED: u32 = 8;

impl Purpose {
    pub(super) fn writes(self) -> bool {
        matches!(self, Self::Renew | Self::Release | Self::Write)
    }
}

/// The work on the file, and the caller that waits for its result.
pub(super) trait Work: Send {
    /// Does the work and keeps the result. Returns `Some` if the file was busy. The work must then run again after that
    /// pause.
    fn run(&mut self, file: &mut File) -> Option<Duration>;

    /// Sends the result.
    fn answer(self: Box<Self>);
}

/// The channel to the caller.
pub(super) trait Reply: Send + Sync {
    /// Returns whether the caller still waits.
    fn is_awaited(&self) -> bool;

    /// Reports that there was no result in time. `begun` tells whether the work has begun and may have had an effect.
    fn give_up(&self, begun: bool);
}

/// The caller of a request: its runtime, and how long it waits.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) runtime: Handle,
    pub(super) env: Env,
    /// When the file last showed that it responds: at the start, or when another process changed it.
    pub(super) responded: Arc<Mutex<Moment>>,
    pub(super) limit: Duration,
    pub(super) reply: Arc<dyn Reply>,
}

impl Caller {
    pub(super) fn left(&self) -> Duration {
        let responded = *self.responded.lock().unwrap_or_else(PoisonError::into_inner);
        self.limit.saturating_sub(self.env.now().longest_since(responded))
    }

    /// Starts the time limit again, because the file responds to other processes.
    pub(super) fn start_again(&self) {
        *self.responded.lock().unwrap_or_else(PoisonError::into_inner) = self.env.now();
    }
}

/// A request.
pub(super) struct Request {
    purpose: Purpose,
    /// The position in the order of arrival.
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

/// The file and the requests that wait for it.
pub(super) struct Queue(Mutex<State>);

struct State {
    /// The file; `None` while a runner has it.
    file: Option<File>,
    /// The caller whose request is being served.
    served: Option<Caller>,
    lanes: [VecDeque<Request>; LANES],
    /// The runtimes that have a monitor.
    watched: Vec<Id>,
    /// The runtimes in which a runner was started and has not begun.
    called: Vec<Id>,
    arrivals: u64,
    /// The number of requests that were served for callers other than holders.
    others: u32,
}

impl Closable for Queue {
    /// Closes the file. The next request opens it again.
    fn close_if_idle(&self) {
        let open = self.state().file.as_mut().and_then(File::take_open);
        // Closing takes a while, so the lock is not held during it.
        drop(open);
    }
}

impl Queue {
    /// Creates a queue for the file that `file` returns. `file` is given a reference to the queue.
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

    /// Adds `request` and makes sure that it will be served.
    pub(super) fn push(self: &Arc<Self>, request: Request) {
        let caller = request.caller.clone();
        let runtime = caller.runtime.id();
        let (call, watch) = {
            let mut state = self.state();
            state.add(request);
            (state.file.is_some() && add(&mut state.called, runtime), add(&mut state.watched, runtime))
        };
        // Starts the monitor first, because it starts another runner if this one cannot be started.
        if watch {
            let monitor = Monitor { queue: Arc::downgrade(self), runtime };
            caller.runtime.spawn(monitor.watch(caller.env));
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
        // `spawn_blocking` panics if the system cannot create the runtime's first thread for blocking work.
        let started = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(move || runner.run()))));
        if started.is_err() {
            tracing::warn!("no thread for SQLite's requests; trying again");
            self.state().called.retain(|&called| called != runtime.id());
        }
    }

    /// Starts a runner if requests of `runtime` wait while the file is idle and no runner has been started. This
    /// happens if a runner could not be started before.
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

    /// Returns the next request for a runner in `runtime`. Returns `None` if no request of that runtime waits.
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

    /// Returns the lane whose first request is served next.
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

/// Adds `item` if it is not there yet. Returns whether it was added.
fn add(items: &mut Vec<Id>, item: Id) -> bool {
    let new = !items.contains(&item);
    if new {
        items.push(item);
    }
    new
}

/// Serves the requests on a thread of `runtime`.
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
        // Another runner has the file, and starts other runners when it ends.
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
        // Puts the file back and ends this runner before a caller gets the last result.
        drop(turn);
        if let Some(work) = done {
            work.answer();
        }
    }
}

/// Returns `request` to the queue after `pause`. The file is free during the pause.
fn later(queue: &Arc<Queue>, request: Request, pause: Duration) {
    let queue = Arc::clone(queue);
    let Caller { runtime, env, .. } = request.caller.clone();
    runtime.spawn(async move {
        env.sleep(pause).await;
        queue.push(request);
    });
}

impl Drop for Runner {
    /// Drops the requests of the runtime if it shut down before the runner could begin.
    fn drop(&mut self) {
        if self.begun {
            return;
        }
        // Starts nothing here, because the runtime's own locks may be held.
        let mut lost = Vec::new();
        let mut state = self.queue.state();
        state.called.retain(|&runtime| runtime != self.runtime);
        for lane in &mut state.lanes {
            let (ended, rest) = lane.drain(..).partition(|request| request.runtime() == self.runtime);
            *lane = rest;
            lost.extend::<VecDeque<Request>>(ended);
        }
        drop(state);
        // Dropping the requests notifies their callers.
        drop(lost);
    }
}

/// The file while a runner has it. It is put back when this value is dropped.
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

/// Reports a timeout to the requests of a runtime whose time limit has passed. Callers have no timers of their own,
/// because those would be lost with their runtime.
struct Monitor {
    queue: Weak<Queue>,
    runtime: Id,
}

/// How often a monitor checks. It ends when no request waits.
const CHECK_INTERVAL: Duration = Duration::from_millis(250);

impl Monitor {
    async fn watch(mut self, env: Env) {
        let mut pause = CHECK_INTERVAL;
        loop {
            env.sleep(pause).await;
            match self.check() {
                Some(left) => pause = left.min(CHECK_INTERVAL),
                None => {
                    // Keeps `drop` from removing the entry of another monitor, which may have begun.
                    self.queue = Weak::new();
                    return;
                }
            }
        }
    }

    /// Checks the requests once, and returns the shortest time that any of them has left. Returns `None` if there are
    /// none. This monitor has then ended.
    fn check(&self) -> Option<Duration> {
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

impl Drop for Monitor {
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
