//! Many locks in one process: how many requests are sent at once, which of them are sent first, and whether slow
//! requests block other locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use leasehold::clock::{Clock, TestClock};
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::StoreOptions;
use leasehold::register::{Body, Precondition, VersionedValue, Write};
use leasehold::stores::memory::MemoryRegister;
use leasehold::{Guard, Locker, Register, RegisterLeases, Released};
use leasehold_testkit::layer::{Layer, Layered};
use tokio::sync::watch;

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(30);

/// The most renewals that are in progress at once, unless some hang.
const RENEWALS: usize = 64;
/// The most polls that are in progress at once, unless some hang.
const POLLS: usize = 32;

/// A slow store that never responds to requests for some keys.
#[derive(Debug)]
struct Slow {
    inner: MemoryRegister,
    reads: Traffic,
    writes: Traffic,
}

/// The requests of one kind.
#[derive(Debug, Default)]
struct Traffic {
    /// How long each request takes, in milliseconds.
    takes_ms: AtomicUsize,
    /// Whether requests for keys that begin with `hung` get no response.
    hangs: watch::Sender<bool>,
    on_the_way: AtomicUsize,
    most: AtomicUsize,
    sent: AtomicUsize,
}

impl Traffic {
    async fn carry<T>(&self, env: &Env, key: &str, request: impl Future<Output = T>) -> T {
        self.sent.fetch_add(1, Ordering::Relaxed);
        let now = self.on_the_way.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        let _gone = Gone(&self.on_the_way);
        if key.starts_with("hung") {
            self.hangs.subscribe().wait_for(|hangs| !hangs).await.unwrap();
        }
        let takes_ms = self.takes_ms.load(Ordering::Relaxed);
        env.sleep(Duration::from_millis(takes_ms as u64)).await;
        request.await
    }

    fn takes(&self, duration: Duration) {
        self.takes_ms.store(duration.as_millis() as usize, Ordering::Relaxed);
    }

    /// Resets the counts.
    fn reset(&self) {
        self.sent.store(0, Ordering::Relaxed);
        self.most.store(self.on_the_way.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    fn sent(&self) -> usize {
        self.sent.load(Ordering::Relaxed)
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

/// Decrements a counter when a request is completed or given up.
struct Gone<'a>(&'a AtomicUsize);

impl Drop for Gone<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl Layer for Slow {
    fn inner(&self) -> &dyn Register {
        &self.inner
    }

    async fn read(&self, key: &str) -> Result<Option<VersionedValue>, StoreError> {
        self.reads.carry(self.inner.env(), key, self.inner.read(key)).await
    }

    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.writes.carry(self.inner.env(), key, self.inner.write(key, expect, body)).await
    }
}

struct Process {
    clock: Arc<TestClock>,
    store: Arc<Layered<Slow>>,
    locker: Locker,
}

impl Process {
    fn new() -> Self {
        let clock = Arc::new(TestClock::default());
        let env = Env::seeded(clock.clone(), 1);
        let (reads, writes) = Default::default();
        let store = Arc::new(Layered(Slow { inner: MemoryRegister::new(env.clone()), reads, writes }));
        let locker = locker(&store, env);
        Self { clock, store, locker }
    }

    /// Returns the locker of another process on the same store and the same machine.
    fn another(&self) -> Locker {
        locker(&self.store, Env::seeded(self.clock.clone(), 2))
    }

    async fn acquire(&self, prefix: &str, count: usize) -> Vec<Guard> {
        let locks = (0..count).map(|n| self.locker.lock(format!("{prefix}-{n}")).ttl(TTL));
        join_all(locks.map(async |lock| lock.acquire().await.unwrap())).await
    }
}

fn locker(store: &Arc<Layered<Slow>>, env: Env) -> Locker {
    let mut options = StoreOptions::default();
    options.env = env;
    Locker::new(Arc::new(RegisterLeases::new(store.clone(), options)))
}

#[tokio::test(start_paused = true)]
async fn renewals_due_at_once_are_sent_in_limited_numbers() {
    let process = Process::new();
    let guards = process.acquire("x", 300).await;
    let writes = &process.store.0.writes;
    writes.takes(SECOND / 4);
    writes.reset();
    // All renewals are due when the machine wakes.
    process.clock.suspend(TTL / 2);
    process.clock.sleep(SECOND * 5).await;
    assert_eq!((writes.most(), writes.sent()), (RENEWALS, 300), "each once");
    for guard in &guards {
        guard.check().unwrap();
        assert!(guard.remaining() > TTL / 2);
    }
}

#[tokio::test(start_paused = true)]
async fn renewals_that_hang_starve_no_others() {
    let process = Process::new();
    let (hung, well) = tokio::join!(process.acquire("hung", 500), process.acquire("well", 100));
    let writes = &process.store.0.writes;
    writes.hangs.send_replace(true);
    writes.takes(SECOND / 10);
    for _ in 0..100 {
        process.clock.sleep(SECOND).await;
        for guard in &well {
            assert!(guard.remaining() > TTL / 4, "{}: {:?}", guard.name(), guard.remaining());
        }
    }
    assert!(hung.iter().all(|guard| guard.check().is_err()));
}

#[tokio::test(start_paused = true)]
async fn a_queued_renewal_delays_neither_release_nor_loss() {
    let process = Process::new();
    let hung = process.acquire("hung", 300).await;
    let mut well = process.acquire("well", 2).await;
    process.store.0.writes.hangs.send_replace(true);
    process.clock.suspend(TTL / 2);
    // All renewals are due. The requests that hang were sent first and occupy all places.
    process.clock.sleep(SECOND * 3 / 5).await;
    process.store.0.writes.reset();
    let asked = process.clock.now();
    assert_eq!(well.remove(0).release().await.unwrap(), Released::Released);
    assert_eq!(process.clock.now(), asked);
    assert_eq!(process.store.0.writes.sent(), 1, "nothing was to be settled first");
    let lost = join_all(hung.iter().map(Guard::lost));
    lost.await;
    let late = process.clock.now().longest_since(asked);
    assert!(late < TTL / 2, "{late:?}");
    well[0].check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn polls_are_limited_and_delay_neither_renewals_nor_releases() {
    let process = Process::new();
    let mut own = process.acquire("own", 100).await;
    let other = process.another();
    let others = join_all((0..200).map(async |n| other.lock(format!("hung-{n}")).acquire().await.unwrap()));
    let others = others.await;
    let waiters: Vec<_> = (0..200)
        .map(|n| {
            let lock = process.locker.lock(format!("hung-{n}")).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await.map(drop) })
        })
        .collect();
    // Wait until all waiters have joined the line and all holders have renewed records that show it.
    process.clock.sleep(TTL / 2).await;
    let reads = &process.store.0.reads;
    reads.reset();
    reads.takes(SECOND / 2);
    process.clock.sleep(SECOND * 20).await;
    assert_eq!(reads.most(), POLLS);
    assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
    // From now on, the reads hang.
    reads.hangs.send_replace(true);
    process.clock.sleep(TTL * 3).await;
    own.iter().for_each(|guard| assert!(guard.remaining() > TTL / 2, "{:?}", guard.remaining()));
    let asked = process.clock.now();
    assert_eq!(own.pop().unwrap().release().await.unwrap(), Released::Released);
    assert_eq!(process.clock.now(), asked);
    drop(others);
}
