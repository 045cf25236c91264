//! The rules of the lease protocol: pure functions that decide, from what was read and what is known, what may be
//! written or reported.
//!
//! [`availability`] decides whether a lock may be taken over. `driver/acquire.rs` (`contend`) reads the record, asks
//! [`judge`], and writes the grant; `driver/hold.rs` renews and releases. Without any one rule there could be two
//! holders at once, or a token that is lower than an earlier one. docs/protocol.md numbers the rules. The code and the
//! tests in `tests/protocol.rs` name these numbers; rules about time, retries and guards are in other files. SQLite
//! asks these rules in its transactions. Stores that decide about locks themselves have their own rules, in `stores/X`:
//! etcd, Azure's own leases and `leasehold serve`.

mod report;

use std::time::Duration;

use self::report::foreign;
pub(super) use self::report::held;
pub(crate) use self::report::{recorded, state};
use super::record::{Content, FORMAT, Record, RecordState};
use crate::clock::{Moment, RATE_ERROR, StoreTime, micros};
use crate::error::{ErrorKind, Fault};
use crate::lease::MAX_TOKENS;
use crate::lease::{Claim, End, Eviction, HolderInfo, Id, Loss, LossReason, PastGrant, Released, Token};

/// How the lease of a dead holder lapses on this store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rules {
    /// Whether the store's clock may end a lease.
    pub(crate) store_clock: bool,
    /// How far two readings of the store's clock may contradict each other.
    pub(crate) margin: Duration,
    /// Whether a lapsed grant is over even if no other grant has replaced it. See
    /// [`Records::others_leave_no_trace`](super::records::Records::others_leave_no_trace).
    pub(crate) lapsed_is_over: bool,
}

impl Rules {
    /// Returns `store` if the store's clock may end a lease or a cooldown whose record is in `state`.
    ///
    /// Readings that contradict each other by more than the margin prove nothing. From then on contenders use
    /// observation only. A cooldown protects a period of time and not a holder, so the `store_clock` option does not
    /// apply to it. Without the store's clock, a process that has just started would never see a cooldown end.
    fn clock(self, store: Option<StoreTime>, state: RecordState) -> Option<StoreTime> {
        let may_decide = self.store_clock || state == RecordState::Cooldown;
        store.filter(|store| may_decide && store.apart <= self.margin)
    }
}

/// A conditional write that was sent. Its effect may still be unknown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Attempt {
    /// The nonce in the bytes of this write. No other write has it.
    pub(crate) nonce: Id,
    /// Taken before the first send. The holder's time counts from here (rule 1).
    pub(crate) sent: Moment,
    /// The token in those bytes.
    pub(crate) token: Token,
    /// For a grant, the token of the previous grant. The tokens in between belong to this grant. `None` if the previous
    /// token is unknown.
    pub(crate) after: Option<Token>,
    /// Whether the write was to create the record.
    pub(crate) created: bool,
    /// Whether its response was lost.
    pub(crate) unknown: bool,
}

/// What a contender may do with a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Availability {
    /// Write a grant over it.
    Grantable,
    /// Wait. The lock is held or in a cooldown, for at most `lapses_within` from now.
    Taken { lapses_within: Duration },
}

/// Decides whether `record` may be granted to another claim (the takeover rule; docs/protocol/time.md).
///
/// A held lock may be taken over once this contender has seen its (state, grant, token, heartbeat) unchanged for
/// `Ttl::contender_span` (the ttl, plus 0.5 %, plus a slack) plus the lock delay, both from the record. The holder
/// relies on its lease for a shorter time. `unchanged_for` is measured on the contender's own clock
/// (`record_cache.rs`). If `rules` allow it, the store's clock can also end the lease, after the same span plus a
/// margin. A lock in a cooldown may be granted when the cooldown is over by either clock, and a free lock at once.
pub(crate) fn availability(
    record: &Record,
    unchanged_for: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> Availability {
    let (observed, by_store) = spans(record, rules);
    let left_by_store = rules
        .clock(store, record.state)
        .zip(record.renewed_at_us)
        .map(|(store, renewed_us)| by_store.saturating_sub(since_us(store.lo_us, renewed_us)));
    let left = observed.saturating_sub(unchanged_for);
    let left = left_by_store.map_or(left, |by_store| by_store.min(left));
    if left.is_zero() { Availability::Grantable } else { Availability::Taken { lapses_within: left } }
}

/// Returns how long `record` has certainly been grantable. Returns zero if it is not grantable, or if this is unknown.
/// Takes the same arguments as [`availability`].
pub(super) fn available_for(
    record: &Record,
    unchanged_for: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> Duration {
    let (observed, by_store) = spans(record, rules);
    let since_by_store = rules
        .clock(store, record.state)
        .zip(record.renewed_at_us)
        .map(|(store, renewed_us)| since_us(store.lo_us, renewed_us).saturating_sub(by_store));
    unchanged_for.saturating_sub(observed).max(since_by_store.unwrap_or_default())
}

/// Returns whether the store's clock shows how old `record` is.
pub(super) fn knows_age(record: &Record, store: Option<StoreTime>, rules: Rules) -> bool {
    let by_store = rules.clock(store, record.state).zip(record.renewed_at_us);
    // If the record is from the future, the store's clock was set back.
    by_store.is_some_and(|(store, renewed_us)| renewed_us <= store.hi_us.saturating_add(micros(rules.margin)))
}

/// Returns how long after its last sign of life `record` may be granted to another claim. The first span is by
/// observation on the contender's own clock. The second is by the store's clock, if the rules allow it.
fn spans(record: &Record, rules: Rules) -> (Duration, Duration) {
    let observed = match record.state {
        RecordState::Free => Duration::ZERO,
        // The ttl of the record applies, not the contender's own.
        RecordState::Held => record.span(),
        RecordState::Cooldown => record.cooldown().mul_f64(1.0 + RATE_ERROR),
    };
    (observed, record.kept_for(rules.margin))
}

/// The result of judging a record for an acquisition.
#[derive(Debug)]
pub(crate) enum Claimed<'a> {
    /// One of this claim's attempts was applied. The grant counts from that attempt.
    Ours(Attempt),
    /// Write a grant over it, or create the record if there is none.
    Grantable {
        over: Option<&'a Record>,
        /// Whether the token must come from the store's clock, because no record shows which tokens were granted
        /// before.
        floor_from_clock: bool,
    },
    /// Another claim holds the lock.
    Taken(HolderInfo),
    /// Another claim holds the lock, and this claim may have held it in between without learning of it.
    Lost(Loss),
}

/// Judges what was read for `claim` after `attempts`.
pub(crate) fn judge<'a>(
    claim: &Claim,
    attempts: &[Attempt],
    found: Option<&'a Content>,
    unchanged_for: Duration,
    store: Option<StoreTime>,
    rules: Rules,
) -> Claimed<'a> {
    let record = match found {
        None => return Claimed::Grantable { over: None, floor_from_clock: true },
        // Never taken over: the rules of its holder are unknown.
        Some(Content::Foreign { what, lasts, history }) => {
            let held = foreign(what, *lasts);
            return match spent(claim, history) {
                Some(token) => Claimed::Lost(ended(claim, token, history, Some(held))),
                None => Claimed::Taken(held),
            };
        }
        Some(Content::Record(record)) => &**record,
    };
    if record.grant == claim.id && record.state == RecordState::Held {
        return match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
            // A create that was read back, because its response was lost or late, may have been applied at any time
            // since it was sent. See `Record::unconfirmed`.
            Some(attempt) if attempt.created => {
                Claimed::Grantable { over: Some(record), floor_from_clock: true }
            }
            Some(attempt) => Claimed::Ours(*attempt),
            None if rules.lapsed_is_over
                && availability(record, unchanged_for, store, rules) == Availability::Grantable =>
            {
                Claimed::Lost(Loss::new(claim.name.clone(), record.token, LossReason::EXPIRED))
            }
            // A repetition would renew the lease.
            None if claim.repeatable && is_past_limit(record, store) => {
                Claimed::Lost(Loss::new(claim.name.clone(), record.token, LossReason::Limit))
            }
            // Rule 5: a record of this claim that was not expected is adopted only by another conditional write.
            None => Claimed::Grantable { over: Some(record), floor_from_clock: record.unconfirmed },
        };
    }
    let availability = availability(record, unchanged_for, store, rules);
    if let Some(token) = spent(claim, &record.history) {
        let taken_by = match availability {
            Availability::Taken { lapses_within } if record.state == RecordState::Held => {
                Some(held(record, store, Some(lapses_within)))
            }
            _ => None,
        };
        return Claimed::Lost(ended(claim, token, &record.history, taken_by));
    }
    match availability {
        Availability::Grantable => {
            Claimed::Grantable { over: Some(record), floor_from_clock: record.unconfirmed }
        }
        Availability::Taken { lapses_within } => {
            let held = held(record, store, Some(lapses_within));
            // Rule 10: if the token rose after a write of unknown effect, this claim may have held the lock. Reporting
            // "held" would deny that. The token of an unconfirmed record proves nothing: another client may have
            // removed it or restored an old one.
            let after = |attempt: &&Attempt| attempt.token < record.token || record.unconfirmed;
            let unheard = attempts.iter().filter(|attempt| attempt.unknown).find(after);
            // A conflict does not prove that nothing was granted. The request may have arrived twice, and the other
            // copy may have been applied. The history shows that, as far back as it goes.
            let was_held = |past: &&PastGrant| past.grant == claim.id && past.end != End::Released;
            let had = record.history.iter().find(was_held).map(|past| past.token);
            match unheard.map(|attempt| attempt.token).or(had) {
                Some(token) => {
                    let reason = LossReason::TakenOver { by: held.into() };
                    Claimed::Lost(Loss::new(claim.name.clone(), token, reason))
                }
                None => Claimed::Taken(held),
            }
        }
    }
}

/// Returns whether the holder of `record` has certainly held the lock for longer than its limit.
fn is_past_limit(record: &Record, store: Option<StoreTime>) -> bool {
    let held_us = store.zip(record.granted_at_us).map(|(store, granted)| store.lo_us.saturating_sub(granted));
    let limit_us = record.holder.max_hold_ms.map(|limit| limit.saturating_mul(1_000));
    held_us.zip(limit_us).is_some_and(|(held, limit)| held >= limit)
}

/// Returns the token of a repeated claim whose grant is in the history. Such a claim is never granted again (rule 12).
fn spent(claim: &Claim, history: &[PastGrant]) -> Option<Token> {
    let past = history.iter().find(|past| claim.repeatable && past.grant == claim.id)?;
    Some(past.token)
}

/// Returns the loss of a claim whose grant with `token` is in the history.
fn ended(claim: &Claim, token: Token, history: &[PastGrant], taken_by: Option<HolderInfo>) -> Loss {
    Loss::new(claim.name.clone(), token, LossReason::of(claim.id, Some(history), taken_by))
}

/// The verdict on a record that the holder read after a renewal with an unclear outcome.
#[derive(Debug)]
pub(crate) enum Settled {
    /// The attempt was applied.
    Applied(Attempt),
    /// The record of this grant is as an earlier write left it. Try again with a new nonce.
    Earlier,
    /// A record of this grant that none of its known writes produced. A copy of this process renews it too (rule 11),
    /// or a late create of this claim was applied.
    Foreign,
    /// The lock is lost.
    Gone(LossReason),
}

/// Judges what the holder of `grant` read after `attempts` to renew it. `known` is the nonce of the record before the
/// attempts, or `None` if others may renew the same grant with its ticket. On a store that can lose writes,
/// `lost_below` is the heartbeat of that record: a lower heartbeat shows an earlier record of this grant. Otherwise 0.
pub(crate) fn settle_renewal(
    grant: Id,
    known: Option<Id>,
    lost_below: u64,
    attempts: &[Attempt],
    found: Option<&Content>,
) -> Settled {
    let record = match found {
        None => return Settled::Gone(LossReason::of(grant, None, None)),
        Some(Content::Foreign { what, lasts, history }) => {
            return Settled::Gone(LossReason::of(grant, Some(history), Some(foreign(what, *lasts))));
        }
        Some(Content::Record(record)) => record,
    };
    // Rule 7: a renewal never overwrites a record whose grant has changed.
    if record.grant != grant || record.state != RecordState::Held {
        let is_taken = record.state == RecordState::Held;
        let seen = is_taken.then(|| held(record, None, None));
        return Settled::Gone(LossReason::of(grant, Some(&record.history), seen));
    }
    match attempts.iter().find(|attempt| attempt.nonce == record.nonce) {
        Some(attempt) => Settled::Applied(*attempt),
        None if known.is_none_or(|known| known == record.nonce) => Settled::Earlier,
        None if record.heartbeat < lost_below => Settled::Earlier,
        None => Settled::Foreign,
    }
}

/// The verdict on a record that the holder read after a release with an unclear outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Freed {
    /// The release was applied.
    Applied,
    /// The grant still holds the lock. Try again.
    StillOurs,
    /// The grant no longer holds the lock, and this release did not end it.
    Gone,
}

/// Judges what the holder of `grant` read after `attempts` to release it.
pub(crate) fn settle_release(grant: Id, attempts: &[Attempt], found: Option<&Content>) -> Freed {
    let (is_ours, history) = match found {
        None => return Freed::Gone,
        Some(Content::Foreign { history, .. }) => (false, history),
        Some(Content::Record(record)) if record.grant == grant && record.state == RecordState::Held => {
            return Freed::StillOurs;
        }
        Some(Content::Record(record)) => {
            (attempts.iter().any(|attempt| attempt.nonce == record.nonce), &record.history)
        }
    };
    // If the grant was released, and the lock was taken since, the history shows it.
    let applied = is_ours || Released::of(grant, history) == Released::Released;
    if applied { Freed::Applied } else { Freed::Gone }
}

/// Returns the record that grants `claim` over `previous`.
///
/// The token is above the token of every earlier grant. It is above the tokens of this record's earlier grants, because
/// it is counted up from `previous`. It is above the tokens of deleted records, because every token was at most the
/// store's time when it was granted, and this one is not below `floor_us`, a time that the store's clock has reached.
/// How long ago: see [`INEXACT`].
pub(crate) fn grant(
    claim: &Claim,
    previous: Option<&Record>,
    store: Option<StoreTime>,
    floor_us: Option<u64>,
    nonce: Id,
) -> Result<Record, Fault> {
    // Another process may hold the lock by a repetition of this claim. The record keeps its token, so that process
    // keeps its hold.
    if let Some(own) = previous.filter(|previous| {
        claim.repeatable
            && previous.grant == claim.id
            && previous.state == RecordState::Held
            && !previous.unconfirmed
    }) {
        return Ok(granted_again(own, claim, store, nonce));
    }
    // A grant reserves several tokens only if the record shows which ones were used before.
    let room = if highest_before(previous).is_some() { claim.tokens.clamp(1, MAX_TOKENS) } else { 1 };
    let counted = previous.map_or(0, |previous| previous.token.get() + room);
    let by_clock = store.map(|store| store.lo_us).max(floor_us);
    if previous.is_none_or(|previous| previous.unconfirmed) && floor_us.is_none() {
        return Err(Fault::new(
            ErrorKind::Unsupported,
            "the store has shown no time, so the fencing token of a new lock might not be higher than earlier ones",
        )
        .with_help("`leasehold doctor` tells why"));
    }
    let token = Token::new(counted.max(by_clock.unwrap_or(0))).ok_or_else(|| {
        Fault::new(
            ErrorKind::Corrupt,
            "the fencing tokens of this lock are used up, or the store's clock is far off",
        )
        .with_help("inspect the record's token and the store's clock; tokens must be below 2^53")
    })?;
    let mut record = blank(claim, token, nonce);
    if let Some(previous) = previous {
        record.history.clone_from(&previous.history);
        if previous.size != 0 {
            record.size = previous.size;
        }
        // A freed record already has its grant in the history, and the grant of this claim has not ended.
        if previous.state == RecordState::Held && previous.grant != claim.id {
            record.remember(past(previous, End::Lapsed, store));
        }
        // The same claim again: contenders that saw the earlier (grant, heartbeat) must see a change (rule 8).
        if previous.grant == claim.id {
            record.heartbeat = previous.heartbeat + 1;
        }
    }
    let upper = store.map(|store| store.hi_us);
    Ok(Record { granted_at_us: upper, renewed_at_us: upper, unconfirmed: previous.is_none(), ..record })
}

/// Returns the record that grants `claim` once more, which already holds the lock with the record `own`. It keeps its
/// token.
pub(crate) fn granted_again(own: &Record, claim: &Claim, store: Option<StoreTime>, nonce: Id) -> Record {
    // Contenders use the ttl of the record, so it must cover the lease of each repetition.
    let ttl_ms = own.ttl_ms.max(claim.ttl.as_millis());
    Record { ttl_ms, ..renewed(own, None, store, nonce) }
}

/// Returns the highest token that may have been used before a grant over `previous`. Returns `None` if this is unknown,
/// because there is no record or an unconfirmed one. The token then comes from the clock, and the grant has only this
/// one.
pub(super) fn highest_before(previous: Option<&Record>) -> Option<Token> {
    previous.filter(|previous| !previous.unconfirmed).map(|previous| previous.token)
}

/// Returns the record that grants `claim` over a free record that was not read. The store computes the token.
pub(crate) fn unseen_grant(claim: &Claim, store: Option<StoreTime>, nonce: Id) -> Record {
    let upper = store.map(|store| store.hi_us);
    // This value is lower than any token. After a lost response, the lock may since have been granted to a later claim
    // (rule 10).
    let token = Token::default();
    Record { granted_at_us: upper, renewed_at_us: upper, ..blank(claim, token, nonce) }
}

fn blank(claim: &Claim, token: Token, nonce: Id) -> Record {
    Record {
        leasehold: FORMAT,
        state: RecordState::Held,
        token,
        grant: claim.id,
        heartbeat: 0,
        nonce,
        ttl_ms: claim.ttl.as_millis(),
        lock_delay_ms: u64::try_from(claim.lock_delay.as_millis()).unwrap_or(u64::MAX),
        holder: claim.holder.clone(),
        granted_at_us: None,
        renewed_at_us: None,
        cooldown_ms: None,
        unconfirmed: false,
        awaited: false,
        served: 0,
        size: claim.size.unwrap_or(0),
        history: Vec::new(),
    }
}

/// Returns the record that renews the grant of `previous`. `size`: see [`Grant::size`](crate::lease::Grant::size).
pub(crate) fn renewed(previous: &Record, size: Option<u64>, store: Option<StoreTime>, nonce: Id) -> Record {
    Record {
        size: size.unwrap_or(previous.size),
        heartbeat: previous.heartbeat + 1,
        nonce,
        renewed_at_us: store.map(|store| store.hi_us),
        unconfirmed: false,
        ..previous.clone()
    }
}

/// Returns the record that ends the grant of `previous`. The lock is then free or in a cooldown. A release never
/// deletes the record (rule 3).
pub(crate) fn freed(
    previous: &Record,
    end: End,
    cooldown: Option<Duration>,
    store: Option<StoreTime>,
    nonce: Id,
) -> Record {
    let mut record = Record {
        state: if cooldown.is_some() { RecordState::Cooldown } else { RecordState::Free },
        nonce,
        renewed_at_us: store.map(|store| store.hi_us),
        cooldown_ms: cooldown.map(|cooldown| u64::try_from(cooldown.as_millis()).unwrap_or(u64::MAX)),
        holder: previous.holder.of_the_past(),
        ..previous.clone()
    };
    if previous.state == RecordState::Held {
        record.remember(past(previous, end, store));
    }
    record
}

/// Returns the record after an operator has ended the grant of `previous`.
pub(crate) fn evicted(
    previous: &Record,
    why: Option<&Eviction>,
    store: Option<StoreTime>,
    nonce: Id,
) -> Record {
    let mut record = freed(previous, End::Evicted, None, store, nonce);
    // If the lock was in a cooldown, its grant is already in the history as released.
    if let Some(past) = record.history.first_mut().filter(|past| past.end == End::Evicted) {
        past.evicted = why.cloned();
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
            // The grant ended at an unknown time between the last renewal and now.
            End::Lapsed => record.renewed_at_us,
            End::Released | End::Evicted | End::Limit => store.map(|store| store.hi_us),
        },
        end,
        evicted: None,
    }
}

fn since_us(now_us: u64, then_us: u64) -> Duration {
    Duration::from_micros(now_us.saturating_sub(then_us))
}

/// Returns the time on this machine's clock until the store's clock certainly reads `target_us`.
pub(super) fn until_store_reads(target_us: u64, store: StoreTime) -> Duration {
    let behind = Duration::from_micros(target_us.saturating_sub(store.lo_us));
    // The lower bound of the store's clock advances more slowly than this machine's clock, by the bound on clock rates.
    if behind.is_zero() { behind } else { behind.mul_f64(1.0 + 2.0 * RATE_ERROR) + Duration::from_millis(1) }
}

/// Returns a lower bound on how much earlier than `sent` the time in `record` is. `sent` was taken before its write was
/// first sent. The store's clock reads `store` at `now`, after the response.
///
/// The time in the record is the time in the store's latest response before the send, plus the time that has passed
/// since. If the machine and all its clocks were paused in between, that sum is too early. The new response shows by
/// how much. Contenders count from the time in the record, so the holder counts from it too.
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

/// Tokens rise across a deletion of the record by hand unless the record was deleted within this time of a grant. A
/// `Date` is inexact by a second, and both the read and the create take some time.
const INEXACT: Duration = Duration::from_secs(3);

/// Returns a token that is above all that were granted before the store's clock read `store.lo_us`, and above those of
/// this claim's earlier creates. The store's clock is a lower bound of the tokens that are granted from now on.
pub(super) fn first_token(store: StoreTime, attempts: &[Attempt]) -> u64 {
    let creates = attempts.iter().filter(|attempt| attempt.created);
    creates.map(|attempt| attempt.token.get() + 1).fold(store.lo_us, u64::max)
}

impl Rules {
    /// Returns whether the token of a new record may not be above `token`. With `exact`, the store itself takes the
    /// tokens of new records from its clock. Else the new token may come from another reading, which may differ by the
    /// margin.
    pub(super) fn is_recent(self, token: Token, store: StoreTime, exact: bool) -> bool {
        since_us(store.lo_us, token.get()) <= if exact { Duration::ZERO } else { INEXACT.max(self.margin) }
    }
}

/// Returns whether `token`, which a create took from the store's clock, may be lower than a token that was granted more
/// than [`INEXACT`] ago. `store` was taken after the response to the create.
pub(super) fn is_outdated(token: Token, store: Option<StoreTime>) -> bool {
    store.is_none_or(|store| since_us(store.hi_us, token.get()) > INEXACT)
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;
