//! Examinations of the store by the doctor, which the dashboard starts. Only one runs at a time, and the latest result
//! is kept.

use std::sync::Arc;
use std::time::Duration;

use leasehold::Locker;
use leasehold::clock::timeout;
use leasehold::doctor::{Examination, Report};
use leasehold::view::ms;
use tokio::sync::watch;

use crate::problem::{Problem, ProblemType};

/// How long an examination may take. It usually takes some seconds.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// The examinations of this server's store. They are kept in memory, so a server starts without any.
#[derive(Debug, Default)]
pub(crate) struct Examiner(watch::Sender<Examinations>);

#[derive(Clone, Debug, Default)]
pub(crate) struct Examinations {
    /// The examination in progress.
    pub(crate) running: Option<Request>,
    /// The latest examination that has ended.
    pub(crate) last: Option<Arc<Examined>>,
}

/// A request for an examination.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) by: String,
    /// When it was requested, in microseconds since the Unix epoch.
    pub(crate) at_us: u64,
}

#[derive(Debug)]
pub(crate) struct Examined {
    pub(crate) request: Request,
    pub(crate) took_ms: u64,
    /// `None` if the examination was stopped at the limit or failed.
    pub(crate) report: Option<Report>,
}

impl Examiner {
    pub(crate) fn examinations(&self) -> Examinations {
        self.0.borrow().clone()
    }

    /// Examines the store of `locker` at the request of `by`, and returns when the result is available. If this future
    /// is dropped, the examination continues.
    ///
    /// # Errors
    /// Another examination is running.
    pub(crate) async fn examine(&self, locker: &Locker, by: &str) -> Result<(), Problem> {
        self.examine_within(LIMIT, locker, by).await
    }

    async fn examine_within(&self, limit: Duration, locker: &Locker, by: &str) -> Result<(), Problem> {
        let env = locker.store().env().clone();
        let begun = env.now();
        let request = Request { by: by.to_owned(), at_us: begun.wall_us() };
        let is_first = self.0.send_if_modified(|examinations| {
            let is_first = examinations.running.is_none();
            examinations.running.get_or_insert_with(|| request.clone());
            is_first
        });
        if !is_first {
            return Err(Problem::new(ProblemType::Busy, "the store is already being examined")
                .with_help("the page Store will show the result"));
        }
        let (locker, examinations) = (locker.clone(), self.0.clone());
        // Run it in a separate task, because an examination that is dropped leaves its writes behind.
        let examined = tokio::spawn(async move {
            let clock = env.clock.clone();
            // Use another task, so that a panic does not leave the examination marked as running.
            let report = tokio::spawn(async move {
                timeout(&*clock, limit, locker.examine(&Examination::default())).await
            });
            let report = report.await.ok().flatten();
            let took_ms = ms(env.now().longest_since(begun));
            examinations.send_modify(|examinations| {
                examinations.running = None;
                examinations.last = Some(Arc::new(Examined { request, took_ms, report }));
            });
        });
        examined
            .await
            .map_err(|_| Problem::new(ProblemType::Failed, "the examination ended without a result"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use leasehold::RegisterLeases;
    use leasehold::clock::SystemClock;
    use leasehold::env::Env;
    use leasehold::lease::StoreOptions;

    use super::*;
    use crate::unreliable::Unreliable;

    #[tokio::test]
    async fn one_examination_runs_at_a_time() {
        let (locker, examiner) = (Locker::open("mem:").await.unwrap(), Examiner::default());
        let (first, second) = tokio::join!(examiner.examine(&locker, "a"), examiner.examine(&locker, "b"));
        first.unwrap();
        assert_eq!(second.unwrap_err().word(), "busy");
        let Examinations { running, last } = examiner.examinations();
        let last = last.unwrap();
        assert!(running.is_none() && last.request.by == "a" && last.report.as_ref().unwrap().is_safe());
        examiner.examine(&locker, "b").await.unwrap();
        assert_eq!(examiner.examinations().last.unwrap().request.by, "b");
    }

    #[tokio::test]
    async fn an_examination_that_takes_too_long_is_stopped() {
        let silent = Unreliable::new(Env::system());
        silent.is_down.store(true, Ordering::SeqCst);
        let store = RegisterLeases::new(silent, StoreOptions::default());
        let (locker, examiner) = (Locker::new(Arc::new(store)), Examiner::default());
        examiner.examine_within(Duration::ZERO, &locker, "a").await.unwrap();
        let Examinations { running, last } = examiner.examinations();
        assert!(running.is_none() && last.unwrap().report.is_none());
    }

    #[tokio::test]
    async fn an_examination_ends_without_its_viewer() {
        let (locker, examiner) = (Locker::open("mem:").await.unwrap(), Examiner::default());
        tokio::select! {
            biased;
            _ = examiner.examine(&locker, "a") => panic!("it takes more than one poll"),
            () = std::future::ready(()) => {}
        }
        assert!(examiner.examinations().running.is_some());
        let mut examinations = examiner.0.subscribe();
        let ended = examinations.wait_for(|examinations| examinations.last.is_some());
        timeout(&SystemClock, Duration::from_secs(60), ended).await.unwrap().unwrap();
        assert!(examiner.examinations().running.is_none());
    }
}
