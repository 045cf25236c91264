//! A client's interpretation of the record that it reads. The decisions are the same as in `protocol/rules.rs` of the
//! library. A test there compares the two on all small inputs.

use crate::rules::{Rules, Safeguards};
use crate::world::{Attempt, Grant, Nonce, Record, Token};

/// An acquirer's interpretation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Claimed {
    /// One of the acquirer's attempts was applied.
    Ours(Attempt),
    /// The acquirer may write a grant over the record.
    Grantable {
        /// Whether the token must come from the store's clock.
        floor_from_clock: bool,
    },
    /// The record is the acquirer's own, from an earlier call, and the acquirer believes in it at once. Only without
    /// rule 5.
    AdoptedByReading,
    /// Another client holds the lock.
    Taken,
    /// Another client holds the lock, and the acquirer may have held it in the meantime.
    Lost,
}

/// Interprets the record `found` for an acquirer with this `claim` and these `attempts`. If `lapsed`, a held record may
/// be taken over. If `repeatable`, other servers may also act for the claim.
pub fn judge(
    rules: &Rules,
    safeguards: &Safeguards,
    claim: Grant,
    attempts: &[Attempt],
    found: Option<&Record>,
    lapsed: bool,
    repeatable: bool,
) -> Claimed {
    let Some(record) = found else { return Claimed::Grantable { floor_from_clock: true } };
    if record.grant == claim && record.held {
        return match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
            Some(attempt) if attempt.created && safeguards.late_creates_are_written_again => {
                Claimed::Grantable { floor_from_clock: true }
            }
            Some(attempt) => Claimed::Ours(*attempt),
            None if rules.adopted_only_by_a_write => {
                Claimed::Grantable { floor_from_clock: record.unconfirmed }
            }
            None => Claimed::AdoptedByReading,
        };
    }
    if repeatable && rules.ended_claims_are_spent && record.has_seen_the_end_of(claim) {
        return Claimed::Lost;
    }
    if !record.held || lapsed {
        return Claimed::Grantable { floor_from_clock: record.unconfirmed };
    }
    let after = |attempt: &&Attempt| attempt.token < record.token || record.unconfirmed;
    let may_have_held = attempts.iter().filter(|attempt| attempt.unknown).any(|attempt| after(&attempt));
    match may_have_held || safeguards.history_tells && record.remembers(claim) {
        true if rules.may_have_held_is_lost => Claimed::Lost,
        _ => Claimed::Taken,
    }
}

/// A holder's interpretation of the record that it reads after a renewal without a clear success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The attempt was applied.
    Applied(Attempt),
    /// The record is the holder's grant, as an earlier write left it.
    Earlier,
    /// The record is the holder's grant, but comes from none of its known writes. A copy of the client also renews the
    /// grant, or a late create of the client was applied.
    Foreign,
    /// The record is not the holder's, but the holder overwrites it. Only without rule 7.
    Stolen,
    /// The record is no longer the holder's.
    Gone,
}

/// Interprets the record `found` for the holder of `grant` after it sent `attempts` to renew it. `known` is the nonce
/// of the record before these attempts.
pub fn settle_renewal(
    rules: &Rules,
    grant: Grant,
    known: Nonce,
    attempts: &[Attempt],
    found: Option<&Record>,
) -> Settled {
    let Some(record) = found else { return Settled::Gone };
    if record.grant != grant || !record.held {
        return if rules.renewal_is_no_acquisition { Settled::Gone } else { Settled::Stolen };
    }
    match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
        Some(attempt) => Settled::Applied(*attempt),
        None if record.nonce == known || !rules.what_a_copy_renews_is_lost => Settled::Earlier,
        None => Settled::Foreign,
    }
}

/// Returns whether the holder of `grant`, having read `found`, must send its release again.
pub fn still_ours(grant: Grant, found: Option<&Record>) -> bool {
    found.is_some_and(|record| record.grant == grant && record.held)
}

/// Returns the highest token that may have been used before a grant over `over`. The tokens above it, up to the grant's
/// own, belong to the grant. Returns `None` if it is unknown. The grant then has only its own token.
pub fn highest_before(safeguards: &Safeguards, over: Option<&Record>) -> Option<Token> {
    match over {
        None if safeguards.a_create_has_one_token => None,
        None => Some(0),
        Some(record) if record.unconfirmed && safeguards.over_an_unconfirmed_one_token => None,
        Some(record) => Some(record.token),
    }
}

/// Returns whether `over` is a hold of `claim` that a repeated request renews, so that it keeps its token.
pub fn is_kept(claim: Grant, over: Option<&Record>) -> bool {
    over.is_some_and(|record| record.grant == claim && record.held && !record.unconfirmed)
}

/// Returns the record that grants `claim` over `over`, with a token of at least `floor` and room for `tokens` tokens.
pub fn grant(
    safeguards: &Safeguards,
    claim: Grant,
    over: Option<&Record>,
    floor: Token,
    tokens: u8,
    nonce: Nonce,
    stamp: i8,
) -> Record {
    let reserves = safeguards.tokens_are_reserved && highest_before(safeguards, over).is_some();
    let room = if reserves { tokens } else { 1 };
    let again = over.filter(|record| record.grant == claim);
    let lapses = over.filter(|record| record.held && record.grant != claim);
    Record {
        held: true,
        token: over.map_or(0, |record| record.token + room).max(floor),
        grant: claim,
        // This distinguishes the grant from the earlier grant of the same claim.
        heartbeat: again.map_or(0, |record| record.heartbeat + 1),
        nonce,
        unconfirmed: over.is_none(),
        stamp,
        edition: 0,
        ended: over.map_or(0, |record| record.ended) | lapses.map_or(0, |record| 1 << record.grant),
        spent: over.map_or(0, |record| record.spent) | lapses.map_or(0, |record| 1 << record.grant),
    }
}

/// Returns the lowest token of the grant of `record` over `over`, if it has up to `more` tokens besides the record's
/// token.
pub fn first_token(safeguards: &Safeguards, over: Option<&Record>, record: &Record, more: u8) -> Token {
    let lowest = highest_before(safeguards, over).map_or(record.token, |before| before + 1);
    lowest.max(record.token.saturating_sub(more)).min(record.token)
}

/// Returns the record that renews the grant of `previous`.
pub fn renewed(previous: &Record, nonce: Nonce, stamp: i8) -> Record {
    Record { heartbeat: previous.heartbeat + 1, nonce, unconfirmed: false, stamp, edition: 0, ..*previous }
}

/// Returns the record that ends the grant of `previous`.
pub fn freed(previous: &Record, evicted: bool, nonce: Nonce) -> Record {
    let spent = if previous.held { 1 << previous.grant } else { 0 };
    let ended = previous.ended | if evicted { spent } else { 0 };
    Record { held: false, nonce, stamp: 0, edition: 0, ended, spent: previous.spent | spent, ..*previous }
}
