//! Trace validation: whether a write that a program has committed is a step of this model.
//!
//! The model checks [`explain`] against itself: it must explain each write that a client of the model sends, and each act
//! of a person ([`EXPLAINED`](crate::properties::EXPLAINED)). The simulation of the library checks the writes of its
//! histories with the same function (`crates/leasehold/tests/simulation/model.rs`).

use crate::decide::{self, Claimed};
use crate::rules::{Rules, Safeguards};
use crate::world::{Record, Token};

/// The writer of a record, as it was when it sent the write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Writer {
    /// Whether the writer is a person.
    pub operator: bool,
    /// Whether the record before the write has the grant of a claim for which the writer acts.
    pub owns_before: bool,
    /// Whether the record after the write does.
    pub owns_after: bool,
    /// Whether the writer has sent the write that left the record before.
    pub wrote_before: bool,
    /// Whether the response to that write has arrived in time.
    pub confirmed: bool,
    /// Whether less than a holder's span has passed since before that write was sent, on the writer's clock.
    pub in_time: bool,
    /// Whether the writer has seen the lease in the record before lapse, on its own clock or on the store's clock.
    pub lapsed: bool,
    /// The lowest token that the store's clock can yield.
    pub floor: Token,
}

/// What a store does differently from the model's store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// Its records have no history.
    pub forgets: bool,
    /// Its creates leave no mark, because the store takes their tokens from its own clock.
    pub never_unconfirmed: bool,
    /// The heartbeats of a create begin at any number.
    pub random_heartbeats: bool,
    /// A release deletes the record.
    pub deletes: bool,
}

/// A step of the model that writes a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Step {
    /// A grant where there was no record.
    Create,
    /// A grant over a free record.
    Grant,
    /// A grant over a lapsed lease of another claim.
    Takeover,
    /// A grant over a lease of the same claim (rule 5).
    Adoption,
    /// A renewal.
    Renewal,
    /// A release.
    Release,
    /// An eviction by an operator.
    Eviction,
    /// A change of the record that does not change its meaning.
    Edit,
    /// A deletion by a person, or by a release on a store where releases delete.
    Deletion,
}

/// Returns the step that leads from the record `before` to the record `after`, or `None` if no step does. `None` as a
/// record stands for no record.
///
/// A claim may only do what it may do without earlier attempts. The token of a grant may be higher than counted, because
/// the store's clock may have raised it.
pub fn explain(
    (rules, safeguards): (&Rules, &Safeguards),
    store: Store,
    before: Option<&Record>,
    after: Option<&Record>,
    by: &Writer,
) -> Option<Step> {
    let deletes = store.deletes || !rules.release_keeps_the_record;
    let Some(after) = after else {
        let releases = deletes && by.owns_before && before.is_some_and(|before| before.held);
        return (by.operator || releases).then_some(Step::Deletion);
    };
    let is = |expected: Record| {
        let Record { stamp, edition, ended, spent, .. } = *after;
        let expected = Record { stamp, edition, ..expected };
        *after == if store.forgets { Record { ended, spent, ..expected } } else { expected }
    };
    if let Some(step) = granted((rules, safeguards), before, after, by) {
        let mut expected = decide::grant(safeguards, after.grant, before, after.token, 1, after.nonce, 0);
        expected.unconfirmed &= safeguards.unconfirmed_mark && !store.never_unconfirmed;
        if store.random_heartbeats && before.is_none() {
            expected.heartbeat = after.heartbeat;
        }
        if is(expected) {
            return Some(step);
        }
    }
    let before = before?;
    // Rule 2.
    if before.nonce == after.nonce {
        return (Record { edition: before.edition, ..*after } == *before).then_some(Step::Edit);
    }
    if !before.held {
        return None;
    }
    let renews = by.owns_before && by.in_time && (by.wrote_before || !rules.what_a_copy_renews_is_lost);
    if renews && is(decide::renewed(before, after.nonce, 0)) {
        return Some(Step::Renewal);
    }
    let freed = |evicted| {
        let freed = decide::freed(before, evicted, after.nonce);
        // The record stays unconfirmed if the process that ends the grant does not know of the response.
        Record { unconfirmed: freed.unconfirmed && (after.unconfirmed || !by.confirmed), ..freed }
    };
    if by.owns_before && !deletes && is(freed(false)) {
        return Some(Step::Release);
    }
    (by.operator && is(freed(true))).then_some(Step::Eviction)
}

/// Returns the kind of grant if the writer may be granted the lock over `before`.
fn granted(
    (rules, safeguards): (&Rules, &Safeguards),
    before: Option<&Record>,
    after: &Record,
    by: &Writer,
) -> Option<Step> {
    let fresh = before.is_none_or(|before| before.nonce != after.nonce);
    let claimed = decide::judge(rules, safeguards, after.grant, &[], before, by.lapsed, false);
    let Claimed::Grantable { floor_from_clock } = claimed else { return None };
    let is_high = !floor_from_clock || after.token >= by.floor;
    (by.owns_after && fresh && is_high).then_some(match before {
        None => Step::Create,
        Some(before) if !before.held => Step::Grant,
        Some(before) if before.grant == after.grant => Step::Adoption,
        Some(_) => Step::Takeover,
    })
}
