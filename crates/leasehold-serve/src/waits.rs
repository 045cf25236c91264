//! Acquisitions that wait, each in a separate task, under the id of its claim.
//!
//! The place in the line therefore outlasts a request, and a client that repeats its request after its `wait` keeps the
//! place. A withdrawal ends the acquisition even if the connection of its client is still open, as behind a proxy that
//! does not report that the client is gone.

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leasehold::clock::Deadline;
use leasehold::lease::{HolderInfo, Id};
use leasehold::{LockName, Ticket};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;

type Key = (LockName, Id);

/// The hold that was acquired, or why there is none.
pub(crate) type Outcome = Result<(Ticket, Deadline), Problem>;

/// The progress of an acquisition.
#[derive(Debug)]
enum Progress {
    /// It waits for this holder, if the holder is known.
    Waits(Option<HolderInfo>),
    Ended(Outcome),
}

#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Running>);

type Running = HashMap<Key, Acquisition>;

#[derive(Debug)]
struct Acquisition {
    /// How many requests wait for it. The channel notifies them when another one joins.
    requests: watch::Sender<usize>,
    /// This channel distinguishes it from a later acquisition under the same id.
    progress: watch::Receiver<Progress>,
    /// Ends the acquisition. A request to the store that is under way may still be granted. Until it has ended, a
    /// withdrawal finds this acquisition.
    given_up: CancellationToken,
}

/// Reports the holder that an acquisition waits for. The acquisition keeps it until it has ended.
#[derive(Clone, Debug)]
pub(crate) struct Reporter(Arc<watch::Sender<Progress>>);

/// An acquisition that was withdrawn. A request to the store may still be under way.
#[derive(Debug)]
pub(crate) struct Withdrawn(watch::Receiver<Progress>);

/// A request that waits for an acquisition. When the last one is dropped, the acquisition ends.
#[derive(Debug)]
pub(crate) struct Waiter {
    waits: Arc<Waits>,
    key: Key,
    requests: watch::Receiver<usize>,
    progress: watch::Receiver<Progress>,
}

impl Reporter {
    pub(crate) fn report(&self, held: &HolderInfo) {
        self.0.send_replace(Progress::Waits(Some(held.clone())));
    }
}

/// Removes the acquisition that has this `progress` channel.
fn remove(running: &mut Running, key: &Key, progress: &watch::Receiver<Progress>) -> Option<Acquisition> {
    running.get(key).filter(|acquisition| acquisition.progress.same_channel(progress))?;
    running.remove(key)
}

impl Waits {
    fn running(&self) -> MutexGuard<'_, Running> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a waiter for the acquisition of `name` under `id`, if it is running.
    pub(crate) fn find(self: &Arc<Self>, name: &LockName, id: Id) -> Option<Waiter> {
        self.join_running(&mut self.running(), (name.clone(), id))
    }

    fn join_running(self: &Arc<Self>, running: &mut Running, key: Key) -> Option<Waiter> {
        let acquisition = running.get(&key).filter(|acquisition| !acquisition.given_up.is_cancelled())?;
        acquisition.requests.send_modify(|requests| *requests += 1);
        let (requests, progress) = (acquisition.requests.subscribe(), acquisition.progress.clone());
        Some(Waiter { waits: self.clone(), key, requests, progress })
    }

    /// Returns a waiter for the acquisition of `name` under `id`. Starts `acquisition` if none is running.
    pub(crate) fn join<F>(
        self: &Arc<Self>,
        name: &LockName,
        id: Id,
        acquisition: impl FnOnce(Reporter) -> F,
    ) -> Waiter
    where
        F: Future<Output = Outcome> + Send + 'static,
    {
        let (key, mut running) = ((name.clone(), id), self.running());
        if let Some(waiter) = self.join_running(&mut running, key.clone()) {
            return waiter;
        }
        let (sender, progress) = watch::channel(Progress::Waits(None));
        let reporter = Reporter(Arc::new(sender));
        let (acquisition, waits) = (acquisition(reporter.clone()), self.clone());
        let (of_task, its_progress) = (key.clone(), progress.clone());
        let given_up = CancellationToken::new();
        let is_given_up = given_up.clone();
        tokio::spawn(async move {
            let outcome = is_given_up.run_until_cancelled(acquisition).await;
            match outcome {
                Some(outcome) => {
                    // A later request under this id finds the grant in the store.
                    remove(&mut waits.running(), &of_task, &its_progress);
                    reporter.0.send_replace(Progress::Ended(outcome));
                }
                None => {
                    drop(reporter);
                    Withdrawn(its_progress.clone()).ended().await;
                    remove(&mut waits.running(), &of_task, &its_progress);
                }
            }
        });
        let (sender, requests) = watch::channel(1);
        let acquisition = Acquisition { requests: sender, progress: progress.clone(), given_up };
        running.insert(key.clone(), acquisition);
        Waiter { waits: self.clone(), key, requests, progress }
    }

    /// Ends the acquisition of `name` under `id`, and returns it if it was running or one of its requests is under way.
    pub(crate) fn withdraw(&self, name: &LockName, id: Id) -> Option<Withdrawn> {
        let acquisition = self.running().remove(&(name.clone(), id))?;
        acquisition.given_up.cancel();
        Some(Withdrawn(acquisition.progress))
    }
}

impl Withdrawn {
    /// Completes when the acquisition has no request under way any more. The library lets a request end even if no one
    /// waits for the acquisition, and drops the last [`Reporter`] afterwards.
    pub(crate) async fn ended(mut self) {
        // An error means that no reporter is left.
        while self.0.changed().await.is_ok() {}
    }
}

impl Waiter {
    /// Completes when the acquisition ends. Returns `None` if it was withdrawn. Cancel safe.
    pub(crate) async fn outcome(&mut self) -> Option<Outcome> {
        let ended = self.progress.wait_for(|progress| matches!(progress, Progress::Ended(_))).await.ok()?;
        match &*ended {
            Progress::Ended(outcome) => Some(outcome.clone()),
            Progress::Waits(_) => None,
        }
    }

    /// Completes when the store has responded, with the outcome or the holder. Returns `None` if the acquisition was
    /// withdrawn. Cancel safe.
    pub(crate) async fn first_response(&mut self) -> Option<Result<Outcome, HolderInfo>> {
        let is_known = |progress: &Progress| !matches!(progress, Progress::Waits(None));
        match &*self.progress.wait_for(is_known).await.ok()? {
            Progress::Ended(outcome) => Some(Ok(outcome.clone())),
            Progress::Waits(held) => Some(Err(held.clone().unwrap_or_default())),
        }
    }

    /// Completes when a later request has joined. Cancel safe.
    pub(crate) async fn another_joined(&mut self) {
        // An error means that the acquisition has ended.
        let _ = self.requests.changed().await;
    }

    /// Returns the holder that the acquisition waits for, if it is known.
    pub(crate) fn holder(&self) -> Option<HolderInfo> {
        match &*self.progress.borrow() {
            Progress::Waits(held) => held.clone(),
            Progress::Ended(_) => None,
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let running = self.waits.running();
        let ours = running.get(&self.key).filter(|ours| ours.progress.same_channel(&self.progress));
        let Some(acquisition) = ours else { return };
        acquisition.requests.send_if_modified(|requests| {
            *requests -= 1;
            false
        });
        if *acquisition.requests.borrow() == 0 {
            acquisition.given_up.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures_util::FutureExt as _;

    use super::*;

    fn name() -> LockName {
        LockName::new("a").unwrap()
    }

    fn id(digit: &str) -> Id {
        digit.repeat(32).parse().unwrap()
    }

    /// Returns an acquisition that waits forever and drops `alive` when it ends.
    fn waits_with(alive: &Arc<()>) -> impl Future<Output = Outcome> + Send + 'static {
        let alive = alive.clone();
        async move {
            let _alive = alive;
            pending().await
        }
    }

    async fn ended(alive: &Arc<()>) {
        while Arc::strong_count(alive) > 1 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test]
    async fn requests_under_one_id_wait_for_one_acquisition() {
        let (waits, alive) = (Arc::new(Waits::default()), Arc::new(()));
        assert!(waits.find(&name(), id("a")).is_none());
        let mut first = waits.join(&name(), id("a"), |_| waits_with(&alive));
        let second = waits.join(&name(), id("a"), |_| async { panic!("it runs already") });
        first.another_joined().await;
        drop(first);
        assert_eq!(Arc::strong_count(&alive), 2, "a request still waits");
        drop(second);
        ended(&alive).await;
        assert!(waits.running().is_empty());
    }

    #[tokio::test]
    async fn every_request_receives_the_outcome() {
        let waits = Arc::new(Waits::default());
        let mut held = HolderInfo::default();
        held.ahead = Some(2);
        let (go, wait) = tokio::sync::oneshot::channel();
        let mut first = waits.join(&name(), id("a"), |reporter| async move {
            reporter.report(&held);
            wait.await.unwrap();
            Err(Problem::invalid("no"))
        });
        let mut second = waits.find(&name(), id("a")).unwrap();
        let Some(Err(held)) = first.first_response().await else { panic!("it has an outcome") };
        assert_eq!(held.ahead, Some(2));
        assert_eq!(second.holder().and_then(|held| held.ahead), Some(2));
        go.send(()).unwrap();
        for waiter in [&mut first, &mut second] {
            assert_eq!(waiter.outcome().await.unwrap().unwrap_err().word(), "invalid");
        }
        // Start another acquisition under the same id.
        let alive = Arc::new(());
        let next = waits.join(&name(), id("a"), |_| waits_with(&alive));
        drop((first, second));
        assert_eq!(Arc::strong_count(&alive), 2, "the requests of the first one do not count");
        drop(next);
        ended(&alive).await;
    }

    #[tokio::test]
    async fn a_withdrawal_ends_the_acquisition_of_its_claim_alone() {
        let (waits, alive, other) = (Arc::new(Waits::default()), Arc::new(()), Arc::new(()));
        let mut withdrawn = waits.join(&name(), id("a"), |_| waits_with(&alive));
        let _stays = waits.join(&name(), id("b"), |_| waits_with(&other));
        assert!(waits.withdraw(&name(), id("c")).is_none());
        waits.withdraw(&name(), id("a")).unwrap().ended().await;
        assert!(withdrawn.outcome().await.is_none());
        ended(&alive).await;
        assert_eq!(Arc::strong_count(&other), 2);
    }

    /// A client that gives up closes its connection, and then withdraws its claim.
    #[tokio::test]
    async fn a_withdrawal_finds_an_acquisition_without_a_client() {
        let (waits, mut under_way) = (Arc::new(Waits::default()), None);
        let waiter = waits.join(&name(), id("a"), |reporter| {
            under_way = Some(reporter);
            pending()
        });
        drop(waiter);
        assert!(waits.find(&name(), id("a")).is_none(), "no later request can join it");
        let withdrawn = waits.withdraw(&name(), id("a")).expect("its request is under way");
        let mut ended = Box::pin(withdrawn.ended());
        assert!(ended.as_mut().now_or_never().is_none());
        drop(under_way);
        ended.await;
        assert!(waits.withdraw(&name(), id("a")).is_none());
    }
}
