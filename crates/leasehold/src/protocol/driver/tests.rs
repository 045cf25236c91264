//! Tests of the driver by itself. The tests of its requests to a store are in `tests/protocol.rs`.

use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::super::records::{Found, Refusal, Written};
use super::hold::is_late_grant;
use super::*;
use crate::clock::{TestClock, timeout};
use crate::lease::{Holder, State, Watch};
use crate::proof::flawed::{Flaw, store};
use crate::register::Precondition;
use crate::stores::memory::MemoryRegister;

fn leases() -> RegisterLeases {
    RegisterLeases::new(Arc::new(MemoryRegister::new(Env::system())), StoreOptions::default())
}

fn name() -> LockName {
    LockName::new("a").unwrap()
}

async fn granted(leases: &RegisterLeases) -> Grant {
    let claim = Claim::new(leases.env(), name(), Ttl::DEFAULT, Holder::default());
    match leases.try_acquire(&claim).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_discard_removes_a_free_record_and_no_other() {
    let leases = leases();
    assert!(leases.discard(&name()).await.unwrap(), "there is none");
    let mut grant = granted(&leases).await;
    assert!(!leases.discard(&name()).await.unwrap());
    assert!(matches!(leases.inspect(&name()).await.unwrap().state, State::Held(_)));
    leases.release(&mut grant, Some(Duration::from_secs(60))).await.unwrap();
    assert!(!leases.discard(&name()).await.unwrap(), "it is in its cooldown");
    leases.evict(&name(), grant.token, None).await.unwrap();
    assert_eq!(leases.inspect(&name()).await.unwrap().token, Some(grant.token));
    assert!(leases.discard(&name()).await.unwrap());
    assert_eq!(leases.inspect(&name()).await.unwrap().token, None);
}

#[test]
fn a_delete_without_a_response_may_have_been_applied() {
    let register = || Arc::new(MemoryRegister::new(Env::system()));
    let deletes = RegisterLeases::by_existence(register(), StoreOptions::default());
    let never_deletes = leases();
    let attempt = |unknown| Attempt {
        nonce: deletes.nonce(),
        sent: deletes.now(),
        token: Token::default(),
        after: None,
        created: false,
        unknown,
    };
    for (attempts, may) in [
        (vec![], false),
        (vec![attempt(false)], false),
        (vec![attempt(true)], true),
        (vec![attempt(false), attempt(true)], true),
    ] {
        assert_eq!(deletes.may_have_deleted(&attempts), may, "{attempts:?}");
        assert!(!never_deletes.may_have_deleted(&attempts), "{attempts:?}");
    }
}

async fn observation(leases: &RegisterLeases) -> Option<Observation> {
    leases.read(&name(), &mut leases.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await.unwrap().observation
}

#[tokio::test(start_paused = true)]
async fn waiters_learn_how_long_the_lock_has_been_held() {
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), 1);
    let leases = RegisterLeases::new(Arc::new(MemoryRegister::new(env)), StoreOptions::default());
    let mut grant = granted(&leases).await;
    clock.suspend(Duration::from_secs(9));
    let seen = observation(&leases).await.unwrap();
    assert!(leases.held_for(Some(&seen)) >= Duration::from_secs(8));
    leases.release(&mut grant, None).await.unwrap();
    let free = observation(&leases).await;
    assert_eq!(free.as_ref().unwrap().record.state, RecordState::Free);
    assert_eq!(leases.held_for(free.as_ref()), Duration::ZERO);
    assert_eq!(leases.held_for(None), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_read_shows_since_when_nothing_has_changed() {
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), 1);
    let leases = RegisterLeases::new(Arc::new(MemoryRegister::new(env)), StoreOptions::default());
    granted(&leases).await;
    clock.suspend(Duration::from_secs(9));
    let reading = Reading { found: None, observation: observation(&leases).await, at: leases.now() };
    assert_eq!(reading.unchanged_for(leases.now()), Duration::from_secs(9));
    assert_eq!(Reading { observation: None, ..reading }.unchanged_for(leases.now()), Duration::ZERO);
}

#[tokio::test]
async fn a_grant_is_late_when_its_token_is_another() {
    let leases = leases();
    let grant = granted(&leases).await;
    let mut record = observation(&leases).await.unwrap().record;
    assert!(!is_late_grant(&record, &grant));
    let withdrawn = Grant { token: Token::default(), memo: None, name: name(), ..grant };
    assert!(!is_late_grant(&record, &withdrawn), "no token is known");
    record.token = Token::new(record.token.get() + 1).unwrap();
    assert!(!is_late_grant(&record, &withdrawn));
    let grant = Grant { token: Token::new(record.token.get() - 1).unwrap(), ..withdrawn };
    assert!(is_late_grant(&record, &grant));
}

/// A waiter may be the first of its process to write.
#[tokio::test(start_paused = true)]
async fn a_waiter_checks_the_store_before_it_joins_the_line() {
    for (flaw, joins) in [(Flaw::IgnoresBoth, false), (Flaw::None, true)] {
        let register = Arc::new(store(Flaw::None));
        let options = StoreOptions { env: register.env.clone(), ..StoreOptions::default() };
        granted(&RegisterLeases::new(register.clone(), options.clone())).await;
        // Without the marker, another process does not know that the store was probed.
        register.cells.lock().unwrap().remove(".leasehold-probe");
        *register.flaw.lock().unwrap() = flaw;
        let leases = RegisterLeases::new(register, options);
        let mut claim = Claim::new(leases.env(), name(), Ttl::DEFAULT, Holder::default());
        claim.waits = true;
        let reading = leases.read(&name(), &mut leases.budget(STORE_TIMEOUT, Ttl::DEFAULT)).await.unwrap();
        assert_eq!(leases.keep_place(&claim, &reading).await, joins, "{flaw:?}");
    }
}

/// Records on a server that may lose the response to a write. While the client settles that write, another server is
/// promoted, which lacks it.
#[derive(Debug)]
struct Replaced {
    records: JsonRecords,
    loses_next: AtomicBool,
    /// The record of the other server, until it is promoted.
    behind: Mutex<Option<Box<Record>>>,
    /// Whether no write ever becomes durable.
    never_settles: AtomicBool,
    claims: Claims,
    /// The number of claims that were sent without a read.
    unread: AtomicUsize,
    reads: AtomicUsize,
    /// Whether the store reports every lock as free.
    reports: AtomicBool,
    /// Whether the response to such a claim is lost.
    loses_unread: AtomicBool,
    /// Whether other clients use the records too.
    is_shared: AtomicBool,
    /// Whether the store fails the check of its preconditions.
    is_unsafe: AtomicBool,
}

impl Replaced {
    fn new(claims: Claims) -> Arc<Self> {
        let env = Env::seeded(Arc::new(TestClock::default()), 1);
        Arc::new(Self {
            records: JsonRecords::new(Arc::new(MemoryRegister::new(env))),
            loses_next: AtomicBool::new(false),
            behind: Mutex::default(),
            never_settles: AtomicBool::new(false),
            claims,
            unread: AtomicUsize::new(0),
            reads: AtomicUsize::new(0),
            reports: AtomicBool::new(false),
            loses_unread: AtomicBool::new(false),
            is_shared: AtomicBool::new(false),
            is_unsafe: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl Records for Replaced {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        self.records.read(name).await
    }

    async fn freed(&self, _: &LockName, _: Option<Id>) {
        if !self.reports.load(Ordering::SeqCst) {
            pending().await
        }
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        let there = self.read(name).await?;
        let written = self.records.write(name, expect, before, record).await?;
        let loses =
            matches!(written, Written::Committed { .. }) && self.loses_next.swap(false, Ordering::SeqCst);
        if let Some(Found { content: Content::Record(record), .. }) = there.filter(|_| loses) {
            *self.behind.lock().unwrap() = Some(record);
            return Err(Fault::unavailable("no response").maybe_applied());
        }
        Ok(written)
    }

    fn claims(&self) -> Claims {
        self.claims
    }

    async fn claim(&self, _: &LockName, _: &Record, _: u64, _: bool) -> Result<Written, StoreError> {
        self.unread.fetch_add(1, Ordering::SeqCst);
        if self.loses_unread.load(Ordering::SeqCst) {
            return Err(Fault::unavailable("no response").maybe_applied());
        }
        Ok(Written::Conflict(Refusal::Unexplained))
    }

    async fn settle(&self, name: &LockName, version: Option<&Version>) -> Result<bool, StoreError> {
        if self.never_settles.load(Ordering::SeqCst) {
            return Ok(false);
        }
        let behind = self.behind.lock().unwrap().take();
        let mut there = self.read(name).await?.unwrap();
        if let Some(record) = behind {
            self.records.write(name, Precondition::Version(&there.version), None, &record).await?;
            there = self.read(name).await?.unwrap();
        }
        Ok(version == Some(&there.version))
    }

    fn list(&self, prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        self.records.list(prefix)
    }

    async fn check_sweep(&self) -> Result<(), StoreError> {
        match self.is_shared.load(Ordering::SeqCst) {
            true => Err(Fault::new(ErrorKind::Unsupported, "others use it too").not_applied()),
            false => Ok(()),
        }
    }

    async fn trust(&self) -> Result<(), StoreError> {
        match self.is_unsafe.load(Ordering::SeqCst) {
            true => Err(Fault::new(ErrorKind::Unsupported, "it ignores preconditions").not_applied()),
            false => Ok(()),
        }
    }

    fn store_time(&self) -> Option<StoreTime> {
        self.records.store_time()
    }

    fn env(&self) -> &Env {
        self.records.env()
    }

    fn capabilities(&self) -> Capabilities {
        self.records.capabilities()
    }
}

#[tokio::test]
async fn a_write_that_the_promoted_server_lacks_is_not_reported() {
    let records = Replaced::new(Claims::Never);
    let leases = RegisterLeases::on(records.clone(), StoreOptions::default());
    let lose_next = || records.loses_next.store(true, Ordering::SeqCst);
    let there = async || {
        assert!(records.behind.lock().unwrap().is_none(), "the write was not settled");
        observation(&leases).await.unwrap().record
    };
    leases.release(&mut granted(&leases).await, None).await.unwrap();
    lose_next();
    let mut grant = granted(&leases).await;
    assert_eq!((there().await.state, there().await.token), (RecordState::Held, grant.token), "the grant");
    let heartbeat = there().await.heartbeat;
    lose_next();
    assert!(matches!(leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert!(there().await.heartbeat > heartbeat, "the renewal");
    lose_next();
    assert_eq!(leases.release(&mut grant, None).await.unwrap(), Released::Released);
    assert_eq!(there().await.state, RecordState::Free, "the release");
    let grant = granted(&leases).await;
    lose_next();
    assert_eq!(leases.evict(&name(), grant.token, None).await.unwrap(), Evicted::Evicted);
    assert_eq!(there().await.state, RecordState::Free, "the eviction");
}

#[tokio::test(start_paused = true)]
async fn a_write_that_never_becomes_durable_ends_in_an_error() {
    let records = Replaced::new(Claims::Never);
    let leases = RegisterLeases::on(records.clone(), StoreOptions::default());
    leases.release(&mut granted(&leases).await, None).await.unwrap();
    records.never_settles.store(true, Ordering::SeqCst);
    records.loses_next.store(true, Ordering::SeqCst);
    let claim = Claim::new(leases.env(), name(), Ttl::DEFAULT, Holder::default());
    let unsettled = leases.try_acquire(&claim).await;
    assert!(matches!(unsettled, Err(StoreError::MaybeApplied(_))), "{unsettled:?}");
}

/// Rule 10: the server counts the token of such a claim, so it may be any token below that of the holder.
#[tokio::test]
async fn a_claim_without_a_read_whose_response_was_lost_may_have_been_granted() {
    let records = Replaced::new(Claims::Free);
    let leases = || RegisterLeases::on(records.clone(), StoreOptions::default());
    granted(&leases()).await;
    let Found { content: Content::Record(held), version, .. } = records.read(&name()).await.unwrap().unwrap()
    else {
        panic!("it has just been written");
    };
    let counted = Record { token: Token::new(5).unwrap(), unconfirmed: false, ..*held };
    records.write(&name(), Precondition::Version(&version), None, &counted).await.unwrap();
    records.loses_unread.store(true, Ordering::SeqCst);
    let (leases, claim) = (leases(), Claim::new(leases().env(), name(), Ttl::DEFAULT, Holder::default()));
    let outcome = leases.try_acquire(&claim).await.unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
}

/// A process that only has a ticket, or only evicts, is as careful as one that acquires.
#[tokio::test]
async fn nothing_is_written_to_a_store_that_fails_its_check() {
    for claims in [Claims::Never, Claims::Free] {
        let records = Replaced::new(claims);
        let grant = granted(&RegisterLeases::on(records.clone(), StoreOptions::default())).await;
        records.unread.store(0, Ordering::SeqCst);
        records.is_unsafe.store(true, Ordering::SeqCst);
        let leases = RegisterLeases::on(records.clone(), StoreOptions::default());
        let is_refused = |error: StoreError| error.fault().kind == ErrorKind::Unsupported;
        let claim = Claim::new(leases.env(), name(), Ttl::DEFAULT, Holder::default());
        let acquired = leases.try_acquire(&claim).await;
        assert_eq!(acquired.is_err_and(is_refused), claims == Claims::Free, "only a grant is a write");
        assert!(leases.renew(&mut grant.without_memo()).await.is_err_and(is_refused));
        assert!(leases.release(&mut grant.without_memo(), None).await.is_err_and(is_refused));
        assert!(leases.evict(&name(), grant.token, None).await.is_err_and(is_refused));
        assert!(leases.sweep(&name(), Duration::ZERO, false).await.is_err_and(is_refused));
        assert_eq!(records.unread.load(Ordering::SeqCst), 0);
        let there = records.read(&name()).await.unwrap().unwrap();
        assert!(matches!(there.content, Content::Record(record) if record.heartbeat == 0), "as it was");
    }
}

/// A store may report again and again what is outdated. Then each pause costs one more poll.
#[tokio::test(start_paused = true)]
async fn reports_that_a_lock_is_free_cause_polls_but_no_storm() {
    let mut reads = Vec::new();
    for reports in [false, true] {
        let records = Replaced::new(Claims::Never);
        granted(&RegisterLeases::on(records.clone(), StoreOptions::default())).await;
        records.reports.store(reports, Ordering::SeqCst);
        let leases = RegisterLeases::on(records.clone(), StoreOptions::default());
        let claim = Claim::new(leases.env(), name(), Ttl::DEFAULT, Holder::default());
        let AcquireOutcome::Held(held) = leases.try_acquire(&claim).await.unwrap() else {
            panic!("it was granted before");
        };
        records.reads.store(0, Ordering::SeqCst);
        let waiting = leases.changed(&claim.name, &held);
        assert!(timeout(&*leases.env().clock, Duration::from_secs(5), waiting).await.is_none(), "it is held");
        reads.push(records.reads.load(Ordering::SeqCst));
    }
    assert!(reads[0] >= 5 && (reads[0] * 3 / 2..reads[0] * 3).contains(&reads[1]), "{reads:?}");
}

#[tokio::test]
async fn a_grant_of_another_store_is_refused_and_stays_as_it_was() {
    let leases = leases();
    let mut grant = granted(&leases).await;
    grant.memo = Some(Box::new("what another store needs"));
    assert!(leases.renew(&mut grant).await.is_err());
    assert!(grant.memo.is_some_and(|memo| memo.is::<&str>()));
}

#[tokio::test]
async fn records_that_others_use_are_not_swept() {
    let records = Replaced::new(Claims::Never);
    records.is_shared.store(true, Ordering::SeqCst);
    let leases = RegisterLeases::on(records, StoreOptions::default());
    let refused = leases.sweep(&name(), Duration::ZERO, false).await.unwrap_err();
    assert_eq!(refused.fault().kind, ErrorKind::Unsupported);
}

/// Only the record shows whether the grant of a repeated claim has ended.
#[tokio::test]
async fn a_claim_is_sent_without_a_read_only_if_it_is_new_and_nothing_is_known() {
    for (claims, repeatable, is_known, sent) in [
        (Claims::Never, false, false, 0),
        (Claims::Free, false, false, 1),
        (Claims::Free, true, false, 0),
        (Claims::Free, false, true, 0),
    ] {
        let records = Replaced::new(claims);
        let leases = RegisterLeases::on(records.clone(), StoreOptions::default());
        if is_known {
            leases.release(&mut granted(&leases).await, None).await.unwrap();
            records.unread.store(0, Ordering::SeqCst);
        }
        let mut claim = Claim::new(leases.env(), name(), Ttl::DEFAULT, Holder::default());
        claim.repeatable = repeatable;
        assert!(matches!(leases.try_acquire(&claim).await.unwrap(), AcquireOutcome::Granted(_)));
        assert_eq!(records.unread.load(Ordering::SeqCst), sent, "{claims:?} {repeatable} {is_known}");
    }
}
