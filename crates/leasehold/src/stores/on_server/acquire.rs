//! Acquires a lock: sends one request per attempt until the lock is granted or refused.

use std::time::Duration;

use super::record::Record;
use super::rules::{self, Refusal};
use super::{Contended, ServerLeases, budget, hold};
use crate::clock::Moment;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{AcquireOutcome, Claim, Grant, attempt_limit, deadline};

/// The shortest time limit of a request.
const SHORTEST_REQUEST: Duration = Duration::from_millis(250);

pub(super) async fn acquire<L: ServerLeases>(
    leases: &L,
    claim: &Claim,
) -> Result<AcquireOutcome, StoreError> {
    let mut budget = budget(leases, claim.store_timeout, claim.ttl).noting(&claim.last_error);
    // Whether an earlier request may have been granted although its response was lost.
    let mut unknown = false;
    loop {
        let limit = attempt_limit(claim.ttl).min(budget.left().max(SHORTEST_REQUEST));
        let error = match budget.request_within(limit, leases.contend(claim, limit)).await {
            Ok(Contended::Granted { record, sent, is_late }) => {
                return granted(leases, claim, &record, sent, is_late).await;
            }
            Ok(Contended::Refused(record)) => match rules::refused(claim, &record) {
                Refusal::Held(held) => return Ok(AcquireOutcome::Held(held)),
                Refusal::Lost(loss) => return Ok(AcquireOutcome::Lost(loss)),
                Refusal::OutOfTokens => return Err(out_of_tokens(claim)),
                Refusal::Again => None,
            },
            Ok(Contended::Withheld(why)) => return Ok(AcquireOutcome::Held(why)),
            Ok(Contended::Again) => None,
            Err(error) => Some(error),
        };
        unknown |= matches!(error, Some(StoreError::MaybeApplied(_)));
        let paused = match error {
            Some(error) => budget.pause_after(error).await,
            None => budget.pause_after_conflict().await,
        };
        // An earlier request may have been granted, whatever the latest error is.
        paused.map_err(|error| error.if_maybe(unknown))?;
    }
}

/// Returns the grant. If `is_late`, or if its deadline passed before the response arrived, reports a loss and, unless the
/// claim is repeatable, releases the grant.
async fn granted<L: ServerLeases>(
    leases: &L,
    claim: &Claim,
    record: &Record,
    sent: Moment,
    is_late: bool,
) -> Result<AcquireOutcome, StoreError> {
    let Some(token) = record.token else {
        return Err(
            Fault::new(ErrorKind::Corrupt, "the server granted a lock without a token").maybe_applied()
        );
    };
    let mut grant = Grant {
        name: claim.name.clone(),
        token,
        after: record.previous,
        id: claim.id,
        ttl: claim.ttl,
        deadline: deadline(claim.ttl, sent),
        memo: None,
    };
    if !is_late && !grant.deadline.passed(leases.env().now()) {
        return Ok(AcquireOutcome::Granted(grant));
    }
    if claim.repeatable {
        // A repetition of the claim may have the same grant by now.
        return Ok(AcquireOutcome::Lost(grant.came_too_late()));
    }
    // Reports a loss whatever the response is, because a release that arrives later must not end another grant of the
    // same claim.
    let _ = hold::end(leases, &mut grant, None).await;
    Ok(AcquireOutcome::Lost(grant.came_too_late()))
}

fn out_of_tokens(claim: &Claim) -> StoreError {
    let message = format!("the next token of lock `{}` would not be below 2^53", claim.name);
    let help = "its token was set by hand: delete the record, if the earlier tokens were never used";
    Fault::new(ErrorKind::Corrupt, message).with_help(help).not_applied()
}
