//! Notifications: after a release, the server notifies the first waiter, which then requests the lock at once.
//!
//! A lost notification only delays the waiter until its next poll.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use crate::clock::Moment;
use crate::env::Env;
use crate::lease::Id;
use crate::protocol::record::{Content, RecordState};
use crate::protocol::records::{Found, Records};
use crate::types::LockName;

/// The process stops listening when none of its claims has waited for this long.
pub(super) const UNUSED: Duration = Duration::from_secs(60);

/// How many characters of a claim's id a call contains. They suffice to tell the claims of one process apart.
pub(super) const CALLED_BY: usize = 16;

/// Which claims were called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Called {
    /// This one, because the lock is free.
    Alone,
    /// All, because earlier calls may have been missed.
    All,
}

/// The claims of this process that can be called.
#[derive(Debug)]
pub(super) struct Calls {
    waiting: Mutex<Waiting>,
    env: Env,
}

#[derive(Debug)]
struct Waiting {
    claims: HashMap<String, Arc<Bell>>,
    /// When the last claim stopped waiting.
    until: Moment,
}

/// Rings when a claim is called.
#[derive(Debug, Default)]
struct Bell {
    rings: Notify,
    /// Whether this claim was called alone.
    alone: AtomicBool,
}

impl Calls {
    pub(super) fn new(env: Env) -> Arc<Self> {
        let waiting = Waiting { claims: HashMap::new(), until: env.now() };
        Arc::new(Self { waiting: Mutex::new(waiting), env })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `claim` callable until the returned [`Call`] is dropped.
    pub(super) fn expect(self: &Arc<Self>, claim: Id) -> Call {
        let called = Arc::<Bell>::default();
        let key = key(claim);
        self.waiting().claims.insert(key.clone(), called.clone());
        Call { calls: self.clone(), key, called }
    }

    /// Calls the claim whose id begins as `claim` does, if it waits here. Returns whether it does.
    pub(super) fn call(&self, claim: &str) -> bool {
        let waiting = self.waiting();
        let Some(called) = claim.get(..CALLED_BY).and_then(|key| waiting.claims.get(key)) else {
            return false;
        };
        called.alone.store(true, Ordering::SeqCst);
        called.rings.notify_one();
        true
    }

    /// Calls all claims, because earlier calls may have been missed.
    pub(super) fn call_all(&self) {
        self.waiting().claims.values().for_each(|called| called.rings.notify_one());
    }

    /// Returns whether a claim can be called.
    #[allow(dead_code, reason = "only Redis needs it")]
    pub(super) fn are_expected(&self) -> bool {
        !self.waiting().claims.is_empty()
    }

    /// Returns whether no claim has waited for [`UNUSED`].
    pub(super) fn are_unused(&self) -> bool {
        let waiting = self.waiting();
        waiting.claims.is_empty() && self.env.now().longest_since(waiting.until) >= UNUSED
    }
}

fn key(claim: Id) -> String {
    let mut key = claim.to_string();
    key.truncate(CALLED_BY);
    key
}

/// A claim that can be called until this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    calls: Arc<Calls>,
    key: String,
    called: Arc<Bell>,
}

impl Call {
    /// Completes when the claim is called, or at once if it was called before.
    pub(super) async fn called(&self) -> Called {
        self.called.rings.notified().await;
        if self.called.alone.swap(false, Ordering::SeqCst) { Called::Alone } else { Called::All }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let now = self.calls.env.now();
        let mut waiting = self.calls.waiting();
        // A repeated claim may wait twice. Only the latest entry is in the map.
        if waiting.claims.get(&self.key).is_some_and(|called| Arc::ptr_eq(called, &self.called)) {
            waiting.claims.remove(&self.key);
        }
        waiting.until = now;
    }
}

/// Waits until `call` comes for its claim alone, or until a read shows that the lock is free and no other claim waits
/// before `claim`. Reads after each call to all claims, and first of all if a call may have been missed.
pub(super) async fn until_first(
    records: &impl Records,
    name: &LockName,
    claim: Id,
    call: Call,
    missed: bool,
) {
    let mut reads = missed;
    loop {
        if reads
            && let Ok(Some(Found { content: Content::Record(record), line, .. })) = records.read(name).await
            && record.state == RecordState::Free
            && line.is_none_or(|line| line.waiting(&record).next().is_none_or(|first| first.claim == claim))
        {
            return;
        }
        if call.called().await == Called::Alone {
            return;
        }
        reads = true;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::*;
    use crate::clock::TestClock;

    fn env() -> Env {
        Env::seeded(Arc::new(TestClock::default()), 1)
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_reaches_its_claim_alone_and_early_too() {
        let calls = Calls::new(env());
        let ids: Vec<Id> = (1..3).map(|n| format!("{n:016x}{n:016x}").parse().unwrap()).collect();
        let [one, two] = [calls.expect(ids[0]), calls.expect(ids[1])];
        calls.call("0000000000000002");
        calls.call("0000000000000003");
        assert!(one.called().now_or_never().is_none());
        assert!(two.called().now_or_never().is_some());
        assert!(two.called().now_or_never().is_none(), "called once");
        calls.call_all();
        assert!(one.called().now_or_never().is_some() && two.called().now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn calls_are_unused_a_minute_after_the_last_waiter() {
        let env = env();
        let calls = Calls::new(env.clone());
        let id = Id::random(&env.random);
        let call = calls.expect(id);
        let again = calls.expect(id);
        env.sleep(2 * UNUSED).await;
        drop(call);
        calls.call(&key(id));
        assert!(again.called().now_or_never().is_some());
        env.sleep(2 * UNUSED).await;
        assert!(!calls.are_unused());
        drop(again);
        assert!(!calls.are_unused());
        env.sleep(UNUSED).await;
        assert!(calls.are_unused());
    }
}
