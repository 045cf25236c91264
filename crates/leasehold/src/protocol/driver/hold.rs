//! Renewing and releasing a grant.

use std::time::Duration;

use super::super::record::Record;
use super::super::record_cache::Observation;
use super::super::rules::{self, Attempt, Freed, Settled};
use super::{Overwrite, RegisterLeases, Sent, not_its_own};
use crate::error::StoreError;
use crate::lease::{Grant, Id, LossReason, Released, Renewal, State, Token, deadline};
use crate::register::Version;
use crate::retry::RetryBudget;

/// The state of a grant between calls.
#[derive(Debug)]
pub(super) struct Memo {
    version: Version,
    pub(super) record: Record,
    /// Whether the response to the grant of `record` arrived in time, so that its token is certain.
    confirmed: bool,
    /// Renewals and releases that were sent after `record` and may still be applied.
    attempts: Vec<Attempt>,
    /// The nonces of creates that got no response and may still succeed once the record is deleted.
    pub(super) late_creates: Vec<Id>,
    /// Whether other processes may renew it too, because the grant comes from a ticket.
    shared: bool,
}

impl Memo {
    pub(super) fn new(version: Version, record: Record, confirmed: bool) -> Self {
        Self { version, record, confirmed, attempts: Vec::new(), late_creates: Vec::new(), shared: false }
    }

    /// Returns the nonce of the record, or `None` if other processes may renew it. Rule 11: if another process renews
    /// it without a ticket, the lease is lost.
    fn known(&self) -> Option<Id> {
        (!self.shared).then_some(self.record.nonce)
    }
}

/// A grant whose memo is in use. The memo lists the requests that were sent. Dropping this puts the memo back, even if
/// the future that uses it is dropped as well.
pub(super) struct Lent<'a> {
    leases: &'a RegisterLeases,
    pub(super) grant: &'a mut Grant,
    pub(super) memo: Option<Memo>,
    /// Whether to look for late creates when this is dropped.
    pub(super) is_over: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(mut memo) = self.memo.take() else { return };
        if self.is_over {
            self.leases.delete_late_creates(&self.grant.name, std::mem::take(&mut memo.late_creates));
        }
        self.grant.memo = Some(Box::new(memo));
    }
}

impl RegisterLeases {
    /// Takes the memo out of `grant` for use.
    pub(super) async fn lent<'a>(
        &'a self,
        grant: &'a mut Grant,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Result<Lent<'a>, (LossReason, &'a mut Grant)>, StoreError> {
        Ok(match self.remembered(grant, budget).await? {
            Ok(memo) => Ok(Lent { leases: self, grant, memo: Some(memo), is_over: false }),
            Err(reason) => Err((reason, grant)),
        })
    }

    /// Returns the memo of `grant`. For a grant from a ticket, reads it from the store.
    async fn remembered(
        &self,
        grant: &mut Grant,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Result<Memo, LossReason>, StoreError> {
        if let Some(memo) = grant.memo.take() {
            match memo.downcast::<Memo>() {
                Ok(memo) => return Ok(Ok(*memo)),
                Err(other) => {
                    grant.memo = Some(other);
                    return Err(not_its_own());
                }
            }
        }
        self.probed(self.records.trust(), budget).await?;
        let reading = self.read(&grant.name, budget).await?;
        Ok(match rules::settle_renewal(grant.id, None, 0, &[], reading.found.as_ref()) {
            Settled::Gone(reason) => Err(reason),
            Settled::Applied(_) | Settled::Earlier | Settled::Foreign => match reading.observation {
                Some(Observation { record, .. }) if is_late_grant(&record, grant) => Err(LossReason::Ended),
                Some(Observation { record, version, .. }) => {
                    Ok(Memo { shared: true, ..Memo::new(version, record, false) })
                }
                None => Err(LossReason::Deleted),
            },
        })
    }

    pub(super) async fn renew_with(
        &self,
        grant: &mut Grant,
        memo: &mut Memo,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Renewal, StoreError> {
        loop {
            let sent = self.now();
            // The process may have been paused between two attempts. In that case its guard has reported the loss.
            if grant.deadline.passed(sent) {
                return Ok(grant.lost(LossReason::EXPIRED));
            }
            let record = rules::renewed(&memo.record, grant.size, self.store_time(), self.nonce());
            let Memo { version, record: before, attempts, .. } = &mut *memo;
            let over = Overwrite::Record(Some((version, before)));
            let applied = match self.send(&grant.name, over, &record, sent, attempts, budget).await? {
                Sent::Committed(record, version) => {
                    (memo.record, memo.version) = (*record, version);
                    memo.attempts.last().copied()
                }
                Sent::Again | Sent::Withheld(_) => None,
                Sent::Unclear(brought) => {
                    let reading = self.resolve(&grant.name, brought, budget).await?;
                    let (known, found) = (memo.known(), reading.found.as_ref());
                    let lost_below = self.lost_below(memo);
                    let settled = rules::settle_renewal(grant.id, known, lost_below, &memo.attempts, found);
                    let is_late = |observation: &Observation| is_late_grant(&observation.record, grant);
                    let applied = match settled {
                        Settled::Gone(reason) => return Ok(grant.lost(reason)),
                        // A late request was applied after the record was deleted, so the original grant is over.
                        Settled::Earlier | Settled::Foreign
                            if reading.observation.as_ref().is_some_and(is_late) =>
                        {
                            return Ok(grant.lost(LossReason::Ended));
                        }
                        Settled::Foreign => return Ok(grant.lost(LossReason::RenewedElsewhere)),
                        Settled::Earlier
                            if self.rules.lapsed_is_over
                                && matches!(self.state_of(&reading), State::Lapsed(_)) =>
                        {
                            return Ok(grant.lost(LossReason::EXPIRED));
                        }
                        // The old deadline applies until one of our writes is known to have been applied.
                        Settled::Earlier => None,
                        // Counts from the time at which that attempt was sent.
                        Settled::Applied(attempt) => {
                            if !self.settled(&grant.name, reading.version(), budget).await? {
                                continue;
                            }
                            Some(attempt)
                        }
                    };
                    if let Some(Observation { record, version, .. }) = reading.observation {
                        // The token of a late create of the same claim is not certain.
                        memo.confirmed &= record.nonce == memo.record.nonce || applied.is_some();
                        (memo.record, memo.version) = (record, version);
                    }
                    applied
                }
            };
            if let Some(attempt) = applied {
                // This also frees the memory, because there are no attempts between renewals.
                memo.attempts = Vec::new();
                // An earlier attempt may have written another size.
                grant.size = grant.size.map(|_| memo.record.size);
                // Contenders use the ttl of the record, which may differ from a ticket's, and the record's time of
                // writing.
                let prolonged = deadline(grant.ttl.min(memo.record.ttl()), attempt.sent)
                    .sooner(self.beyond_half_margin(self.written_early(&memo.record, attempt)));
                // A response that arrives after the end of the lease does not prolong it (fault 16).
                if grant.deadline.passed(self.now()) || prolonged.passed(self.now()) {
                    return Ok(grant.lost(LossReason::EXPIRED));
                }
                grant.deadline = prolonged;
                return Ok(Renewal::Renewed);
            }
        }
    }

    /// See [`rules::settle_renewal`].
    fn lost_below(&self, memo: &Memo) -> u64 {
        if self.records.loses_writes() { memo.record.heartbeat } else { 0 }
    }

    /// Returns `early` less half the margin. By the store's clock, contenders wait for the margin in addition to the
    /// lease. Half of it covers `early`. The other half is for front ends of the store whose clocks disagree.
    pub(super) fn beyond_half_margin(&self, early: Duration) -> Duration {
        early.saturating_sub(self.rules.margin / 2)
    }

    /// Returns by how much the time of writing in `record`, which `attempt` wrote, is too early.
    pub(super) fn written_early(&self, record: &Record, attempt: Attempt) -> Duration {
        let early = rules::written_early(record, attempt.sent, self.store_time(), self.now());
        if !early.is_zero() {
            tracing::debug!(?early, "this machine was paused, and its clocks too");
        }
        early
    }

    pub(super) async fn release_with(
        &self,
        grant: &Grant,
        memo: &mut Memo,
        cooldown: Option<Duration>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Released, StoreError> {
        loop {
            let sent = self.now();
            let mut record =
                rules::freed(&memo.record, grant.end(), cooldown, self.store_time(), self.nonce());
            record.unconfirmed &= !memo.confirmed;
            record.size = grant.size.unwrap_or(record.size);
            let Memo { version, record: before, attempts, .. } = &mut *memo;
            let over = Overwrite::Record(Some((version, before)));
            match self.send(&grant.name, over, &record, sent, attempts, budget).await? {
                Sent::Committed(..) => return Ok(Released::Released),
                Sent::Again | Sent::Withheld(_) => {}
                Sent::Unclear(brought) => {
                    let reading = self.resolve(&grant.name, brought, budget).await?;
                    match rules::settle_release(grant.id, &memo.attempts, reading.found.as_ref()) {
                        Freed::Applied => {
                            if self.settled(&grant.name, reading.version(), budget).await? {
                                return Ok(Released::Released);
                            }
                        }
                        // A deletion leaves no trace. Until now, only this client had a reason to delete the record, so
                        // its own deletion was applied.
                        Freed::Gone if self.may_have_deleted(&memo.attempts) => {
                            return Ok(Released::Released);
                        }
                        Freed::Gone => return Ok(Released::AlreadyLost),
                        Freed::StillOurs => {
                            let Some(Observation { record, version, .. }) = reading.observation else {
                                continue;
                            };
                            // The search for late creates will delete this record.
                            if self.records.deletes() && is_late_grant(&record, grant) {
                                let deleted = self.may_have_deleted(&memo.attempts);
                                return Ok(if deleted { Released::Released } else { Released::AlreadyLost });
                            }
                            // Rule 11: a copy of this process may have renewed it.
                            let content = reading.found.as_ref();
                            let settled = rules::settle_renewal(
                                grant.id,
                                memo.known(),
                                self.lost_below(memo),
                                &memo.attempts,
                                content,
                            );
                            if matches!(settled, Settled::Foreign) && !is_late_grant(&record, grant) {
                                return Ok(Released::AlreadyLost);
                            }
                            // The token of a late create of the same claim is not certain.
                            memo.confirmed &= record.nonce == memo.record.nonce;
                            (memo.record, memo.version) = (record, version);
                        }
                    }
                }
            }
        }
    }
}

/// Returns whether `record`, which has the id of `grant`, is another grant. If so, `grant` is over, and a request of
/// the same claim came late or twice. A withdrawn claim has no token and matches any record with its id.
pub(super) fn is_late_grant(record: &Record, grant: &Grant) -> bool {
    grant.token != Token::default() && record.token != grant.token
}
