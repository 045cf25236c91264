//! How locks use stores in which waiting processes form a line, and stores that report the end of a grant.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, TTL, World, name};
use async_trait::async_trait;
use leasehold::clock::Clock;
use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, Capabilities, Claim, Evicted, Grant, Id, LeaseStore, Released};
use leasehold::{ErrorKind, Locker, LossReason};
use leasehold_testkit::layer::{LeaseLayer, LeaseLayered};
use tokio::sync::Notify;

/// A store whose responses look as if it had a line and watches. Its leases are those of a register.
#[derive(Debug)]
struct Lining {
    leases: Arc<leasehold::RegisterLeases>,
    /// The claims that wait in line.
    line: Mutex<Vec<Id>>,
    /// For each try, whether its claim waits.
    tried: Mutex<Vec<bool>>,
    ended: Notify,
    alarmed: AtomicBool,
    /// Notified to complete a slow release.
    release: Notify,
    slow_release: AtomicBool,
    /// How many more grants arrive too late.
    late: AtomicUsize,
}

impl Lining {
    fn on(client: &Client) -> Arc<LeaseLayered<Self>> {
        Arc::new(LeaseLayered(Self {
            leases: client.leases.clone(),
            line: Mutex::default(),
            tried: Mutex::default(),
            ended: Notify::new(),
            alarmed: AtomicBool::new(false),
            release: Notify::new(),
            slow_release: AtomicBool::new(false),
            late: AtomicUsize::new(0),
        }))
    }

    fn line(&self) -> Vec<Id> {
        self.line.lock().unwrap().clone()
    }

    fn leave(&self, id: Id) {
        self.line.lock().unwrap().retain(|waiting| *waiting != id);
    }

    async fn until_in_line(&self, count: usize) {
        while self.line().len() != count {
            tokio::task::yield_now().await;
        }
    }
}

#[async_trait]
impl LeaseLayer for Lining {
    fn inner(&self) -> &dyn LeaseStore {
        &*self.leases
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<AcquireOutcome, StoreError> {
        self.tried.lock().unwrap().push(claim.waits);
        let mut verdict = self.leases.try_acquire(claim).await?;
        self.leave(claim.id);
        if let AcquireOutcome::Granted(grant) = &mut verdict
            && self.late.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |late| late.checked_sub(1)).is_ok()
        {
            self.leases.env().sleep(TTL).await;
            self.leases.release(grant, None).await?;
            verdict = AcquireOutcome::Lost(grant.came_too_late());
        }
        if claim.waits && matches!(verdict, AcquireOutcome::Held(_)) {
            self.line.lock().unwrap().push(claim.id);
        }
        Ok(verdict)
    }

    async fn release(&self, grant: &mut Grant, cooldown: Option<Duration>) -> Result<Released, StoreError> {
        if self.slow_release.load(Ordering::SeqCst) {
            self.release.notified().await;
        }
        let released = self.leases.release(grant, cooldown).await?;
        self.leave(grant.id);
        Ok(released)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.leases.capabilities();
        (capabilities.line, capabilities.watches) = (Some("here"), true);
        capabilities
    }

    async fn ended(&self, _grant: &Grant) {
        if !self.alarmed.load(Ordering::SeqCst) {
            self.ended.notified().await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn only_waiters_stand_in_line_and_giving_up_leaves_it() {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let guard = Locker::new(holder.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    let store = Lining::on(&client);
    let lock = Locker::new(store.clone()).lock("x").ttl(TTL);
    lock.try_acquire().await.unwrap_err();
    assert_eq!(*store.tried.lock().unwrap(), [false]);

    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await })
    };
    store.until_in_line(1).await;
    assert!(store.tried.lock().unwrap()[1]);
    let first = store.line();
    // Its place must be freed before the next task of this process lines up.
    store.slow_release.store(true, Ordering::SeqCst);
    let next = tokio::spawn(async move { lock.acquire().await });
    waiter.abort();
    client.env.sleep(Duration::from_millis(10)).await;
    assert_eq!(store.line(), first, "not withdrawn yet, and no other task has lined up");
    store.slow_release.store(false, Ordering::SeqCst);
    store.release.notify_one();
    while store.line() == first || store.line().is_empty() {
        tokio::task::yield_now().await;
    }
    assert_eq!(store.line().len(), 1, "the next task");
    guard.release().await.unwrap();
    next.await.unwrap().unwrap().release().await.unwrap();
    assert!(store.line().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_came_too_late_is_acquired_again() {
    let world = World::new();
    let client = world.observer(1);
    let store = Lining::on(&client);
    let lock = Locker::new(store.clone()).lock("x").ttl(TTL).store_timeout(TTL * 2);
    for tries in [true, false] {
        store.late.store(1, Ordering::SeqCst);
        let guard = if tries { lock.try_acquire().await } else { lock.acquire().await }.unwrap();
        guard.check().unwrap();
        assert_eq!(store.late.load(Ordering::SeqCst), 0);
        guard.release().await.unwrap();
    }
    // If every response takes longer than a lease lasts, the client gives up after a few grants.
    for tries in [true, false] {
        store.late.store(usize::MAX, Ordering::SeqCst);
        let error = if tries { lock.try_acquire().await } else { lock.acquire().await }.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().contains("3 grants in a row expired"), "{error}");
        assert_eq!(usize::MAX - store.late.load(Ordering::SeqCst), 3);
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_learns_of_its_eviction_from_a_watching_store() {
    let world = World::new();
    let client = world.observer(1);
    let store = Lining::on(&client);
    let guard = Locker::new(store.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    let token = guard.token().unwrap();
    assert_eq!(client.leases.evict(&name(), token, None).await.unwrap(), Evicted::Evicted);
    let evicted = client.clock.now();
    store.ended.notify_one();
    assert_eq!(guard.lost().await.reason, LossReason::Ended);
    let heard = client.clock.now().longest_since(evicted);
    assert!(heard < TTL / 20, "long before its next renewal: {heard:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_raises_false_alarms_is_not_asked_without_end() {
    let world = World::new();
    let client = world.observer(1);
    let store = Lining::on(&client);
    store.alarmed.store(true, Ordering::SeqCst);
    let guard = Locker::new(store).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.reset_counts();
    client.env.sleep(TTL * 10).await;
    let renewals = client.network.counts().writes;
    assert!((27..=66).contains(&renewals), "{renewals} renewals in ten ttls");
    guard.release().await.unwrap();
}
