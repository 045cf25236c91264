//! Renewing, releasing and evicting.

use std::time::Duration;

use super::record::State;
use super::{Changed, STORE_TIMEOUT, ServerLeases, budget, rules};
use crate::clock::{Deadline, Moment};
use crate::error::StoreError;
use crate::lease::{
    Evicted, Eviction, Grant, LossReason, ReleaseRequest, Released, Renewal, Token, Ttl, attempt_limit,
    deadline,
};
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

pub(super) async fn prolong<L: ServerLeases>(leases: &L, grant: &mut Grant) -> Result<Renewal, StoreError> {
    let env = leases.env();
    let left = grant.deadline.remaining(env.now());
    if left.is_zero() {
        return Ok(grant.lost(LossReason::EXPIRED));
    }
    // Stops before the deadline, because the renewal task must get errors earlier and retries at its own pace.
    let mut budget = budget(leases, left.min(2 * attempt_limit(grant.ttl)), grant.ttl);
    loop {
        match budget.request(leases.renew(grant)).await {
            Ok((Changed::Done, prolonged)) => {
                let now = env.now();
                // A response that arrives after the end of the lease does not prolong it.
                if grant.deadline.passed(now) || prolonged.passed(now) {
                    return Ok(grant.lost(LossReason::EXPIRED));
                }
                grant.deadline = prolonged;
                return Ok(Renewal::Renewed);
            }
            Ok((Changed::Found(record), _)) => {
                let stands = record.as_ref().is_some_and(|record| {
                    matches!(&record.state, State::Held { grant: id, .. } if *id == grant.id)
                        && record.is_live
                        && record.token == Some(grant.token)
                });
                if !stands {
                    let loss = rules::loss(&grant.name, grant.id, grant.token, record.as_ref());
                    return Ok(Renewal::Lost(loss));
                }
                // The record was read before the change by a statement that the renewal waited for.
                budget.pause_after_conflict().await?;
            }
            Err(error) => budget.pause_after(error).await?,
        }
    }
}

/// Returns the deadline of `grant` after a renewal that was sent at `sent`. Contenders use the ttl in the record.
pub(in super::super) fn renewed_until(grant: &Grant, ttl_ms: Option<u64>, sent: Moment) -> Deadline {
    let recorded = ttl_ms.and_then(|ms| Ttl::from_millis(ms).ok());
    deadline(recorded.map_or(grant.ttl, |ttl| ttl.min(grant.ttl)), sent)
}

/// Ends a grant. The lock is not granted again before the end of `cooldown`.
pub(super) async fn end<L: ServerLeases>(
    leases: &L,
    grant: &mut Grant,
    cooldown: Option<Duration>,
) -> Result<Released, StoreError> {
    let mut budget = budget(leases, STORE_TIMEOUT, grant.ttl);
    // The token of a withdrawn claim is unknown.
    let token = Some(grant.token).filter(|token| token.get() > 0);
    let mut asked_before = grant.memo.replace(Box::new(ReleaseRequest)).is_some();
    let mut in_doubt = false;
    loop {
        match budget.request(leases.release(grant, cooldown.unwrap_or_default())).await {
            Ok(Changed::Done) => return Ok(Released::Released),
            Ok(Changed::Found(record)) => {
                let stands = record.as_ref().is_some_and(|record| {
                    matches!(record.state, State::Held { .. })
                        && record.grant() == Some(grant.id)
                        && (token.is_none() || record.token == token)
                });
                if !stands {
                    if in_doubt {
                        settle(leases, &grant.name, &mut budget).await?;
                    }
                    return Ok(match asked_before {
                        true => rules::was_released(record.as_ref(), grant.id),
                        false => Released::AlreadyLost,
                    });
                }
                // The record was read before the change by a statement that the release waited for.
                budget.pause_after_conflict().await?;
            }
            Err(error) => {
                in_doubt |= matches!(error, StoreError::MaybeApplied(_));
                asked_before |= in_doubt;
                budget.pause_after(error).await.map_err(|error| error.if_maybe(asked_before))?;
            }
        }
    }
}

pub(super) async fn end_by_token<L: ServerLeases>(
    leases: &L,
    name: &LockName,
    token: Token,
    why: Option<&Eviction>,
) -> Result<Evicted, StoreError> {
    let mut budget = budget(leases, STORE_TIMEOUT, Ttl::DEFAULT);
    let mut unknown = false;
    // Whether the latest response to follow an unknown outcome was read before the outcome: its request waited for an
    // earlier one that was still under way. The next request reads the outcome.
    let mut waited = false;
    loop {
        match budget.request(leases.evict(name, token, why)).await {
            Ok(answer) if answer.is_changed => return Ok(Evicted::Evicted),
            // An earlier request, whose response was lost, evicted the grant.
            Ok(answer) if answer.is_over && unknown => {
                settle(leases, name, &mut budget).await?;
                return Ok(Evicted::Evicted);
            }
            Ok(_) if unknown && !waited => {
                waited = true;
                budget.pause_after_conflict().await.map_err(|error| error.if_maybe(unknown))?;
            }
            Ok(_) => return Ok(Evicted::Changed),
            Err(error) => {
                (unknown, waited) = (unknown || matches!(error, StoreError::MaybeApplied(_)), false);
                budget.pause_after(error).await.map_err(|error| error.if_maybe(unknown))?;
            }
        }
    }
}

async fn settle<L: ServerLeases>(
    leases: &L,
    name: &LockName,
    budget: &mut RetryBudget<'_>,
) -> Result<(), StoreError> {
    repeated(budget, || leases.settle(name)).await.map_err(|error| match error {
        StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault) => fault.maybe_applied(),
    })
}
