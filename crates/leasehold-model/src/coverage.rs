//! What happened in the histories that were checked: a model in which nothing happens breaks no promise either.

use std::sync::atomic::{AtomicU64, Ordering};

/// Something that has to happen in some history, or the model says little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A grant that was answered.
    Granted,
    /// A grant whose answer was lost, found by its nonce.
    GrantFoundByNonce,
    /// A record of one's own that was not expected, adopted by a write (rule 5).
    AdoptedByWrite,
    /// A grant whose time was over when it was known.
    GrantedTooLate,
    /// A create that was written once more.
    CreateWrittenAgain,
    /// A lease that lapsed was granted to another, as its successor had observed.
    TakenOverByObservation,
    /// The same, by the store's clock alone.
    TakenOverByStoreClock,
    /// A renewal that was answered.
    Renewed,
    /// A renewal whose answer was lost, found by its nonce.
    RenewalFoundByNonce,
    /// A renewal that was answered after the deadline.
    RenewedTooLate,
    /// A deadline that passed.
    Expired,
    /// A holder that was told by the store that its lease is gone.
    Gone,
    /// "Held" was said.
    Held,
    /// "Lost" was said instead of "held" (rule 10).
    LostInBetween,
    /// A release that was answered.
    Released,
    /// A release that turned out to have landed, or to be needless, by a read.
    ReleaseSettledByReading,
    /// A write that nobody waited for any more had its effect.
    LateWriteApplied,
    /// A write that nobody waited for any more can never have any.
    LateWriteRefused,
    /// A request arrived a second time.
    Doubled,
    /// A grant was passed on within its process.
    PassedOn,
    /// The same, while a renewal was on its way or had not been settled.
    PassedOnUnsettled,
    /// A deadline passed of whom a grant had been passed on to.
    ExpiredWhenPassedOn,
    /// A client that holds the lock was copied.
    Copied,
    /// A holder found that a copy of it had renewed (rule 11).
    RenewedByACopy,
}

const EVENTS: usize = Event::RenewedByACopy as usize + 1;

/// How often each event happened, once for each transition of the state space.
#[derive(Debug, Default)]
pub struct Coverage([AtomicU64; EVENTS]);

impl Clone for Coverage {
    fn clone(&self) -> Self {
        Self(std::array::from_fn(|event| AtomicU64::new(self.0[event].load(Ordering::Relaxed))))
    }
}

impl Coverage {
    /// How often `event` happened.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}
