//! Work in the library's own tasks. A caller may keep a future and stop polling it, so nothing that others wait for may
//! depend on that future.

use std::panic::resume_unwind;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::error::{Error, ErrorKind, Result};
use crate::worker::callers_runtime;

/// Runs `work` in a task of the caller's runtime and waits for the result that it sends.
///
/// Dropping the future closes the channel, and the task continues. The task is in the caller's current span.
///
/// # Errors
/// Returns an error outside of any runtime, and if the runtime shuts down.
///
/// # Panics
/// If `work` panics, with the same panic. `work` may call the caller's code.
pub(crate) async fn answer_of<T, F>(work: impl FnOnce(oneshot::Sender<T>) -> F) -> Result<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    answer_in(&callers_runtime()?, work).await.ok_or_else(shut_down)
}

/// Does the same as [`answer_of`], in a task of `runtime`. Returns `None` if the task ends without a result, or if its
/// runtime shuts down.
pub(crate) async fn answer_in<T, F>(runtime: &Handle, work: impl FnOnce(oneshot::Sender<T>) -> F) -> Option<T>
where
    F: Future<Output = ()> + Send + 'static,
{
    let (reply, answer) = oneshot::channel();
    let task = runtime.spawn(work(reply).in_current_span());
    if let Ok(answer) = answer.await {
        return Some(answer);
    }
    match task.await {
        Err(ended) if ended.is_panic() => resume_unwind(ended.into_panic()),
        _ => None,
    }
}

/// Runs `work` in a task and returns its output. Dropping the future also drops `work`, however far it has come.
///
/// # Errors
/// Returns the errors of `work` and of [`answer_of`].
pub(crate) fn run<T, F>(work: F) -> impl Future<Output = Result<T>> + Send
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let output = output_of(work);
    async move { output.await? }
}

/// Does the same as [`run`], for any output.
pub(crate) fn output_of<T, F>(work: F) -> impl Future<Output = Result<T>> + Send
where
    T: Send + 'static,
    F: Future<Output = T> + Send + 'static,
{
    // Boxed, because some work has tens of kilobytes. The caller's future must stay small: builds without optimisation
    // copy it on the stack.
    let work = Box::pin(work);
    answer_of(|mut reply: oneshot::Sender<T>| async move {
        tokio::select! {
            biased;
            () = reply.closed() => {}
            output = work => drop(reply.send(output)),
        }
    })
}

/// Does the same as [`run`], but dropping the future does not stop `work`.
pub(crate) fn finish<T, F>(work: F) -> impl Future<Output = Result<T>> + Send
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    let work = Box::pin(work);
    async move { answer_of(|reply| async move { drop(reply.send(work.await)) }).await? }
}

/// Returns the error for an operation whose runtime has shut down.
fn shut_down() -> Error {
    Error::new(ErrorKind::Unavailable, "the tokio runtime has shut down")
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;
    use std::pin::pin;

    use futures_util::FutureExt;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn work_continues_when_its_caller_stops_polling() {
        let (done, is_done) = oneshot::channel();
        let mut frozen = pin!(run(async move {
            yield_now().await;
            done.send(()).unwrap();
            Ok(7)
        }));
        assert!(frozen.as_mut().now_or_never().is_none());
        is_done.await.unwrap();
        assert_eq!(frozen.await.unwrap(), 7);
    }

    #[tokio::test]
    async fn dropping_the_caller_drops_the_work() {
        let (kept, dropped) = oneshot::channel::<()>();
        let mut given_up = Box::pin(run::<(), _>(async move {
            let _kept = kept;
            std::future::pending().await
        }));
        assert!(given_up.as_mut().now_or_never().is_none());
        drop(given_up);
        assert!(dropped.await.is_err());
    }

    #[tokio::test]
    async fn a_panic_reaches_the_caller() {
        let panics = run::<(), _>(async { panic!("the caller's own code") });
        assert!(AssertUnwindSafe(panics).catch_unwind().await.is_err());
    }
}
