//! Acquiring: one statement for each attempt, until the lock is granted or refused.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::errors::Effect;
use super::leases::{PostgresLeases, cell, milliseconds, note_clock, number, only};
use super::record::{Record, locked_by};
use super::rules::{self, Refusal};
use super::sessions::Purpose;
use crate::clock::{Moment, micros};
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{AcquireOutcome, Claim, Grant, Holder, attempt_limit, deadline};
use crate::runtime::hand_off::MOST_TOKENS;

/// The shortest time limit of a request.
const SHORTEST_REQUEST: Duration = Duration::from_millis(250);

/// The answer to a claim.
enum Contended {
    /// The row, a moment before the request was sent, and whether it was granted too late.
    Granted(Record, Moment, bool),
    Refused(Record),
    /// It reached the server too late to be granted, or found no row where another client has just made one.
    Again,
}

impl PostgresLeases {
    pub(super) async fn acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let mut budget = self.budget(claim.store_timeout, claim.ttl).noting(&claim.trouble);
        // Whether a request was sent that may have been granted without this process learning of it.
        let mut unknown = false;
        loop {
            let limit = attempt_limit(claim.ttl).min(budget.left().max(SHORTEST_REQUEST));
            let error = match budget.request_within(limit, self.contend(claim, limit)).await {
                Ok(Contended::Granted(record, sent, is_late)) => {
                    return self.granted(claim, &record, sent, is_late).await;
                }
                Ok(Contended::Refused(record)) => match rules::refused(claim, &record) {
                    Refusal::Held(held) => return Ok(AcquireOutcome::Held(held)),
                    Refusal::Lost(loss) => return Ok(AcquireOutcome::Lost(loss)),
                    Refusal::OutOfTokens => return Err(out_of_tokens(claim)),
                    Refusal::Again => None,
                },
                Ok(Contended::Again) => None,
                Err(error) => Some(error),
            };
            unknown |= matches!(error, Some(StoreError::MaybeApplied(_)));
            let paused = match error {
                Some(error) => budget.pause_after(error).await,
                None => budget.pause_after_conflict().await,
            };
            // Whatever the latest error was: an earlier request may have been granted.
            paused.map_err(|error| match error {
                StoreError::NotApplied(fault) if unknown => fault.maybe_applied(),
                error => error,
            })?;
        }
    }

    /// Sends the claim once. It is not granted after `limit`, when the caller no longer waits for the answer.
    async fn contend(&self, claim: &Claim, limit: Duration) -> Result<Contended, StoreError> {
        let span = claim.ttl.contender_span() + self.margin + claim.lock_delay;
        let by = locked_by(claim.id);
        let holder = as_json(&claim.holder)?;
        let began = self.env.now();
        let mut used = self.sessions.take(Purpose::Contend).await?;
        let sent = self.env.now();
        let left = limit.saturating_sub(sent.longest_since(began));
        let too_late = used.clock_us(sent).saturating_add(number(micros(left)));
        let rows = used
            .query(
                Effect::Writes,
                &self.statements.acquire,
                &[
                    (&claim.name.as_str(), Type::TEXT),
                    (&by, Type::TEXT),
                    (&number(micros(span)), Type::INT8),
                    (&number(claim.tokens.clamp(1, MOST_TOKENS)), Type::INT8),
                    (&holder, Type::TEXT),
                    (&number(claim.ttl.as_millis()), Type::INT8),
                    (&too_late, Type::INT8),
                    (&milliseconds(limit), Type::TEXT),
                    (&claim.id.to_string(), Type::TEXT),
                    (&claim.barges, Type::BOOL),
                ],
            )
            .await?;
        let row = only(&rows)?;
        note_clock(&mut used, row)?;
        let (is_late, is_granted): (bool, Option<bool>) = (cell(row, "is_late")?, cell(row, "is_granted")?);
        match is_granted {
            Some(is_granted) => {
                let record = self.parsed(row, &claim.name).map_err(|error| match error {
                    // A grant that cannot be read is one all the same.
                    StoreError::NotApplied(fault) if is_granted => fault.maybe_applied(),
                    error => error,
                })?;
                // A late request that finds its own live grant has nothing to say about it.
                let is_own = record.grant() == Some(claim.id) && record.is_live;
                Ok(match is_granted {
                    true => Contended::Granted(record, sent, is_late),
                    false if is_late && (is_own || !record.is_live) => Contended::Again,
                    false => Contended::Refused(record),
                })
            }
            None if is_late => Ok(Contended::Again),
            None => Err(hidden()),
        }
    }

    /// Returns the grant, unless its deadline passed before it arrived. Then the grant is released.
    async fn granted(
        &self,
        claim: &Claim,
        record: &Record,
        sent: Moment,
        is_late: bool,
    ) -> Result<AcquireOutcome, StoreError> {
        let Some(token) = record.token else {
            return Err(
                Fault::new(ErrorKind::Corrupt, "PostgreSQL granted a lock without a token").maybe_applied()
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
        // A new row that waited for another client's has values from before the wait.
        if !is_late && !grant.deadline.passed(self.env.now()) {
            return Ok(AcquireOutcome::Granted(grant));
        }
        match self.end(&mut grant, None).await {
            Ok(_) => Ok(AcquireOutcome::Lost(grant.came_too_late())),
            // The grant is valid: the caller must learn that there may be one.
            Err(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => {
                Err(fault.maybe_applied())
            }
        }
    }
}

/// `holder` as JSON.
pub(super) fn as_json(holder: &Holder) -> Result<String, StoreError> {
    let refused =
        |why: &str| Fault::new(ErrorKind::Invalid, format!("the holder or its note: {why}")).not_applied();
    if [&holder.name, &holder.host].into_iter().any(|text| text.contains('\0'))
        || [&holder.note, &holder.value].into_iter().flatten().any(|text| text.contains('\0'))
    {
        return Err(refused("PostgreSQL stores no NUL characters"));
    }
    serde_json::to_string(holder).map_err(|error| refused(&error.to_string()))
}

/// As a rule another client has just made the row. Its fault remains if that goes on.
fn hidden() -> StoreError {
    Fault::contended("PostgreSQL neither granted the lock nor showed its row")
        .with_help(
            "row security may hide the rows of other users from this one: `leasehold doctor` checks for it",
        )
        .not_applied()
}

fn out_of_tokens(claim: &Claim) -> StoreError {
    let message = format!("the next token of lock `{}` would not be below 2^53", claim.name);
    let help = "its token was set by hand: delete the row, if the earlier tokens were never used";
    Fault::new(ErrorKind::Corrupt, message).with_help(help).not_applied()
}
