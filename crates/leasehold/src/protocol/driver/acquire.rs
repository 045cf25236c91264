//! Acquiring: from the first read of a record to a grant that may be used.

use std::time::Duration;

use super::super::record::{Content, Record, RecordState};
use super::super::record_cache::Observation;
use super::super::records::{Claims, Found};
use super::super::rules::{self, Attempt, Availability, Claimed};
use super::hold::Memo;
use super::line::Front;
use super::{Overwrite, Reading, RegisterLeases, Sent};
use crate::clock::StoreTime;
use crate::error::{Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Claim, Grant, Id, LeaseStore, Loss, LossReason, MAX_TOKENS, Renewal, in_time,
};
use crate::register::Version;
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

/// The longest wait that an inexact time explains: a `Date` is accurate to a second, and its response took some time.
const LONGEST_FLOOR_WAIT: Duration = Duration::from_secs(8);
const FLOOR_TRIES: usize = 5;

/// The next step of an acquisition.
enum Next {
    /// End with this outcome.
    Done(Box<AcquireOutcome>),
    /// Judge the record that was read.
    Judge(Box<Reading>),
    /// Read the record.
    Read,
}

impl RegisterLeases {
    /// Runs the acquisition. The writes that it sent stay in `attempts`, even if it fails.
    pub(super) async fn contend(
        &self,
        claim: &Claim,
        attempts: &mut Vec<Attempt>,
    ) -> Result<AcquireOutcome, StoreError> {
        let mut budget = self.budget(claim.store_timeout, claim.ttl).noting(&claim.last_error);
        let has_polled = claim.place.has_polled(claim.id);
        let known = self.cache.recall(&claim.name);
        let is_known = known.is_some();
        let mut next = self.first_step(claim, known, has_polled, attempts, &mut budget).await?;
        // Whether the record comes from the cache.
        let mut is_old = !has_polled && is_known && attempts.is_empty();
        let mut latest: Option<Id> = None;
        loop {
            let mut reading = match next {
                Next::Done(outcome) => return Ok(*outcome),
                Next::Judge(reading) => reading,
                Next::Read => {
                    is_old = false;
                    Box::new(self.read(&claim.name, &mut budget).await?)
                }
            };
            // A waiter continues as long as other clients write in between, because their writes show that the store
            // responds.
            if let Some(Observation { record, .. }) = reading.observation.as_ref().filter(|_| claim.waits)
                && latest.replace(record.nonce).is_some_and(|latest| latest != record.nonce)
            {
                budget.progressed();
            }
            let (store, unchanged_for) = (self.store_time(), reading.unchanged_for(self.now()));
            let found = reading.found.as_ref();
            next = match rules::judge(claim, attempts, found, unchanged_for, store, self.rules) {
                Claimed::Taken(mut held) => {
                    self.stamp(&claim.name, reading.observation.as_ref(), &budget).await;
                    self.add_place(claim, reading.observation.as_ref(), &mut held);
                    return Ok(AcquireOutcome::Held(held));
                }
                Claimed::Lost(loss) => return Ok(AcquireOutcome::Lost(loss)),
                Claimed::Ours(attempt) => match reading.observation.take() {
                    Some(Observation { record, version, .. })
                        if self.settled(&claim.name, Some(&version), &mut budget).await? =>
                    {
                        self.granted(claim, attempt, record, version).await?
                    }
                    _ => Next::Read,
                },
                Claimed::Grantable { over, floor_from_clock } => {
                    let front = match over {
                        None => Front::default(),
                        Some(record) => {
                            match self.front(claim, record, reading.line(), unchanged_for, is_old).await {
                                Ok(front) => front,
                                Err(_) if is_old => {
                                    next = Next::Read;
                                    continue;
                                }
                                // An earlier write whose response was lost may still be applied, so the claim must not
                                // be refused.
                                Err(_) if !claim.waits && attempts.iter().any(|attempt| attempt.unknown) => {
                                    Front::of(record)
                                }
                                Err(reserved) => return Ok(AcquireOutcome::Held(reserved)),
                            }
                        }
                    };
                    self.trusted(&mut budget).await?;
                    if over.is_none() && self.claims_in_turn() {
                        next = self.claim_unread(claim, attempts, &mut budget).await?;
                        continue;
                    }
                    let floor_us = match floor_from_clock {
                        true => self.floor(&claim.name, over, store, attempts, &mut budget).await?,
                        false => None,
                    };
                    let sent = self.now();
                    let mut record = rules::grant(claim, over, self.store_time(), floor_us, self.nonce())
                        .map_err(Fault::not_applied)?;
                    (record.served, record.awaited) = (front.served, front.awaited);
                    let after = rules::highest_before(over).filter(|_| self.records.counts_tokens());
                    let version = reading.version().cloned();
                    let over = Overwrite::Record(version.as_ref().zip(over));
                    let written = self.send(&claim.name, over, &record, sent, attempts, &mut budget).await?;
                    if let Some(attempt) = attempts.iter_mut().find(|attempt| attempt.nonce == record.nonce) {
                        attempt.after = after;
                    }
                    match self.next(claim, written, attempts, &mut budget).await? {
                        Some(next) => next,
                        None => Next::Judge(reading),
                    }
                }
            };
        }
    }

    /// Returns the next step after a grant was `sent`. `None` if the grant certainly had no effect.
    async fn next(
        &self,
        claim: &Claim,
        sent: Sent,
        attempts: &[Attempt],
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<Next>, StoreError> {
        Ok(match sent {
            Sent::Committed(record, version) => {
                Some(self.committed(claim, attempts, *record, version).await?)
            }
            // An earlier request may still be granted, so the claim must not be refused. A waiter asks again in any case. The
            // store may grant nothing for long, so the next read comes later.
            Sent::Withheld(why) if !claim.waits && attempts.iter().any(|attempt| attempt.unknown) => {
                budget.pause_after(Fault::unavailable(why.to_string()).not_applied()).await?;
                Some(Next::Read)
            }
            Sent::Withheld(why) => Some(Next::Done(Box::new(AcquireOutcome::Held(*why)))),
            Sent::Unclear(Some(reading)) => Some(Next::Judge(reading)),
            Sent::Unclear(None) => Some(Next::Read),
            Sent::Again => None,
        })
    }

    /// Returns the first step. If the cached record `known` allows a write at once, or was just read by the poll that
    /// ended the wait, the first step is to judge it (the warm path), unless it is unconfirmed or has this claim's own
    /// grant. Otherwise, if the store supports it, the first step is a write over any free record, or else a read.
    async fn first_step(
        &self,
        claim: &Claim,
        known: Option<Observation>,
        has_polled: bool,
        attempts: &mut Vec<Attempt>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Next, StoreError> {
        let now = self.now();
        let is_known = known.is_some();
        // Others may have joined the line since the record was read, and its version would be the same.
        let shows_waiters = has_polled || self.records.marks_awaited();
        if let Some(observation) = known {
            let unchanged_for = observation.unchanged_for(now);
            let free = rules::availability(&observation.record, unchanged_for, self.store_time(), self.rules)
                == Availability::Grantable;
            // The token of a grant over an unconfirmed record comes from the store's clock. That clock is known
            // best right after a response.
            let Record { state, grant, unconfirmed, .. } = observation.record;
            let first = observation.line.as_ref().and_then(|line| line.waiting(&observation.record).next());
            let is_reserved = first.is_some_and(|first| first.claim != claim.id);
            // In turn, the store itself decides on a free lock, unless a poll has just shown that another claim is
            // first.
            let decides = self.claims_in_turn() && state == RecordState::Free && !is_reserved;
            if (free || has_polled) && shows_waiters && grant != claim.id && !unconfirmed && !decides {
                let found = Some(Content::Record(Box::new(observation.record.clone())));
                let reading = Reading { found, observation: Some(observation), at: now };
                return Ok(Next::Judge(Box::new(reading)));
            }
        }
        let is_shown = is_known && shows_waiters;
        let unread = match self.records.claims() {
            Claims::InTurn => true,
            // Only the record shows whether the grant of a repeated claim has ended.
            // A hold with a limit needs the time of its grant, which is unknown before the first response.
            Claims::Free => {
                let needs_time = claim.holder.max_hold_ms.is_some() && self.store_time().is_none();
                !is_shown && !claim.repeatable && !needs_time
            }
            Claims::Never => false,
        };
        if unread { self.claim_unread(claim, attempts, budget).await } else { Ok(Next::Read) }
    }

    /// Writes a grant over any free record.
    async fn claim_unread(
        &self,
        claim: &Claim,
        attempts: &mut Vec<Attempt>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Next, StoreError> {
        self.trusted(budget).await?;
        let sent = self.now();
        let record = rules::unseen_grant(claim, self.store_time(), self.nonce());
        let tokens = claim.tokens.clamp(1, MAX_TOKENS);
        let over = Overwrite::AnyFree { tokens, barges: claim.barges };
        let sent = self.send(&claim.name, over, &record, sent, attempts, budget).await?;
        Ok(self.next(claim, sent, attempts, budget).await?.unwrap_or(Next::Read))
    }

    /// Stamps a lease whose record does not contain when it was renewed. Processes that only try can then see it lapse
    /// by the store's clock.
    async fn stamp(&self, name: &LockName, observation: Option<&Observation>, budget: &RetryBudget<'_>) {
        let Some((observation, store)) = observation.zip(self.store_time()) else { return };
        if !self.rules.store_clock || observation.record.renewed_at_us.is_some() {
            return;
        }
        let stamp = self.records.stamp(name, &observation.version, store.hi_us);
        if let Err(error) = budget.request(stamp).await {
            tracing::debug!(lock = %name, %error, "the time when the lock was seen could not be recorded");
        }
    }

    /// Returns the next step after a commit: the grant, unless it came too late to be used or its token may be too low.
    async fn committed(
        &self,
        claim: &Claim,
        attempts: &[Attempt],
        record: Record,
        version: Version,
    ) -> Result<Next, StoreError> {
        let Some(&attempt) = attempts.last() else { return Ok(Next::Read) };
        if attempt.created && self.records.others_delete() {
            // Now that the record exists, no other claim is granted before it gets its token.
            let found = Found { content: Content::Record(Box::new(record)), version, line: None };
            return Ok(Next::Judge(Box::new(self.seen(&claim.name, Some(found)))));
        }
        if attempt.created && rules::is_outdated(record.token, self.store_time()) {
            // The record is read back and written once more, with a token from the clock at that time.
            return Ok(Next::Read);
        }
        self.granted(claim, attempt, record, version).await
    }

    /// Returns the grant that `attempt` committed as `record`. If the time in the record is too early, the grant is
    /// renewed before it is reported.
    async fn granted(
        &self,
        claim: &Claim,
        attempt: Attempt,
        record: Record,
        version: Version,
    ) -> Result<Next, StoreError> {
        let early = self.beyond_half_margin(self.written_early(&record, attempt));
        let mut grant = Grant {
            after: attempt.after,
            size: rules::recorded(record.size),
            ..Grant::new(claim, record.token, attempt.sent)
        };
        grant.memo = Some(Box::new(Memo::new(version, record, true)));
        if !early.is_zero() && !grant.deadline.passed(self.now()) {
            match self.renew(&mut grant).await {
                Ok(Renewal::Renewed) => {}
                // Contenders count from the time in the record, so this grant does too.
                Ok(Renewal::Lost(Loss { reason: LossReason::Expired { .. }, .. })) => {
                    grant.deadline = grant.deadline.sooner(early);
                }
                Ok(Renewal::Lost(_)) => return Ok(Next::Read),
                // The grant is valid, whatever happened to its renewal.
                Err(StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault)) => {
                    return Err(fault.maybe_applied());
                }
            }
        }
        Ok(Next::Done(Box::new(in_time(self, claim, grant).await?)))
    }

    /// Returns the lower bound of a token for which no record shows the tokens that were granted before. `since` was
    /// taken when the response to the read of `over` arrived.
    async fn floor(
        &self,
        name: &LockName,
        over: Option<&Record>,
        since: Option<StoreTime>,
        attempts: &[Attempt],
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<u64>, StoreError> {
        if !self.records.counts_tokens() {
            return Ok(Some(0));
        }
        // On DynamoDB, this token of a new record is never reported: see `committed`.
        if over.is_some() && self.records.others_drop_tokens() {
            return match repeated(budget, || self.records.next_token(name)).await? {
                Some(token) => Ok(Some(token)),
                None => self.wait_for_floor(name, since, budget).await,
            };
        }
        Ok(since.map(|store| rules::first_token(store, attempts)))
    }

    /// Waits until the store's clock is certainly past the upper bound of `since`, its current reading. Returns a time
    /// that the clock has then reached. A token that is not below that time is above all tokens that were granted
    /// before `since`, even if another client has just deleted them.
    async fn wait_for_floor(
        &self,
        name: &LockName,
        since: Option<StoreTime>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Option<u64>, StoreError> {
        let Some(mut since) = since else { return Ok(None) };
        for _ in 0..FLOOR_TRIES {
            // Later by a microsecond, because some stores report their clock exactly.
            let floor_us = since.hi_us.saturating_add(1);
            let wait = rules::until_store_reads(floor_us, since);
            if wait <= LONGEST_FLOOR_WAIT {
                self.pass(wait, budget).await;
                return Ok(Some(floor_us));
            }
            // An inexact `Date` does not explain such a wait. The response is old, or a clock was set. A new response
            // gives the current time.
            budget.request(self.records.read(name)).await?;
            let Some(now) = self.store_time() else { return Ok(None) };
            since = now;
        }
        Err(Fault::unavailable("the store's time is unknown, because a clock is being set").not_applied())
    }

    /// Waits until `wait` has passed on both clocks. The time does not count against the limit of `budget`.
    async fn pass(&self, wait: Duration, budget: &mut RetryBudget<'_>) {
        let began = self.now();
        let (mut passed, mut last) = (Duration::ZERO, began);
        // The time is measured for each sleep separately, so that a wall clock that is set back costs only one sleep.
        while passed < wait {
            self.records.env().sleep(wait - passed).await;
            let now = self.now();
            passed += now.shortest_since(last);
            last = now;
        }
        budget.extend(last.longest_since(began));
    }
}
