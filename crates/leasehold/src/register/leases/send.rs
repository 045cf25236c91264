//! The requests of the lease protocol: reading a record, and writing it once.

use super::super::Precondition;
use super::super::protocol::Attempt;
use super::super::record::{Content, Record};
use super::super::records::{Found, Refusal, Written};
use super::super::retry::RetryBudget;
use super::{RegisterLeases, Send, Sent, Sight};
use crate::clock::Moment;
use crate::error::StoreError;
use crate::lease::Token;
use crate::types::LockName;

impl RegisterLeases {
    /// Reads a lock's record, however often it takes.
    pub(super) async fn look(
        &self,
        name: &LockName,
        effort: &mut RetryBudget<'_>,
    ) -> Result<Sight, StoreError> {
        loop {
            match effort.request(self.records.read(name)).await {
                Ok(found) => return Ok(self.seen(name, found)),
                Err(error) => effort.pause_after(error).await?,
            }
        }
    }

    /// Notes what an answer that has just arrived says is there.
    pub(super) fn seen(&self, name: &LockName, found: Option<Found>) -> Sight {
        let at = self.now(); // After the answer: rule 1.
        let Some(Found { content, version }) = found else {
            self.known.forget(name);
            return Sight { found: None, sighting: None, at };
        };
        let sighting = match &content {
            Content::Record(record) => Some(self.known.see(name, (**record).clone(), version, at)),
            Content::Foreign(_) => {
                self.known.forget(name);
                None
            }
        };
        Sight { found: Some(content), sighting, at }
    }

    /// What is there after a write of unclear fate: what its refusal brought along, or what a read finds.
    pub(super) async fn resolve(
        &self,
        name: &LockName,
        brought: Option<Box<Sight>>,
        effort: &mut RetryBudget<'_>,
    ) -> Result<Sight, StoreError> {
        match brought {
            Some(sight) => Ok(*sight),
            None => self.look(name, effort).await,
        }
    }

    /// Sends one conditional write, which is listed in `attempts` before the first byte leaves.
    ///
    /// `sent` was taken before the record was made, store time included: what contenders count from must not be earlier
    /// than what the holder counts from (rule 1).
    pub(super) async fn send(
        &self,
        name: &LockName,
        how: Send<'_>,
        record: &Record,
        sent: Moment,
        attempts: &mut Vec<Attempt>,
        effort: &mut RetryBudget<'_>,
    ) -> Result<Sent, StoreError> {
        let nonce = record.nonce;
        // Where the store gives the tokens, that of this attempt is not known yet: lower than any, since whoever has the
        // lock after a lost answer may have it after us (rule 10). Nor is there any doubt about that of a late create.
        let counts = self.records.counts_tokens();
        let token = if counts { record.token } else { Token::default() };
        let created = counts && matches!(how, Send::Over(None));
        // Before the send, and unknown until its answer is here: this future may be dropped at any await.
        attempts.push(Attempt { nonce, sent, token, after: None, created, unknown: true });
        let answer = match how {
            Send::Over(there) => {
                let expect =
                    there.map_or(Precondition::Absent, |(version, _)| Precondition::Version(version));
                let before = there.map(|(_, before)| before);
                effort.request(self.records.write(name, expect, before, record)).await
            }
            Send::Unseen => effort.request(self.records.claim(name, record)).await,
        };
        match answer {
            Ok(Written::Committed { record, version }) => {
                self.known.see(name, (*record).clone(), version.clone(), self.now());
                known_fate(attempts);
                Ok(Sent::Committed(record, version))
            }
            // The attempt stays listed: an earlier copy of this very request may be what made it conflict.
            Ok(Written::Conflict(refusal)) => {
                known_fate(attempts);
                let brought = match refusal {
                    Refusal::Unexplained => None,
                    Refusal::Absent => Some(Box::new(self.seen(name, None))),
                    Refusal::Found(found) => Some(Box::new(self.seen(name, Some(found)))),
                };
                effort.pause_after_conflict().await?;
                Ok(Sent::Unclear(brought))
            }
            Err(error @ StoreError::MaybeApplied(_)) => {
                effort.pause_after(error).await?;
                Ok(Sent::Unclear(None))
            }
            Err(error @ StoreError::NotApplied(_)) => {
                if created {
                    attempts.pop();
                } else {
                    // The attempt stays listed: another copy of this request may have been applied.
                    known_fate(attempts);
                }
                effort.pause_after(error).await?;
                Ok(Sent::Again)
            }
        }
    }
}

/// The latest attempt was answered.
fn known_fate(attempts: &mut [Attempt]) {
    if let Some(attempt) = attempts.last_mut() {
        attempt.unknown = false;
    }
}
