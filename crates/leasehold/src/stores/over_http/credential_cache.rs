//! A cache of credentials. It loads them again before they expire and after the store has refused them.
//!
//! A slow load runs in a separate task, so it continues when the request that started it is abandoned. A request for a
//! short lease is abandoned soon.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{self, BoxFuture, FutureExt, Shared};

use crate::env::Env;

/// The time limit of one load. It is below the time limit of a claim (15 s), so that its error is reported in time.
pub(in crate::stores) const LOAD_LIMIT: Duration = Duration::from_secs(12);

/// A proof of the sender's identity for one request, and the number of the load that it comes from.
pub(in crate::stores) struct Signed<P> {
    pub(in crate::stores) proof: P,
    pub(in crate::stores) load: u64,
}

/// Why there are no credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::stores) struct NotLoaded {
    pub(in crate::stores) detail: String,
    /// Whether the store has accepted credentials before.
    pub(in crate::stores) before: bool,
}

/// A load, in progress or ended, that any number of requests can await.
pub(in crate::stores) type Load<P> = Shared<BoxFuture<'static, Result<Loaded<P>, String>>>;

/// The result of a load. Times are in microseconds since the Unix epoch on the wall clock, because access tokens expire
/// by it.
#[derive(Clone)]
pub(in crate::stores) struct Loaded<P> {
    pub(in crate::stores) proof: P,
    /// The time from which a request starts the next load. This proof is still used during that load.
    pub(in crate::stores) renew_us: u64,
    /// The time from which this proof is no longer used.
    pub(in crate::stores) until_us: u64,
}

impl<P> Loaded<P> {
    /// Returns a proof that does not expire.
    pub(in crate::stores) fn forever(proof: P) -> Self {
        Self { proof, renew_us: u64::MAX, until_us: u64::MAX }
    }
}

/// Returns a load that has ended with `loaded`.
pub(in crate::stores) fn ended<P: Clone + Send + Sync + 'static>(
    loaded: Result<Loaded<P>, String>,
) -> Load<P> {
    future::ready(loaded).boxed().shared()
}

/// Runs `load` in a separate task.
pub(in crate::stores) fn spawned<P: Clone + Send + Sync + 'static>(
    load: impl Future<Output = Result<Loaded<P>, String>> + Send + 'static,
) -> Load<P> {
    let task = tokio::spawn(load);
    task.map(|ended| ended.unwrap_or_else(|_| Err("the runtime ended".to_owned()))).boxed().shared()
}

/// The credentials of one store, and their loads.
pub(in crate::stores) struct Loads<P> {
    env: Env,
    state: Mutex<State<P>>,
}

struct State<P> {
    loaded: Option<Loaded<P>>,
    loading: Option<Load<P>>,
    /// The number of successful loads.
    loads: u64,
    /// Whether the store has accepted a proof.
    accepted: bool,
}

impl<P: Clone + Send + Sync + 'static> State<P> {
    /// Takes the result of the load if it has ended. Returns the reason if it failed.
    fn collect(&mut self) -> Option<String> {
        // Not `peek`, because a load is only known to have ended when it is polled, and no request may await it.
        let ended = self.loading.clone()?.now_or_never()?;
        self.loading = None;
        match ended {
            Ok(loaded) => {
                self.loads += 1;
                self.loaded = Some(loaded);
                None
            }
            Err(detail) => Some(detail),
        }
    }

    fn signed(&self, now_us: u64) -> Option<Signed<P>> {
        let loaded = self.loaded.as_ref().filter(|loaded| loaded.until_us > now_us)?;
        Some(Signed { proof: loaded.proof.clone(), load: self.loads })
    }
}

impl<P: Clone + Send + Sync + 'static> Loads<P> {
    pub(in crate::stores) fn new(env: Env) -> Self {
        let state = State { loaded: None, loading: None, loads: 0, accepted: false };
        Self { env, state: Mutex::new(state) }
    }

    /// Returns the proof for the next request. `load` starts a load, if one is due. All requests share one load, and
    /// they do not wait for it while the earlier proof is valid.
    ///
    /// Cancel safe: a load that has started continues.
    pub(in crate::stores) async fn proof(&self, load: impl Fn() -> Load<P>) -> Result<Signed<P>, NotLoaded> {
        let now_us = self.env.now().wall_us();
        let (signed, load) = self.change(|state| {
            state.collect();
            let lasts = state.loaded.as_ref().is_some_and(|loaded| loaded.renew_us > now_us);
            let load = (!lasts).then(|| state.loading.get_or_insert_with(load).clone());
            (state.signed(now_us), load)
        });
        if let Some(signed) = signed {
            return Ok(signed);
        }
        let failed = match load {
            Some(load) => load.await.err(),
            None => None,
        };
        // The load may have taken seconds.
        let now_us = self.env.now().wall_us();
        self.change(|state| {
            let detail = state.collect().or(failed);
            state.signed(now_us).ok_or_else(|| NotLoaded {
                detail: detail.unwrap_or_else(|| "they had already expired".to_owned()),
                before: state.accepted,
            })
        })
    }

    /// Returns the number of the load whose proof the next request gets.
    #[cfg(feature = "_aws")]
    pub(in crate::stores) fn upcoming(&self) -> u64 {
        let now_us = self.env.now().wall_us();
        self.change(|state| {
            state.collect();
            state.loads + u64::from(state.signed(now_us).is_none())
        })
    }

    /// Records that the store has accepted a proof. Always returns `true`: the store has accepted the credentials.
    pub(in crate::stores) fn accepted(&self) -> bool {
        self.change(|state| state.accepted = true);
        true
    }

    /// Records that the store has refused the proof from `load`, so that the next request starts a new load. Returns
    /// whether the store has accepted a proof before. If so, a later load may get new credentials: those that replace a
    /// key or a token may arrive in their file only after the store refuses the old ones.
    pub(in crate::stores) fn refused(&self, load: u64) -> bool {
        self.change(|state| {
            if state.loads == load {
                state.loaded = None;
            }
            state.accepted
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State<P>) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<P> fmt::Debug for Loads<P> {
    /// Omits the proof.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loads").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::clock::{Clock as _, TestClock};

    fn pending() -> Load<u8> {
        future::pending().boxed().shared()
    }

    /// Renewals do not wait while an access token is replaced, and only one load runs.
    #[tokio::test]
    async fn a_token_is_used_until_its_end_while_the_next_one_loads() {
        let loads = Loads::new(Env::system());
        let now_us = loads.env.now().wall_us();
        let soon = Loaded { proof: 1, renew_us: now_us, until_us: now_us + 60_000_000 };
        assert_eq!(loads.proof(|| ended(Ok(soon.clone()))).await.unwrap().load, 1);
        assert_eq!(loads.proof(pending).await.unwrap().load, 1);
        // The load in progress is not replaced.
        assert_eq!(loads.proof(|| ended(Ok(Loaded::forever(2)))).await.unwrap().proof, 1);
        loads.change(|state| state.loading = Some(ended(Ok(Loaded::forever(3)))));
        let next = loads.proof(pending).await.unwrap();
        assert_eq!((next.load, next.proof), (2, 3));
        assert!(loads.change(|state| state.loading.is_none()), "the new token lasts");
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_that_ends_during_its_load_is_not_sent() {
        let clock = Arc::new(TestClock::default());
        let loads = Loads::new(Env::seeded(clock.clone(), 1));
        let until_us = loads.env.now().wall_us() + 1_000_000;
        let slow = async move {
            clock.sleep(Duration::from_secs(2)).await;
            Ok(Loaded { proof: 1, renew_us: until_us, until_us })
        };
        let slow: Load<u8> = slow.boxed().shared();
        let error = loads.proof(|| slow.clone()).await.err().unwrap();
        assert_eq!(error.detail, "they had already expired");
    }

    #[tokio::test]
    async fn after_a_failed_load_the_next_request_tries_again() {
        let loads = Loads::new(Env::system());
        let error = loads.proof(|| ended::<u8>(Err("no".to_owned()))).await.err().unwrap();
        assert_eq!(error, NotLoaded { detail: "no".into(), before: false });
        assert_eq!(loads.proof(|| ended(Ok(Loaded::forever(1)))).await.unwrap().load, 1);
    }

    /// While the earlier token is valid, no request awaits the load.
    #[tokio::test]
    async fn the_end_of_a_load_that_nothing_awaits_is_noticed() {
        let loads = Loads::new(Env::system());
        let now_us = loads.env.now().wall_us();
        let soon = Loaded { proof: 1, renew_us: now_us, until_us: now_us + 60_000_000 };
        loads.proof(|| ended(Ok(soon.clone()))).await.unwrap();
        let fails = || spawned::<u8>(future::ready(Err("no".to_owned())));
        assert_eq!(loads.proof(fails).await.unwrap().load, 1);
        tokio::task::yield_now().await;
        let next = || spawned::<u8>(future::ready(Ok(Loaded::forever(2))));
        assert_eq!(loads.proof(next).await.unwrap().load, 1);
        tokio::task::yield_now().await;
        let signed = loads.proof(pending).await.unwrap();
        assert_eq!((signed.load, signed.proof), (2, 2));
    }

    #[tokio::test]
    async fn a_refusal_of_an_older_load_does_not_discard_a_newer_one() {
        let loads = Loads::new(Env::system());
        let load = || ended(Ok(Loaded::forever(())));
        let first = loads.proof(load).await.unwrap().load;
        assert!(!loads.refused(first), "no proof was ever accepted");
        let second = loads.proof(load).await.unwrap().load;
        loads.accepted();
        assert!(second > first && loads.refused(second));
        let third = loads.proof(load).await.unwrap().load;
        loads.refused(first);
        assert_eq!(loads.proof(load).await.unwrap().load, third);
    }
}
