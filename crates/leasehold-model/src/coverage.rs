//! Counts the events in the checked histories, because a model in which nothing happens breaks no promise either.

use std::sync::atomic::{AtomicU64, Ordering};

/// An event that must occur in some history. Otherwise, the check proves little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client received the response to its grant.
    Granted,
    /// A client found a grant by its nonce after the response was lost.
    GrantFoundByNonce,
    /// A client found an unexpected record of its own claim, and adopted it by a write (rule 5).
    AdoptedByWrite,
    /// The time of a grant was over when its response arrived.
    GrantedTooLate,
    /// A create was written again.
    CreateWrittenAgain,
    /// A lapsed lease was taken over, by observation.
    TakenOverByObservation,
    /// A lapsed lease was taken over, by the store's clock alone.
    TakenOverByStoreClock,
    /// A client received the response to its renewal.
    Renewed,
    /// A client found a renewal by its nonce after the response was lost.
    RenewalFoundByNonce,
    /// The response to a renewal arrived after the deadline.
    RenewedTooLate,
    /// A guard reached its deadline.
    Expired,
    /// A holder learned from the store that its lease had ended.
    Gone,
    /// An acquirer returned "held".
    Held,
    /// An acquirer returned "lost" instead of "held" (rule 10).
    LostInBetween,
    /// A client received the response to its release.
    Released,
    /// A read showed that a release had been applied or was not needed.
    ReleaseSettledByReading,
    /// A write was applied after its sender had stopped waiting.
    LateWriteApplied,
    /// A write whose sender had stopped waiting could no longer be applied.
    LateWriteRefused,
    /// A request arrived a second time.
    Doubled,
    /// A grant was passed on to another task of its process.
    PassedOn,
    /// A grant was passed on while a renewal was in progress or its outcome was unknown.
    PassedOnUnsettled,
    /// A guard that had been passed on reached its deadline.
    ExpiredWhenPassedOn,
    /// A client that held the lock was copied.
    Copied,
    /// A holder found that its copy had renewed the grant (rule 11).
    RenewedByACopy,
    /// A server received a request for a claim that another server is already acquiring or holding.
    ActsForTheSameClaim,
    /// A repeated request renewed the hold of its claim (rule 12).
    HoldRepeated,
    /// A repeated request was refused because the grant of its claim had ended (rule 12).
    Spent,
    /// A server stopped acquiring for a claim for which another server may act.
    ServerGaveUp,
    /// A client withdrew a claim while another server acted for it.
    Withdrawn,
    /// A withdrawal ended a grant.
    WithdrawalEndedAGrant,
    /// A claim was granted the lock after its client had released or withdrawn it.
    GrantedToNoOne,
}

const EVENTS: usize = Event::GrantedToNoOne as usize + 1;

/// The number of times each event occurred, counted once per transition of the state space.
#[derive(Debug, Default)]
pub struct Coverage([AtomicU64; EVENTS]);

impl Clone for Coverage {
    fn clone(&self) -> Self {
        Self(std::array::from_fn(|event| AtomicU64::new(self.0[event].load(Ordering::Relaxed))))
    }
}

impl Coverage {
    /// Returns how often `event` occurred.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }

    pub(crate) fn count(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }
}
