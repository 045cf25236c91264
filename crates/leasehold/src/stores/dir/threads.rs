//! The threads that requests run on, because operations on files block.
//!
//! A caller only awaits its result. It neither holds a thread nor a place that others wait for. The number of threads
//! has a limit, so that a file server that hangs does not take all threads of the program's runtime.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::error::{Fault, StoreError};

/// The maximum number of threads of one store.
const THREADS: usize = 64;

type Work = Box<dyn FnOnce() + Send>;

/// The requests of one store.
#[derive(Clone, Default)]
pub(super) struct Threads(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Work>,
    running: usize,
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Threads").field("running", &self.state().running).finish_non_exhaustive()
    }
}

impl Threads {
    /// Runs `work` on a thread. Cancel safe: work that has begun is finished, and work that has not begun is dropped.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let unstarted = |why: &str| Err(Fault::unavailable(why).not_applied());
        let Ok(runtime) = Handle::try_current() else {
            return unstarted("stores in a directory are used within a tokio runtime");
        };
        let (answer, answered) = oneshot::channel();
        let work = move || {
            if !answer.is_closed() {
                let _ = answer.send(work());
            }
        };
        self.push(&runtime, Box::new(work));
        // Without an answer, the work panicked, or its runtime shut down.
        answered.await.unwrap_or_else(|_| Err(Fault::unavailable("the program is ending").maybe_applied()))
    }

    fn push(&self, runtime: &Handle, work: Work) {
        let mut state = self.state();
        state.waiting.push_back(work);
        if state.running >= THREADS {
            return;
        }
        state.running += 1;
        drop(state);
        let runner = Runner { threads: self.clone(), ended: false };
        // `spawn_blocking` panics if the system cannot create the runtime's first thread for blocking work. The next
        // request then tries again.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(runtime.spawn_blocking(move || runner.run()))));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A thread that runs requests until none waits.
struct Runner {
    threads: Threads,
    ended: bool,
}

impl Runner {
    fn run(mut self) {
        while let Some(work) = self.next() {
            work();
        }
    }

    /// Returns the next request. If there is none, this thread no longer counts, so that the next one starts another.
    fn next(&mut self) -> Option<Work> {
        let mut state = self.threads.state();
        let next = state.waiting.pop_front();
        if next.is_none() {
            state.running -= 1;
            self.ended = true;
        }
        next
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if !self.ended {
            self.threads.state().running -= 1;
        }
    }
}
