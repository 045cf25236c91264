//! Finds cycles of waiters: each holds a lock for which another one waits.
//!
//! A waiter that holds locks tells so in the line ([`Nested`]). Such a waiter walks from the locks that it holds to
//! their waiters, to the locks that those hold, and so on, until it finds a waiter that holds the lock that it waits for.
//!
//! An entry of the line may be left over from a dead process, so a walk alone proves nothing. A waiter that sees a cycle
//! therefore starts over with a new entry, which says so. If all waiters of a cycle say that they have seen it, there
//! was a moment at which all of them waited: each has seen the entries of all others, so it still waited when the last of
//! them began to wait. And each still held its lock then, because the lock has the same token now. Only then does the
//! cycle count, and only an intervention from outside can have ended it since.

mod cycle;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use self::cycle::{Cycle, CycleLink};
use crate::clock::{Deadline, Moment};
use crate::error::{Error, ErrorKind, StoreError};
use crate::lease::{Claim, HeldLock, Holder, HolderInfo, Id, LeaseStore, Nested, State, Status};
use crate::observe::Event;
use crate::runtime::open_store::OpenStore;
use crate::types::LockName;

/// How many locks a walk reads at most.
const MAX_READS: usize = 64;
/// How many waiters a cycle has at most.
const MAX_DEPTH: usize = 8;
/// How many paths a walk follows at most.
const MAX_PATHS: usize = 1_024;

/// The first pause before a walk. Each pause is twice as long as the one before, up to the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A lock that the caller of an acquisition holds until the acquisition ends.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) lock: HeldLock,
    /// Cancelled when the hold is over, if this process knows it.
    pub(crate) over: Option<CancellationToken>,
}

impl Held {
    pub(crate) fn is_over(&self) -> bool {
        self.over.as_ref().is_some_and(CancellationToken::is_cancelled)
    }
}

/// Looks for cycles while an acquisition waits.
#[derive(Debug)]
pub(crate) struct Detector {
    holds: Vec<Held>,
    next: Deadline,
    pause: Duration,
    /// The latest cycle that was reported.
    reported: Option<Id>,
}

/// What a waiter has to do.
#[derive(Debug)]
pub(crate) enum Found {
    /// Start over with this entry in the line.
    News(Box<Nested>),
    /// Give up.
    Deadlock(Error),
}

impl Detector {
    pub(crate) fn new(holds: Vec<Held>, now: Moment) -> Self {
        Self { holds, next: Deadline::new(now, FIRST_PAUSE), pause: FIRST_PAUSE, reported: None }
    }

    /// Returns the error if the lock that `claim` waits for is held by the hold under which it waits.
    pub(crate) fn with_itself(&self, claim: &Claim, held: &HolderInfo) -> Option<Error> {
        claim.nested.as_ref().filter(|nested| !nested.stays)?;
        // A hold that is over may have been passed on in this process, and the record still has its token.
        let mut holds = self.holds.iter().filter(|own| !own.is_over()).map(|own| &own.lock);
        let HeldLock { name, token } = holds.find(|own| own.name == claim.name && is_held(own, held))?;
        let message =
            format!("deadlock: the lock `{name}` is held by the task that waits for it (token {token})");
        let help = "use the lock that is already held, or another lock";
        Some(Error::new(ErrorKind::Deadlock, message).with_help(help))
    }

    /// Looks from time to time for cycles that contain `claim`. Completes when the waiter has to do something. Cancel
    /// safe.
    pub(crate) async fn look(&mut self, opened: &OpenStore, claim: &Claim) -> Found {
        let env = opened.store.env();
        let Some(nested) = claim.nested.as_deref() else { return std::future::pending().await };
        loop {
            let left = self.next.remaining(env.now());
            env.sleep(left).await;
            let mut cycles = match cycles_of(&*opened.store, claim, nested).await {
                Ok(cycles) => cycles,
                Err(error) => {
                    tracing::debug!(lock = %claim.name, %error, "could not look for deadlocks");
                    Vec::new()
                }
            };
            // After the walk: a hold that is over now may have been over when another waiter began to wait.
            if let Some(news) = self.without_ended_holds(nested) {
                return Found::News(news);
            }
            self.next = Deadline::new(env.now(), env.random.jittered(self.pause, 0.1));
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            // Those that count come first.
            cycles.sort_by_key(|cycle| !cycle.is_seen_by_all(nested.id));
            cycles.truncate(Nested::MAX);
            let unseen: Vec<_> =
                cycles.iter().map(Cycle::id).filter(|id| !nested.seen.contains(id)).collect();
            if !unseen.is_empty() {
                self.pause = FIRST_PAUSE;
                self.next = Deadline::new(env.now(), FIRST_PAUSE);
                let seen = unseen.into_iter().chain(nested.seen.iter().copied()).take(Nested::MAX).collect();
                return Found::News(Box::new(Nested { seen, ..nested.clone() }));
            }
            let counts = || cycles.iter().filter(|cycle| cycle.is_seen_by_all(nested.id));
            let given_up = counts().find(|cycle| cycle.gives_up() == Some(nested.id));
            let fails = given_up.is_some();
            let Some(cycle) = given_up.or_else(|| counts().next()) else { continue };
            if self.reported != Some(cycle.id()) {
                let message = cycle.to_string();
                tracing::warn!(lock = %claim.name, fails, "deadlock: {message}");
                opened.observers.report(&Event::Deadlock { lock: &claim.name, cycle: &message, fails });
                self.reported = Some(cycle.id());
            }
            if fails {
                return Found::Deadlock(deadlock(cycle));
            }
        }
    }

    /// Returns the entry without the locks whose holds are over, if there are any.
    fn without_ended_holds(&mut self, nested: &Nested) -> Option<Box<Nested>> {
        let count = self.holds.len();
        self.holds.retain(|held| !held.is_over());
        let holds = self.holds.iter().map(|held| held.lock.clone()).take(Nested::MAX).collect();
        (self.holds.len() < count).then(|| Box::new(Nested { holds, ..nested.clone() }))
    }
}

fn deadlock(cycle: &Cycle) -> Error {
    Error::new(ErrorKind::Deadlock, format!("deadlock: {cycle}")).with_help(
        "acquire locks in the same order everywhere, or give up the first lock before waiting for another",
    )
}

/// Returns whether `held` is the hold `own`.
fn is_held(own: &HeldLock, held: &HolderInfo) -> bool {
    let is_free = held.in_cooldown || held.reserved || held.withheld || held.foreign.is_some();
    held.token == Some(own.token) && !is_free
}

/// Returns the cycles that contain the waiting `claim`.
async fn cycles_of(store: &dyn LeaseStore, claim: &Claim, nested: &Nested) -> Result<Vec<Cycle>, StoreError> {
    let waiter = Holder { nested: Some(Box::new(nested.clone())), ..claim.holder.clone() };
    cycles(&claim.name, &waiter, &|name| Box::pin(async move { store.inspect(&name).await })).await
}

/// Returns the state of a lock.
type Read<'a> = dyn Fn(LockName) -> BoxFuture<'a, Result<Status, StoreError>> + Sync + 'a;

/// The state of a lock, and the links of those that wait for it.
type Waited = (State, Vec<Arc<CycleLink>>);

/// Returns the links of `waiter`, which waits for `waits_for`: one for each lock that it holds.
fn links<'a>(waiter: &'a Holder, waits_for: &'a LockName) -> impl Iterator<Item = Arc<CycleLink>> + use<'a> {
    // A server does not show the ids to everyone.
    let nested = waiter.nested.as_deref().filter(|nested| nested.id != Id::NONE);
    nested.into_iter().flat_map(move |nested| {
        // Shared, because its texts come from others and may be long.
        let waiter = Arc::new(Holder { nested: None, ..waiter.clone() });
        nested.holds.iter().take(Nested::MAX).map(move |holds| {
            Arc::new(CycleLink {
                waiter: waiter.clone(),
                waits_for: waits_for.clone(),
                holds: holds.clone(),
                id: nested.id,
                seen: nested.seen.iter().copied().take(Nested::MAX).collect(),
                stays: nested.stays,
            })
        })
    })
}

/// Returns the cycles that contain `waiter`, which waits for `name`. Stops early after [`MAX_READS`] locks, and follows
/// no path of more than [`MAX_DEPTH`] waiters.
async fn cycles(name: &LockName, waiter: &Holder, read: &Read<'_>) -> Result<Vec<Cycle>, StoreError> {
    let mut locks: HashMap<LockName, Arc<Waited>> = HashMap::new();
    let mut paths: VecDeque<Vec<Arc<CycleLink>>> = links(waiter, name).map(|link| vec![link]).collect();
    let mut found = Vec::new();
    for _ in 0..MAX_PATHS {
        let Some(path) = paths.pop_front() else { break };
        let Some(link) = path.last().cloned() else { break };
        let holds = &link.holds;
        let lock = match locks.get(&holds.name) {
            Some(lock) => lock.clone(),
            None if locks.len() >= MAX_READS => break,
            None => {
                let Status { state, waiters, .. } = read(holds.name.clone()).await?;
                let waiters = waiters.iter().flat_map(|waiter| links(&waiter.holder, &holds.name)).collect();
                let lock = Arc::new((state, waiters));
                locks.insert(holds.name.clone(), lock.clone());
                lock
            }
        };
        // Only a lock that is held as the waiter tells keeps others waiting.
        let (state, waiters) = &*lock;
        if !matches!(state, State::Held(held) if is_held(holds, held)) {
            continue;
        }
        if path.len() > 1 && holds.name == *name {
            found.push(Cycle(path));
            continue;
        }
        for link in waiters.iter().filter(|_| path.len() < MAX_DEPTH) {
            if paths.len() < MAX_PATHS && path.iter().all(|before| before.id != link.id) {
                paths.push_back(path.iter().chain([link]).cloned().collect());
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
