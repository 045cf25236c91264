//! Limits the number of concurrent requests of one kind to a store, and decides which request is next.
//!
//! The renewals of ten thousand locks may be due at once, because the locks were acquired together, or because the
//! network hung. If all of them were sent at once, all of them would be late. So the renewals of a store handle have
//! one limiter, and the polls of waiters have another. A renewal waits only for other renewals, and a release waits for
//! nothing.
//!
//! A request that hangs cannot starve others: a permit is lent for at most [`LENT`], and a renewal waits for a permit
//! only for a limited time before it is sent without one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{Deadline, timeout};
use crate::env::Env;

/// The limit of concurrent renewals.
pub(crate) const RENEWALS: usize = 64;
/// The limit of concurrent polls.
pub(crate) const POLLS: usize = 32;

/// A request that takes longer than this counts as hanging. It continues, and its permit goes to another request.
const LENT: Duration = Duration::from_secs(1);

/// The fraction of the remaining lease for which a renewal waits for a permit. After that it is sent without one,
/// because a burst of requests is better than a lost lease.
const PATIENCE: f64 = 0.25;
/// The jitter of that wait, so that renewals without a permit are not all sent at once.
const PATIENCE_SPREAD: f64 = 0.3;

/// A limiter for one kind of request.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// The waiting requests, ordered by deadline and then by arrival.
    waiting: BTreeMap<Rank, oneshot::Sender<Permit>>,
    arrived: u64,
}

/// A deadline in nanoseconds on the boot clock, and the number of the arrival.
type Rank = (u64, u64);

/// The right to send a request. Dropping it admits the next one.
#[derive(Debug)]
pub(crate) struct Permit {
    limiter: Option<Arc<Limiter>>,
}

impl Limiter {
    /// Creates a limiter for `most` concurrent requests.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free: most, waiting: BTreeMap::new(), arrived: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a permit, if one is free.
    fn free_permit(self: &Arc<Self>, state: &mut State) -> Option<Permit> {
        state.free = state.free.checked_sub(1)?;
        Some(Permit { limiter: Some(self.clone()) })
    }

    /// Waits for a permit. The request with the nearest `due` gets the next one. Cancel safe.
    pub(crate) async fn permit(self: &Arc<Self>, due: Deadline) -> Permit {
        let waiting = {
            let mut state = self.state();
            if let Some(permit) = self.free_permit(&mut state) {
                return permit;
            }
            state.arrived += 1;
            let rank = (due.rank(), state.arrived);
            let (sender, permit) = oneshot::channel();
            state.waiting.insert(rank, sender);
            Waiting { limiter: self, rank, permit }
        };
        waiting.wait().await
    }

    /// Waits for a permit to renew a lease that ends at `deadline`. After a while, returns a permit that is not
    /// counted, so that the renewal is sent anyway. Cancel safe.
    pub(crate) async fn permit_for_renewal(self: &Arc<Self>, env: &Env, deadline: Deadline) -> Permit {
        if let Some(permit) = self.free_permit(&mut self.state()) {
            return permit;
        }
        let patience = deadline.remaining(env.now()).mul_f64(PATIENCE);
        let patience = env.random.jittered(patience, PATIENCE_SPREAD);
        let permit = timeout(&*env.clock, patience, self.permit(deadline)).await;
        permit.unwrap_or(Permit { limiter: None })
    }

    /// Passes a permit on to the next request, or returns it.
    fn return_permit(self: &Arc<Self>) {
        loop {
            let next = {
                let mut state = self.state();
                match state.waiting.pop_first() {
                    Some((_, next)) => next,
                    None => {
                        state.free += 1;
                        return;
                    }
                }
            };
            match next.send(Permit { limiter: Some(self.clone()) }) {
                Ok(()) => return,
                // This request no longer waits. Its permit goes to the next one.
                Err(mut permit) => permit.limiter = None,
            }
        }
    }
}

/// A request that waits for a permit.
struct Waiting<'a> {
    limiter: &'a Limiter,
    rank: Rank,
    permit: oneshot::Receiver<Permit>,
}

impl Waiting<'_> {
    async fn wait(mut self) -> Permit {
        // The channel is never closed without a permit, because the limiter is alive and removes only requests that get
        // a permit or are dropped.
        (&mut self.permit).await.unwrap_or(Permit { limiter: None })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.limiter.state().waiting.remove(&self.rank);
    }
}

impl Permit {
    /// Awaits `request`. Gives the permit up early if the request hangs. Cancel safe if `request` is.
    pub(crate) async fn lent_to<F: Future>(self, env: &Env, request: F) -> F::Output {
        let mut request = std::pin::pin!(request);
        if self.limiter.is_none() {
            return request.await;
        }
        match timeout(&*env.clock, LENT, request.as_mut()).await {
            Some(output) => output,
            None => {
                drop(self);
                request.await
            }
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            limiter.return_permit();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;
    use crate::clock::{Clock, TestClock};

    const SECOND: Duration = Duration::from_secs(1);

    struct Site {
        clock: Arc<TestClock>,
        env: Env,
        limiter: Arc<Limiter>,
    }

    impl Site {
        /// Creates a limiter with one permit.
        fn new() -> Self {
            let clock = Arc::new(TestClock::default());
            Self { env: Env::seeded(clock.clone(), 1), clock, limiter: Limiter::new(1) }
        }

        fn within(&self, seconds: u32) -> Deadline {
            Deadline::new(self.clock.now(), SECOND * seconds)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_nearest_deadline_goes_first_and_leavers_are_skipped() {
        let site = Site::new();
        let first = site.limiter.permit(site.within(1)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for seconds in [40, 10, 30, 20, 10, 50] {
            let (limiter, due, order) = (site.limiter.clone(), site.within(seconds), order.clone());
            tasks.push(tokio::spawn(async move {
                let _permit = limiter.permit(due).await;
                order.lock().unwrap().push(seconds);
            }));
            tokio::task::yield_now().await;
        }
        tasks.remove(3).abort();
        tokio::task::yield_now().await;
        assert_eq!(site.limiter.state().waiting.len(), 5);
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [10, 10, 30, 40, 50]);
        assert_eq!(site.limiter.state().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_permit_given_to_a_waiter_that_leaves_goes_to_the_next() {
        let site = Site::new();
        let first = site.limiter.permit(site.within(1)).await;
        let mut gone = Box::pin(site.limiter.permit(site.within(2)));
        let mut next = Box::pin(site.limiter.permit(site.within(3)));
        assert!((&mut gone).now_or_never().is_none());
        assert!((&mut next).now_or_never().is_none());
        drop(first);
        drop(gone);
        let next = next.await;
        assert_eq!(site.limiter.state().free, 0);
        drop(next);
        assert_eq!(site.limiter.state().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_leaves_its_permit_to_others() {
        let site = Site::new();
        let permit = site.limiter.permit(site.within(1)).await;
        let env = site.env.clone();
        let hung = tokio::spawn(async move { permit.lent_to(&env, std::future::pending::<()>()).await });
        let began = site.clock.now();
        drop(site.limiter.permit(site.within(1)).await);
        assert!(site.clock.now().longest_since(began) <= LENT + SECOND / 10);
        hung.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_without_a_permit_goes_ahead_after_a_while() {
        let site = Site::new();
        let taken = site.limiter.permit(site.within(1)).await;
        for seconds in [60, 20, 1] {
            let deadline = site.within(seconds);
            let permit = site.limiter.permit_for_renewal(&site.env, deadline).await;
            assert!(permit.limiter.is_none());
            let left = deadline.remaining(site.clock.now()).as_secs_f64() / f64::from(seconds);
            assert!((0.6..0.9).contains(&left), "{left}");
        }
        drop(taken);
        assert_eq!(site.limiter.state().free, 1);
    }
}
