//! Leases on a table: a store that grants over records that were not read, and returns the stored record with a
//! refusal.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::stream::{self, BoxStream, StreamExt};

use super::super::record::{Content, Record, RecordState};
use super::{Claims, Found, Records, Refusal, Written};
use crate::clock::{Clock, Moment, StoreClock, StoreTime, TestClock};
use crate::env::Env;
use crate::error::{ErrorKind, Fault, StoreError};
use crate::lease::{
    AcquireOutcome, Capabilities, Claim, Evicted, Grant, Holder, HolderInfo, Id, LeaseStore, PollInterval,
    Released, Renewal, StoreOptions, Ttl, Watch,
};
use crate::protocol::RegisterLeases;
use crate::register::{Precondition, Version};
use crate::types::LockName;
use crate::{LossReason, Token};

const TTL: Duration = Duration::from_secs(30);

/// What happens to the next write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Harm {
    AnswerLost,
    RequestLost,
    /// The request arrives when the test calls `deliver`.
    RequestLate,
    /// The request arrives a second time when the test calls `deliver`.
    SentTwice,
    /// The store refuses it.
    Denied,
}

/// A table that all clients share.
#[derive(Debug, Default)]
struct Table {
    rows: Mutex<BTreeMap<LockName, Row>>,
    harms: Mutex<VecDeque<Harm>>,
    log: Mutex<Vec<&'static str>>,
    /// Claims that are still under way.
    late: Mutex<Vec<(LockName, Record)>>,
    /// The latest [`Records::next_token`], if the table has any.
    next_token: Mutex<Option<u64>>,
    /// Whether a waiter changes no version.
    hides_waiters: bool,
    /// How long the responses to writes take, according to their `Date`.
    delay: Duration,
}

#[derive(Clone, Debug)]
struct Row {
    record: Record,
    version: u64,
    stamp: Option<u64>,
}

impl Row {
    fn found(&self) -> Found {
        let mut record = self.record.clone();
        record.renewed_at_us = record.renewed_at_us.or(self.stamp);
        Found {
            content: Content::Record(Box::new(record)),
            version: Version::new(self.version.to_string()),
            line: None,
        }
    }
}

/// A client of the table. Like a client of a real table, it knows the store's time only after a response.
#[derive(Debug)]
struct Client {
    table: Arc<Table>,
    env: Env,
    answered: Mutex<bool>,
    /// Set if the store reports its time in a `Date` header, which is accurate to a second.
    dated: Option<StoreClock>,
}

impl Client {
    /// A response has arrived, `delay` after its request.
    fn answered(&self, delay: Duration) {
        *self.answered.lock().unwrap() = true;
        if let Some(dated) = &self.dated {
            let now = self.env.now();
            let sent_us = now.wall_us() - delay.as_micros() as u64;
            let sent = Moment::from_raw((now.since_boot() - delay).as_nanos() as u64, sent_us as i64 * 1_000);
            dated.observe(now.wall_us() / 1_000_000 * 1_000_000, Duration::from_secs(1), sent, now);
        }
    }

    fn change(
        &self,
        what: &'static str,
        change: impl FnOnce(&mut BTreeMap<LockName, Row>) -> Written,
    ) -> Result<Written, StoreError> {
        self.table.log.lock().unwrap().push(what);
        let harm = self.table.harms.lock().unwrap().pop_front();
        let lost = || Fault::unavailable("no answer").maybe_applied();
        if harm == Some(Harm::Denied) {
            return Err(Fault::new(ErrorKind::Denied, "no").not_applied());
        }
        if matches!(harm, Some(Harm::RequestLost | Harm::RequestLate)) {
            return Err(lost());
        }
        let written = change(&mut self.table.rows.lock().unwrap());
        if harm == Some(Harm::AnswerLost) {
            return Err(lost());
        }
        self.answered(self.table.delay);
        Ok(written)
    }
}

fn put(rows: &mut BTreeMap<LockName, Row>, name: &LockName, record: &Record) -> Written {
    let version = rows.get(name).map_or(0, |row| row.version) + 1;
    rows.insert(name.clone(), Row { record: record.clone(), version, stamp: None });
    Written::Committed { record: Box::new(record.clone()), version: Version::new(version.to_string()) }
}

fn grant_unseen(rows: &mut BTreeMap<LockName, Row>, name: &LockName, record: &Record) -> Written {
    match rows.get(name) {
        Some(Row { record: free, .. })
            if free.state == RecordState::Free && !free.unconfirmed && free.grant != record.grant =>
        {
            let token = Token::new(free.token.get() + 1).unwrap();
            let (size, history) = (free.size.max(record.size), free.history.clone());
            put(rows, name, &Record { token, size, history, ..record.clone() })
        }
        row => refused(row),
    }
}

fn refused(row: Option<&Row>) -> Written {
    Written::Conflict(row.map_or(Refusal::Absent, |row| Refusal::Found(row.found())))
}

#[async_trait]
impl Records for Client {
    async fn read(&self, name: &LockName) -> Result<Option<Found>, StoreError> {
        self.table.log.lock().unwrap().push("read");
        self.answered(Duration::ZERO);
        Ok(self.table.rows.lock().unwrap().get(name).map(Row::found))
    }

    async fn write(
        &self,
        name: &LockName,
        expect: Precondition<'_>,
        _before: Option<&Record>,
        record: &Record,
    ) -> Result<Written, StoreError> {
        self.change("write", |rows| {
            let row = rows.get(name);
            let as_expected = match expect {
                Precondition::Absent => row.is_none(),
                Precondition::Version(version) => {
                    row.is_some_and(|row| row.version.to_string() == version.as_str())
                }
            };
            if as_expected { put(rows, name, record) } else { refused(row) }
        })
    }

    async fn claim(
        &self,
        name: &LockName,
        record: &Record,
        _tokens: u64,
        _barges: bool,
    ) -> Result<Written, StoreError> {
        let harm = self.table.harms.lock().unwrap().front().copied();
        if matches!(harm, Some(Harm::RequestLate | Harm::SentTwice)) {
            self.table.late.lock().unwrap().push((name.clone(), record.clone()));
        }
        self.change("claim", |rows| grant_unseen(rows, name, record))
    }

    fn claims(&self) -> Claims {
        Claims::Free
    }

    fn marks_awaited(&self) -> bool {
        !self.table.hides_waiters
    }

    fn others_delete(&self) -> bool {
        true
    }

    async fn next_token(&self, _name: &LockName) -> Result<Option<u64>, StoreError> {
        let mut next = self.table.next_token.lock().unwrap();
        *next = next.map(|token| token + 1);
        Ok(*next)
    }

    async fn stamp(&self, name: &LockName, version: &Version, seen_us: u64) -> Result<bool, StoreError> {
        self.table.log.lock().unwrap().push("stamp");
        let mut rows = self.table.rows.lock().unwrap();
        let row = rows.get_mut(name).filter(|row| row.version.to_string() == version.as_str());
        Ok(row.map(|row| row.stamp = Some(seen_us)).is_some())
    }

    fn list(&self, _prefix: &str) -> BoxStream<'_, Result<LockName, StoreError>> {
        stream::empty().boxed()
    }

    async fn trust(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn store_time(&self) -> Option<StoreTime> {
        let now_us = self.env.now().wall_us();
        if let Some(dated) = &self.dated {
            return dated.bounds(self.env.now());
        }
        self.answered.lock().unwrap().then_some(StoreTime::exactly(now_us))
    }

    fn env(&self) -> &Env {
        &self.env
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new(
            "table",
            PollInterval { min: Duration::from_millis(100), max: Duration::from_secs(1) },
        )
    }
}

/// A world with one table and one lock.
struct World {
    table: Arc<Table>,
    clock: Arc<TestClock>,
}

impl World {
    fn new() -> Self {
        Self { table: Arc::default(), clock: Arc::default() }
    }

    fn client(&self) -> RegisterLeases {
        self.client_with(None)
    }

    fn client_with(&self, dated: Option<StoreClock>) -> RegisterLeases {
        let env = Env::seeded(self.clock.clone(), fastrand::u64(..));
        let options = StoreOptions { env: env.clone(), ..StoreOptions::default() };
        let client = Client { table: self.table.clone(), env, answered: Mutex::default(), dated };
        RegisterLeases::on(Arc::new(client), options)
    }

    /// Creates a table in which the lock was granted and released.
    async fn with_free_record() -> (Self, Token) {
        let world = Self::new();
        let client = world.client();
        let mut grant = granted(&client).await;
        client.release(&mut grant, None).await.unwrap();
        world.requests();
        (world, grant.token)
    }

    /// Returns the requests since the previous call.
    fn requests(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.table.log.lock().unwrap())
    }

    fn harm(&self, harm: Harm) {
        self.table.harms.lock().unwrap().push_back(harm);
    }

    /// Delivers the requests that were late.
    fn deliver(&self) {
        for (name, record) in std::mem::take(&mut *self.table.late.lock().unwrap()) {
            grant_unseen(&mut self.table.rows.lock().unwrap(), &name, &record);
        }
    }

    fn change_record(&self, change: impl FnOnce(&mut Record)) {
        change(&mut self.table.rows.lock().unwrap().get_mut(&name()).unwrap().record);
    }
}

fn name() -> LockName {
    LockName::new("lock").unwrap()
}

fn claim(client: &RegisterLeases) -> Claim {
    Claim::new(client.env(), name(), Ttl::new(TTL).unwrap(), Holder::this_process())
}

async fn attempt(client: &RegisterLeases) -> AcquireOutcome {
    client.try_acquire(&claim(client)).await.unwrap()
}

async fn granted(client: &RegisterLeases) -> Grant {
    match attempt(client).await {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

async fn held(client: &RegisterLeases) -> HolderInfo {
    match attempt(client).await {
        AcquireOutcome::Held(held) => held,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn a_free_record_is_granted_unseen_in_one_request() {
    let (world, before) = World::with_free_record().await;
    let client = world.client();
    let mut grant = granted(&client).await;
    assert_eq!(world.requests(), ["claim"]);
    assert_eq!(grant.token.get(), before.get() + 1, "counted by the store");
    assert_eq!(
        client.inspect(&name()).await.unwrap().history.len(),
        1,
        "the previous grant is still in the history"
    );
    assert!(matches!(client.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(client.release(&mut grant, None).await.unwrap(), Released::Released);
    world.requests();
    granted(&client).await;
    assert_eq!(world.requests(), ["write"], "a cached record is not claimed unseen");
}

/// The next claim of the process that released the lock must not overtake those that have joined the line meanwhile.
#[tokio::test(start_paused = true)]
async fn a_known_record_is_judged_only_if_it_shows_waiters() {
    for hides_waiters in [false, true] {
        let table = Arc::new(Table { hides_waiters, ..Table::default() });
        let world = World { table, clock: Arc::default() };
        let client = world.client();
        let mut grant = granted(&client).await;
        client.release(&mut grant, None).await.unwrap();
        world.requests();
        granted(&client).await;
        assert_eq!(world.requests(), [if hides_waiters { "claim" } else { "write" }]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_refusal_returns_the_stored_record() {
    let world = World::new();
    let grant = granted(&world.client()).await;
    assert_eq!(
        world.requests(),
        ["claim", "write", "write"],
        "refused because there was no record, then created, then given its token"
    );
    assert_eq!(held(&world.client()).await.token, Some(grant.token));
    assert_eq!(world.requests(), ["claim"]);
}

#[tokio::test(start_paused = true)]
async fn rule_4_an_unseen_grant_with_a_lost_response_is_read_back() {
    let (world, before) = World::with_free_record().await;
    let client = world.client();
    world.harm(Harm::AnswerLost);
    let sent = world.clock.now();
    let grant = granted(&client).await;
    assert_eq!(world.requests(), ["claim", "read"]);
    assert_eq!(grant.token.get(), before.get() + 1);
    let counted = crate::lease::deadline(grant.ttl, sent).remaining(world.clock.now());
    assert_eq!(grant.deadline.remaining(world.clock.now()), counted, "counted from the claim that landed");

    let (world, _) = World::with_free_record().await;
    world.harm(Harm::RequestLost);
    granted(&world.client()).await;
    assert_eq!(
        world.requests(),
        ["claim", "read", "write"],
        "read, found free, and written over what was read"
    );
}

#[tokio::test(start_paused = true)]
async fn rule_10_an_unseen_grant_that_was_taken_over_is_a_loss() {
    let (world, _) = World::with_free_record().await;
    let (client, other) = (world.client(), world.client());
    let taker = Arc::new(other);
    // Our claim is applied, but its response is lost. Before we read the record, our grant is evicted and another
    // client gets the lock.
    world.harm(Harm::AnswerLost);
    let meddled = {
        let (world, taker) = (&world, taker.clone());
        async move {
            while !world.table.log.lock().unwrap().contains(&"claim") {
                tokio::task::yield_now().await;
            }
            let ours = taker.inspect(&name()).await.unwrap().token.unwrap();
            assert_eq!(taker.evict(&name(), ours, None).await.unwrap(), Evicted::Evicted);
            granted(&taker).await
        }
    };
    let claim = claim(&client);
    let (verdict, taken) = futures_util::future::join(client.try_acquire(&claim), meddled).await;
    match verdict.unwrap() {
        AcquireOutcome::Lost(loss) => {
            let LossReason::TakenOver { by } = loss.reason else { panic!("{loss:?}") };
            assert_eq!(by.token, Some(taken.token));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn an_unconfirmed_record_is_not_granted_unseen() {
    let (world, before) = World::with_free_record().await;
    world.change_record(|record| record.unconfirmed = true);
    let grant = granted(&world.client()).await;
    assert_eq!(world.requests(), ["claim", "write"]);
    assert!(grant.token.get() > before.get() + 1, "from the store's clock");
}

/// Without a stamp, processes that do not wait would never see the lease lapse, because each of them reads the record
/// only once.
#[tokio::test(start_paused = true)]
async fn a_record_without_a_time_is_stamped_by_a_refused_try() {
    let (world, _) = World::with_free_record().await;
    // This is the first request of its process, so the store's time is not known yet.
    let dead = granted(&world.client()).await;
    world.requests();
    held(&world.client()).await;
    assert_eq!(world.requests(), ["claim", "stamp"]);
    held(&world.client()).await;
    assert_eq!(world.requests(), ["claim"], "once is enough");
    world.clock.sleep(2 * TTL).await;
    assert!(granted(&world.client()).await.token > dead.token, "lapsed, by the store's clock");
}

#[tokio::test(start_paused = true)]
async fn a_stamp_does_not_make_a_lease_lapse_early() {
    let (world, _) = World::with_free_record().await;
    let client = world.client();
    let mut grant = granted(&client).await;
    held(&world.client()).await;
    for _ in 0..6 {
        world.clock.sleep(TTL / 2).await;
        assert!(matches!(client.renew(&mut grant).await.unwrap(), Renewal::Renewed));
        held(&world.client()).await;
    }
}

/// AWS's client deletes the record when it releases the lock. While one of our clients waits for a token that is
/// certainly new, another client may be granted the lock and release it, and such a client may delete the record.
#[tokio::test(start_paused = true)]
async fn tokens_rise_although_another_client_deletes_on_release() {
    let world = World::new();
    let second_us = 1_000_000;
    let into = world.clock.now().wall_us() % second_us;
    world.clock.sleep(Duration::from_micros(second_us + 100_000 - into)).await;
    let [one, two] = [(); 2].map(|()| world.client_with(Some(StoreClock::default())));
    let first = async {
        let mut grant = granted(&one).await;
        one.release(&mut grant, None).await.unwrap();
        world.table.rows.lock().unwrap().clear();
        grant.token
    };
    let second = async {
        world.clock.sleep(Duration::from_millis(500)).await;
        loop {
            match attempt(&two).await {
                AcquireOutcome::Granted(grant) => return grant.token,
                AcquireOutcome::Held(held) => two.changed(&name(), &held).await.unwrap(),
                other => panic!("{other:?}"),
            }
        }
    };
    let (first, second) = futures_util::future::join(first, second).await;
    assert!(second > first, "{second} after {first}");
}

/// A wait for a certain token is no trouble with the store.
#[tokio::test(start_paused = true)]
async fn a_lost_response_after_a_wait_for_a_token_is_resolved() {
    let world = World::new();
    let client = world.client_with(Some(StoreClock::default()));
    let mut claim = claim(&client);
    claim.store_timeout = Duration::from_millis(500);
    let began = world.clock.now();
    let lost = async {
        while !world.table.log.lock().unwrap().contains(&"write") {
            tokio::task::yield_now().await;
        }
        world.harm(Harm::AnswerLost);
    };
    let (verdict, ()) = futures_util::future::join(client.try_acquire(&claim), lost).await;
    assert!(matches!(verdict, Ok(AcquireOutcome::Granted(_))), "{verdict:?}");
    assert!(world.clock.now().longest_since(began) > claim.store_timeout, "no wait");
}

/// A slow response leaves the store's time uncertain by more than a `Date` explains.
#[tokio::test(start_paused = true)]
async fn a_token_after_a_slow_response_comes_from_another_response() {
    let world = World {
        table: Arc::new(Table { delay: Duration::from_secs(9), ..Table::default() }),
        clock: Arc::default(),
    };
    world.clock.sleep(Duration::from_secs(60)).await;
    let client = world.client_with(Some(StoreClock::default()));
    let began = world.clock.now();
    granted(&client).await;
    assert_eq!(world.requests(), ["claim", "write", "read", "write"]);
    assert!(world.clock.now().longest_since(began) < Duration::from_secs(3));
}

#[tokio::test(start_paused = true)]
async fn a_new_record_gets_its_token_from_the_store_without_a_wait() {
    let world = World::new();
    *world.table.next_token.lock().unwrap() = Some(8_000_000_000_000_000);
    let client = world.client_with(Some(StoreClock::default()));
    let began = world.clock.now();
    assert_eq!(granted(&client).await.token.get(), 8_000_000_000_000_001);
    assert_eq!(world.requests(), ["claim", "write", "write"]);
    assert_eq!(world.clock.now().longest_since(began), Duration::ZERO);
}

/// The error must say so. Otherwise no process would withdraw the created record, and the lock would be held for a
/// whole ttl.
#[tokio::test(start_paused = true)]
async fn a_created_record_that_did_not_get_its_token_may_be_ours() {
    let world = World::new();
    let client = world.client();
    let claim = claim(&client);
    let denied = async {
        while !world.table.log.lock().unwrap().contains(&"write") {
            tokio::task::yield_now().await;
        }
        world.harm(Harm::Denied);
    };
    let (verdict, ()) = futures_util::future::join(client.try_acquire(&claim), denied).await;
    assert!(matches!(verdict, Err(StoreError::MaybeApplied(_))), "{verdict:?}");
}

/// Fault 5: a late or duplicate claim finds only the free record that the claim itself left.
#[tokio::test(start_paused = true)]
async fn a_late_or_doubled_unseen_grant_does_not_undo_its_release() {
    for harm in [Harm::RequestLate, Harm::SentTwice] {
        let (world, _) = World::with_free_record().await;
        let client = world.client();
        world.harm(harm);
        let mut grant = granted(&client).await;
        assert_eq!(client.release(&mut grant, None).await.unwrap(), Released::Released);
        world.deliver();
        assert!(
            matches!(client.inspect(&name()).await.unwrap().state, crate::lease::State::Free),
            "{harm:?}"
        );
    }
}

/// Other clients remove our token or restore an old one. The token then does not show which grant came later.
#[tokio::test(start_paused = true)]
async fn rule_10_a_takeover_by_a_foreign_client_is_a_loss() {
    let (world, _) = World::with_free_record().await;
    let client = world.client();
    world.harm(Harm::AnswerLost);
    let meddled = async {
        while !world.table.log.lock().unwrap().contains(&"claim") {
            tokio::task::yield_now().await;
        }
        let mut rows = world.table.rows.lock().unwrap();
        let record = rows[&name()].record.clone();
        let grant = Id::random(&client.env().random);
        let theirs = Record { token: Token::default(), grant, nonce: grant, unconfirmed: true, ..record };
        put(&mut rows, &name(), &theirs);
    };
    let claim = claim(&client);
    let (verdict, ()) = futures_util::future::join(client.try_acquire(&claim), meddled).await;
    assert!(matches!(verdict.unwrap(), AcquireOutcome::Lost(_)));
}
