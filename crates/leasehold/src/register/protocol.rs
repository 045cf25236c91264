//! The rules of the lease protocol, without I/O: from what was read, and what is known, to what may be written or said.
//!
//! The driver in `leases` sends the requests. Each rule stands here once, and each, taken out, gives two holders or a
//! token that goes back; the tests in `tests/protocol.rs` name the rule that they guard.

use std::time::Duration;

use super::record::{Content, FORMAT, Record, RecordState};
use crate::clock::{Moment, RATE_ERROR, StoreTime, micros};
use crate::error::{ErrorKind, Fault};
use crate::lease::{Claim, End, Held, Id, Loss, LossReason, PastGrant, State, Token};
use crate::runtime::hand_off::MOST_TOKENS;

/// How this store lets a dead holder's lease lapse.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Whether the store's own clock may say so.
    pub(super) store_clock: bool,
    /// How much the store's clock may be off between two answers.
    pub(super) margin: Duration,
}

impl Rules {
    /// What the store's clock says about records in `state`, if it may end what they stand for.
    ///
    /// Answers that contradict each other by more than the margin come from clocks that prove nothing: from then on
    /// observation decides alone. A rest guards a period and no holder: the option is not about it, and without the store's
    /// clock a process that has just started would never see it end.
    fn clock(self, store: Option<StoreTime>, state: RecordState) -> Option<StoreTime> {
        let may_decide = self.store_clock || state == RecordState::Resting;
        store.filter(|store| may_decide && store.apart <= self.margin)
    }
}

/// A conditional write that was sent, and of which the effect may still be unknown.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt {
    /// In the bytes that were sent, and in no others.
    pub(super) nonce: Id,
    /// Taken before the first send: the holder's time counts from here (rule 1).
    pub(super) sent: Moment,
    /// The token in those bytes.
    pub(super) token: Token,
    /// For a grant, the token of the grant before: those between are its own. `None` where nothing tells.
    pub(super) after: Option<Token>,
    /// Whether it was to create the record.
    pub(super) created: bool,
    /// Whether its answer was lost.
    pub(super) unknown: bool,
}

/// What a contender may do with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Availability {
    /// Write a grant over it.
    Grantable,
    /// Wait: somebody has it, or it rests, for at most so long from now.
    Taken { lapses_within: Option<Duration> },
}

/// Whether `record` may be granted to another, when its (state, grant, beat) has been seen unchanged for `quiet`.
pub(super) fn availability(
    record: &Record,
    quiet: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> Availability {
    // By observation, on the contender's clock alone; and by the store's clock, where it may.
    let (observed, by_store) = match record.state {
        RecordState::Free => return Availability::Grantable,
        // The ttl of the record rules, not the contender's own.
        RecordState::Held => {
            let span = record.ttl().contender_span() + record.lock_delay();
            (span, span.saturating_add(rules.margin))
        }
        RecordState::Resting => {
            let rest = Duration::from_millis(record.rest_ms.unwrap_or(0));
            (rest.mul_f64(1.0 + RATE_ERROR), rest)
        }
    };
    let left_by_store = rules
        .clock(store, record.state)
        .zip(record.renewed_at_us)
        .map(|(store, renewed_us)| by_store.saturating_sub(since_us(store.lo_us, renewed_us)));
    let left = observed.saturating_sub(quiet);
    let left = left_by_store.map_or(left, |by_store| by_store.min(left));
    if left.is_zero() { Availability::Grantable } else { Availability::Taken { lapses_within: Some(left) } }
}

/// What an acquirer makes of what it read.
#[derive(Debug)]
pub(super) enum Claimed<'a> {
    /// One of our attempts landed: it is ours, counted from the attempt that landed.
    Ours(Attempt),
    /// Write a grant over it (over nothing, when there is no record).
    Grantable {
        over: Option<&'a Record>,
        /// Whether the token must come from the store's clock as it reads after this moment: nothing else says
        /// which tokens were granted before.
        floor_from_clock: bool,
    },
    /// Another has it.
    Taken(Held),
    /// Another has it, and we may have had it in between without hearing of it.
    Lost(Loss),
}

/// Judges what was read for `claim` after `attempts`.
pub(super) fn judge<'a>(
    claim: &Claim,
    attempts: &[Attempt],
    found: Option<&'a Content>,
    quiet: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> Claimed<'a> {
    let record = match found {
        None => return Claimed::Grantable { over: None, floor_from_clock: true },
        // Never taken over: we do not know its holder's rules.
        Some(Content::Foreign(what)) => return Claimed::Taken(foreign(what)),
        Some(Content::Record(record)) => &**record,
    };
    if record.grant == claim.id && record.state == RecordState::Held {
        return match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
            // A create that is read back, and not answered at once, may have landed any time since: see
            // `Record::newborn`.
            Some(attempt) if attempt.created => {
                Claimed::Grantable { over: Some(record), floor_from_clock: true }
            }
            Some(attempt) => Claimed::Ours(*attempt),
            // Rule 5: ours, but not expected. Taken only by another conditional write.
            None => Claimed::Grantable { over: Some(record), floor_from_clock: record.newborn },
        };
    }
    match availability(record, quiet, store, rules) {
        Availability::Grantable => {
            Claimed::Grantable { over: Some(record), floor_from_clock: record.newborn }
        }
        Availability::Taken { lapses_within } => {
            let held = held(record, store, lapses_within);
            // Rule 10: a higher token after a write of unknown fate. We may have held it; "held" would deny that. The
            // token of a newborn record does not tell: another client may have wiped it, or brought back an old one.
            let after = |attempt: &&Attempt| attempt.token < record.token || record.newborn;
            let unheard = attempts.iter().filter(|attempt| attempt.unknown).find(after);
            // Nor is a conflict a proof: the request may have come twice, and the other copy been committed. The
            // history tells, as far as it goes.
            let ended = |past: &&PastGrant| past.grant == claim.id && past.end != End::Released;
            let had = record.history.iter().find(ended).map(|past| past.token);
            match unheard.map(|attempt| attempt.token).or(had) {
                Some(token) => {
                    let reason = LossReason::TakenOver { by: held };
                    Claimed::Lost(Loss::new(claim.name.clone(), token, reason))
                }
                None => Claimed::Taken(held),
            }
        }
    }
}

/// What a holder makes of what it read after a renewal that did not simply succeed.
#[derive(Debug)]
pub(super) enum Settled {
    /// The attempt landed.
    Landed(Attempt),
    /// Still ours, as some earlier write left it. Try again with a new nonce.
    Earlier,
    /// Of our grant, but no write of ours: a copy of this process renews it too (rule 11), or a create of ours came late.
    Foreign,
    /// Ours no more.
    Gone(LossReason),
}

/// Judges what was read for the holder of `grant` after `attempts` to renew it, when the nonce of the record before them was
/// `known`; `None` where others may renew the same grant, by its ticket.
pub(super) fn settle_renewal(
    grant: Id,
    known: Option<Id>,
    attempts: &[Attempt],
    found: Option<&Content>,
) -> Settled {
    let record = match found {
        None => return Settled::Gone(LossReason::Deleted),
        Some(Content::Foreign(what)) => return Settled::Gone(LossReason::TakenOver { by: foreign(what) }),
        Some(Content::Record(record)) => record,
    };
    // Rule 7: a renewal never takes a record whose grant has changed.
    if record.grant != grant {
        return Settled::Gone(LossReason::TakenOver { by: held(record, None, None) });
    }
    if record.state != RecordState::Held {
        return Settled::Gone(LossReason::Ended);
    }
    match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
        Some(attempt) => Settled::Landed(*attempt),
        None if known.is_none_or(|known| known == record.nonce) => Settled::Earlier,
        None => Settled::Foreign,
    }
}

/// What a holder makes of what it read after a release that did not simply succeed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    /// It landed.
    Landed,
    /// Still held by us. Try again.
    StillOurs,
    /// Ours no more, and not by our doing.
    Gone,
}

/// Judges what was read for the holder of `grant` after `attempts` to release it.
pub(super) fn settle_release(grant: Id, attempts: &[Attempt], found: Option<&Content>) -> Freed {
    let Some(Content::Record(record)) = found else { return Freed::Gone };
    if record.grant == grant && record.state == RecordState::Held {
        return Freed::StillOurs;
    }
    let landed = attempts.iter().any(|attempt| attempt.nonce == record.nonce)
        // Released by us and granted to another since: the history tells.
        || record.history.iter().any(|past| past.grant == grant && past.end == End::Released);
    if landed { Freed::Landed } else { Freed::Gone }
}

/// The record that grants `claim`, over `previous`.
///
/// The token is above that of every earlier grant: of this record by counting; of records that were deleted by the
/// store's clock, which certainly reads at least `floor_us` now, since every token was at most the store's time when it
/// was granted.
pub(super) fn grant(
    claim: &Claim,
    previous: Option<&Record>,
    store: Option<StoreTime>,
    floor_us: Option<u64>,
    nonce: Id,
) -> Result<Record, Fault> {
    // Room for all that may be used, where the record says what was used before.
    let room = if highest_before(previous).is_some() { claim.tokens.clamp(1, MOST_TOKENS) } else { 1 };
    let counted = previous.map_or(0, |previous| previous.token.get() + room);
    let by_clock = store.map(|store| store.lo_us).max(floor_us);
    if previous.is_none_or(|previous| previous.newborn) && floor_us.is_none() {
        return Err(Fault::new(
            ErrorKind::Unsupported,
            "the store's answers carry no time (no `Date`), so a new lock's fencing token cannot be kept rising",
        )
        .with_help("use a store, or a proxy before it, that sends the Date header"));
    }
    let token = Token::new(counted.max(by_clock.unwrap_or(0))).ok_or_else(|| {
        Fault::new(
            ErrorKind::Corrupt,
            "the fencing tokens of this lock are used up, or the store's clock is far off",
        )
        .with_help("look at the record's token and the store's clock; tokens stay below 2^53")
    })?;
    let mut record = blank(claim, token, nonce);
    if let Some(previous) = previous {
        record.history.clone_from(&previous.history);
        // Freed records have their grant in the history already, and this claim's own grant is not over.
        if previous.state == RecordState::Held && previous.grant != claim.id {
            record.remember(past(previous, End::Lapsed, store));
        }
        // The same claim again: (grant, beat) must not read as unchanged to those who saw the earlier one (rule 8).
        if previous.grant == claim.id {
            record.beat = previous.beat + 1;
        }
    }
    let upper = store.map(|store| store.hi_us);
    Ok(Record { granted_at_us: upper, renewed_at_us: upper, newborn: previous.is_none(), ..record })
}

/// The highest token that may have been used before a grant over `previous`, and may not be again. Nothing tells that of a
/// record that is newborn: then the token comes from the clock, and says it of itself alone.
pub(super) fn highest_before(previous: Option<&Record>) -> Option<Token> {
    previous.filter(|previous| !previous.newborn).map(|previous| previous.token)
}

/// The record that grants `claim` over a free one that was not read: the store counts the token.
pub(super) fn unseen_grant(claim: &Claim, store: Option<StoreTime>, nonce: Id) -> Record {
    let upper = store.map(|store| store.hi_us);
    // Lower than any: after a lost answer, whoever has the lock may have it after us (rule 10).
    let token = Token::default();
    Record { granted_at_us: upper, renewed_at_us: upper, ..blank(claim, token, nonce) }
}

fn blank(claim: &Claim, token: Token, nonce: Id) -> Record {
    Record {
        leasehold: FORMAT,
        state: RecordState::Held,
        token,
        grant: claim.id,
        beat: 0,
        nonce,
        ttl_ms: claim.ttl.as_millis(),
        lock_delay_ms: u64::try_from(claim.lock_delay.as_millis()).unwrap_or(u64::MAX),
        holder: claim.holder.clone(),
        granted_at_us: None,
        renewed_at_us: None,
        rest_ms: None,
        newborn: false,
        history: Vec::new(),
    }
}

/// The record that renews the grant of `previous`.
pub(super) fn renewed(previous: &Record, store: Option<StoreTime>, nonce: Id) -> Record {
    Record {
        beat: previous.beat + 1,
        nonce,
        renewed_at_us: store.map(|store| store.hi_us),
        newborn: false,
        ..previous.clone()
    }
}

/// The record that ends the grant of `previous`: free, or resting. Never a deletion (rule 3).
pub(super) fn freed(
    previous: &Record,
    end: End,
    rest: Option<Duration>,
    store: Option<StoreTime>,
    nonce: Id,
) -> Record {
    let mut record = Record {
        state: if rest.is_some() { RecordState::Resting } else { RecordState::Free },
        nonce,
        renewed_at_us: store.map(|store| store.hi_us),
        rest_ms: rest.map(|rest| u64::try_from(rest.as_millis()).unwrap_or(u64::MAX)),
        holder: previous.holder.of_the_past(),
        ..previous.clone()
    };
    if previous.state == RecordState::Held {
        record.remember(past(previous, end, store));
    }
    record
}

fn past(record: &Record, end: End, store: Option<StoreTime>) -> PastGrant {
    PastGrant {
        token: record.token,
        grant: record.grant,
        holder: record.holder.of_the_past(),
        from_us: record.granted_at_us,
        until_us: match end {
            // Somewhere between the last sign of life and now; the last sign of life is what is known.
            End::Lapsed => record.renewed_at_us,
            End::Released | End::Evicted => store.map(|store| store.hi_us),
        },
        end,
    }
}

/// What people are told of a record that is not free.
pub(super) fn held(record: &Record, store: Option<StoreTime>, lapses_within: Option<Duration>) -> Held {
    let resting = record.state == RecordState::Resting;
    // When a rest began is written with it. When the grant was is not, where that was the first request of a process.
    let from_us = record.granted_at_us.or(record.renewed_at_us.filter(|_| resting));
    Held {
        holder: (!resting).then(|| record.holder.clone()),
        token: Some(record.token),
        held_for: store.zip(from_us).map(|(store, from_us)| since_us(store.hi_us, from_us)),
        lapses_within,
        resting,
        last_holder: resting.then(|| record.holder.clone()),
        foreign: None,
    }
}

/// What people are told of a lock.
pub(super) fn state(
    found: Option<&Content>,
    quiet: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> State {
    match found {
        None => State::Free,
        Some(Content::Foreign(what)) => State::Held(foreign(what)),
        Some(Content::Record(record)) if record.state == RecordState::Free => State::Free,
        Some(Content::Record(record)) => match availability(record, quiet, store, rules) {
            Availability::Grantable if record.state == RecordState::Resting => State::Free,
            Availability::Grantable => State::Lapsed(held(record, store, Some(Duration::ZERO))),
            Availability::Taken { lapses_within } => State::Held(held(record, store, lapses_within)),
        },
    }
}

fn foreign(what: &str) -> Held {
    Held { foreign: Some(what.to_owned()), ..Held::default() }
}

fn since_us(now_us: u64, then_us: u64) -> Duration {
    Duration::from_micros(now_us.saturating_sub(then_us))
}

/// How much of the time until the store's clock certainly reads `target_us` is left, on this machine's clock.
pub(super) fn until_store_reads(target_us: u64, store: StoreTime) -> Duration {
    let behind = Duration::from_micros(target_us.saturating_sub(store.lo_us));
    // Store::lo advances slower than this machine's clock by the rate bound.
    if behind.is_zero() { behind } else { behind.mul_f64(1.0 + 2.0 * RATE_ERROR) + Duration::from_millis(1) }
}

/// How much earlier than `sent`, when its write was first sent, `record` says that it was written: at least that much, by the
/// store's clock at `now`, after the answer.
///
/// What it says was taken from the store's latest answer before the send, and from how long ago that was. A machine that was
/// paused with all its clocks does not know how long ago that was; the new answer tells. Others go by what the record says.
/// So its holder counts from then too.
pub(super) fn written_early(
    record: &Record,
    sent: Moment,
    store: Option<StoreTime>,
    now: Moment,
) -> Duration {
    let since_sent = now.longest_since(sent).mul_f64(1.0 + RATE_ERROR);
    let written_us = store.map(|store| store.lo_us.saturating_sub(micros(since_sent)));
    let early =
        written_us.zip(record.renewed_at_us).map(|(written_us, said_us)| written_us.saturating_sub(said_us));
    Duration::from_micros(early.unwrap_or(0))
}

/// Whether an answer took so long that a token chosen before the send may not be above all others any more.
pub(super) fn too_slow_for_create(attempt: &Attempt, answered: Moment) -> bool {
    attempt.created && micros(answered.longest_since(attempt.sent)) > 1_000_000
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
