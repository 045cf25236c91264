//! How many requests may stay open: requests that wait for a lock or for a change, and event streams. Each kind has a
//! share of the connections, so that together they leave some for requests that end soon.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leasehold::LockName;

use crate::access::Caller;
use crate::problem::{Problem, ProblemType};

/// The requests that stay open, by kind.
#[derive(Debug)]
pub(crate) struct Capacity {
    /// Requests that wait for a lock.
    pub(crate) waits: Arc<Kind>,
    /// Requests that wait for a change of a lock.
    pub(crate) polls: Arc<Kind>,
    /// Event streams.
    pub(crate) streams: Arc<Kind>,
}

/// Open requests of one kind.
#[derive(Debug)]
pub(crate) struct Kind {
    /// What they are, in the plural.
    what: &'static str,
    /// The kind of the problem if there are too many.
    problem: ProblemType,
    most: usize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    open: usize,
    by_principal: HashMap<String, usize>,
    by_lock: HashMap<LockName, usize>,
}

/// A request that stays open. Dropping it makes room for another one.
#[derive(Debug)]
pub(crate) struct StaysOpen {
    kind: Arc<Kind>,
    principal: Option<String>,
    lock: Option<LockName>,
}

impl Capacity {
    /// Returns the shares of a server that has at most this many connections.
    pub(crate) fn of(connections: usize) -> Self {
        let kind = |what, problem, share: usize| {
            Arc::new(Kind { what, problem, most: share.max(1), counts: Mutex::default() })
        };
        Self {
            waits: kind("requests that wait for a lock", ProblemType::TooManyWaiters, connections * 3 / 4),
            polls: kind("requests that wait for a change", ProblemType::TooManyWaiters, connections / 8),
            streams: kind("event streams", ProblemType::TooManyViewers, connections / 16),
        }
    }
}

impl Kind {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many are open.
    pub(crate) fn open(&self) -> usize {
        self.counts().open
    }

    /// Returns how many may be open.
    pub(crate) fn most(&self) -> usize {
        self.most
    }

    /// Returns how many of them one principal may have, and how many may be for one lock.
    fn part(&self) -> usize {
        self.most.div_ceil(2)
    }

    /// Counts a request of `caller`, and for `lock` if that has a limit. Callers without a token have no limit of their
    /// own, because they may be different people.
    pub(crate) fn enter(
        self: &Arc<Self>,
        caller: &Caller,
        lock: Option<&LockName>,
    ) -> Result<StaysOpen, Problem> {
        let (principal, lock) = (caller.principal.clone(), lock.cloned());
        let mut counts = self.counts();
        let count_of = |count: Option<&usize>| count.copied().unwrap_or_default();
        let own = principal.as_ref().map_or(0, |principal| count_of(counts.by_principal.get(principal)));
        let here = lock.as_ref().map_or(0, |lock| count_of(counts.by_lock.get(lock)));
        let (what, part) = (self.what, self.part());
        let limit = if counts.open >= self.most {
            Some(format!("the server has {} {what}, which is its maximum", counts.open))
        } else if own >= part {
            Some(format!("{} has {own} {what}, which is the maximum for one principal", caller.name()))
        } else if here >= part {
            Some(format!("the lock has {here} {what}, which is the maximum for one lock"))
        } else {
            None
        };
        if let Some(detail) = limit {
            return Err(Problem::new(self.problem, detail)
                .with_help("the limits are parts of --max-connections: see docs/serve/limits.md")
                .retry_after(Duration::from_secs(5)));
        }
        counts.open += 1;
        if let Some(principal) = &principal {
            *counts.by_principal.entry(principal.clone()).or_default() += 1;
        }
        if let Some(lock) = &lock {
            *counts.by_lock.entry(lock.clone()).or_default() += 1;
        }
        drop(counts);
        Ok(StaysOpen { kind: self.clone(), principal, lock })
    }
}

impl Drop for StaysOpen {
    fn drop(&mut self) {
        let mut counts = self.kind.counts();
        counts.open -= 1;
        if let Some(principal) = &self.principal {
            subtract(&mut counts.by_principal, principal);
        }
        if let Some(lock) = &self.lock {
            subtract(&mut counts.by_lock, lock);
        }
    }
}

fn subtract<K: Eq + std::hash::Hash>(counts: &mut HashMap<K, usize>, key: &K) {
    if let Some(count) = counts.get_mut(key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;

    use super::*;

    fn caller(name: &str) -> Caller {
        Caller::with_rights(name, Vec::new())
    }

    fn lock(name: &str) -> LockName {
        LockName::new(name).unwrap()
    }

    /// Enters until there is no more room. Returns the requests and the detail of the problem.
    fn fill(kind: &Arc<Kind>, caller: &Caller, lock: Option<&LockName>) -> (Vec<StaysOpen>, String) {
        let mut open = Vec::new();
        loop {
            match kind.enter(caller, lock) {
                Ok(one) => open.push(one),
                Err(problem) => {
                    assert_eq!(problem.status(), StatusCode::TOO_MANY_REQUESTS);
                    return (open, problem.detail().to_owned());
                }
            }
        }
    }

    #[test]
    fn one_principal_leaves_room_for_others() {
        let capacity = Capacity::of(160);
        for kind in [&capacity.waits, &capacity.polls, &capacity.streams] {
            let (ours, detail) = fill(kind, &caller("a"), None);
            assert!(ours.len() == kind.most() / 2 && detail.contains("one principal"), "{detail}");
            let (theirs, detail) = fill(kind, &caller("b"), None);
            assert_eq!(ours.len() + theirs.len(), kind.most());
            assert!(detail.contains("its maximum"), "{detail}");
            drop(ours);
            assert!(kind.enter(&caller("c"), None).is_ok());
            drop(theirs);
            let counts = kind.counts();
            assert!(counts.open == 0 && counts.by_principal.is_empty());
        }
    }

    #[test]
    fn one_lock_leaves_room_for_others() {
        let capacity = Capacity::of(160);
        let (a, mut anyone) = (lock("a"), caller("anyone"));
        anyone.principal = None;
        let (here, detail) = fill(&capacity.waits, &anyone, Some(&a));
        assert!(here.len() == capacity.waits.most() / 2 && detail.contains("one lock"), "{detail}");
        assert!(capacity.waits.enter(&anyone, Some(&lock("b"))).is_ok());
        drop(here);
        assert!(capacity.waits.counts().by_lock.is_empty());
    }

    #[test]
    fn all_kinds_together_leave_room_for_short_requests() {
        for connections in [16, 100, 4_096] {
            let Capacity { waits, polls, streams } = Capacity::of(connections);
            assert!(waits.most() + polls.most() + streams.most() < connections);
        }
    }
}
