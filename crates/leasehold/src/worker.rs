//! The thread of a store. It runs everything that several locks share: connections, keep-alives and watches.
//!
//! A caller may keep a future without polling it, and its runtime may end or stop being driven. This must not delay
//! other locks, so a caller's future only awaits the result of a task on this thread.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::clock::{SystemClock, timeout};
use crate::error::{Error, ErrorKind, Fault, StoreError};

/// The stack of the thread. Futures that are built without optimisation need more than the default of 2 MiB.
const STACK: usize = 8 << 20;

/// The time limit for the last requests of a store, which are sent when it is dropped.
const LAST_LIMIT: Duration = Duration::from_secs(2);

/// Returns the runtime of the caller.
///
/// # Errors
/// Returns [`ErrorKind::Invalid`] outside of any runtime. tokio itself would panic, and its message would not name the
/// library.
pub(crate) fn callers_runtime() -> Result<Handle, Fault> {
    Handle::try_current().map_err(|_| {
        Fault::new(ErrorKind::Invalid, "leasehold was called outside of a tokio runtime").with_help(
            "call it in a task of tokio, such as a `main` with `#[tokio::main]`, or use `leasehold::blocking`",
        )
    })
}

/// The leases of a store whose work runs on its own thread.
#[derive(Debug)]
pub(crate) struct OnWorker<L> {
    pub(crate) leases: Arc<L>,
    worker: Worker,
}

impl<L: Send + Sync + 'static> OnWorker<L> {
    /// Starts the thread of `store`, and calls `connect` on a blocking thread of its runtime. `connect` may block,
    /// because DNS is slow and a file may be on a disk that hangs.
    pub(crate) async fn open(
        store: &str,
        connect: impl FnOnce() -> Result<L, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let worker = Worker::start(store)?;
        let leases = worker.run(async { tokio::task::spawn_blocking(connect).await }).await?;
        let leases = leases.map_err(|error| Error::new(ErrorKind::Unavailable, error.to_string()))??;
        Ok(Self { leases: Arc::new(leases), worker })
    }

    /// Starts the thread of `store` for `leases`, which need no connection.
    pub(crate) fn start(store: &str, leases: L) -> Result<Self, Error> {
        Ok(Self { leases: Arc::new(leases), worker: Worker::start(store)? })
    }

    /// Runs the work of `leases` in the caller's runtime, without a thread.
    #[allow(dead_code, reason = "only simulations use it")]
    pub(crate) fn here(leases: L) -> Result<Self, Error> {
        Ok(Self { leases: Arc::new(leases), worker: Worker { runtime: callers_runtime()?, stop: None } })
    }

    /// Spawns `work` on the thread.
    pub(crate) fn run<T: Send + 'static, F>(&self, work: impl FnOnce(Arc<L>) -> F) -> Job<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        self.worker.run(work(self.leases.clone()))
    }

    /// Runs `last` on the thread, for at most [`LAST_LIMIT`], and then ends the thread.
    pub(crate) fn finish(&mut self, last: impl Future<Output = ()> + Send + 'static) {
        self.worker.finish(last);
    }
}

/// A thread with its own runtime. It ends when this value is dropped.
struct Worker {
    runtime: Handle,
    stop: Option<oneshot::Sender<BoxFuture<'static, ()>>>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker").finish_non_exhaustive()
    }
}

impl Worker {
    /// Starts the thread and names it after `store`.
    ///
    /// # Errors
    /// Unavailable if the system cannot create the thread or its runtime.
    fn start(store: &str) -> Result<Self, Error> {
        let no_thread = |error: std::io::Error| {
            Error::new(
                ErrorKind::Unavailable,
                format!("no thread for requests to {store} could be started: {error}"),
            )
            .with_help("raise the limits on threads and open files of this process")
        };
        let runtime = Builder::new_current_thread().enable_all().build().map_err(no_thread)?;
        let (handle, (stop, stopped)) =
            (runtime.handle().clone(), oneshot::channel::<BoxFuture<'static, ()>>());
        let run = move || {
            if let Ok(last) = runtime.block_on(stopped) {
                runtime.block_on(timeout(&SystemClock, LAST_LIMIT, last));
            }
            // Does not wait for a name resolution that is in progress.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(format!("leasehold-{store}")).stack_size(STACK);
        thread.spawn(run).map_err(no_thread)?;
        Ok(Self { runtime: handle, stop: Some(stop) })
    }

    /// Spawns `work` on the thread. The work is aborted when its [`Job`] is dropped.
    fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Job<T> {
        Job(self.runtime.spawn(work))
    }

    /// Runs `last` on the thread, and then ends the thread.
    fn finish(&mut self, last: impl Future<Output = ()> + Send + 'static) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(Box::pin(last));
        }
    }
}

/// Work on the thread. This future completes with the result of the work. Dropping it aborts the work.
#[derive(Debug)]
pub(crate) struct Job<T>(JoinHandle<T>);

impl<T> Future for Job<T> {
    type Output = Result<T, StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0).poll(context).map_err(|error| {
            Fault::unavailable(format!("a request to the store ended without a response: {error}"))
                .maybe_applied()
        })
    }
}

impl<T> Drop for Job<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Runs `work` in a separate task, which goes on if this future is dropped. For what the next request can use, if this
/// one is abandoned.
pub(crate) async fn detached<T: Send + 'static>(
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    tokio::spawn(work).await.unwrap_or_else(|_| Err(program_ends().not_applied()))
}

/// Returns the fault of work whose runtime shuts down.
pub(crate) fn program_ends() -> Fault {
    Fault::unavailable("the program is ending")
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        Builder::new_current_thread().enable_all().build().unwrap()
    }

    #[test]
    fn work_continues_while_its_result_is_not_polled() {
        let worker = Worker::start("test").unwrap();
        let (go, may_go) = oneshot::channel::<()>();
        let (done, is_done) = oneshot::channel();
        let mut job = worker.run(async move {
            may_go.await.unwrap();
            done.send(()).unwrap();
            7
        });
        assert!((&mut job).now_or_never().is_none());
        go.send(()).unwrap();
        runtime().block_on(is_done).unwrap();
        assert_eq!(runtime().block_on(job).unwrap(), 7);
    }

    #[test]
    fn work_ends_when_its_result_is_no_longer_awaited() {
        let worker = Worker::start("test").unwrap();
        let (held, ended) = oneshot::channel::<()>();
        drop(worker.run(async move {
            std::future::pending::<()>().await;
            drop(held);
        }));
        assert!(runtime().block_on(ended).is_err());
    }

    #[test]
    fn the_thread_ends_with_its_store_after_the_last_requests() {
        let mut worker = Worker::start("test").unwrap();
        let (held, ended) = oneshot::channel::<()>();
        let job = worker.run(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        let (sent, is_sent) = oneshot::channel();
        worker.finish(async move { sent.send(()).unwrap() });
        drop(worker);
        runtime().block_on(is_sent).unwrap();
        assert!(runtime().block_on(ended).is_err());
        assert!(runtime().block_on(job).is_err(), "its jobs end with an error");
    }

    #[test]
    fn a_panic_of_one_job_is_an_error_and_others_go_on() {
        let worker = Worker::start("test").unwrap();
        let error = runtime().block_on(worker.run::<()>(async { panic!("a bug") })).unwrap_err();
        assert!(error.is_transient(), "{error:?}");
        assert_eq!(runtime().block_on(worker.run(async { 7 })).unwrap(), 7);
    }
}
