//! Lanes: how many requests of one kind are on the way to a store at once, and which goes next.
//!
//! Ten thousand locks whose renewals fall due together (they were taken together, or the network hung) are not to become a
//! storm, in which all of them are late. Renewals have a lane of their own for each store handle, and the polls of those
//! who wait have another: a renewal waits for renewals only, and a release for nobody.
//!
//! What keeps a request that hangs from starving others: a place is lent for [`LENT`] and no longer, and a renewal waits
//! for a place only so long, and then goes without.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::oneshot;

use crate::clock::{Deadline, timeout};
use crate::env::Env;

/// How many renewals are on the way at once.
pub(crate) const RENEWALS: usize = 64;
/// How many polls are.
pub(crate) const POLLS: usize = 32;

/// A request that takes longer than this is one that hangs: it goes on, and its place goes to another.
const LENT: Duration = Duration::from_secs(1);

/// What part of the time that a lease has left its renewal waits for a place at most. Then it goes without one: a storm is
/// better than a loss.
const PATIENCE: f64 = 0.25;
/// Those who go without a place do not go all at once.
const PATIENCE_SPREAD: f64 = 0.3;

/// One lane.
#[derive(Debug)]
pub(crate) struct Limiter(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    /// Those who wait for a place, by when they are due, and then by their arrival.
    waiting: BTreeMap<Rank, oneshot::Sender<Permit>>,
    arrived: u64,
}

/// Nanoseconds on the boot clock, and the number of the arrival.
type Rank = (u64, u64);

/// The right to be on the way. Dropping it lets the next one go.
#[derive(Debug)]
pub(crate) struct Permit {
    lane: Option<Arc<Limiter>>,
}

impl Limiter {
    /// A lane in which `most` requests are on the way at once.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { free: most, waiting: BTreeMap::new(), arrived: 0 })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place, if one is free.
    fn free_place(self: &Arc<Self>, state: &mut State) -> Option<Permit> {
        state.free = state.free.checked_sub(1)?;
        Some(Permit { lane: Some(self.clone()) })
    }

    /// Waits for a place; whoever's `due` is nearest gets the next one. Cancel safe.
    pub(crate) async fn place(self: &Arc<Self>, due: Deadline) -> Permit {
        let waiting = {
            let mut state = self.state();
            if let Some(place) = self.free_place(&mut state) {
                return place;
            }
            state.arrived += 1;
            let rank = (due.rank(), state.arrived);
            let (sender, place) = oneshot::channel();
            state.waiting.insert(rank, sender);
            Waiting { lane: self, rank, place }
        };
        waiting.wait().await
    }

    /// A place for the renewal of a lease that ends at `deadline`; after a while, leave to go without one. Cancel safe.
    pub(crate) async fn place_for_renewal(self: &Arc<Self>, env: &Env, deadline: Deadline) -> Permit {
        if let Some(place) = self.free_place(&mut self.state()) {
            return place;
        }
        let patience = deadline.remaining(env.now()).mul_f64(PATIENCE);
        let patience = env.random.jittered(patience, PATIENCE_SPREAD);
        let place = timeout(&*env.clock, patience, self.place(deadline)).await;
        place.unwrap_or(Permit { lane: None })
    }

    /// One is on the way no more.
    fn leave(self: &Arc<Self>) {
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
            match next.send(Permit { lane: Some(self.clone()) }) {
                Ok(()) => return,
                // It does not wait any more. The place is still ours to give.
                Err(mut place) => place.lane = None,
            }
        }
    }
}

/// Somebody who waits for a place.
struct Waiting<'a> {
    lane: &'a Limiter,
    rank: Rank,
    place: oneshot::Receiver<Permit>,
}

impl Waiting<'_> {
    async fn wait(mut self) -> Permit {
        // Never closed unsent: the lane lives, and forgets only whom it gives a place, or who goes.
        (&mut self.place).await.unwrap_or(Permit { lane: None })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.lane.state().waiting.remove(&self.rank);
    }
}

impl Permit {
    /// Awaits `request`, with this place for as long as a request that does not hang may take. Cancel safe if `request` is.
    pub(crate) async fn lent_to<F: Future>(self, env: &Env, request: F) -> F::Output {
        let mut request = std::pin::pin!(request);
        if self.lane.is_none() {
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
        if let Some(lane) = self.lane.take() {
            lane.leave();
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
        lane: Arc<Limiter>,
    }

    impl Site {
        /// A lane with one place.
        fn new() -> Self {
            let clock = Arc::new(TestClock::default());
            Self { env: Env::seeded(clock.clone(), 1), clock, lane: Limiter::new(1) }
        }

        fn within(&self, seconds: u32) -> Deadline {
            Deadline::new(self.clock.now(), SECOND * seconds)
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_nearest_deadline_goes_first_and_who_waits_no_more_takes_no_place() {
        let site = Site::new();
        let first = site.lane.place(site.within(1)).await;
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for seconds in [40, 10, 30, 20, 10, 50] {
            let (lane, due, order) = (site.lane.clone(), site.within(seconds), order.clone());
            tasks.push(tokio::spawn(async move {
                let _place = lane.place(due).await;
                order.lock().unwrap().push(seconds);
            }));
            tokio::task::yield_now().await;
        }
        tasks.remove(3).abort();
        tokio::task::yield_now().await;
        assert_eq!(site.lane.state().waiting.len(), 5);
        drop(first);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), [10, 10, 30, 40, 50]);
        assert_eq!(site.lane.state().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_was_given_to_one_who_goes_goes_on_to_the_next() {
        let site = Site::new();
        let first = site.lane.place(site.within(1)).await;
        let mut gone = Box::pin(site.lane.place(site.within(2)));
        let mut next = Box::pin(site.lane.place(site.within(3)));
        assert!((&mut gone).now_or_never().is_none());
        assert!((&mut next).now_or_never().is_none());
        drop(first);
        drop(gone);
        let next = next.await;
        assert_eq!(site.lane.state().free, 0);
        drop(next);
        assert_eq!(site.lane.state().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_hangs_leaves_its_place_to_others() {
        let site = Site::new();
        let place = site.lane.place(site.within(1)).await;
        let env = site.env.clone();
        let hung = tokio::spawn(async move { place.lent_to(&env, std::future::pending::<()>()).await });
        let began = site.clock.now();
        drop(site.lane.place(site.within(1)).await);
        assert!(site.clock.now().longest_since(began) <= LENT + SECOND / 10);
        hung.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_waits_for_a_place_for_a_while_and_then_goes_without() {
        let site = Site::new();
        let taken = site.lane.place(site.within(1)).await;
        for seconds in [60, 20, 1] {
            let deadline = site.within(seconds);
            let place = site.lane.place_for_renewal(&site.env, deadline).await;
            assert!(place.lane.is_none());
            let left = deadline.remaining(site.clock.now()).as_secs_f64() / f64::from(seconds);
            assert!((0.6..0.9).contains(&left), "{left}");
        }
        drop(taken);
        assert_eq!(site.lane.state().free, 1);
    }
}
