//! Runs one probe for all callers that wait for it. It runs in a separate task, so that a caller that is not
//! polled does not delay the others.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::runtime::{Handle, Id as RuntimeId};
use tokio::sync::watch;

use super::first_use::{LIMIT, prove};
use super::front_ends::Fronts;
use super::marker::Subject;
use crate::clock::timeout;
use crate::env::Env;
use crate::error::{Fault, StoreError};
use crate::register::Register;

/// Whether a store was found to enforce its preconditions.
#[derive(Default)]
pub(crate) struct Trust {
    passed: Arc<AtomicBool>,
    /// One run for each runtime. A task makes progress only while its runtime runs, and callers in another runtime must
    /// not depend on that.
    running: Mutex<Vec<Run>>,
}

struct Run {
    runtime: RuntimeId,
    outcome: Outcome,
}

/// `None` until the outcome is known.
type Outcome = watch::Receiver<Option<Result<(), StoreError>>>;

impl Trust {
    /// Waits for the running probe, or starts `probe` with the time limit `limit`. A probe that passed is not repeated
    /// in this process. If it fails, each waiting caller gets the error, and the next caller starts another
    /// one.
    ///
    /// Cancel safe: the probe continues.
    pub(crate) async fn settle(
        &self,
        env: &Env,
        limit: Duration,
        probe: impl FnOnce() -> BoxFuture<'static, Result<(), StoreError>> + Send,
    ) -> Result<(), StoreError> {
        if self.passed.load(Ordering::Acquire) {
            return Ok(());
        }
        match Handle::try_current() {
            Ok(runtime) => {
                let mut outcome = self.joined(&runtime, env, limit, probe);
                let known = outcome.wait_for(Option::is_some).await;
                known.ok().and_then(|known| copied(&known)).unwrap_or_else(|| Err(abandoned()))
            }
            // Without a runtime, no task can be spawned, so this caller probes the store alone.
            Err(_) => {
                within(env, limit, probe()).await.inspect(|()| self.passed.store(true, Ordering::Release))
            }
        }
    }

    /// Proves the `subjects` of `register` for all callers, unless it is known to be safe.
    ///
    /// Cancel safe: the probe continues.
    pub(crate) async fn prove(
        &self,
        register: &Arc<dyn Register>,
        subjects: &'static [Subject],
    ) -> Result<(), StoreError> {
        if register.capabilities().trusted {
            return Ok(());
        }
        let (env, register) = (register.env(), register.clone());
        let probes = || async move {
            for subject in subjects {
                prove(&Fronts::only(&*register), *subject).await?;
            }
            Ok(())
        };
        self.settle(env, LIMIT * subjects.len() as u32, || probes().boxed()).await
    }

    /// Marks the probe as passed.
    #[cfg(all(test, feature = "dynamodb"))]
    pub(crate) fn pass(&self) {
        self.passed.store(true, Ordering::Release);
    }

    /// Returns the probe that runs in `runtime`, or starts one.
    fn joined(
        &self,
        runtime: &Handle,
        env: &Env,
        limit: Duration,
        probe: impl FnOnce() -> BoxFuture<'static, Result<(), StoreError>>,
    ) -> Outcome {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        running.retain(|run| is_running(&run.outcome));
        if let Some(run) = running.iter().find(|run| run.runtime == runtime.id()) {
            return run.outcome.clone();
        }
        let (tell, outcome) = watch::channel(None);
        let (env, probe, passed) = (env.clone(), probe(), self.passed.clone());
        runtime.spawn(async move {
            // Also recorded if all callers have gone.
            let found = within(&env, limit, probe).await.inspect(|()| passed.store(true, Ordering::Release));
            tell.send_replace(Some(found));
        });
        running.push(Run { runtime: runtime.id(), outcome: outcome.clone() });
        outcome
    }
}

impl fmt::Debug for Trust {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trust").field("passed", &self.passed).finish_non_exhaustive()
    }
}

/// Returns whether the task still exists and has not reported an outcome.
fn is_running(outcome: &Outcome) -> bool {
    outcome.borrow().is_none() && outcome.has_changed().is_ok()
}

/// Runs `probe` for at most `limit`.
pub(crate) async fn within(
    env: &Env,
    limit: Duration,
    probe: impl Future<Output = Result<(), StoreError>>,
) -> Result<(), StoreError> {
    match timeout(&*env.clock, limit, probe).await {
        Some(outcome) => outcome,
        None => {
            let message = format!("the store's preconditions could not be checked within {limit:?}");
            Err(Fault::unavailable(message).not_applied())
        }
    }
}

fn copied(outcome: &Option<Result<(), StoreError>>) -> Option<Result<(), StoreError>> {
    outcome.as_ref().map(|outcome| {
        outcome.as_ref().copied().map_err(|error| {
            let fault = error.fault();
            let mut copy = Fault::new(fault.kind, fault.message.clone());
            (copy.help, copy.retry_after) = (fault.help.clone(), fault.retry_after);
            // Only the probe's own objects were written. No request of the caller was sent.
            copy.not_applied()
        })
    })
}

fn abandoned() -> StoreError {
    Fault::unavailable("the check of the store's preconditions was interrupted: its runtime has ended")
        .not_applied()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use futures_util::future::join_all;
    use tokio::sync::Notify;

    use super::*;
    use crate::error::ErrorKind;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Counts its runs, and ends when the test signals it.
    #[derive(Clone, Default)]
    struct TestProbe {
        started: Arc<AtomicUsize>,
        end: Arc<Notify>,
        refuses: bool,
    }

    impl TestProbe {
        async fn settle(&self, trust: &Trust) -> Result<(), StoreError> {
            let (env, this) = (Env::system(), self.clone());
            let probe = async move {
                this.started.fetch_add(1, Ordering::SeqCst);
                this.end.notified().await;
                match this.refuses {
                    true => Err(Fault::new(ErrorKind::Unsupported, "two won").not_applied()),
                    false => Ok(()),
                }
            };
            trust.settle(&env, LIMIT, || probe.boxed()).await
        }

        fn started(&self) -> usize {
            self.started.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_caller_that_is_not_polled_delays_no_other() {
        for polls in 0..6 {
            let (trust, probe) = (Trust::default(), TestProbe::default());
            let mut frozen = Box::pin(probe.settle(&trust));
            for _ in 0..polls {
                assert!(frozen.as_mut().now_or_never().is_none());
                tokio::task::yield_now().await;
            }
            probe.end.notify_one();
            probe.settle(&trust).await.unwrap();
            assert_eq!(probe.started(), 1, "{polls}");
            frozen.await.unwrap();
        }
    }

    #[tokio::test]
    async fn a_caller_that_is_dropped_ends_no_probe() {
        let (trust, probe) = (Trust::default(), TestProbe::default());
        assert!(probe.settle(&trust).now_or_never().is_none());
        tokio::task::yield_now().await;
        probe.end.notify_one();
        probe.settle(&trust).await.unwrap();
        assert_eq!(probe.started(), 1);
    }

    #[tokio::test]
    async fn a_pass_counts_although_all_callers_have_gone() {
        let (trust, probe) = (Trust::default(), TestProbe::default());
        assert!(probe.settle(&trust).now_or_never().is_none());
        probe.end.notify_one();
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!is_running(&trust.running.lock().unwrap()[0].outcome));
        probe.end.notify_one();
        probe.settle(&trust).await.unwrap();
        assert_eq!(probe.started(), 1);
    }

    #[tokio::test]
    async fn all_waiters_share_one_outcome_and_a_failure_is_retried() {
        let trust = Trust::default();
        let bad = TestProbe { refuses: true, ..TestProbe::default() };
        bad.end.notify_one();
        for outcome in join_all((0..4).map(|_| bad.settle(&trust))).await {
            let error = outcome.unwrap_err();
            assert_eq!((error.fault().kind, error.to_string().as_str()), (ErrorKind::Unsupported, "two won"));
        }
        assert_eq!(bad.started(), 1);
        let good = TestProbe::default();
        good.end.notify_one();
        join_all((0..4).map(|_| good.settle(&trust)))
            .await
            .into_iter()
            .collect::<Result<Vec<_>, _>>()
            .unwrap();
        good.settle(&trust).await.unwrap();
        assert_eq!(good.started(), 1, "what passed is not probed again");
    }

    /// The runtime of the first caller no longer runs, or has shut down.
    #[test]
    fn a_runtime_that_stands_still_or_ends_delays_no_other() {
        let runtime = || tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        for ends in [false, true] {
            let (trust, probe) = (Trust::default(), TestProbe::default());
            let first = runtime();
            first.block_on(async {
                assert!(probe.settle(&trust).now_or_never().is_none());
                tokio::task::yield_now().await;
            });
            assert_eq!(probe.started(), 1);
            let first = (!ends).then_some(first);
            runtime().block_on(async {
                let mut next = Box::pin(probe.settle(&trust));
                assert!(next.as_mut().now_or_never().is_none());
                tokio::task::yield_now().await;
                probe.end.notify_waiters();
                next.await.unwrap();
            });
            assert_eq!(probe.started(), 2);
            drop(first);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_probe_has_its_own_time_limit() {
        let (trust, env) = (Trust::default(), Env::seeded(Arc::new(crate::clock::TestClock::default()), 1));
        let error = trust.settle(&env, LIMIT, || std::future::pending().boxed()).await.unwrap_err();
        assert!(error.is_transient() && error.to_string().contains("within 60s"), "{error:?}");
    }
}
