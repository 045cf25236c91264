//! What this process has written about the grants that it holds.
//!
//! A process that is copied while it runs (CRIU) goes on twice, with the same grants. Each renewal writes the time of the boot clock,
//! and a copy writes other times: who finds a time that is not its own has lost the lock to its copy (rule 11).

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lease::Id;

/// For each grant that has no ticket, the latest times that were written, of which the last may not have been committed.
#[derive(Debug, Default)]
pub(super) struct Beats(Mutex<HashMap<Id, Vec<u64>>>);

impl Beats {
    fn each(&self) -> MutexGuard<'_, HashMap<Id, Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `grant` is written with `renewed_ns` for the first time, or again for the same claim.
    pub(super) fn begin(&self, grant: Id, renewed_ns: u64) {
        self.each().entry(grant).or_default().push(renewed_ns);
    }

    /// Whether `found_ns`, which the row of `grant` says, was written by another.
    pub(super) fn is_foreign(&self, grant: Id, found_ns: u64) -> bool {
        self.each().get(&grant).is_some_and(|own| !own.contains(&found_ns))
    }

    /// `grant` is renewed with `renewed_ns`, where `found_ns` was found.
    pub(super) fn renew(&self, grant: Id, found_ns: u64, renewed_ns: u64) {
        if let Some(own) = self.each().get_mut(&grant) {
            *own = vec![found_ns, renewed_ns];
        }
    }

    /// `grant` is over, or goes on by a ticket, which others may have too.
    pub(super) fn end(&self, grant: Id) {
        self.each().remove(&grant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn only_a_time_of_another_is_foreign() {
        let (beats, grant) = (Beats::default(), Id::random(&Random::seeded(1)));
        assert!(!beats.is_foreign(grant, 7), "of a ticket nothing is known");
        beats.begin(grant, 10);
        beats.renew(grant, 10, 20);
        // The commit may have failed, or not.
        assert!(!beats.is_foreign(grant, 10) && !beats.is_foreign(grant, 20));
        beats.renew(grant, 20, 30);
        assert!(beats.is_foreign(grant, 10) && beats.is_foreign(grant, 25));
        beats.end(grant);
        assert!(!beats.is_foreign(grant, 25));
    }
}
