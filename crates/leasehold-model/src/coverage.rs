//! Counts what happened in the checked histories: a model in which nothing happens breaks no promise either.

use std::sync::atomic::{AtomicU64, Ordering};

/// An event that must occur in some history, or the check proves little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A grant with its response.
    Granted,
    /// A grant whose response was lost, found by its nonce.
    GrantFoundByNonce,
    /// An unexpected record of the client's own claim, adopted by a write (rule 5).
    AdoptedByWrite,
    /// A grant whose time was over when its response arrived.
    GrantedTooLate,
    /// A create that was written once more.
    CreateWrittenAgain,
    /// A lapsed lease that was granted to another client, by observation.
    TakenOverByObservation,
    /// The same, by the store's clock alone.
    TakenOverByStoreClock,
    /// A renewal with its response.
    Renewed,
    /// A renewal whose response was lost, found by its nonce.
    RenewalFoundByNonce,
    /// A renewal whose response came after the deadline.
    RenewedTooLate,
    /// A deadline that passed.
    Expired,
    /// A holder that learned from the store that its lease is gone.
    Gone,
    /// An acquirer returned "held".
    Held,
    /// An acquirer returned "lost" instead of "held" (rule 10).
    LostInBetween,
    /// A release with its response.
    Released,
    /// A read showed that a release had landed or was not needed.
    ReleaseSettledByReading,
    /// A write was applied after its sender had stopped waiting.
    LateWriteApplied,
    /// A write whose sender had stopped waiting can no longer be applied.
    LateWriteRefused,
    /// A request arrived a second time.
    Doubled,
    /// A grant was passed on within its process.
    PassedOn,
    /// The same, while a renewal was in progress or its outcome unknown.
    PassedOnUnsettled,
    /// A guard that had been passed on reached its deadline.
    ExpiredWhenPassedOn,
    /// A client that holds the lock was copied.
    Copied,
    /// A holder found that a copy of it had renewed (rule 11).
    RenewedByACopy,
    /// A server received a request for a claim for which another one acts.
    ActsForTheSameClaim,
    /// A repetition renewed the hold of its claim (rule 12).
    HoldRepeated,
    /// A repetition was refused because the grant of its claim had ended (rule 12).
    Spent,
    /// A server stopped acquiring.
    ServerGaveUp,
    /// A client withdrew a claim while another server acted for it.
    Withdrawn,
    /// A withdrawal ended a grant.
    WithdrawalEndedAGrant,
    /// A claim was granted the lock when its client had released or withdrawn it.
    GrantedToNoOne,
}

const EVENTS: usize = Event::GrantedToNoOne as usize + 1;

/// How often each event occurred, counted once for each transition of the state space.
#[derive(Debug, Default)]
pub struct Coverage([AtomicU64; EVENTS]);

impl Clone for Coverage {
    fn clone(&self) -> Self {
        Self(std::array::from_fn(|event| AtomicU64::new(self.0[event].load(Ordering::Relaxed))))
    }
}

impl Coverage {
    /// How often `event` occurred.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}
