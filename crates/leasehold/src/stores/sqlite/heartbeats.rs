//! The renewals that this process has written for its grants.
//!
//! A process that is copied while it runs (CRIU) continues as two processes with the same grants. Each renewal writes
//! the time of the boot clock, and a copy writes other times. A process that finds a time that it did not write has
//! lost the lock to its copy (rule 11).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lease::Id;

/// For each grant without a ticket, the latest times that were written. The last one may not have been committed.
#[derive(Debug, Default)]
pub(super) struct Heartbeats(Mutex<HashMap<Id, Vec<u64>>>);

impl Heartbeats {
    fn each(&self) -> MutexGuard<'_, HashMap<Id, Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that `grant` is written with `renewed_ns` for the first time, or again for the same claim.
    pub(super) fn begin(&self, grant: Id, renewed_ns: u64) {
        self.each().entry(grant).or_default().push(renewed_ns);
    }

    /// Returns whether another process wrote `found_ns` into the row of `grant`.
    pub(super) fn is_foreign(&self, grant: Id, found_ns: u64) -> bool {
        self.each().get(&grant).is_some_and(|own| !own.contains(&found_ns))
    }

    /// Records that `grant` is renewed with `renewed_ns`. The row had `found_ns` before.
    pub(super) fn renew(&self, grant: Id, found_ns: u64, renewed_ns: u64) {
        if let Some(own) = self.each().get_mut(&grant) {
            *own = vec![found_ns, renewed_ns];
        }
    }

    /// Removes `grant`, because it has ended, or because it has a ticket with which other processes may renew it.
    pub(super) fn end(&self, grant: Id) {
        self.each().remove(&grant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn only_times_of_other_processes_are_foreign() {
        let (heartbeats, grant) = (Heartbeats::default(), Id::random(&Random::seeded(1)));
        assert!(!heartbeats.is_foreign(grant, 7), "nothing is known about a ticket");
        heartbeats.begin(grant, 10);
        heartbeats.renew(grant, 10, 20);
        // It is unknown whether the commit failed, so both times are this process's own.
        assert!(!heartbeats.is_foreign(grant, 10) && !heartbeats.is_foreign(grant, 20));
        heartbeats.renew(grant, 20, 30);
        assert!(heartbeats.is_foreign(grant, 10) && heartbeats.is_foreign(grant, 25));
        heartbeats.end(grant);
        assert!(!heartbeats.is_foreign(grant, 25));
    }
}
