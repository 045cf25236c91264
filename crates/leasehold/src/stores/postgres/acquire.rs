//! A claim, as one statement.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::errors::Effect;
use super::leases::{PostgresLeases, as_json, cell, milliseconds, note_clock, number, only};
use super::record::locked_by;
use super::sessions::Purpose;
use crate::clock::micros;
use crate::error::{Fault, StoreError};
use crate::lease::Claim;
use crate::runtime::hand_off::MOST_TOKENS;
use crate::stores::on_server::record::Record;
use crate::stores::on_server::{Contended, grace};

impl PostgresLeases {
    /// Sends the claim once. It is not granted after `limit`, when the caller no longer waits for the response.
    pub(super) async fn contended(&self, claim: &Claim, limit: Duration) -> Result<Contended, StoreError> {
        let span = claim.ttl.contender_span() + self.margin + claim.lock_delay;
        grace::check(self.sessions.failover_grace(), span, Duration::ZERO)?;
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
        // Recording the primary needs a connection too.
        drop(used);
        let (is_late, is_granted): (bool, Option<bool>) = (cell(row, "is_late")?, cell(row, "is_granted")?);
        let grace_left: Option<i64> = cell(row, "grace_left_us")?;
        match is_granted {
            Some(is_granted) => {
                // The lock may be granted even if its row cannot be read.
                let record = self.parsed(row, &claim.name).map_err(|error| error.if_maybe(is_granted))?;
                // A late request does not refuse its own live grant.
                let is_own = record.grant() == Some(claim.id) && record.is_live;
                Ok(match is_granted {
                    // A new row that waited for another client's has values from before the wait.
                    true => Contended::Granted { record, sent, is_late },
                    false if is_late && (is_own || !record.is_live) => Contended::Again,
                    false if grace_left != Some(0) && !record.is_live && !was_granted(claim, &record) => {
                        self.withheld(grace_left).await?
                    }
                    false => Contended::Refused(record),
                })
            }
            None if is_late => Ok(Contended::Again),
            None if grace_left != Some(0) => self.withheld(grace_left).await,
            None => Err(hidden()),
        }
    }

    /// The lock may be held by a grant that the server has lost.
    async fn withheld(&self, grace_left: Option<i64>) -> Result<Contended, StoreError> {
        let Some(left_us) = grace_left else {
            self.note_epoch().await?;
            return Ok(Contended::Again);
        };
        let left = Duration::from_micros(u64::try_from(left_us).unwrap_or(0));
        Ok(Contended::Withheld(grace::withheld("PostgreSQL", left)))
    }
}

/// Whether the claim was granted before. How that grant ended is then reported, and not the failover grace.
fn was_granted(claim: &Claim, record: &Record) -> bool {
    record.grant() == Some(claim.id) || record.past.iter().any(|past| past.grant == claim.id)
}

/// Usually another client has just created the row. If it stays hidden, this is the error to report.
fn hidden() -> StoreError {
    Fault::contended("PostgreSQL neither granted the lock nor returned its row")
        .with_help(
            "row security may hide the rows of other users from this one: `leasehold doctor` checks for it",
        )
        .not_applied()
}
