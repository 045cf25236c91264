//! An errand: work that whoever waits for its answer does itself, and that goes on in the background when they do not wait.
//!
//! Most acquisitions and releases are awaited to their end. In a task of its own each would wake another thread of the runtime,
//! twice, which takes longer than all else that a lock does here.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Completes with what the work answers, or the task that the work has left the answer to; with nothing when there will be none.
/// What is left of the work when this is dropped, a request on its way to the store perhaps, is done by a task: no work is ever
/// given up half done but with its runtime.
pub(crate) struct Errand<T> {
    work: Option<Work>,
    answer: oneshot::Receiver<T>,
    /// The work has its timers and connections there, whoever waits.
    runtime: Handle,
}

impl<T> Errand<T> {
    /// `work`, which sends `answer`, in `runtime`.
    pub(crate) fn new(
        runtime: Handle,
        answer: oneshot::Receiver<T>,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Self {
        Self { work: Some(Box::pin(work)), answer, runtime }
    }
}

impl<T> Future for Errand<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { work, answer, runtime } = self.get_mut();
        // Taken out: work that panics, in what the caller is told by, is dropped here, and not polled again.
        if let Some(mut unfinished) = work.take() {
            let _in_its_runtime = runtime.enter();
            if unfinished.as_mut().poll(context).is_pending() {
                *work = Some(unfinished);
            }
        }
        // As long as there is work, nobody else sends it. Were it awaited, each would wake its own task.
        match answer.try_recv() {
            Ok(answer) => Poll::Ready(Some(answer)),
            Err(TryRecvError::Empty) if work.is_some() => Poll::Pending,
            // By a task, if the work has left it to one.
            Err(TryRecvError::Empty) => Pin::new(answer).poll(context).map(Result::ok),
            Err(TryRecvError::Closed) => Poll::Ready(None),
        }
    }
}

impl<T> Drop for Errand<T> {
    fn drop(&mut self) {
        // First: the work hears that nobody waits.
        self.answer.close();
        if let Some(work) = self.work.take() {
            self.runtime.spawn(work);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::AssertUnwindSafe;

    use futures_util::FutureExt;
    use tokio::task::yield_now;

    use super::*;

    fn tasks() -> usize {
        Handle::current().metrics().num_alive_tasks()
    }

    #[tokio::test]
    async fn an_errand_is_run_by_who_waits_for_it_and_what_is_left_of_it_by_a_task() {
        for answered_first in [false, true] {
            let (go_on, going_on) = oneshot::channel::<()>();
            let (done, is_done) = oneshot::channel();
            let (reply, answer) = oneshot::channel();
            let mut errand = Errand::new(Handle::current(), answer, async move {
                let mut reply = Some(reply);
                if answered_first {
                    reply.take().unwrap().send(7).unwrap();
                }
                going_on.await.unwrap();
                let nobody_waits = reply.is_none_or(|reply| reply.is_closed());
                done.send(nobody_waits).unwrap();
            });
            assert_eq!((&mut errand).now_or_never(), answered_first.then_some(Some(7)));
            yield_now().await;
            assert_eq!(tasks(), 0);
            drop(errand);
            assert_eq!(tasks(), 1);
            go_on.send(()).unwrap();
            assert!(is_done.await.unwrap(), "it hears that nobody waits");
        }
    }

    #[tokio::test]
    async fn work_that_is_done_leaves_nothing_behind_nor_does_work_that_has_panicked() {
        let (reply, answer) = oneshot::channel();
        assert_eq!(Errand::new(Handle::current(), answer, async { reply.send(7).unwrap() }).await, Some(7));
        let (reply, answer) = oneshot::channel::<()>();
        let panics = async move {
            let _reply = reply;
            yield_now().await;
            panic!("the caller's own code");
        };
        assert!(
            AssertUnwindSafe(Errand::new(Handle::current(), answer, panics)).catch_unwind().await.is_err()
        );
        assert_eq!(tasks(), 0);
    }

    #[tokio::test]
    async fn work_that_leaves_the_answer_to_a_task_is_answered_by_that() {
        let (reply, answer) = oneshot::channel();
        let work = async move {
            tokio::spawn(async move {
                yield_now().await;
                reply.send(7).unwrap();
            });
        };
        assert_eq!(Errand::new(Handle::current(), answer, work).await, Some(7));
    }

    /// Its timers and connections belong there.
    #[test]
    fn an_errand_is_in_its_runtime_whoever_polls_it() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let (reply, answer) = oneshot::channel();
        let work = async { reply.send(Handle::current().id()).unwrap() };
        let errand = Errand::new(runtime.handle().clone(), answer, work);
        assert_eq!(errand.now_or_never().unwrap(), Some(runtime.handle().id()));
    }
}
