//! The lease protocol on lock records: the driver that sends what the [rules](super::rules) say.

mod acquire;
mod examine;
mod late_creates;
mod send;
mod sweep;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::BoxStream;

use super::record::{Content, Record, RecordState};
use super::record_cache::{Observation, RecordCache};
use super::records::{ExistenceRecords, JsonRecords, Records};
use super::rules::{self, Attempt, Freed, Rules, Settled};
use crate::clock::{Deadline, Moment, StoreTime};
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, End, Evicted, Grant, HolderInfo, Id, LeaseStore, Loss, LossReason,
    Released, Renewal, Status, StoreOptions, Swept, Token, Ttl, Watch, attempt_limit, deadline,
};
use crate::register::{Register, Version};
use crate::retry::RetryBudget;
use crate::runtime::limiter::{Limiter, POLLS};
use crate::runtime::pacing::{Pacing, Turns};
use crate::runtime::task;
use crate::types::LockName;

/// How long operations without their own store timeout wait for a store that does not answer.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Leases on any [`Register`]: one JSON object for each lock, granted, renewed and released by conditional writes.
///
/// The same protocol runs on stores with their own record format: DynamoDB.
///
/// ```
/// # use leasehold::{Locker, RegisterLeases, lease::StoreOptions, env::Env, stores::memory::MemoryRegister};
/// # use std::sync::Arc;
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let register = Arc::new(MemoryRegister::new(Env::system()));
/// let locker = Locker::new(Arc::new(RegisterLeases::new(register, StoreOptions::default())));
/// let guard = locker.lock("deploy/prod").acquire().await?;
/// guard.release().await?;
/// # Ok::<_, leasehold::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct RegisterLeases {
    records: Arc<dyn Records>,
    rules: Rules,
    known: Arc<RecordCache>,
    /// Limits the reads of waiters, so that they do not delay renewals.
    polls: Arc<Limiter>,
}

/// What a grant remembers between calls.
#[derive(Debug)]
struct Memo {
    version: Version,
    record: Record,
    /// Whether the grant of `record` was answered in time, so that its token is certain.
    confirmed: bool,
    /// Renewals and releases that were sent after `record` and may still be applied.
    attempts: Vec<Attempt>,
    /// The nonces of creates that were never answered and may still succeed once the record is deleted.
    late_creates: Vec<Id>,
    /// Whether other processes may renew it too, because the grant comes from a ticket.
    shared: bool,
}

impl Memo {
    fn new(version: Version, record: Record, confirmed: bool) -> Self {
        Self { version, record, confirmed, attempts: Vec::new(), late_creates: Vec::new(), shared: false }
    }

    /// The nonce of the record, unless other processes may renew it. Rule 11: if another process renews it without a
    /// ticket, the lease is lost.
    fn known(&self) -> Option<Id> {
        (!self.shared).then_some(self.record.nonce)
    }
}

/// A grant whose memo is in use. Dropping this, even together with the future that uses it, puts the memo back. It
/// lists the requests that were sent.
struct Lent<'a> {
    leases: &'a RegisterLeases,
    grant: &'a mut Grant,
    memo: Option<Memo>,
    /// Whether to look for late creates.
    is_over: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Some(mut memo) = self.memo.take() else { return };
        if self.is_over {
            self.leases.look_for_ghosts(&self.grant.name, std::mem::take(&mut memo.late_creates));
        }
        self.grant.memo = Some(Box::new(memo));
    }
}

/// What was read, and when the answer had arrived.
struct Sight {
    found: Option<Content>,
    sighting: Option<Observation>,
    at: Moment,
}

/// How a record is to be written.
#[derive(Clone, Copy)]
enum Send<'a> {
    /// Over this version, which is this record; or over nothing.
    Over(Option<(&'a Version, &'a Record)>),
    /// Over any free record: see [`Records::claim`].
    Unseen,
}

/// The result of a conditional write.
enum Sent {
    Committed(Box<Record>, Version),
    /// A conflict, or no answer: a read must show the outcome. A conflict may include what was read.
    Unclear(Option<Box<Sight>>),
    /// Certainly without effect. The pause before the next attempt is over.
    Again,
}

impl RegisterLeases {
    /// Leases on `register`.
    pub fn new(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self::on(Arc::new(JsonRecords::new(register)), options)
    }

    /// Leases on `register` by the protocol of simple clients: a lock is held while an object with exactly its name
    /// exists, and a release deletes the object. Objects that leasehold did not write are held by an unknown holder
    /// and are never taken over.
    ///
    /// Grants have fencing tokens only if the register's [versions are
    /// generations](crate::register::RegisterCapabilities::generations). Inspection shows no past grants, and locks
    /// have no cooldown.
    pub fn by_existence(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self::on(Arc::new(ExistenceRecords::new(register)), options)
    }

    /// Leases on `records`.
    pub(crate) fn on(records: Arc<dyn Records>, options: StoreOptions) -> Self {
        let rules = Rules { store_clock: options.store_clock, margin: options.margin };
        Self { records, rules, known: Arc::default(), polls: Limiter::new(POLLS) }
    }

    fn now(&self) -> Moment {
        self.records.env().now()
    }

    /// Copies of a running machine may draw the same random numbers, but not at the same nanosecond of both clocks.
    fn nonce(&self) -> Id {
        Id::random(&self.records.env().random).at(self.now())
    }

    fn budget(&self, limit: Duration, ttl: Ttl) -> RetryBudget<'_> {
        RetryBudget::new(self.records.env(), limit, attempt_limit(ttl))
    }

    /// Awaits an examination of the store. It has a time limit of its own, and does not count against `budget`.
    async fn examined(
        &self,
        examination: impl Future<Output = Result<(), StoreError>>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(), StoreError> {
        let began = self.now();
        examination.await?;
        budget.extend(self.now().longest_since(began));
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.records.store_time()
    }

    /// `grant`, with its memo taken out for use.
    async fn lent<'a>(
        &'a self,
        grant: &'a mut Grant,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Result<Lent<'a>, (LossReason, &'a mut Grant)>, StoreError> {
        Ok(match self.remembered(grant, budget).await? {
            Ok(memo) => Ok(Lent { leases: self, grant, memo: Some(memo), is_over: false }),
            Err(reason) => Err((reason, grant)),
        })
    }

    /// The memo of `grant`. For a grant from a ticket, it is read from the store.
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
        self.examined(self.records.trust(), budget).await?;
        let sight = self.look(&grant.name, budget).await?;
        Ok(match rules::settle_renewal(grant.id, None, &[], sight.found.as_ref()) {
            Settled::Gone(reason) => Err(reason),
            Settled::Landed(_) | Settled::Earlier | Settled::Foreign => match sight.sighting {
                Some(Observation { record, .. }) if is_late_grant(&record, grant) => Err(LossReason::Ended),
                Some(Observation { record, version, .. }) => {
                    Ok(Memo { shared: true, ..Memo::new(version, record, false) })
                }
                None => Err(LossReason::Deleted),
            },
        })
    }

    async fn renew_with(
        &self,
        grant: &mut Grant,
        memo: &mut Memo,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Renewal, StoreError> {
        loop {
            let sent = self.now();
            // The process may have stood still between two attempts. Its guard has then reported the loss.
            if grant.deadline.passed(sent) {
                return Ok(lost(grant, LossReason::Expired { last_error: None }));
            }
            let record = rules::renewed(&memo.record, self.store_time(), self.nonce());
            let Memo { version, record: before, attempts, .. } = &mut *memo;
            let over = Send::Over(Some((version, before)));
            let landed = match self.send(&grant.name, over, &record, sent, attempts, budget).await? {
                Sent::Committed(record, version) => {
                    (memo.record, memo.version) = (*record, version);
                    memo.attempts.last().copied()
                }
                Sent::Again => None,
                Sent::Unclear(brought) => {
                    let sight = self.resolve(&grant.name, brought, budget).await?;
                    let (known, found) = (memo.known(), sight.found.as_ref());
                    let settled = rules::settle_renewal(grant.id, known, &memo.attempts, found);
                    let is_late = |sighting: &Observation| is_late_grant(&sighting.record, grant);
                    let landed = match settled {
                        Settled::Gone(reason) => return Ok(lost(grant, reason)),
                        // A late request after the record was deleted: the original grant is over.
                        Settled::Earlier | Settled::Foreign
                            if sight.sighting.as_ref().is_some_and(is_late) =>
                        {
                            return Ok(lost(grant, LossReason::Ended));
                        }
                        Settled::Foreign => return Ok(lost(grant, LossReason::RenewedElsewhere)),
                        // The old deadline applies until one of our writes is known to have been applied.
                        Settled::Earlier => None,
                        // Counts from the time at which that attempt was sent.
                        Settled::Landed(attempt) => Some(attempt),
                    };
                    if let Some(Observation { record, version, .. }) = sight.sighting {
                        // The token of a late create of the same claim is not certain.
                        memo.confirmed &= record.nonce == memo.record.nonce || landed.is_some();
                        (memo.record, memo.version) = (record, version);
                    }
                    landed
                }
            };
            if let Some(attempt) = landed {
                // Also frees the memory: between renewals there are no attempts.
                memo.attempts = Vec::new();
                // Contenders go by the record: by its ttl, which may differ from a ticket's, and by its time of
                // writing.
                let prolonged = deadline(grant.ttl.min(memo.record.ttl()), attempt.sent)
                    .sooner(self.beyond_margin(self.written_early(&memo.record, attempt)));
                // An answer that arrives after the lease that it would prolong prolongs nothing (fault 16).
                if grant.deadline.passed(self.now()) || prolonged.passed(self.now()) {
                    return Ok(lost(grant, LossReason::Expired { last_error: None }));
                }
                grant.deadline = prolonged;
                return Ok(Renewal::Renewed);
            }
        }
    }

    /// `early` less the margin, for which contenders wait before they go by the store's clock.
    fn beyond_margin(&self, early: Duration) -> Duration {
        early.saturating_sub(self.rules.margin)
    }

    /// How much too early the time of writing in `record` is, which `attempt` wrote.
    fn written_early(&self, record: &Record, attempt: Attempt) -> Duration {
        let early = rules::written_early(record, attempt.sent, self.store_time(), self.now());
        if !early.is_zero() {
            tracing::debug!(?early, "this machine stood still with its clocks");
        }
        early
    }

    async fn release_with(
        &self,
        grant: &Grant,
        memo: &mut Memo,
        cooldown: Option<Duration>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<Released, StoreError> {
        loop {
            let sent = self.now();
            let mut record =
                rules::freed(&memo.record, End::Released, cooldown, self.store_time(), self.nonce());
            record.newborn &= !memo.confirmed;
            let Memo { version, record: before, attempts, .. } = &mut *memo;
            let over = Send::Over(Some((version, before)));
            match self.send(&grant.name, over, &record, sent, attempts, budget).await? {
                Sent::Committed(..) => return Ok(Released::Released),
                Sent::Again => {}
                Sent::Unclear(brought) => {
                    let sight = self.resolve(&grant.name, brought, budget).await?;
                    match rules::settle_release(grant.id, &memo.attempts, sight.found.as_ref()) {
                        Freed::Landed => return Ok(Released::Released),
                        // A deletion leaves no trace. But until now no other client had reason to delete this record.
                        Freed::Gone if self.may_have_deleted(&memo.attempts) => {
                            return Ok(Released::Released);
                        }
                        Freed::Gone => return Ok(Released::AlreadyLost),
                        Freed::StillOurs => {
                            let Some(Observation { record, version, .. }) = sight.sighting else { continue };
                            // The search for late creates deletes it.
                            if self.records.deletes() && is_late_grant(&record, grant) {
                                let deleted = self.may_have_deleted(&memo.attempts);
                                return Ok(if deleted { Released::Released } else { Released::AlreadyLost });
                            }
                            // Rule 11: a copy of this process may have renewed it.
                            let content = sight.found.as_ref();
                            let settled =
                                rules::settle_renewal(grant.id, memo.known(), &memo.attempts, content);
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

#[async_trait]
impl LeaseStore for RegisterLeases {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let mut attempts = Vec::new();
        let mut outcome = self.contend(claim, &mut attempts).await;
        self.leave_no_ghosts(&claim.name, &attempts, &mut outcome);
        match outcome {
            // However this ended: an earlier request without an answer may still be applied, and a created record may
            // exist whose token is not certain.
            Err(StoreError::NotApplied(fault))
                if attempts.iter().any(|sent| sent.unknown || sent.created) =>
            {
                Err(fault.maybe_applied())
            }
            outcome => outcome,
        }
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let left = grant.deadline.remaining(self.now());
        if left.is_zero() {
            return Ok(lost(grant, LossReason::Expired { last_error: None }));
        }
        // Ends well before the deadline: the renewer must learn of errors earlier, and retries at its own pace.
        let mut budget = self.budget(left.min(2 * attempt_limit(grant.ttl)), grant.ttl);
        let mut lent = match self.lent(grant, &mut budget).await? {
            Ok(lent) => lent,
            Err((reason, grant)) => return Ok(lost(grant, reason)),
        };
        let Some(memo) = &mut lent.memo else { return Err(not_its_own()) };
        let outcome = self.renew_with(lent.grant, memo, &mut budget).await;
        // No release will follow that would look for late creates.
        lent.is_over = matches!(outcome, Ok(Renewal::Lost(_)));
        outcome
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, grant.ttl);
        let Ok(mut lent) = self.lent(grant, &mut budget).await? else {
            return Ok(Released::AlreadyLost);
        };
        lent.is_over = true;
        let Some(memo) = &mut lent.memo else { return Err(not_its_own()) };
        self.release_with(lent.grant, memo, cooldown, &mut budget).await
    }

    async fn evict(&self, name: &LockName, token: Token) -> Result<Evicted, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let mut attempts: Vec<Attempt> = Vec::new();
        self.examined(self.records.trust(), &mut budget).await?;
        loop {
            let Observation { record, version, .. } = match self.look(name, &mut budget).await? {
                Sight { sighting: Some(sighting), .. } => sighting,
                Sight { found: None, .. } if self.may_have_deleted(&attempts) => return Ok(Evicted::Evicted),
                Sight { found: None, .. } => return Ok(Evicted::Changed),
                Sight { found: Some(_), .. } => return Err(not_ours_to_evict(name)),
            };
            if attempts.iter().any(|attempt| attempt.nonce == record.nonce) {
                return Ok(Evicted::Evicted);
            }
            if record.token != token || record.state == RecordState::Free {
                // Another client has been granted the lock since. A deletion leaves no trace.
                let evicted = self.may_have_deleted(&attempts);
                return Ok(if evicted { Evicted::Evicted } else { Evicted::Changed });
            }
            let sent = self.now();
            let freed = rules::freed(&record, End::Evicted, None, self.store_time(), self.nonce());
            let over = Send::Over(Some((&version, &record)));
            if let Sent::Committed(..) =
                self.send(name, over, &freed, sent, &mut attempts, &mut budget).await?
            {
                return Ok(Evicted::Evicted);
            }
        }
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let sight = self.look(name, &mut self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await?;
        let quiet = sight.quiet(sight.at);
        let state = rules::state(sight.found.as_ref(), quiet, self.store_time(), self.rules);
        let mut status = Status::new(name.clone(), state);
        if let Some(Observation { record, .. }) = sight.sighting {
            status.token = Some(record.token);
            status.history = record.history;
        }
        Ok(status)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        self.records.list(prefix)
    }

    async fn init(&self) -> Result<(), StoreError> {
        self.records.init().await
    }

    async fn sweep(&self, name: &LockName, older_than: Duration, dry_run: bool) -> Result<Swept, StoreError> {
        self.swept(name, older_than, dry_run).await
    }

    fn capabilities(&self) -> Capabilities {
        self.records.capabilities()
    }

    fn env(&self) -> &Env {
        self.records.env()
    }
}

#[async_trait]
impl Watch for RegisterLeases {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        let env = self.records.env();
        let mut pacing = Pacing::new(self.records.capabilities().poll_interval, self.now());
        let mut turns = self.turns(self.known.recall(name).as_ref());
        let mut held = seen.clone();
        loop {
            env.sleep(pacing.pause(self.now(), held.token, turns, held.lapses_within, &env.random)).await;
            // Poll with a read, even if the lease has lapsed by now: it may have been renewed since the last read, and
            // only one of the waiters can be granted the lock.
            let (sight, had_trouble) = self.poll(name).await?;
            let quiet = sight.quiet(sight.at);
            match rules::state(sight.found.as_ref(), quiet, self.store_time(), self.rules) {
                crate::lease::State::Held(still) if still.in_cooldown == seen.in_cooldown => held = still,
                _ => return Ok(()),
            }
            pacing.looked(had_trouble);
            turns = self.turns(sight.sighting.as_ref());
        }
    }
}

#[async_trait]
impl Diagnose for RegisterLeases {
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        match self.look(name, &mut self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await? {
            Sight { found: None, .. } => Ok(true),
            Sight { sighting: Some(Observation { record, version, .. }), .. }
                if record.state == RecordState::Free =>
            {
                self.records.discard(name, &version).await
            }
            Sight { .. } => Ok(false),
        }
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        let mut examined = self.records.examine(examination).await;
        if examined.is_sound()
            && let Ok(unused) = LockName::new(format!("{}{}", crate::diagnosis::RESERVED, self.nonce()))
        {
            examined.push(examine::store_clock(&*self.records, self.rules, &unused).await);
        }
        examined
    }
}

impl RegisterLeases {
    /// Whether one of these attempts to free a record may have deleted it without an answer.
    fn may_have_deleted(&self, attempts: &[Attempt]) -> bool {
        self.records.deletes() && attempts.iter().any(|attempt| attempt.unknown)
    }

    /// Reads the record for a waiter. Also returns whether the store failed. Runs in a task: a caller that stops
    /// polling must not keep its place in the limiter.
    async fn poll(&self, name: &LockName) -> Result<(Sight, bool), StoreError> {
        let (leases, name) = (self.clone(), name.clone());
        let look = task::output_of(async move {
            let place = leases.polls.place(Deadline::new(leases.now(), Duration::ZERO)).await;
            let mut budget = leases.budget(STORE_TIMEOUT, Ttl::DEFAULT);
            let sight = place.lent_to(leases.records.env(), leases.look(&name, &mut budget)).await;
            sight.map(|sight| (sight, budget.had_trouble()))
        });
        look.await.unwrap_or_else(|| Err(Fault::unavailable("the tokio runtime has shut down").not_applied()))
    }

    /// What a record tells waiters about the length of the hold.
    fn turns(&self, sighting: Option<&Observation>) -> Turns {
        match sighting.map(|sighting| &sighting.record) {
            Some(record) if record.state == RecordState::Held => {
                let poll_interval = self.records.capabilities().poll_interval;
                let Record { holder, granted_at_us, history, .. } = record;
                Turns::of(holder, *granted_at_us, history, self.store_time(), poll_interval)
            }
            _ => Turns::default(),
        }
    }
}

impl Sight {
    fn quiet(&self, now: Moment) -> Duration {
        self.sighting.as_ref().map_or(Duration::ZERO, |sighting| sighting.quiet(now))
    }
}

/// Whether `record`, which has the id of `grant`, is not that grant. The grant is then over, and a request of the same
/// claim came late or twice. A claim that is withdrawn has no token, and refers to any record with its id.
fn is_late_grant(record: &Record, grant: &Grant) -> bool {
    grant.token != Token::default() && record.token != grant.token
}

fn not_its_own() -> StoreError {
    Fault::new(ErrorKind::Invalid, "this grant comes from another store").not_applied()
}

fn lost(grant: &Grant, reason: LossReason) -> Renewal {
    Renewal::Lost(Loss::new(grant.name.clone(), grant.token, reason))
}

fn not_ours_to_evict(name: &LockName) -> StoreError {
    Fault::new(
        ErrorKind::Unsupported,
        format!("lock `{name}` is held by an object that leasehold did not write"),
    )
    .with_help("find out who wrote it; when it is certainly abandoned, delete it with the store's own tools")
    .not_applied()
}

#[cfg(test)]
mod tests;
