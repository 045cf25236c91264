//! The driver of the lease protocol on lock records. It sends the requests that the [rules](super::rules) determine.

mod acquire;
mod hold;
mod late_creates;
mod line;
mod send;
mod sweep;
mod tap;
mod wait;

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::FutureExt;
use futures_util::stream::BoxStream;

pub use self::tap::{Passing, Tap};
use super::line::Line;
use super::record::{Content, Record, RecordState};
use super::record_cache::{Observation, RecordCache};
use super::records::{Claims, ExistenceRecords, JsonRecords, Records};
use super::rules::{self, Attempt, Rules};
use crate::clock::{Moment, StoreTime};
use crate::diagnosis::{Diagnose, Examination, Examined};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::limiter::{Limiter, POLLS};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, End, Evicted, Eviction, Grant, HolderInfo, Id, LeaseStore,
    LossReason, PastGrant, Released, Renewal, State, Status, StoreOptions, Swept, Token, Ttl, attempt_limit,
};
use crate::proof::clock::store_clock;
use crate::register::{Register, Version};
use crate::retry::{RetryBudget, repeated};
use crate::types::LockName;

/// How long operations without their own store timeout wait for a store that does not respond.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);

/// Leases on any [`Register`]: one JSON object for each lock, granted, renewed and released by conditional writes.
///
/// The same protocol runs on stores with their own record format, such as DynamoDB and PostgreSQL.
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
    pub(super) records: Arc<dyn Records>,
    rules: Rules,
    cache: Arc<RecordCache>,
    /// Limits the reads of waiters, so that they do not delay renewals.
    polls: Arc<Limiter>,
    tap: Option<Arc<dyn Tap>>,
}

/// The result of a read, and a time taken after the response arrived.
struct Reading {
    found: Option<Content>,
    observation: Option<Observation>,
    at: Moment,
}

/// What a conditional write replaces.
#[derive(Clone, Copy)]
enum Overwrite<'a> {
    /// This record, which has this version. `None` creates the record.
    Record(Option<(&'a Version, &'a Record)>),
    /// Any free record: see [`Records::claim`].
    AnyFree { tokens: u64, barges: bool },
}

/// The result of a conditional write.
enum Sent {
    Committed(Box<Record>, Version),
    /// A conflict, or no response: a read must show the outcome. A conflict may include what was read.
    Unclear(Option<Box<Reading>>),
    /// The write certainly had no effect. The pause before the next attempt is over.
    Again,
    /// The store grants nothing at the moment. The write had no effect.
    Withheld(Box<HolderInfo>),
}

impl RegisterLeases {
    /// Creates leases on `register`. Of `options`, only [`store_clock`](StoreOptions::store_clock) and
    /// [`margin`](StoreOptions::margin) have an effect. The clock is that of [`Register::env`].
    pub fn new(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self::on(Arc::new(JsonRecords::new(register)), options)
    }

    /// Creates leases on `register` with the protocol of simple clients: a lock is held while an object with exactly
    /// its name exists, and a release deletes the object. Objects that leasehold did not write are held by an unknown
    /// holder and are never taken over.
    ///
    /// Grants have fencing tokens only if the register's [versions are
    /// generations](crate::register::RegisterCapabilities::generations). Inspection shows no past grants, and locks
    /// have no cooldown.
    pub fn by_existence(register: Arc<dyn Register>, options: StoreOptions) -> Self {
        Self::on(Arc::new(ExistenceRecords::new(register)), options)
    }

    /// Creates leases on `records`.
    pub(crate) fn on(records: Arc<dyn Records>, options: StoreOptions) -> Self {
        let rules = Rules {
            store_clock: options.store_clock,
            margin: options.margin,
            lapsed_is_over: records.others_leave_no_trace(),
        };
        Self { records, rules, cache: Arc::default(), polls: Limiter::new(POLLS), tap: None }
    }

    /// Reports to `tap` what is sent and seen. For the simulation.
    #[doc(hidden)]
    #[must_use]
    pub fn tapped(self, tap: Arc<dyn Tap>) -> Self {
        Self { tap: Some(tap), ..self }
    }

    fn now(&self) -> Moment {
        self.records.env().now()
    }

    /// Returns a new nonce. Copies of a running machine may draw the same random numbers, but not at the same
    /// nanosecond of both clocks.
    fn nonce(&self) -> Id {
        Id::random(&self.records.env().random).at(self.now())
    }

    fn budget(&self, limit: Duration, ttl: Ttl) -> RetryBudget<'_> {
        RetryBudget::new(self.records.env(), limit, attempt_limit(ttl))
    }

    /// Makes sure that the store enforces preconditions.
    async fn trusted(&self, budget: &mut RetryBudget<'_>) -> Result<(), StoreError> {
        repeated(budget, || self.records.prepare()).await?;
        self.probed(self.records.trust(), budget).await
    }

    /// Awaits a probe of the store. It has its own time limit, and does not count against `budget`.
    async fn probed(
        &self,
        probe: impl Future<Output = Result<(), StoreError>>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<(), StoreError> {
        let began = self.now();
        let mut probe = pin!(probe);
        let outcome = match probe.as_mut().now_or_never() {
            Some(outcome) => outcome,
            None => {
                budget.last_error().checks(true); // For the error message, if the caller gives up.
                let outcome = probe.await;
                budget.last_error().checks(false);
                outcome
            }
        };
        outcome?;
        budget.extend(self.now().longest_since(began));
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        let time = self.records.store_time();
        self.tap.iter().zip(time).for_each(|(tap, time)| tap.knows(time));
        time
    }

    /// Makes sure that a write of this process is durable, which a read has found as `version` or behind another client's
    /// lock. Returns `false` if it is no longer stored. Then it proves nothing, and the record must be read again.
    async fn settled(
        &self,
        name: &LockName,
        version: Option<&Version>,
        budget: &mut RetryBudget<'_>,
    ) -> Result<bool, StoreError> {
        let in_doubt = |error: StoreError| match error {
            StoreError::NotApplied(fault) | StoreError::MaybeApplied(fault) => fault.maybe_applied(),
        };
        let is_stored = repeated(budget, || self.records.settle(name, version)).await.map_err(in_doubt)?;
        if !is_stored {
            budget.pause_after_conflict().await.map_err(in_doubt)?;
        }
        Ok(is_stored)
    }

    /// Describes the lock as it was when `reading` arrived.
    fn state_of(&self, reading: &Reading) -> State {
        let unchanged_for = reading.unchanged_for(reading.at);
        rules::state(reading.found.as_ref(), unchanged_for, self.store_time(), self.rules)
    }

    /// Returns whether the store keeps the line with the record: see [`Claims::InTurn`].
    fn claims_in_turn(&self) -> bool {
        self.records.claims() == Claims::InTurn
    }
}

#[async_trait]
impl LeaseStore for RegisterLeases {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let mut attempts = Vec::new();
        let mut outcome = self.contend(claim, &mut attempts).await;
        self.follow_late_creates(&claim.name, &attempts, &mut outcome);
        match outcome {
            // Whatever the error, an earlier request without a response may still be applied, or a created record with
            // an uncertain token may exist.
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
            return Ok(grant.lost(LossReason::EXPIRED));
        }
        // The budget ends well before the deadline, because the renewer must learn of errors early and retries at its
        // own pace.
        let mut budget = self.budget(left.min(2 * attempt_limit(grant.ttl)), grant.ttl);
        let mut lent = match self.lent(grant, &mut budget).await? {
            Ok(lent) => lent,
            Err((reason, grant)) => return Ok(grant.lost(reason)),
        };
        let Some(memo) = &mut lent.memo else { return Err(not_its_own()) };
        let outcome = self.renew_with(lent.grant, memo, &mut budget).await;
        // After a loss, no release follows to look for late creates.
        lent.is_over = matches!(outcome, Ok(Renewal::Lost(_)));
        outcome
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        if grant.memo.is_none()
            && grant.token == Token::default()
            && let Err(error) = self.leave(&grant.name, grant.id).await
        {
            tracing::debug!(lock = %grant.name, %error, "a waiter that gave up stays in the line until it is passed over");
        }
        let mut budget = self.budget(STORE_TIMEOUT, grant.ttl);
        let Ok(mut lent) = self.lent(grant, &mut budget).await? else {
            return Ok(Released::AlreadyLost);
        };
        lent.is_over = true;
        let Some(memo) = &mut lent.memo else { return Err(not_its_own()) };
        self.release_with(lent.grant, memo, cooldown, &mut budget).await
    }

    async fn stop_waiting(&self, claim: &Claim) -> Result<(), StoreError> {
        self.leave(&claim.name, claim.id).await
    }

    fn may_have_place(&self, claim: &Claim) -> bool {
        claim.place.may_be_taken(claim.id)
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        self.end_by_token(name, token, why).await
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let reading = self.read(name, &mut self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await?;
        let mut status = Status::new(name.clone(), self.state_of(&reading));
        if let Some(Observation { record, line, .. }) = reading.observation {
            status.token = Some(record.token);
            status.waiters = self.waiters(name, &record, line.as_ref()).await;
            status.size = rules::recorded(record.size);
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
impl Diagnose for RegisterLeases {
    async fn discard(&self, name: &LockName) -> Result<bool, StoreError> {
        match self.read(name, &mut self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await? {
            Reading { found: None, .. } => Ok(true),
            Reading { observation: Some(Observation { record, version, .. }), .. }
                if record.state == RecordState::Free =>
            {
                self.discarded(name, &version, &self.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await
            }
            Reading { .. } => Ok(false),
        }
    }

    async fn examine(&self, examination: &Examination) -> Examined {
        let mut examined = self.records.examine(examination).await;
        if examined.is_sound()
            && let Ok(unused) = LockName::new(format!("{}{}", crate::diagnosis::RESERVED, self.nonce()))
        {
            let read = || async { self.records.read(&unused).await.map(|_| self.records.store_time()) };
            let Rules { margin, store_clock: is_used, .. } = self.rules;
            examined.push(store_clock(self.env(), margin, is_used, read).await);
        }
        examined
    }
}

impl RegisterLeases {
    /// Ends the grant with `token`.
    async fn end_by_token(
        &self,
        name: &LockName,
        token: Token,
        why: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        let mut budget = self.budget(STORE_TIMEOUT, Ttl::DEFAULT);
        let mut attempts: Vec<Attempt> = Vec::new();
        self.trusted(&mut budget).await?;
        loop {
            let Observation { record, version, .. } = match self.read(name, &mut budget).await? {
                Reading { observation: Some(observation), .. } => observation,
                Reading { found: None, .. } if self.may_have_deleted(&attempts) => {
                    return Ok(Evicted::Evicted);
                }
                Reading { found: None, .. } => return Ok(Evicted::Changed),
                Reading { found: Some(_), .. } => return Err(not_ours_to_evict(name)),
            };
            let is_ours = attempts.iter().any(|attempt| attempt.nonce == record.nonce);
            if is_ours || record.token != token || record.state == RecordState::Free {
                // The grant has ended. A deletion by one of these attempts would have left no trace. Another process may
                // have been granted the lock since one of them freed it.
                let is_evicted = |past: &PastGrant| {
                    past.token == token && past.end == End::Evicted && past.evicted.as_ref() == why
                };
                let evicted = is_ours
                    || self.may_have_deleted(&attempts)
                    || (!attempts.is_empty() && record.history.iter().any(is_evicted));
                if !evicted {
                    return Ok(Evicted::Changed);
                }
                if self.settled(name, Some(&version), &mut budget).await? {
                    return Ok(Evicted::Evicted);
                }
                continue;
            }
            let sent = self.now();
            let freed = rules::evicted(&record, why, self.store_time(), self.nonce());
            let over = Overwrite::Record(Some((&version, &record)));
            if let Sent::Committed(..) =
                self.send(name, over, &freed, sent, &mut attempts, &mut budget).await?
            {
                return Ok(Evicted::Evicted);
            }
        }
    }

    /// Returns whether one of these attempts to free a record may have deleted it without a response.
    fn may_have_deleted(&self, attempts: &[Attempt]) -> bool {
        self.records.deletes() && attempts.iter().any(|attempt| attempt.unknown)
    }
}

impl Reading {
    fn version(&self) -> Option<&Version> {
        self.observation.as_ref().map(|observation| &observation.version)
    }

    /// Returns the line that was read with the record.
    fn line(&self) -> Option<&Line> {
        self.observation.as_ref()?.line.as_ref()
    }

    fn unchanged_for(&self, now: Moment) -> Duration {
        self.observation.as_ref().map_or(Duration::ZERO, |observation| observation.unchanged_for(now))
    }
}

fn not_its_own() -> StoreError {
    Fault::new(ErrorKind::Invalid, "this grant comes from another store").not_applied()
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
