//! Futures that users poll a few times and then keep without polling, as `buffer_unordered` or `select!` in a loop
//! does. They must delay only themselves. Time is paused.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{TTL, World};
use futures_util::{FutureExt, StreamExt};
use leasehold::clock::{TestClock, timeout};
use leasehold::env::Env;
use leasehold::lease::{Evicted, PollInterval, Released, StoreOptions};
use leasehold::register::{Register, RegisterCapabilities};
use leasehold::{ErrorKind, Locker, RegisterLeases, Token};
use leasehold_testkit::fault::{Kind, Outcome};
use leasehold_testkit::layer::{Layer, Layered};
use leasehold_testkit::machine::Machine;
use tokio::task::yield_now;

const SECOND: Duration = Duration::from_secs(1);

/// A register that behaves like a remote one: waiters poll, and the register is not trusted.
#[derive(Debug)]
struct Remote(Arc<dyn Register>);

impl Layer for Remote {
    fn inner(&self) -> &dyn Register {
        &*self.0
    }
    fn capabilities(&self) -> RegisterCapabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.poll_interval = PollInterval { min: SECOND / 10, max: SECOND * 2 };
        capabilities.trusted = false;
        capabilities
    }
}

/// Creates a process with its own store handle on the storage of `world`.
fn process(world: &World, seed: u64) -> (Env, Locker) {
    let env = Env::seeded(Arc::new(TestClock::default()), seed);
    let machine = Machine::new(world.register.clone(), env.clone());
    let mut options = StoreOptions::default();
    options.env = env.clone();
    let register = Layered(Remote(Arc::new(machine)));
    (env, Locker::new(Arc::new(RegisterLeases::new(Arc::new(register), options))))
}

type Operation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Returns every operation, on locks below `prefix` and on `held`, which another process holds.
async fn operations(locker: &Locker, prefix: &str, held: &str) -> Vec<Operation> {
    fn forget<T>(operation: impl Future<Output = T> + Send + 'static) -> Operation
    where
        T: Send + 'static,
    {
        // Keep the output as long as the future.
        Box::pin(operation.then(|output| async move {
            let _output = output;
            std::future::pending().await
        }))
    }
    let lock = |name: &str| locker.lock(format!("{prefix}/{name}")).ttl(TTL);
    let taken = locker.lock(held).ttl(TTL);
    let mut all = Vec::new();
    for lock in [lock("free"), taken.clone()] {
        let each = [lock.clone(), lock.clone(), lock.clone(), lock.clone()];
        let [acquire, attempt, within, once] = each;
        all.push(forget(async move { acquire.acquire().await.map(drop) }));
        all.push(forget(async move { attempt.try_acquire().await }));
        all.push(forget(async move { within.acquire_within(5 * SECOND).await }));
        all.push(forget(async move { once.once_per(60 * SECOND).acquire().await }));
        let (semaphore, try_semaphore) = (lock.clone().semaphore(2), lock.clone().semaphore(2));
        all.push(forget(async move { semaphore.acquire().await }));
        all.push(forget(async move { try_semaphore.try_acquire().await }));
        let (shared, exclusive) = (lock.clone().rw_lock(), lock.clone().rw_lock());
        let (try_exclusive, within) = (exclusive.clone(), exclusive.clone());
        all.push(forget(async move { shared.shared().await }));
        all.push(forget(async move { exclusive.exclusive().await }));
        all.push(forget(async move { try_exclusive.try_exclusive().await }));
        all.push(forget(async move { within.exclusive_within(5 * SECOND).await }));
        let (election, candidate) = (lock.clone().election(), lock.clone().election());
        all.push(forget(async move { election.observe().take(2).collect::<Vec<_>>().await.len() }));
        all.push(forget(async move { candidate.campaign().await.map(drop) }));
    }
    let names = [leasehold::LockName::new(held).unwrap(), leasehold::LockName::new(prefix).unwrap()];
    for name in names {
        let [waits, looks, evicts, lists] = [(); 4].map(|()| (locker.clone(), name.clone()));
        all.push(forget(async move { waits.0.wait_free(&waits.1, &|_| {}).await }));
        all.push(forget(async move { looks.0.inspect(&looks.1).await }));
        all.push(forget(async move { evicts.0.evict(&evicts.1, Token::default()).await }));
        all.push(forget(async move { lists.0.list("").count().await }));
    }
    for (n, what) in ["released", "rested", "handed on"].into_iter().enumerate() {
        let guard = lock(what).acquire().await.unwrap();
        all.push(match n {
            0 => forget(guard.release()),
            1 => forget(guard.release_with_cooldown(60 * SECOND)),
            _ => forget(guard.into_ticket()),
        });
    }
    all
}

#[tokio::test(start_paused = true)]
async fn frozen_futures_delay_no_other_lock() {
    for seed in 0..40 {
        let world = World::new();
        let (_, holder) = process(&world, 1_000 + seed);
        let _held = holder.lock("held").ttl(TTL).acquire().await.unwrap();
        // Another process holds this lock for a while, so its waiter polls.
        let contended = holder.lock("contended").ttl(TTL).acquire().await.unwrap();
        let (env, locker) = process(&world, seed);

        let mut frozen = Vec::new();
        // For odd seeds, the store has not been examined yet.
        let kept =
            if seed % 2 == 0 { Some(locker.lock("kept").ttl(TTL).acquire().await.unwrap()) } else { None };
        for copy in 0..8 {
            for mut operation in operations(&locker, &format!("{seed}/{copy}"), "held").await {
                for _ in 0..(env.random.fraction() * 8.0) as usize {
                    assert!(operation.as_mut().now_or_never().is_none(), "it keeps what it got");
                    match (env.random.fraction() * 3.0) as usize {
                        0 => yield_now().await,
                        1 => env.sleep(SECOND / 50).await,
                        _ => {}
                    }
                }
                frozen.push(operation);
            }
        }

        let waits = tokio::spawn({
            let lock = locker.lock("contended").ttl(TTL);
            async move { lock.acquire().await.unwrap() }
        });
        let free = timeout(&*env.clock, 5 * SECOND, locker.lock("other").ttl(TTL).acquire()).await;
        let free = free.expect("a free lock is granted").unwrap();
        env.sleep(5 * TTL).await;
        free.check().unwrap();
        if let Some(kept) = &kept {
            kept.check().unwrap();
        }
        assert_eq!(contended.release().await.unwrap(), Released::Released);
        let waited = timeout(&*env.clock, 5 * SECOND, waits).await.expect("a waiter gets the lock");
        let token = waited.unwrap().token().unwrap();
        let evicted = locker.evict(&leasehold::LockName::new("contended").unwrap(), token).await.unwrap();
        assert!(matches!(evicted, Evicted::Evicted | Evicted::Changed));
        let released = timeout(&*env.clock, 5 * SECOND, free.release()).await.expect("a release completes");
        assert_eq!(released.unwrap(), Released::Released);
        drop(frozen);
    }
}

/// The futures are polled while a request is under way and then kept.
#[tokio::test(start_paused = true)]
async fn polls_of_frozen_futures_delay_no_waiter() {
    let world = World::new();
    let holder = Locker::new(world.observer(1).leases);
    let held = holder.lock("x").ttl(TTL).acquire().await.unwrap();
    let client = world.observer(2);
    client.network.every(Kind::Read, Outcome::AnswerDelayed(SECOND / 100));
    let locker = Locker::new(client.leases.clone());
    let name = leasehold::LockName::new("x").unwrap();
    let mut frozen = Vec::new();
    for _ in 0..64 {
        let (locker, name) = (locker.clone(), name.clone());
        let mut waits: Operation = Box::pin(async move { locker.wait_free(&name, &|_| {}).await.unwrap() });
        let polls = 20 + (client.env.random.fraction() * 60.0) as usize;
        for _ in 0..polls {
            assert!(waits.as_mut().now_or_never().is_none());
            client.env.sleep(SECOND / 1_000).await;
        }
        frozen.push(waits);
    }
    let waiter = tokio::spawn(async move { locker.lock("x").ttl(TTL).acquire().await });
    client.env.sleep(SECOND).await;
    held.release().await.unwrap();
    let granted = timeout(&*client.env.clock, 5 * SECOND, waiter).await.expect("it polls");
    granted.unwrap().unwrap().release().await.unwrap();
}

/// A wait leaves the queue at its time limit even if its future is not polled.
#[tokio::test(start_paused = true)]
async fn a_frozen_wait_ends_at_its_limit() {
    let world = World::new();
    let held = Locker::new(world.observer(1).leases).lock("x").ttl(TTL).acquire().await.unwrap();
    let client = world.observer(2);
    let lock = Locker::new(client.leases.clone()).lock("x").ttl(TTL);
    let mut frozen = Box::pin(lock.acquire_within(5 * SECOND));
    assert!(frozen.as_mut().now_or_never().is_none());
    let rw_lock = lock.clone().rw_lock();
    let mut permit = Box::pin(rw_lock.exclusive_within(5 * SECOND));
    assert!(permit.as_mut().now_or_never().is_none());
    client.env.sleep(10 * SECOND).await;
    held.release().await.unwrap();
    let next = timeout(&*client.env.clock, 5 * SECOND, lock.acquire()).await.expect("its turn");
    next.unwrap().release().await.unwrap();
    assert_eq!(frozen.await.unwrap_err().kind(), ErrorKind::Held);
}

/// If the runtime shuts down, the release is interrupted, but its caller still gets a result.
#[test]
fn a_release_completes_when_its_runtime_shuts_down() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (one, other) = (runtime(), runtime());
    let guard = one.block_on(async {
        let locker = Locker::open("mem:").await.unwrap();
        locker.lock("x").acquire().await.unwrap()
    });
    other.block_on(async {
        let mut release = Box::pin(guard.release());
        assert!(release.as_mut().now_or_never().is_none(), "its runtime does not run");
        one.shutdown_background();
        assert_eq!(release.await.unwrap(), Released::AlreadyLost, "whether it was released is unknown");
    });
}
