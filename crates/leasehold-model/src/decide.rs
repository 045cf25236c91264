//! What a client makes of what it reads: the same decisions as `register/protocol.rs` of the library, which are compared
//! with these on all small inputs by a test over there.

use crate::rules::{Rules, Safeguards};
use crate::world::{Attempt, Grant, Nonce, Record, Token};

/// What an acquirer makes of what it read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// One of its attempts landed.
    Ours(Attempt),
    /// Write a grant over it.
    Grantable {
        /// Whether the token must come from the store's clock.
        floor_from_clock: bool,
    },
    /// Its own, from an earlier call: believed at once. Only without rule 5.
    AdoptedByReading,
    /// Another has it.
    Taken,
    /// Another has it, and the acquirer may have had it in between.
    Lost,
}

/// Judges what was read for `claim` after `attempts`; `lapsed`: a record that is held may be taken over.
pub fn judge(
    rules: &Rules,
    safeguards: &Safeguards,
    claim: Grant,
    attempts: &[Attempt],
    found: Option<&Record>,
    lapsed: bool,
) -> Claimed {
    let Some(record) = found else { return Claimed::Grantable { floor_from_clock: true } };
    if record.grant == claim && record.held {
        return match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
            Some(attempt) if attempt.created && safeguards.late_creates_are_written_again => {
                Claimed::Grantable { floor_from_clock: true }
            }
            Some(attempt) => Claimed::Ours(*attempt),
            None if rules.adopted_only_by_a_write => Claimed::Grantable { floor_from_clock: record.newborn },
            None => Claimed::AdoptedByReading,
        };
    }
    if !record.held || lapsed {
        return Claimed::Grantable { floor_from_clock: record.newborn };
    }
    let after = |attempt: &&Attempt| attempt.token < record.token || record.newborn;
    let may_have_held = attempts.iter().filter(|attempt| attempt.unknown).any(|attempt| after(&attempt));
    match may_have_held || safeguards.history_tells && record.remembers(claim) {
        true if rules.may_have_held_is_lost => Claimed::Lost,
        _ => Claimed::Taken,
    }
}

/// What a holder makes of what it read after a renewal that did not simply succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The attempt landed.
    Landed(Attempt),
    /// Still ours, as some earlier write left it.
    Earlier,
    /// Not ours, but taken all the same. Only without rule 7.
    Stolen,
    /// Ours no more.
    Gone,
}

/// Judges what was read for the holder of `grant` after `attempts` to renew it.
pub fn settle_renewal(rules: &Rules, grant: Grant, attempts: &[Attempt], found: Option<&Record>) -> Settled {
    let Some(record) = found else { return Settled::Gone };
    if record.grant != grant || !record.held {
        return if rules.renewal_is_no_acquisition { Settled::Gone } else { Settled::Stolen };
    }
    match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
        Some(attempt) => Settled::Landed(*attempt),
        None => Settled::Earlier,
    }
}

/// Whether a release has to be sent again, judged by what was read for the holder of `grant`.
pub fn still_ours(grant: Grant, found: Option<&Record>) -> bool {
    found.is_some_and(|record| record.grant == grant && record.held)
}

/// The record that grants `claim` over `over`, with a token that is not below `floor`.
pub fn grant(claim: Grant, over: Option<&Record>, floor: Token, nonce: Nonce, stamp: i8) -> Record {
    let again = over.filter(|record| record.grant == claim);
    let lapses = over.filter(|record| record.held && record.grant != claim);
    Record {
        held: true,
        token: over.map_or(0, |record| record.token + 1).max(floor),
        grant: claim,
        // Not to be taken for the earlier grant of the same claim.
        beat: again.map_or(0, |record| record.beat + 1),
        nonce,
        newborn: over.is_none(),
        stamp,
        ended: over.map_or(0, |record| record.ended) | lapses.map_or(0, |record| 1 << record.grant),
    }
}

/// The record that renews the grant of `previous`.
pub fn renewed(previous: &Record, nonce: Nonce, stamp: i8) -> Record {
    Record { beat: previous.beat + 1, nonce, newborn: false, stamp, ..*previous }
}

/// The record that ends the grant of `previous`.
pub fn freed(previous: &Record, evicted: bool, nonce: Nonce) -> Record {
    let ended = if evicted && previous.held { 1 << previous.grant } else { 0 };
    Record { held: false, nonce, stamp: 0, ended: previous.ended | ended, ..*previous }
}
