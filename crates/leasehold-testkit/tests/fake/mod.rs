//! An in-memory store that is correct, or has one chosen flaw.

mod flaws;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use leasehold::clock::{Moment, TestClock, timeout};
use leasehold::doctor::Diagnose;
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::{
    AcquireOutcome, Capabilities, Claim, End, Evicted, Eviction, Grant, Id, LeaseStore, PastGrant,
    PollInterval, Released, Renewal, State, Ttl, Watch, deadline,
};
use leasehold::{Holder, HolderInfo, LockName, Loss, LossReason, Status, Token, Waiter};
use leasehold_testkit::conformance::Harness;
use tokio::sync::Notify;

pub(crate) use self::flaws::{FLAWS, Flaw};

/// The storage of one case.
pub(crate) struct Fake {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    rows: Mutex<BTreeMap<String, Row>>,
    woken: Notify,
    env: Env,
    flaw: Option<Flaw>,
    /// The highest token of any row, including deleted rows.
    highest: AtomicU64,
}

#[derive(Clone, Debug, Default)]
struct Row {
    token: u64,
    live: Option<Live>,
    rested_from: Option<Moment>,
    cooldown: Duration,
    history: Vec<PastGrant>,
    /// The number of permits, or 0.
    size: u64,
    /// The line of waiters.
    line: Vec<(Id, Holder)>,
    /// When the lock was first found free, while it is kept for a waiter.
    kept_from: Option<Moment>,
}

#[derive(Clone, Debug)]
struct Live {
    id: Id,
    ttl: Ttl,
    lock_delay: Duration,
    holder: Holder,
    renewed: Moment,
}

/// How long a free lock is kept for each waiter before a claim.
const GRACE: Duration = Duration::from_secs(2);

#[derive(Debug)]
struct Store(Arc<Shared>);

impl Fake {
    /// Creates a store with this flaw, or without any.
    pub(crate) fn new(flaw: Option<Flaw>) -> Self {
        let env = Env::seeded(Arc::new(TestClock::default()), 1);
        Self {
            shared: Arc::new(Shared {
                rows: Mutex::default(),
                woken: Notify::new(),
                env,
                flaw,
                highest: AtomicU64::new(0),
            }),
        }
    }
}

#[async_trait]
impl Harness for Fake {
    async fn open(&self) -> Arc<dyn LeaseStore> {
        Arc::new(Store(self.shared.clone()))
    }

    async fn delete_record(&self, name: &LockName) {
        self.shared.rows.lock().unwrap().remove(name.as_str());
    }
}

impl Store {
    fn rows(&self) -> MutexGuard<'_, BTreeMap<String, Row>> {
        self.0.rows.lock().unwrap()
    }

    fn is(&self, flaw: Flaw) -> bool {
        self.0.flaw == Some(flaw)
    }

    fn key(&self, name: &LockName) -> String {
        match self.0.flaw {
            Some(Flaw::OneLockForAll) => "all".into(),
            Some(Flaw::CaseDoesNotMatter) => name.as_str().to_lowercase(),
            Some(Flaw::NamesEndAtPercent) => name.as_str().split('%').next().unwrap().into(),
            _ => name.as_str().into(),
        }
    }

    fn lapses_after(&self, live: &Live, contender: Option<Ttl>) -> Duration {
        let ttl =
            if self.is(Flaw::TtlOfTheContenderRules) { contender.unwrap_or(live.ttl) } else { live.ttl };
        let delay = if self.is(Flaw::LockDelayIgnored) { Duration::ZERO } else { live.lock_delay };
        match self.0.flaw {
            Some(Flaw::TakesOverEarly) => ttl.get() / 2,
            Some(Flaw::NeverLapses) => Duration::from_secs(1_000_000),
            _ => ttl.contender_span() + delay,
        }
    }

    fn lapsed(&self, live: &Live, contender: Option<Ttl>) -> bool {
        self.0.env.now().shortest_since(live.renewed) >= self.lapses_after(live, contender)
    }

    /// Returns what keeps `row` from being granted now.
    fn held(&self, row: &Row, contender: Option<Ttl>) -> Option<HolderInfo> {
        let now = self.0.env.now();
        let mut held = HolderInfo::default();
        if let Some(live) = row.live.as_ref().filter(|live| !self.lapsed(live, contender)) {
            if !self.is(Flaw::HolderIsUnknown) {
                held.holder = Some(live.holder.clone());
                held.token = Token::new(row.token);
                held.size = row.size();
                let lapses = self.lapses_after(live, contender);
                held.lapses_within = Some(lapses.saturating_sub(now.shortest_since(live.renewed)));
            }
            return Some(held);
        }
        let left =
            row.cooldown.checked_sub(now.shortest_since(row.rested_from?)).filter(|left| !left.is_zero())?;
        held.in_cooldown = true;
        held.token = Token::new(row.token);
        held.lapses_within = Some(left);
        held.last_holder = row.history.first().map(|past| past.holder.clone());
        Some(held)
    }

    /// Refuses `claim`, and gives it its place in the line. A claim that waits joins the line.
    fn refused(&self, row: &mut Row, claim: &Claim, mut held: HolderInfo) -> AcquireOutcome {
        if self.is(Flaw::ServesInAnyOrder) || !claim.waits || claim.barges {
            return AcquireOutcome::Held(held);
        }
        if row.ahead(claim.id).is_none() {
            let nested = claim.nested.clone().filter(|_| !self.is(Flaw::HidesWhatWaitersHold));
            let mut waiter = claim.holder.clone();
            waiter.nested = nested;
            row.line.push((claim.id, waiter));
        }
        held.ahead = row.ahead(claim.id);
        let before = held.ahead.and_then(|ahead| ahead.checked_sub(1));
        held.waiter_ahead = match self.0.flaw {
            Some(Flaw::HidesWhoIsBefore) => None,
            Some(Flaw::NamesTheFirstAsBefore) => before.map(|_| row.line[0].1.clone()),
            _ => before.map(|before| row.line[before].1.clone()),
        };
        AcquireOutcome::Held(held)
    }

    /// Returns the waiter for whom a free lock is kept, if one is before `claim`.
    fn reserved(&self, row: &mut Row, claim: &Claim) -> Option<HolderInfo> {
        let before = row.ahead(claim.id).unwrap_or(row.line.len());
        if before == 0 || claim.barges {
            return None;
        }
        let now = self.0.env.now();
        let passed = now.shortest_since(*row.kept_from.get_or_insert(now));
        let left = match self.0.flaw {
            Some(Flaw::KeepsTheLockForTheDead) => GRACE,
            Some(Flaw::PassesOverAllAtOnce) => Duration::ZERO,
            _ => (GRACE * before as u32).saturating_sub(passed),
        };
        let mut held = HolderInfo::default();
        (held.reserved, held.holder, held.lapses_within) = (true, Some(row.line[0].1.clone()), Some(left));
        Some(held).filter(|_| !left.is_zero())
    }

    fn grant(&self, row: &mut Row, claim: &Claim) -> Grant {
        let now = self.0.env.now();
        if !claim.barges && row.live.as_ref().is_none_or(|live| live.id != claim.id) {
            // The waiters before the claim are passed over.
            let served = row.ahead(claim.id).map_or(row.line.len(), |ahead| ahead + 1);
            row.line.drain(..served);
        }
        row.kept_from = None;
        let last_end = row.history.first().map(|past| past.end);
        let stays = match self.0.flaw {
            Some(Flaw::TokenStaysAfterRelease) => last_end == Some(End::Released) && row.live.is_none(),
            Some(Flaw::TokenStaysAfterLapse) => row.live.is_some(),
            Some(Flaw::TokenStaysAfterEviction) => last_end == Some(End::Evicted),
            _ => row.live.as_ref().is_some_and(|live| live.id == claim.id),
        };
        let mut ttl = claim.ttl;
        match row.live.take() {
            Some(live) if live.id != claim.id => self.end(row, &live, End::Lapsed),
            Some(live) if !self.is(Flaw::RepetitionShortensTheLease) => ttl = ttl.max(live.ttl),
            _ => {}
        }
        let forgets = self.is(Flaw::TokenForgottenWithTheRecord);
        let floor = if forgets { 1 } else { self.0.highest.load(Ordering::SeqCst) + 1 };
        row.token = if stays { row.token } else { (row.token + 1).max(floor) };
        self.0.highest.fetch_max(row.token, Ordering::SeqCst);
        row.live = Some(Live {
            id: claim.id,
            ttl,
            lock_delay: claim.lock_delay,
            holder: claim.holder.clone(),
            renewed: now,
        });
        row.size = row.size().or(claim.size).unwrap_or(0);
        let mut grant = Grant::new(claim, Token::new(row.token).unwrap(), now);
        if self.is(Flaw::DeadlineTooLate) {
            grant.deadline = leasehold::clock::Deadline::new(now, claim.ttl.get() * 2);
        }
        grant.size = row.size();
        grant.memo = Some(Box::new(()));
        grant
    }

    fn end(&self, row: &mut Row, live: &Live, end: End) {
        if self.is(Flaw::NoHistory) {
            return;
        }
        let past = PastGrant::new(Token::new(row.token).unwrap(), live.id, live.holder.clone(), end);
        let at = if self.is(Flaw::HistoryBackwards) { row.history.len() } else { 0 };
        row.history.insert(at, past);
    }

    /// Returns whether `grant` holds the lock. A withdrawn claim has no token, nor has a row that a flaw brings back.
    fn is_current(&self, row: &Row, grant: &Grant) -> bool {
        let has_token = [grant.token.get(), row.token].contains(&0) || row.token == grant.token.get();
        row.live.as_ref().is_some_and(|live| live.id == grant.id)
            && (has_token || self.is(Flaw::TicketsTokenIgnored))
    }

    fn loss(&self, row: Option<&Row>, grant: &Grant) -> Renewal {
        let reason = match row {
            None => LossReason::Deleted,
            Some(row) => match self.held(row, None) {
                Some(by) => LossReason::TakenOver { by: by.into() },
                None => LossReason::Ended,
            },
        };
        Renewal::Lost(Loss::new(grant.name.clone(), grant.token, reason))
    }
}

impl Row {
    /// Returns the number of permits, if the row has one.
    fn size(&self) -> Option<u64> {
        Some(self.size).filter(|size| *size != 0)
    }

    /// Returns how many waiters are before the claim `id`, if it is in the line.
    fn ahead(&self, id: Id) -> Option<usize> {
        self.line.iter().position(|(waiter, _)| *waiter == id)
    }
}

#[async_trait]
impl LeaseStore for Store {
    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        let key = self.key(&claim.name);
        let seen = self.rows().get(&key).cloned().unwrap_or_default();
        let mine =
            seen.live.as_ref().is_some_and(|live| live.id == claim.id) && !self.is(Flaw::RefusesItsOwnClaim);
        let spent = seen.history.iter().find(|past| past.grant == claim.id);
        if let Some(past) = spent.filter(|_| claim.repeatable && !self.is(Flaw::SpentIdIsGranted)) {
            let loss = Loss::new(claim.name.clone(), past.token, LossReason::Ended);
            return Ok(AcquireOutcome::Lost(loss));
        }
        if let (Some(held), false) = (self.held(&seen, Some(claim.ttl)), mine) {
            return Ok(self.refused(self.rows().entry(key).or_default(), claim, held));
        }
        let apart = match self.0.flaw {
            Some(Flaw::AsksAndActsApart) => seen.live.is_none(),
            Some(Flaw::TakesOverByAskingAndActingApart) => seen.live.is_some(),
            _ => false,
        };
        if let (Some(row), false) = (self.rows().get_mut(&key), mine || apart)
            && let Some(held) = self.reserved(row, claim)
        {
            return Ok(self.refused(row, claim, held));
        }
        if apart {
            tokio::task::yield_now().await;
        }
        Ok(AcquireOutcome::Granted(self.grant(self.rows().entry(key).or_default(), claim)))
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let now = self.0.env.now();
        let mut rows = self.rows();
        if self.is(Flaw::RenewalBringsBackTheRecord) {
            rows.entry(self.key(&grant.name)).or_default();
        }
        let Some(row) = rows.get_mut(&self.key(&grant.name)) else { return Ok(self.loss(None, grant)) };
        let ours = self.is_current(row, grant);
        let takes = match self.0.flaw {
            Some(Flaw::RenewalTakesBack) => row.live.is_some(),
            Some(Flaw::RenewalUndoesEviction) => {
                row.history.first().is_some_and(|past| past.end == End::Evicted)
            }
            Some(Flaw::RenewalBringsBackTheRecord) => row.token == 0,
            _ => ours,
        };
        if !(ours || takes) || (self.is(Flaw::RenewalNeedsMemo) && grant.memo.is_none()) {
            let row = row.clone();
            return Ok(self.loss(Some(&row), grant));
        }
        if let Some(live) = row.live.as_mut().filter(|_| !self.is(Flaw::RenewalNotStored)) {
            live.renewed = now;
        }
        row.size = grant.size.unwrap_or(row.size);
        if !self.is(Flaw::DeadlineNotMoved) {
            let by_ticket = self.is(Flaw::RenewalByTheTtlOfTheTicket);
            let recorded = row.live.as_ref().filter(|_| !by_ticket).map_or(grant.ttl, |live| live.ttl);
            grant.deadline = deadline(grant.ttl.min(recorded), now);
        }
        Ok(Renewal::Renewed)
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        let now = self.0.env.now();
        let mut rows = self.rows();
        if self.is(Flaw::ReleaseBringsBackTheRecord) {
            let (id, ttl, lock_delay) = (grant.id, grant.ttl, Duration::ZERO);
            let live = Some(Live { id, ttl, lock_delay, holder: Holder::default(), renewed: now });
            rows.entry(self.key(&grant.name)).or_insert_with(|| Row { live, ..Row::default() });
        }
        let Some(row) = rows.get_mut(&self.key(&grant.name)) else { return Ok(Released::AlreadyLost) };
        if let Some(ahead) = row.ahead(grant.id) {
            // The claim is withdrawn and no longer waits.
            row.line.remove(ahead);
            self.0.woken.notify_waiters();
        }
        let ours = self.is_current(row, grant);
        if !ours && !self.is(Flaw::ReleaseBlind) {
            return Ok(Released::AlreadyLost);
        }
        row.size = grant.size.unwrap_or(row.size);
        if !self.is(Flaw::ReleaseNotAtOnce)
            && let Some(live) = row.live.take()
        {
            self.end(row, &live, if grant.at_limit { End::Limit } else { End::Released });
            if self.is(Flaw::LockDelayAfterRelease) {
                (row.rested_from, row.cooldown) = (Some(now), live.lock_delay);
            }
        }
        if let Some(cooldown) = cooldown.filter(|_| !self.is(Flaw::RestIgnored)) {
            let cooldown = if self.is(Flaw::RestForgotten) { cooldown / 2 } else { cooldown };
            (row.rested_from, row.cooldown) = (Some(now), cooldown);
        }
        if !self.is(Flaw::MissesRelease) {
            self.0.woken.notify_waiters();
        }
        Ok(Released::Released)
    }

    async fn detach(&self, grant: &mut Grant) -> Result<(), StoreError> {
        if self.is(Flaw::DetachEnds) {
            self.rows().get_mut(&self.key(&grant.name)).unwrap().live = None;
        }
        Ok(())
    }

    async fn evict(
        &self,
        name: &LockName,
        token: Token,
        _: Option<&Eviction>,
    ) -> Result<Evicted, StoreError> {
        if self.is(Flaw::EvictionDoesNothing) {
            return Ok(Evicted::Evicted);
        }
        let mut rows = self.rows();
        let Some(row) = rows.get_mut(&self.key(name)) else { return Ok(Evicted::Changed) };
        if row.token != token.get() && !self.is(Flaw::EvictionBlind) {
            return Ok(Evicted::Changed);
        }
        let Some(live) = row.live.take() else { return Ok(Evicted::Changed) };
        self.end(row, &live, End::Evicted);
        if self.is(Flaw::EvictionForgetsTheSize) {
            row.size = 0;
        }
        if !self.is(Flaw::MissesEviction) {
            self.0.woken.notify_waiters();
        }
        Ok(Evicted::Evicted)
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let rows = self.rows();
        let row = rows.get(&self.key(name)).cloned().unwrap_or_default();
        let state = match (self.held(&row, None), &row.live) {
            _ if self.is(Flaw::InspectsNothing) => State::Free,
            (Some(held), Some(_)) if self.is(Flaw::InspectsLapseEarly) => State::Lapsed(held),
            (Some(held), _) => State::Held(held),
            (None, Some(live)) => {
                let mut held = HolderInfo::default();
                (held.holder, held.token) = (Some(live.holder.clone()), Token::new(row.token));
                State::Lapsed(held)
            }
            (None, None) => State::Free,
        };
        let mut status = Status::new(name.clone(), state);
        status.token = Token::new(row.token).filter(|token| token.get() > 0);
        status.size = row.size();
        status.waiters = row.line.into_iter().map(|(_, waiter)| Waiter::new(waiter)).collect();
        status.history = row.history;
        Ok(status)
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        let all = self.is(Flaw::PrefixIgnored);
        let page = if self.is(Flaw::FirstPageOnly) { 1_000 } else { usize::MAX };
        let names: Vec<_> =
            self.rows().keys().filter(|name| all || name.starts_with(prefix)).take(page).cloned().collect();
        stream::iter(names.into_iter().map(|name| Ok(LockName::new(name).unwrap()))).boxed()
    }

    fn capabilities(&self) -> Capabilities {
        let poll_interval = PollInterval { min: Duration::from_millis(10), max: Duration::from_millis(100) };
        let mut capabilities = Capabilities::new("fake", poll_interval);
        capabilities.line = Some("here");
        capabilities.sizes = true;
        capabilities.watches = self.is(Flaw::ServesInAnyOrder);
        capabilities.permits_in_order = self.is(Flaw::ServesInAnyOrder);
        capabilities
    }

    fn env(&self) -> &Env {
        &self.0.env
    }
}

#[async_trait]
impl Watch for Store {
    async fn changed(&self, name: &LockName, seen: &HolderInfo) -> Result<(), StoreError> {
        if self.is(Flaw::MissesReleaseBeforeTheWait) {
            self.0.woken.notified().await;
        }
        if seen.reserved {
            let left = seen.lapses_within.unwrap_or_default();
            timeout(&*self.0.env.clock, left, self.0.woken.notified()).await;
            return Ok(());
        }
        loop {
            let woken = self.0.woken.notified();
            let row = self.rows().get(&self.key(name)).cloned().unwrap_or_default();
            if self.held(&row, None).is_none_or(|held| held.in_cooldown && !seen.in_cooldown) {
                return Ok(());
            }
            let left = match &row.live {
                _ if self.is(Flaw::MissesLapse) => Duration::from_secs(1_000_000),
                Some(live) => self.lapses_after(live, None),
                None => row.cooldown,
            };
            timeout(&*self.0.env.clock, left.min(Duration::from_secs(1_000_000)), woken).await;
        }
    }
}

impl Diagnose for Store {}
