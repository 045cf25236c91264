//! Interprets a record for a caller. The functions are pure. The server has already decided who gets the lock.

use std::time::Duration;

use super::record::{Record, State};
use crate::clock::StoreTime;
use crate::lease::MAX_TOKENS;
use crate::lease::pacing;
use crate::lease::{self, Claim, Holder, HolderInfo, Id, Loss, LossReason, Released, Status, Token, grace};
use crate::types::LockName;

/// Why a claim was not granted.
#[derive(Debug)]
pub(in super::super) enum Refusal {
    Held(HolderInfo),
    /// The claim was granted before, and that grant has ended.
    Lost(Loss),
    /// The next token would be too high.
    OutOfTokens,
    /// The lock is free again, because the grant that came first has already ended. The claim can be sent again.
    Again,
}

/// Returns why `claim` was not granted, from `record`.
pub(in super::super) fn refused(claim: &Claim, record: &Record) -> Refusal {
    let past = record.past.iter().find(|past| past.grant == claim.id);
    if let Some(past) = past {
        return Refusal::Lost(loss(&claim.name, claim.id, past.token, Some(record)));
    }
    if record.grant() == Some(claim.id) {
        return match record.token {
            // An earlier request, whose response was lost, was granted after the server had refused this one.
            _ if record.is_live => Refusal::Again,
            Some(token) => Refusal::Lost(loss(&claim.name, claim.id, token, Some(record))),
            None => Refusal::Again,
        };
    }
    if let Some(mut held) = record.is_live.then(|| held(record)).or_else(|| reserved(claim, record)) {
        held.ahead = ahead(claim, record);
        held.waiter_ahead = waiter_ahead(claim, record);
        return Refusal::Held(held);
    }
    let tokens = claim.tokens.clamp(1, MAX_TOKENS);
    match record.token {
        Some(token) if token.get() >= Token::LIMIT - tokens => Refusal::OutOfTokens,
        _ => Refusal::Again,
    }
}

/// Returns how many waiters are before `claim`, or `None` if it has no place.
pub(in super::super) fn ahead(claim: &Claim, record: &Record) -> Option<usize> {
    record.waiters.iter().position(|waiter| waiter.claim == Some(claim.id))
}

/// Returns the waiter directly before `claim`, unless it cannot be read.
fn waiter_ahead(claim: &Claim, record: &Record) -> Option<Holder> {
    let before = record.waiters.get(ahead(claim, record)?.checked_sub(1)?)?;
    before.claim.map(|_| before.holder.of_the_past())
}

/// Returns for how much longer the lock is kept for the waiters before `claim` once it is available.
pub(in super::super) fn grace_before(claim: &Claim, record: &Record) -> Duration {
    let first = record.waiters.first().and_then(|first| first.claim);
    let kept = first.map_or(Duration::ZERO, |first| claim.place.kept_for(claim.id, first));
    whole_grace_before(claim, record).saturating_sub(kept)
}

fn whole_grace_before(claim: &Claim, record: &Record) -> Duration {
    let before = record.waiters.iter().take_while(|waiter| waiter.claim != Some(claim.id));
    grace(before.map(|waiter| waiter.polls))
}

/// Returns the result for `claim` if the lock is available but reserved for a waiter before it. Notes in the claim for
/// how long the lock was kept for that waiter.
pub(in super::super) fn reserved(claim: &Claim, record: &Record) -> Option<HolderInfo> {
    let first = record.waiters.first().filter(|first| first.claim != Some(claim.id) && !claim.barges)?;
    // If the clock was set back since the release, the lock is kept for no waiter.
    let until_us = record.until_us.filter(|_| !record.is_live)?;
    let available = Duration::from_micros(record.now_us.checked_sub(until_us)?);
    let kept = match first.claim {
        Some(first) => claim.place.kept(claim.id, first, until_us.into(), available),
        None => available,
    };
    let left = whole_grace_before(claim, record).saturating_sub(kept);
    (!left.is_zero()).then(|| HolderInfo {
        holder: Some(first.holder.clone()),
        token: record.token,
        free_for: Some(available),
        lapses_within: Some(left),
        reserved: true,
        ..HolderInfo::default()
    })
}

/// Returns how much of the failover grace is left, if `seen` is a refusal during that grace.
pub(in super::super) fn withheld(seen: &HolderInfo) -> Option<Duration> {
    seen.foreign.as_ref().and(seen.lapses_within)
}

/// Returns how `grant`, which is no longer current, was lost.
pub(in super::super) fn loss(name: &LockName, grant: Id, token: Token, record: Option<&Record>) -> Loss {
    let other = record.filter(|record| record.is_live && record.grant() != Some(grant));
    let reason = LossReason::of(grant, record.map(|record| &*record.past), other.map(held));
    Loss::new(name.clone(), token, reason)
}

/// Returns whether `grant` ended because its holder released it.
pub(in super::super) fn was_released(record: Option<&Record>, grant: Id) -> Released {
    Released::of(grant, record.map(|record| &*record.past).unwrap_or_default())
}

/// Describes the holder.
pub(in super::super) fn held(record: &Record) -> HolderInfo {
    let since = |us: u64| Duration::from_micros(record.now_us.saturating_sub(us));
    let mut held = HolderInfo {
        held_for: record.from_us.map(since),
        lapses_within: record.until_us.map(|_| record.left()),
        ..HolderInfo::default()
    };
    match &record.state {
        State::Held { holder, .. } => {
            held.token = record.token;
            held.holder = Some(holder.clone());
        }
        State::Foreign { holder } => held.holder = Some(holder.clone()),
        State::Cooldown { .. } | State::Free { .. } => {
            held.token = record.token;
            held.in_cooldown = true;
            let last = record.past.iter().find(|past| Some(past.token) == record.token);
            held.last_holder = last.map(|past| past.holder.clone());
        }
    }
    held
}

/// Returns the status of the lock.
pub(in super::super) fn status(name: LockName, record: Option<Record>) -> Status {
    let Some(record) = record else { return Status::new(name, lease::State::Free) };
    let state = match &record.state {
        State::Held { .. } if !record.is_live => lease::State::Lapsed(held(&record)),
        _ if record.is_live => lease::State::Held(held(&record)),
        _ => lease::State::Free,
    };
    let mut status = Status::new(name, state);
    status.token = record.token;
    status.history = record.past;
    let now_us = record.now_us;
    let waiters = record.waiters.into_iter().filter(|waiter| waiter.claim.is_some()).map(|waiter| {
        let mut shown = lease::Waiter::new(waiter.holder);
        shown.waited = Some(Duration::from_micros(now_us.saturating_sub(waiter.since_us)));
        shown
    });
    status.waiters = waiters.collect();
    status
}

/// Returns whether the lock has not changed since `seen` was read.
pub(in super::super) fn is_still(record: &Record, seen: &HolderInfo) -> bool {
    let now = held(record);
    record.is_live
        && (now.token, now.in_cooldown) == (seen.token, seen.in_cooldown)
        && (now.token.is_some() || now.holder == seen.holder)
}

/// Returns how long the lock has been held.
pub(in super::super) fn held_for(record: &Record) -> Duration {
    match &record.state {
        State::Held { .. } | State::Foreign { .. } => {
            pacing::held_for(record.from_us, Some(StoreTime::exactly(record.now_us)))
        }
        State::Cooldown { .. } | State::Free { .. } => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::super::record::Waiter;
    use super::super::record::tests::{GRANT, held as held_record};
    use super::*;
    use crate::env::Env;
    use crate::lease::End;
    use crate::lease::{PastGrant, Ttl};

    fn past(end: End) -> Vec<PastGrant> {
        let token = Token::new(5).unwrap();
        vec![PastGrant {
            token,
            grant: theirs(),
            holder: Holder::default(),
            from_us: None,
            until_us: None,
            end,
            evicted: None,
        }]
    }

    fn theirs() -> Id {
        "f".repeat(32).parse().unwrap()
    }

    fn reason(record: Record, grant: Id) -> LossReason {
        loss(&LockName::new("a").unwrap(), grant, Token::new(5).unwrap(), Some(&record)).reason
    }

    #[test]
    fn a_loss_reports_the_reason_in_the_record() {
        let lapsed = || Record { past: past(End::Lapsed), ..held_record() };
        assert!(matches!(reason(lapsed(), theirs()), LossReason::TakenOver { .. }));
        for end in [End::Released, End::Evicted] {
            assert_eq!(reason(Record { past: past(end), ..held_record() }, theirs()), LossReason::Ended);
        }
        let over = Record { is_live: false, ..lapsed() };
        assert_eq!(reason(over, theirs()), LossReason::EXPIRED);
        // Another client took over. It does not keep the history.
        let foreign = Record { state: State::Foreign { holder: Holder::default() }, ..held_record() };
        assert!(matches!(reason(foreign, theirs()), LossReason::TakenOver { .. }));
        let own = Record { is_live: false, ..held_record() };
        assert_eq!(reason(own, GRANT.parse().unwrap()), LossReason::EXPIRED);
    }

    fn claim() -> Claim {
        Claim::new(&Env::system(), LockName::new("a").unwrap(), Ttl::DEFAULT, Holder::default())
    }

    #[test]
    fn a_free_lock_is_kept_for_the_waiters_before_a_claim() {
        let waiter = |n: u32, polls_ms| Waiter {
            claim: Some(format!("{n:032x}").parse().unwrap()),
            holder: Holder { name: format!("w{n}"), ..Holder::default() },
            since_us: 1,
            polls: Duration::from_millis(polls_ms),
        };
        let record = |available_us: i64| Record {
            is_live: false,
            state: State::Free { grant: GRANT.parse().unwrap() },
            until_us: 10_000_000_u64.checked_add_signed(-available_us),
            waiters: vec![waiter(1, 500), waiter(2, 500), waiter(3, 1_000), waiter(4, 10_000)],
            ..held_record()
        };
        let mut claim = claim();
        claim.id = format!("{:032x}", 3).parse().unwrap();
        assert_eq!(ahead(&claim, &record(0)), Some(2));
        // 2 x 500 ms + 2 x 500 ms.
        let held = reserved(&claim, &record(1_999_000)).unwrap();
        assert!(held.reserved && held.lapses_within == Some(Duration::from_millis(1)));
        assert_eq!(held.holder.unwrap().name, "w1");
        assert!(reserved(&claim, &record(2_000_000)).is_none());
        assert!(reserved(&claim, &record(-1)).is_none(), "the clock was set back");
        assert_eq!(waiter_ahead(&claim, &record(0)).unwrap().name, "w2");
        claim.id = theirs();
        assert_eq!((ahead(&claim, &record(0)), waiter_ahead(&claim, &record(0))), (None, None));
        assert_eq!(grace_before(&claim, &record(0)), Duration::from_secs(22), "behind all");
        claim.barges = true;
        assert!(reserved(&claim, &record(0)).is_none());
        claim.id = format!("{:032x}", 1).parse().unwrap();
        claim.barges = false;
        assert!(reserved(&claim, &record(0)).is_none(), "the first");
        assert_eq!(waiter_ahead(&claim, &record(0)), None);
    }

    /// Clients that ignore the line take the lock before the grace of the first waiter is over.
    #[test]
    fn the_grace_adds_up_until_another_waiter_is_first() {
        let waiter = |n: u32| Waiter {
            claim: Some(format!("{n:032x}").parse().unwrap()),
            polls: Duration::from_secs(1),
            ..Waiter::default()
        };
        let free = |now_us, until_us, first| Record {
            now_us,
            is_live: false,
            state: State::Free { grant: GRANT.parse().unwrap() },
            until_us: Some(until_us),
            waiters: vec![waiter(first), waiter(7)],
            ..held_record()
        };
        let mut claim = claim();
        claim.id = format!("{:032x}", 7).parse().unwrap();
        let left = |record| reserved(&claim, &record).map(|held| held.lapses_within.unwrap().as_millis());
        // The grace is 2.5 s.
        assert_eq!(left(free(10_400_000, 10_000_000, 1)), Some(2_100));
        assert_eq!(left(free(11_000_000, 10_000_000, 1)), Some(1_500));
        assert_eq!(grace_before(&claim, &free(0, 0, 1)), Duration::from_millis(1_500), "while it is held");
        assert_eq!(claim.place.kept_earlier(claim.id).unwrap().1, Duration::ZERO);
        assert_eq!(left(free(12_900_000, 12_000_000, 1)), Some(600));
        assert_eq!(claim.place.kept_earlier(claim.id).unwrap().1, Duration::from_secs(1));
        assert_eq!(left(free(20_400_000, 20_000_000, 1)), Some(200));
        assert_eq!(left(free(20_600_000, 20_000_000, 1)), None);
        assert_eq!(left(free(31_000_000, 30_000_000, 2)), Some(1_500), "another waiter is first");
    }

    #[test]
    fn a_claim_whose_grant_has_ended_is_lost_and_not_held() {
        let mut claim = claim();
        let record = held_record();
        assert!(matches!(refused(&claim, &record), Refusal::Held(_)));
        claim.id = theirs();
        let later = Record { past: past(End::Lapsed), ..held_record() };
        assert!(matches!(refused(&claim, &later), Refusal::Lost(_)));
        claim.id = GRANT.parse().unwrap();
        assert!(matches!(refused(&claim, &record), Refusal::Again));
        let over = Record { is_live: false, ..held_record() };
        assert!(matches!(refused(&claim, &over), Refusal::Lost(_)));
        let free = Record { state: State::Free { grant: theirs() }, is_live: false, ..record };
        claim.id = Id::random(&Env::system().random);
        assert!(matches!(refused(&claim, &free), Refusal::Again));
        let last = Record { token: Token::new(Token::LIMIT - 1), ..free };
        assert!(matches!(refused(&claim, &last), Refusal::OutOfTokens));
    }
}
