//! How many requests a wait costs and when it ends. These tests examine the pauses of `pacing.rs` as the store sees
//! them. Time is paused.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{POLL_INTERVAL, Paced, TTL, World, contender_span, granted, name};
use leasehold::clock::{Clock, TestClock, timeout};
use leasehold::env::Env;
use leasehold::lease::{AcquireOutcome, Claim, LeaseStore, StoreOptions, Ttl, Watch};
use leasehold::register::Register;
use leasehold::{Holder, Locker, RegisterLeases};
use leasehold_testkit::fault::{FaultyRegister, Kind, Outcome};
use leasehold_testkit::layer::Layered;
use leasehold_testkit::machine::Machine;

const SECOND: Duration = Duration::from_secs(1);

struct Process {
    leases: Arc<RegisterLeases>,
    network: FaultyRegister,
    env: Env,
}

/// Creates a process on `world`'s store that detects lapses by observation.
fn process(world: &World, seed: u64) -> Process {
    let env = Env::seeded(Arc::new(TestClock::default()), seed);
    let network = FaultyRegister::new(world.register.clone());
    let machine = Machine::new(Arc::new(Layered(Paced(network.clone()))), env.clone());
    let mut options = StoreOptions::default();
    (options.env, options.store_clock) = (env.clone(), false);
    Process { leases: Arc::new(RegisterLeases::new(Arc::new(machine), options)), network, env }
}

impl Process {
    fn claim(&self, ttl: Duration) -> Claim {
        Claim::new(&self.env, name(), Ttl::new(ttl).unwrap(), Holder::this_process())
    }

    /// Acquires the lock, renews it once, and stops. The renewal is needed because a grant after one that was never
    /// renewed waits for a token from the store's clock.
    async fn dies_with_the_lock(&self) {
        let mut grant = granted(self.leases.try_acquire(&self.claim(TTL)).await.unwrap());
        self.leases.renew(&mut grant).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_long_wait_costs_few_reads_beyond_one_per_longest_pause() {
    for ttl in [TTL, SECOND * 3, SECOND] {
        let world = World::new();
        let (holder, waiter) = (process(&world, 1), process(&world, 2));
        let guard = Locker::new(holder.leases.clone()).lock("x").ttl(ttl).acquire().await.unwrap();
        let lock = Locker::new(waiter.leases.clone()).lock("x").ttl(ttl);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        waiter.env.sleep(SECOND * 60).await;
        let counts = waiter.network.counts();
        assert_eq!(counts.writes, 2, "a waiter joins the line and marks the lock's record, and then reads");
        let longest = POLL_INTERVAL.max.min(ttl / 3);
        // The pauses of the first waiter in line grow by an eighth, from the shortest to the longest.
        let growing = 8.0 + longest.div_duration_f64(POLL_INTERVAL.min).ln() / 1.125_f64.ln();
        let most = 60.0 / longest.as_secs_f64() * 1.1 + growing;
        assert!((30..=most as usize).contains(&counts.reads), "{} reads for a ttl of {ttl:?}", counts.reads);
        guard.check().unwrap();
        let released = waiter.env.now();
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
        assert!(waiter.env.now().longest_since(released) <= POLL_INTERVAL.max);
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gets_the_lock_soon_after_a_short_hold() {
    for seed in 0..50 {
        for hold in [200, 400, 1_000, 3_000].map(Duration::from_millis) {
            let world = World::new();
            let (holder, waiter) = (process(&world, 2 * seed + 100), process(&world, 2 * seed + 101));
            let guard = Locker::new(holder.leases.clone()).lock("x").acquire().await.unwrap();
            holder.env.sleep(hold.mul_f64(0.1 * (seed % 10) as f64)).await;
            let lock = Locker::new(waiter.leases.clone()).lock("x");
            let waiting = tokio::spawn(async move { lock.acquire().await });
            holder.env.sleep(hold).await;
            guard.release().await.unwrap();
            let released = waiter.env.now();
            drop(waiting.await.unwrap().unwrap());
            let late = waiter.env.now().longest_since(released);
            // The delay is about an eighth of the time for which the lock was held, which may be nearly twice `hold`.
            assert!(
                late <= (hold / 4).max(POLL_INTERVAL.min.mul_f64(1.25)) + Duration::from_millis(2),
                "{late:?} after {hold:?}"
            );
        }
    }
}

/// All waiters see the last renewal at the same moment, so the lease lapses for all of them at once.
#[tokio::test(start_paused = true)]
async fn one_of_sixteen_waiters_writes_when_a_dead_lease_lapses() {
    const PROCESSES: u64 = 16;
    let world = World::new();
    process(&world, 1).dies_with_the_lock().await;
    let waiters: Vec<_> = (0..PROCESSES).map(|n| process(&world, 10 + n)).collect();
    let began = waiters[0].env.now();
    let mut waiting = tokio::task::JoinSet::new();
    for waiter in &waiters {
        waiter.network.every(Kind::Read, Outcome::AnswerDelayed(Duration::from_millis(5)));
        let lock = Locker::new(waiter.leases.clone()).lock("x");
        waiting.spawn(async move { lock.acquire().await.unwrap() });
    }
    waiters[0].env.sleep(contender_span() - SECOND).await;
    let in_line = world.register.read("x.line").await.unwrap().unwrap().value;
    assert_eq!(String::from_utf8_lossy(&in_line).matches("\"number\"").count(), PROCESSES as usize);
    waiters.iter().for_each(|waiter| waiter.network.reset_counts());
    let guard = waiting.join_next().await.unwrap().unwrap();
    let after = waiters[0].env.now().longest_since(began);
    let soon = contender_span()..contender_span() + POLL_INTERVAL.min;
    assert!(soon.contains(&after), "{after:?}");
    waiters[0].env.sleep(SECOND).await;
    let writes: usize = waiters.iter().map(|waiter| waiter.network.counts().writes).sum();
    assert_eq!(writes, 1, "the first in line takes it");
    guard.check().unwrap();
}

/// Counts the reads of the first two waiters in line during the first seconds of a hold. The hold before it was short
/// or long.
#[tokio::test(start_paused = true)]
async fn a_waiter_behind_another_expects_a_hold_like_the_previous() {
    let mut reads = Vec::new();
    for previous in [SECOND / 100, SECOND * 60] {
        let world = World::paced();
        let clients = [world.dated(1), world.dated(2), world.dated(3)];
        let locks = clients.each_ref().map(|client| Locker::new(client.leases.clone()).lock("x").ttl(TTL));
        let [holder, waiters @ ..] = locks;
        let guard = holder.acquire().await.unwrap();
        world.clock.sleep(previous).await;
        guard.release().await.unwrap();
        let _guard = holder.acquire().await.unwrap();
        for waiter in waiters {
            tokio::spawn(async move { waiter.acquire().await });
            world.clock.sleep(SECOND / 2).await;
        }
        clients.iter().for_each(|client| client.network.reset_counts());
        world.clock.sleep(SECOND * 3).await;
        let [_, first, second] = clients.each_ref().map(|client| client.network.counts().reads);
        assert!(first >= 6, "{first} reads: the first in line must notice soon that the lock is free");
        reads.push(second);
    }
    assert!(reads[1] <= 1 && reads[0] >= 3, "{reads:?} reads in three seconds");
}

/// Each read is refused once before it succeeds. That delays the next read, until reads succeed at the first attempt
/// again.
#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_reads_is_read_less_often() {
    let mut reads = Vec::new();
    for refuses in [false, true] {
        let world = World::new();
        let (holder, waiter) = (process(&world, 1), process(&world, 2));
        let guard = Locker::new(holder.leases.clone()).lock("x").acquire().await.unwrap();
        let lock = Locker::new(waiter.leases.clone()).lock("x");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        waiter.network.sent(1).await;
        waiter.network.reset_counts();
        for _ in 0..100 {
            waiter.network.next_read(if refuses { Outcome::NotApplied } else { Outcome::Fine });
            waiter.network.next_read(Outcome::Fine);
        }
        waiter.env.sleep(SECOND * 2).await;
        let counts = waiter.network.counts().reads;
        reads.push(if refuses { counts / 2 } else { counts });
        guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    }
    assert!(reads[1] <= reads[0] - 2, "{reads:?} looks in two seconds");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_woken_when_a_cooldown_begins() {
    let world = World::new();
    let (holder, waiter) = (world.observer(1), world.observer(2));
    let mut grant = holder.granted().await;
    let held = waiter.held().await;
    holder.leases.release(&mut grant, Some(SECOND * 600)).await.unwrap();
    let name = name();
    let told = timeout(&*waiter.clock, SECOND * 10, waiter.leases.changed(&name, &held)).await;
    told.expect("the waiter does not notice the rest").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_in_the_line_is_woken_when_a_cooldown_begins() {
    let world = World::new();
    let (holder, waiter) = (world.observer(1), world.observer(2));
    let mut grant = holder.granted().await;
    let mut claim = waiter.claim();
    claim.waits = true;
    let refused = async || match waiter.leases.try_acquire(&claim).await.unwrap() {
        AcquireOutcome::Held(held) => held,
        other => panic!("not held: {other:?}"),
    };
    let held = refused().await;
    waiter.leases.turn(&claim, &held).await.unwrap();
    let held = refused().await;
    assert_eq!(held.ahead, Some(0), "it is in the line");
    holder.leases.release(&mut grant, Some(SECOND * 600)).await.unwrap();
    let told = timeout(&*waiter.clock, SECOND * 10, waiter.leases.turn(&claim, &held)).await;
    told.expect("the waiter does not notice the rest").unwrap();
}
