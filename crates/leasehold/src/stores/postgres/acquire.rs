//! Sends a claim as one statement.

use std::time::Duration;

use tokio_postgres::types::Type;

use super::errors::Effect;
use super::leases::{PostgresLeases, as_json, cell, milliseconds, note_clock, number, only};
use super::record::locked_by;
use super::sessions::Purpose;
use crate::clock::micros;
use crate::error::{Fault, StoreError};
use crate::lease::Claim;
use crate::lease::MAX_TOKENS;
use crate::stores::on_server::record::Record;
use crate::stores::on_server::{Contended, grace};

impl PostgresLeases {
    /// Sends the claim once. The server does not grant it after `limit`, when the caller no longer waits for the
    /// response.
    pub(super) async fn send_claim(&self, claim: &Claim, limit: Duration) -> Result<Contended, StoreError> {
        let span = claim.ttl.contender_span() + self.margin + claim.lock_delay;
        grace::check(self.sessions.failover_grace(), span, Duration::ZERO)?;
        let by = locked_by(claim.id);
        let holder = as_json(&claim.holder)?;
        let (first, kept) = claim.place.kept_earlier(claim.id).unzip();
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
                    (&number(claim.tokens.clamp(1, MAX_TOKENS)), Type::INT8),
                    (&holder, Type::TEXT),
                    (&number(claim.ttl.as_millis()), Type::INT8),
                    (&too_late, Type::INT8),
                    (&milliseconds(limit), Type::TEXT),
                    (&claim.id.to_string(), Type::TEXT),
                    (&claim.barges, Type::BOOL),
                    (&first.map(|first| first.to_string()), Type::TEXT),
                    (&number(micros(kept.unwrap_or_default())), Type::INT8),
                ],
            )
            .await?;
        let row = only(&rows)?;
        note_clock(&mut used, row)?;
        // Returns the connection, because `note_epoch` needs one too.
        drop(used);
        let (is_late, is_granted): (bool, Option<bool>) = (cell(row, "is_late")?, cell(row, "is_granted")?);
        let grace_left: Option<i64> = cell(row, "grace_left_us")?;
        match is_granted {
            Some(is_granted) => {
                // If the row cannot be read, the lock may be granted nevertheless.
                let record = self.parsed(row, &claim.name).map_err(|error| error.if_maybe(is_granted))?;
                // A late request must not report the claim's own live grant as a refusal.
                let is_own = record.grant() == Some(claim.id) && record.is_live;
                Ok(match is_granted {
                    // The insert of a new row may wait for another client's insert of this name. It has checked the
                    // limit before that wait, so the grant may be late.
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

    /// Returns the response while a grant that the server has lost may hold the lock. If the primary is not recorded,
    /// records it and returns [`Contended::Again`].
    async fn withheld(&self, grace_left: Option<i64>) -> Result<Contended, StoreError> {
        let Some(left_us) = grace_left else {
            self.note_epoch().await?;
            return Ok(Contended::Again);
        };
        let left = Duration::from_micros(u64::try_from(left_us).unwrap_or(0));
        Ok(Contended::Withheld(grace::withheld("PostgreSQL", left)))
    }
}

/// Returns whether the claim was granted before. If so, the caller reports how that grant ended instead of the failover
/// grace.
fn was_granted(claim: &Claim, record: &Record) -> bool {
    record.grant() == Some(claim.id) || record.past.iter().any(|past| past.grant == claim.id)
}

/// Returns the error for a row that is not visible. Usually another client has just created it. Row security may hide
/// it.
fn hidden() -> StoreError {
    Fault::contended("PostgreSQL neither granted the lock nor returned its row")
        .with_help(
            "row security may hide the rows of other users from this one: `leasehold doctor` checks for it",
        )
        .not_applied()
}
