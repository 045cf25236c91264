//! What needs attention about a lock, for the order of rows and the words in them.

use leasehold::view::{LockView, StateView};

/// From this number on, the waiters of a lock are many.
const MANY_WAITERS: usize = 5;

/// A problem, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    Lapsed,
    /// Its holder is about to lose it: a renewal is missing.
    RenewalLate,
    LongerThanUsual,
    ManyWaiters,
}

impl Trouble {
    /// Returns the worst problem of a lock, as it was when it was read.
    pub(super) fn of(lock: &LockView) -> Option<Self> {
        if lock.state == StateView::Lapsed {
            Some(Self::Lapsed)
        } else if is_renewal_late(lock) {
            Some(Self::RenewalLate)
        } else if lock.longer_than_usual {
            Some(Self::LongerThanUsual)
        } else if lock.waiters.len() >= MANY_WAITERS {
            Some(Self::ManyWaiters)
        } else {
            None
        }
    }

    pub(super) fn words(self) -> &'static str {
        match self {
            Self::Lapsed => "not renewed in time",
            Self::RenewalLate => "renewal is late",
            Self::LongerThanUsual => "longer than usual",
            Self::ManyWaiters => "many waiters",
        }
    }
}

/// Returns whether less than half of the lease is left. A process renews after a third. A ticket is not renewed automatically.
fn is_renewal_late(lock: &LockView) -> bool {
    let Some(held) = lock.held_by.as_ref().filter(|_| lock.state == StateView::Held) else { return false };
    let is_by_process = held.holder.as_ref().is_some_and(|holder| holder.pid != 0);
    let left = held.lapses_within_ms.zip(held.lease_ms);
    is_by_process && left.is_some_and(|(left, lease)| left < lease / 2)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn trouble(state: &str, held_by: Value, waiters: usize, longer: bool) -> Option<Trouble> {
        let waiters =
            vec![json!({ "holder": { "name": "w", "host": "h", "pid": 1 }, "waited_ms": 1 }); waiters];
        let lock = json!({
            "lock": "a", "state": state, "token": 1, "held_by": held_by, "waiters": waiters, "longer_than_usual": longer,
        });
        Trouble::of(&serde_json::from_value(lock).unwrap())
    }

    #[test]
    fn the_worst_problem_comes_first() {
        let held = |pid: u64, left: u64| {
            json!({
                "holder": { "name": "n", "host": "h", "pid": pid }, "lapses_within_ms": left, "lease_ms": 30_000,
            })
        };
        assert_eq!(trouble("held", held(7, 15_000), 4, false), None);
        assert_eq!(trouble("held", held(7, 14_999), 9, true), Some(Trouble::RenewalLate));
        assert_eq!(trouble("held", held(0, 14_999), 0, false), None, "a ticket is not renewed automatically");
        assert_eq!(trouble("held", held(7, 20_000), 9, true), Some(Trouble::LongerThanUsual));
        assert_eq!(trouble("held", held(7, 20_000), 5, false), Some(Trouble::ManyWaiters));
        assert_eq!(trouble("lapsed", held(7, 0), 9, true), Some(Trouble::Lapsed));
        assert_eq!(trouble("cooldown", held(7, 1), 0, false), None);
        assert!(Trouble::Lapsed < Trouble::RenewalLate && Trouble::LongerThanUsual < Trouble::ManyWaiters);
    }
}
