//! Interleavings that once broke a promise. Each test failed before its bug was fixed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Client, TTL, World, contender_span, granted, name};
use async_trait::async_trait;
use leasehold::clock::{Clock, StoreTime, TestClock};
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, Claim, Evicted, Id, LeaseStore, StoreOptions, Ttl};
use leasehold::register::{Body, Precondition, Register, Write};
use leasehold::{Holder, Locker, LossReason, RegisterLeases, Released};
use leasehold_testkit::fault::{Kind, Outcome};
use leasehold_testkit::layer::{Layer, Layered};
use leasehold_testkit::machine::Machine;

const SECOND: Duration = Duration::from_secs(1);

/// A claim is granted, another client holds the lock in between, and the claim is granted again, starting at beat 0. A
/// contender must not mistake the second grant for the first one.
#[tokio::test(start_paused = true)]
async fn a_claim_regranted_after_another_restarts_the_observation() {
    let world = World::new();
    let (holder, middle, contender) = (world.observer(1), world.observer(2), world.observer(3));
    let claim = holder.claim();
    let first = granted(holder.leases.try_acquire(&claim).await.unwrap());
    contender.held().await;
    holder.leases.evict(&name(), first.token, None).await.unwrap();
    let mut between = middle.granted().await;
    middle.env.sleep(contender_span()).await;
    middle.leases.release(&mut between, None).await.unwrap();
    let again = granted(holder.leases.try_acquire(&claim).await.unwrap());
    assert!(!again.deadline.passed(holder.clock.now()));
    match contender.leases.try_acquire(&contender.claim()).await.unwrap() {
        AcquireOutcome::Held(_) => {}
        other => panic!("DOUBLE GRANT at once: {other:?}"),
    }
}

/// The response to an eviction is lost, and another client is granted the lock before the operator reads it again.
#[tokio::test(start_paused = true)]
async fn an_eviction_before_the_next_grant_is_reported() {
    let world = World::new();
    let (holder, next, operator) = (world.observer(1), world.observer(2), world.observer(3));
    let evicted = holder.granted().await;
    operator.network.next_write(Outcome::AppliedLost);
    operator.network.next_read(Outcome::Fine);
    operator.network.every(Kind::Read, Outcome::Dropped);
    let (leases, token) = (operator.leases.clone(), evicted.token);
    let evicting = tokio::spawn(async move { leases.evict(&name(), token, None).await });
    operator.network.until(|counts| counts.writes == 1).await;
    let later = next.granted().await;
    assert!(later.token > token);
    operator.network.heal();
    assert_eq!(evicting.await.unwrap().unwrap(), Evicted::Evicted);
    assert_eq!(operator.leases.evict(&name(), token, None).await.unwrap(), Evicted::Changed);
}

/// The holder releases the lock before the eviction arrives.
#[tokio::test(start_paused = true)]
async fn a_release_before_an_eviction_is_no_eviction() {
    let world = World::new();
    let (holder, operator) = (world.observer(1), world.observer(2));
    let mut grant = holder.granted().await;
    operator.network.next_write(Outcome::Delayed(SECOND));
    let (leases, token) = (operator.leases.clone(), grant.token);
    let evicting = tokio::spawn(async move { leases.evict(&name(), token, None).await });
    operator.network.until(|counts| counts.writes == 1).await;
    assert_eq!(holder.leases.release(&mut grant, None).await.unwrap(), Released::Released);
    assert_eq!(evicting.await.unwrap().unwrap(), Evicted::Changed);
    world.delete().await;
    assert_eq!(operator.leases.evict(&name(), token, None).await.unwrap(), Evicted::Changed, "there is none");
}

/// The same as the first through the public interface. The response to the first grant of an acquisition is delayed for
/// longer than the ttl.
#[tokio::test(start_paused = true)]
async fn a_lock_acquired_late_is_not_granted_twice() {
    let world = World::new();
    let (slow, middle, contender) = (world.observer(1), world.observer(2), world.observer(3));
    let ttl = SECOND * 5;
    let mut seed = middle.granted().await;
    middle.leases.release(&mut seed, None).await.unwrap();
    // The first write is applied. Its response is lost, and the reads after it fail until the network heals.
    slow.network.next_write(Outcome::AppliedLost);
    slow.network.next_read(Outcome::Fine);
    slow.network.every(Kind::Read, Outcome::Dropped);
    let acquisition = {
        let lock = Locker::new(slow.leases.clone()).lock("x").ttl(ttl);
        tokio::spawn(async move { lock.acquire().await })
    };
    slow.network.until(|counts| counts.writes == 1).await;
    world.clock.sleep(Duration::from_millis(10)).await;
    contender.held().await; // One read.
    let mut theirs = None;
    for _ in 0..80 {
        middle.env.sleep(Duration::from_millis(100)).await;
        if let AcquireOutcome::Granted(grant) = middle.leases.try_acquire(&middle.claim()).await.unwrap() {
            theirs = Some(grant);
            break;
        }
    }
    middle.leases.release(&mut theirs.unwrap(), None).await.unwrap();
    slow.network.heal();
    let guard = acquisition.await.unwrap().unwrap();
    guard.check().unwrap();
    let verdict = contender.leases.try_acquire(&contender.claim()).await.unwrap();
    assert!(guard.check().is_ok());
    assert!(matches!(verdict, AcquireOutcome::Held(_)), "DOUBLE GRANT while check() passes: {verdict:?}");
}

/// A register whose process pauses right after it has asked for the store's time.
#[derive(Debug)]
struct Pausing {
    inner: Machine,
    clock: Arc<TestClock>,
    store: Arc<TestClock>,
    armed: Arc<AtomicBool>,
}

impl Layer for Pausing {
    fn inner(&self) -> &dyn Register {
        &self.inner
    }
    fn store_time(&self) -> Option<StoreTime> {
        let time = self.inner.store_time();
        if self.armed.swap(false, Ordering::SeqCst) {
            self.clock.suspend(SECOND * 15);
            self.store.suspend(SECOND * 15);
        }
        time
    }
}

/// A pause between reading the store's time (`renewed_at`) and sending the write must not allow an early takeover.
#[tokio::test(start_paused = true)]
async fn a_pause_before_the_send_causes_no_early_takeover() {
    let world = World::new();
    let clock = Arc::new(TestClock::default());
    let env = Env::seeded(clock.clone(), 7);
    let armed = Arc::new(AtomicBool::new(false));
    let register = Pausing {
        inner: Machine::new(world.register.clone(), env.clone()),
        clock: clock.clone(),
        store: world.clock.clone(),
        armed: armed.clone(),
    };
    let mut options = StoreOptions::default();
    options.env = env.clone();
    let leases = RegisterLeases::new(Arc::new(Layered(register)), options);
    let mut grant = granted(
        leases
            .try_acquire(&Claim::new(&env, name(), Ttl::new(TTL).unwrap(), Holder::this_process()))
            .await
            .unwrap(),
    );
    env.sleep(SECOND * 10).await;
    armed.store(true, Ordering::SeqCst);
    leases.renew(&mut grant).await.unwrap();
    let believed = grant.deadline.remaining(clock.now());
    // A new client, which uses the store's clock.
    let newcomer = world.dated(3);
    let mut waited = Duration::ZERO;
    while waited < believed {
        let verdict = newcomer.leases.try_acquire(&newcomer.claim()).await.unwrap();
        assert!(
            !matches!(verdict, AcquireOutcome::Granted(_)),
            "granted to another {waited:?} after the renewal; its holder believes for {believed:?}"
        );
        newcomer.env.sleep(SECOND / 2).await;
        waited += SECOND / 2;
    }
}

/// An unconfirmed record was first seen long ago. The acquisition once waited for 1 % of the time since then, beyond
/// its store timeout.
#[tokio::test(start_paused = true)]
async fn an_old_observation_does_not_delay_an_acquisition() {
    let world = World::new();
    let (crashed, client) = (world.dated(1), world.dated(2));
    let _grant = crashed.granted().await;
    client.held().await;
    client.env.sleep(SECOND * 86_400).await;
    let began = client.clock.now();
    granted(client.leases.try_acquire(&client.claim()).await.unwrap());
    let took = client.clock.now().longest_since(began);
    assert!(
        took < SECOND * 16,
        "took {took:?} although the store timeout is 15 s and the store responds at once"
    );
}

/// The wall clock is set back while the first grant waits.
#[tokio::test(start_paused = true)]
async fn a_wall_clock_set_back_does_not_stall_the_first_grant() {
    let world = World::new();
    let client = world.dated(1);
    let clock = client.clock.clone();
    tokio::spawn(async move {
        clock.sleep(SECOND / 2).await;
        clock.step_wall(-3_600);
    });
    let began = world.clock.now();
    granted(client.leases.try_acquire(&client.claim()).await.unwrap());
    assert!(world.clock.now().longest_since(began) < SECOND * 16);
}

/// A record with an extreme value.
#[tokio::test(start_paused = true)]
async fn a_heartbeat_at_its_limit_causes_no_panic() {
    let world = World::new();
    let client = world.observer(1);
    let mut grant = client.granted().await;
    world.edit(|record| record["heartbeat"] = u64::MAX.into()).await;
    let _ = client.leases.renew(&mut grant).await;
    let _ = client.leases.renew(&mut grant).await;
}

/// A late grant that could not be released was once reported as not applied.
#[tokio::test(start_paused = true)]
async fn a_late_grant_that_is_not_released_is_maybe_applied() {
    let world = World::new();
    let client = world.observer(1);
    let mut seed = client.granted().await;
    client.leases.release(&mut seed, None).await.unwrap();
    client.network.next_write(Outcome::AnswerStalled);
    client.network.every(Kind::Write, Outcome::NotApplied);
    client.network.reset_counts();
    let acquisition = {
        let (leases, claim) = (client.leases.clone(), client.claim());
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    client.network.sent(1).await;
    client.clock.suspend(TTL);
    client.network.deliver().await;
    let error = acquisition.await.unwrap().unwrap_err();
    assert_eq!(world.raw().await["state"], "held");
    assert!(
        matches!(error, StoreError::MaybeApplied(_)),
        "the grant is in the store, and the error is {error:?}"
    );
}

/// The store refused each create, so nothing is to be cleaned up.
#[tokio::test(start_paused = true)]
async fn a_refused_create_is_not_applied() {
    let world = World::new();
    let client = world.observer(1);
    client.network.every(Kind::Write, Outcome::NotApplied);
    let error = client.leases.try_acquire(&client.claim()).await.unwrap_err();
    assert!(matches!(error, StoreError::NotApplied(_)), "{error:?}");
}

/// One second of store timeout is enough to create a lock.
#[tokio::test(start_paused = true)]
async fn a_short_store_timeout_can_create_a_lock() {
    let world = World::new();
    let client = world.dated(1);
    client.network.every(Kind::Write, Outcome::AnswerDelayed(Duration::from_millis(50)));
    let lock = Locker::new(client.leases.clone()).lock("x").store_timeout(SECOND);
    let _guard = lock.try_acquire().await.expect("a healthy store that responds in 50 ms");
}

#[tokio::test(start_paused = true)]
async fn a_loss_during_an_outage_names_the_last_error() {
    let world = World::new();
    let client = world.observer(1);
    let guard = Locker::new(client.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.stall();
    let loss = guard.lost().await;
    assert!(matches!(loss.reason, LossReason::Expired { last_error: Some(_) }), "{loss}");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_outlasts_an_outage_within_its_store_timeout() {
    let world = World::new();
    let (holder, client): (Client, Client) = (world.observer(1), world.observer(2));
    let guard = Locker::new(holder.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    let lock = Locker::new(client.leases.clone()).lock("x").store_timeout(SECOND * 120);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    world.clock.sleep(SECOND * 5).await;
    client.network.disconnect();
    world.clock.sleep(SECOND * 20).await;
    client.network.heal();
    guard.release().await.unwrap();
    let _guard = waiter.await.unwrap().expect("an outage of 20 s, and a patience of 120 s");
}

/// `into_ticket` is dropped after the renewer has responded and before the future is polled again.
#[tokio::test(start_paused = true)]
async fn dropping_into_ticket_releases_the_lock() {
    use futures_util::FutureExt;
    let world = World::new();
    let client = world.observer(1);
    let guard = Locker::new(client.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    world.clock.sleep(TTL / 2).await; // By now its renewer runs as a task.
    let mut handing = Box::pin(guard.into_ticket());
    assert!((&mut handing).now_or_never().is_none());
    world.clock.sleep(SECOND / 10).await; // The renewer responds.
    drop(handing);
    world.clock.sleep(SECOND).await;
    assert!(client.is_free().await, "the lock stays held without a holder");
}

/// A register on which another client is faster: before each of the next `left` writes, that client acquires and
/// releases the lock.
#[derive(Debug)]
struct Contended {
    inner: Arc<dyn Register>,
    others: Arc<RegisterLeases>,
    claims: Claim,
    left: AtomicUsize,
}

#[async_trait]
impl Layer for Contended {
    fn inner(&self) -> &dyn Register {
        &*self.inner
    }
    async fn write(&self, key: &str, expect: Precondition<'_>, body: Body) -> Result<Write, StoreError> {
        self.inner.env().sleep(Duration::from_millis(100)).await;
        let left = |left: usize| left.checked_sub(1);
        if self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            let mut claim = self.claims.clone();
            claim.id = Id::random(&self.inner.env().random);
            let mut grant = granted(self.others.try_acquire(&claim).await?);
            self.others.release(&mut grant, None).await?;
        }
        self.inner.write(key, expect, body).await
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_outlasts_contention_and_a_try_does_not() {
    for (waits, outlasts) in [(true, true), (false, false)] {
        let world = World::new();
        let others = world.observer(1);
        let mut grant = others.granted().await;
        others.leases.release(&mut grant, None).await.unwrap();
        let inner: Arc<dyn Register> = world.register.clone();
        let left = AtomicUsize::new(500);
        let contended = Contended { inner, others: others.leases.clone(), claims: others.claim(), left };
        let mut options = StoreOptions::default();
        options.env = world.register.env().clone();
        let leases = RegisterLeases::new(Arc::new(Layered(contended)), options);
        let mut claim = others.claim();
        claim.waits = waits;
        let outcome = leases.try_acquire(&claim).await;
        assert_eq!(matches!(outcome, Ok(AcquireOutcome::Granted(_))), outlasts, "{outcome:?}");
    }
}
