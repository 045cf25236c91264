//! The requests of the lease protocol: reading a record, and writing it once.

use super::super::record::{Content, Record, RecordState};
use super::super::records::{Found, Refusal, Written};
use super::super::rules::Attempt;
use super::{Overwrite, Passing, Reading, RegisterLeases, Sent};
use crate::clock::Moment;
use crate::error::StoreError;
use crate::lease::Token;
use crate::register::Precondition;
use crate::retry::RetryBudget;
use crate::types::LockName;

impl RegisterLeases {
    /// Reads a lock's record, with retries.
    pub(super) async fn read(
        &self,
        name: &LockName,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Reading, StoreError> {
        loop {
            match budget.request(self.records.read(name)).await {
                Ok(found) => return Ok(self.seen(name, found)),
                Err(error) => budget.pause_after(error).await?,
            }
        }
    }

    /// Caches the content of a response that has just arrived.
    pub(super) fn seen(&self, name: &LockName, found: Option<Found>) -> Reading {
        let at = self.now(); // After the response: rule 1.
        let Some(Found { mut content, version, line }) = found else {
            self.cache.forget(name);
            return Reading { found: None, observation: None, at };
        };
        let observation = match &mut content {
            Content::Record(record) => {
                self.tap(Passing::Seen, name, record);
                if let Some(line) = &line {
                    let is_awaited = line.waiting(record).next().is_some();
                    record.awaited = is_awaited;
                }
                let observation = self.cache.see(name, (**record).clone(), version, line, at);
                record.renewed_at_us = observation.record.renewed_at_us;
                Some(observation)
            }
            Content::Foreign { .. } => {
                self.cache.forget(name);
                None
            }
        };
        Reading { found: Some(content), observation, at }
    }

    /// Returns the stored record after a write of unclear effect: the record that came with the refusal, or the result
    /// of a read.
    pub(super) async fn resolve(
        &self,
        name: &LockName,
        brought: Option<Box<Reading>>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Reading, StoreError> {
        match brought {
            Some(reading) => Ok(*reading),
            None => self.read(name, budget).await,
        }
    }

    /// Sends one conditional write. The write is listed in `attempts` before its first byte is sent.
    ///
    /// `sent` was taken before the record was made, including its store time. Contenders must not count from an earlier
    /// time than the holder does (rule 1).
    pub(super) async fn send(
        &self,
        name: &LockName,
        over: Overwrite<'_>,
        record: &Record,
        sent: Moment,
        attempts: &mut Vec<Attempt>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Sent, StoreError> {
        let nonce = record.nonce;
        // If the store assigns tokens, the token of this attempt is not known yet. It counts as lower than any other,
        // because after a lost response the lock may have been granted to a later claim (rule 10). On such a store, a
        // late create does not make the token uncertain either. A store that claims in turn takes the token from its
        // clock, unless an earlier token is higher.
        let counts = self.records.counts_tokens();
        let token = match over {
            Overwrite::AnyFree { .. } if self.claims_in_turn() => {
                self.store_time().and_then(|store| Token::new(store.lo_us)).unwrap_or_default()
            }
            _ if counts => record.token,
            _ => Token::default(),
        };
        let created = counts && matches!(over, Overwrite::Record(None));
        // Listed before the send, and unknown until the response arrives, because this future may be dropped at any
        // await.
        attempts.push(Attempt { nonce, sent, token, after: None, created, unknown: true });
        match over {
            Overwrite::Record(Some((_, before)))
                if self.records.deletes() && record.state == RecordState::Free =>
            {
                self.tap(Passing::Deleted, name, before);
            }
            _ => self.tap(Passing::Sent, name, record),
        }
        let answer = match over {
            Overwrite::Record(there) => {
                let expect =
                    there.map_or(Precondition::Absent, |(version, _)| Precondition::Version(version));
                let before = there.map(|(_, before)| before);
                budget.request(self.records.write(name, expect, before, record)).await
            }
            Overwrite::AnyFree { tokens, barges } => {
                budget.request(self.records.claim(name, record, tokens, barges)).await
            }
        };
        let answer = match answer {
            Ok(Written::Granted { record, version, after }) => {
                if let Some(attempt) = attempts.last_mut() {
                    attempt.after = after;
                }
                Ok(Written::Committed { record, version })
            }
            answer => answer,
        };
        match answer {
            Ok(Written::Committed { record, version } | Written::Granted { record, version, .. }) => {
                self.tap(Passing::Written, name, &record);
                self.cache.wrote(name, (*record).clone(), version.clone(), self.now());
                known_fate(attempts);
                Ok(Sent::Committed(record, version))
            }
            // The attempt stays listed, because the conflict may come from an earlier copy of this very request.
            Ok(Written::Conflict(refusal)) => {
                known_fate(attempts);
                let brought = match refusal {
                    Refusal::Unexplained => None,
                    Refusal::Absent => Some(Box::new(self.seen(name, None))),
                    Refusal::Found(found) => Some(Box::new(self.seen(name, Some(found)))),
                };
                budget.pause_after_conflict().await?;
                Ok(Sent::Unclear(brought))
            }
            Ok(Written::Withheld(why)) => {
                known_fate(attempts);
                Ok(Sent::Withheld(why))
            }
            Err(error @ StoreError::MaybeApplied(_)) => {
                budget.pause_after(error).await?;
                Ok(Sent::Unclear(None))
            }
            Err(error @ StoreError::NotApplied(_)) => {
                if created {
                    attempts.pop();
                } else {
                    // The attempt stays listed, because another copy of this request may have been applied.
                    known_fate(attempts);
                }
                budget.pause_after(error).await?;
                Ok(Sent::Again)
            }
        }
    }
}

/// Records that the latest attempt got a response.
fn known_fate(attempts: &mut [Attempt]) {
    if let Some(attempt) = attempts.last_mut() {
        attempt.unknown = false;
    }
}
