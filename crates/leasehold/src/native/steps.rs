//! Repeats the steps of a store, and interprets their results.

use std::time::Duration;

use super::{Ask, Claimed, Ended, Kept, Lease, NativeLeases, Outcome, Renewed, STORE_TIMEOUT};
use crate::clock::{Deadline, Moment};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Claim, Evicted, Eviction, Grant, LossReason, Released, Renewal, Token, Ttl,
    attempt_limit, deadline,
};
use crate::retry::RetryBudget;
use crate::types::LockName;

pub(super) async fn acquire<N: NativeLeases>(
    leases: &N,
    claim: &Claim,
) -> Result<AcquireOutcome, StoreError> {
    let (env, limit) = (leases.env(), attempt_limit(claim.ttl));
    let mut ask = Ask::of(RetryBudget::new(env, claim.store_timeout, limit).noting(&claim.last_error));
    loop {
        let sent = env.now();
        let error = match leases.claim(claim, &mut ask).await {
            Ok(Claimed::Granted(token, lease)) => {
                return Ok(in_time(leases, claim, token, lease, sent).await);
            }
            Ok(Claimed::Held(held)) => return Ok(AcquireOutcome::Held(held)),
            Ok(Claimed::Lost(loss)) => {
                if matches!(loss.reason, LossReason::Expired { .. }) {
                    give_back(leases, claim).await;
                }
                return Ok(AcquireOutcome::Lost(loss));
            }
            Ok(Claimed::Again) => None,
            Err(error) => Some(error),
        };
        ask.pause(error).await.map_err(|error| error.if_maybe(leases.gave_up(claim)))?;
    }
}

/// Returns the grant. If its deadline passed before the response arrived, gives the grant back and reports a loss.
async fn in_time<N: NativeLeases>(
    leases: &N,
    claim: &Claim,
    token: Token,
    lease: Lease,
    sent: Moment,
) -> AcquireOutcome {
    let deadline = until(claim.ttl, &lease, sent);
    let memo = Kept { of_store: lease.memo, ..Kept::default() };
    let grant = Grant { deadline, memo: Some(Box::new(memo)), ..Grant::new(claim, token, sent) };
    if !grant.deadline.passed(leases.env().now()) {
        return AcquireOutcome::Granted(grant);
    }
    give_back(leases, claim).await;
    AcquireOutcome::Lost(grant.came_too_late())
}

/// Returns the deadline of a lease of `ttl` whose step began at `sent`.
fn until(ttl: Ttl, lease: &Lease, sent: Moment) -> Deadline {
    let longest = deadline(ttl, sent);
    lease.until.map_or(longest, |until| until.earliest(longest))
}

/// Withdraws a claim whose grant came too late, unless a repetition of the claim may have the grant. The claim is lost
/// whatever the response is, because a release that arrives later must not end another grant of the same claim.
async fn give_back<N: NativeLeases>(leases: &N, claim: &Claim) {
    if claim.repeatable {
        return;
    }
    let mut late = Grant::withdrawn(claim.name.clone(), claim.id, claim.ttl, leases.env().now());
    if let Err(error) = end(leases, &mut late, None).await {
        tracing::debug!(lock = %claim.name, %error, "a late grant could not be released; it will lapse");
    }
}

pub(super) async fn renew<N: NativeLeases>(leases: &N, grant: &mut Grant) -> Result<Renewal, StoreError> {
    Ok(prolong(leases, grant, false).await?.unwrap_or(Renewal::Renewed))
}

pub(super) async fn detach<N: NativeLeases>(leases: &N, grant: &mut Grant) -> Result<(), StoreError> {
    match prolong(leases, grant, true).await? {
        None | Some(Renewal::Renewed) => Ok(()),
        Some(Renewal::Lost(loss)) => Err(Fault::new(ErrorKind::Lost, loss.to_string()).not_applied()),
    }
}

/// Renews or detaches a grant. Returns `None` if nothing was to be done.
async fn prolong<N: NativeLeases>(
    leases: &N,
    grant: &mut Grant,
    detaches: bool,
) -> Result<Option<Renewal>, StoreError> {
    let env = leases.env();
    let left = grant.deadline.remaining(env.now());
    if left.is_zero() {
        return Ok(Some(grant.lost(LossReason::EXPIRED)));
    }
    // Ends before the deadline, because the renewal task must get errors before that, and repeats the renewal at its
    // own pace.
    let limit = attempt_limit(grant.ttl);
    let mut ask = Ask::within(env, left.min(2 * limit), limit);
    loop {
        let sent = env.now();
        let renewed = match detaches {
            false => leases.renew(grant, &mut ask).await.map(Some),
            true => leases.detach(grant, &mut ask).await,
        };
        let error = match renewed {
            Ok(None) => return Ok(None),
            Ok(Some(Renewed::Until(lease))) => {
                let (now, until) = (env.now(), until(grant.ttl, &lease, sent));
                // A response that arrives after the end of the lease does not extend it.
                if grant.deadline.passed(now) || until.passed(now) {
                    return Ok(Some(grant.lost(LossReason::EXPIRED)));
                }
                grant.deadline = until;
                Kept::of(grant).of_store = lease.memo;
                return Ok(Some(Renewal::Renewed));
            }
            Ok(Some(Renewed::Lost(reason))) => return Ok(Some(grant.lost(reason))),
            Ok(Some(Renewed::Gone)) => {
                let reason = leases.loss(grant, &mut ask).await;
                return Ok(Some(grant.lost(reason.unwrap_or_else(|error| expired(&error)))));
            }
            Ok(Some(Renewed::Again(memo))) => {
                Kept::of(grant).of_store = Some(memo);
                None
            }
            Err(error) => Some(error),
        };
        if let Err(error) = ask.pause(error).await {
            return if grant.deadline.passed(env.now()) {
                Ok(Some(grant.lost(expired(&error))))
            } else {
                Err(error)
            };
        }
    }
}

fn expired(error: &StoreError) -> LossReason {
    LossReason::Expired { last_error: Some(error.to_string()) }
}

/// Ends a grant, or withdraws the claim with its id.
pub(super) async fn end<N: NativeLeases>(
    leases: &N,
    grant: &mut Grant,
    cooldown: Option<Duration>,
) -> Result<Released, StoreError> {
    let kept = Kept::of(grant).clone();
    if let Some(over) = kept.ending().over {
        return Ok(over);
    }
    let mut ask = Ask::within(leases.env(), STORE_TIMEOUT, attempt_limit(grant.ttl));
    ask.again = kept.ending().asked;
    loop {
        // Noted before the request, because the caller may drop this future.
        kept.ending().asked = true;
        let answer = leases.end(grant, cooldown, &mut ask).await;
        kept.ending().asked = ask.again | matches!(answer, Err(StoreError::MaybeApplied(_)));
        if let Some(is_ours) = settle(answer, &mut ask).await? {
            let released = if is_ours { Released::Released } else { Released::AlreadyLost };
            kept.ending().over = Some(released);
            return Ok(released);
        }
    }
}

pub(super) async fn evict<N: NativeLeases>(
    leases: &N,
    name: &LockName,
    token: Token,
    why: Option<&Eviction>,
) -> Result<Evicted, StoreError> {
    let mut ask = Ask::new(leases.env());
    loop {
        let answer = leases.evict(name, token, why, &mut ask).await;
        if let Some(is_ours) = settle(answer, &mut ask).await? {
            return Ok(if is_ours { Evicted::Evicted } else { Evicted::Changed });
        }
    }
}

/// Returns whether this operation ended the grant, or `None` if the store must be asked again.
async fn settle(answer: Outcome<Ended>, ask: &mut Ask<'_>) -> Outcome<Option<bool>> {
    let error = match answer {
        Ok(Ended::Now) => return Ok(Some(true)),
        Ok(Ended::Gone) => return Ok(Some(ask.again)),
        Ok(Ended::Lost) => return Ok(Some(false)),
        Ok(Ended::Again) => None,
        Err(error) => Some(error),
    };
    ask.pause(error).await.map(|()| None)
}
