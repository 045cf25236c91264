//! Guards: losses, release, drop, queues, tickets. Faults are numbered as in `docs/evidence/faults.md`.

mod faults;

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use crate::common::{Client, TTL, World, holder_span, name};
use futures_util::FutureExt as _;
use leasehold::clock::Clock;
use leasehold::{ErrorKind, Lock, Locker, LossReason, Released, Ticket};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

#[tokio::test(start_paused = true)]
async fn a_guard_is_renewed_for_as_long_as_it_is_held() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.reset_counts();
    client.env.sleep(SECOND * 300).await;
    guard.check().unwrap();
    let counts = client.network.counts();
    assert!((27..=33).contains(&counts.writes) && counts.reads == 0, "a renewal is one request: {counts:?}");
    assert_eq!(guard.release().await.unwrap(), Released::Released);
}

#[tokio::test(start_paused = true)]
async fn a_grant_polled_too_late_is_replaced_by_a_new_one() {
    let world = World::new();
    let client = world.observer(1);
    let lock = locker(&client).lock("x").ttl(TTL);
    lock.acquire().await.unwrap().release().await.unwrap();
    client.network.next_write(Outcome::AnswerDelayed(SECOND));
    let mut acquisition = Box::pin(lock.acquire());
    tokio::select! {
        _ = &mut acquisition => panic!("completed already"),
        () = client.env.sleep(SECOND / 2) => {}
    }
    // The caller does something else for longer than the lease lasts.
    client.env.sleep(TTL * 2).await;
    let guard = acquisition.await.unwrap();
    guard.check().unwrap();
    assert!(guard.remaining() > TTL / 2, "another grant: {:?}", guard.remaining());
}

/// An acquisition stays unpolled, for example, in a loop over `select!` whose other branches take long. Other tasks
/// wait behind it.
#[tokio::test(start_paused = true)]
async fn a_waiting_acquisition_may_stay_unpolled() {
    let world = World::new();
    let (first, second) = (world.observer(1), world.observer(2));
    let guard = locker(&first).lock("x").ttl(TTL).acquire().await.unwrap();
    let lock = locker(&second).lock("x").ttl(TTL);
    let mut acquisition = Box::pin(lock.acquire());
    tokio::select! {
        _ = &mut acquisition => panic!("it is held"),
        () = second.env.sleep(SECOND) => {}
    }
    guard.release().await.unwrap();
    second.env.sleep(TTL * 3).await;
    let guard = acquisition.now_or_never().expect("acquired long ago").unwrap();
    guard.check().unwrap();
}

#[tokio::test]
async fn a_caller_that_cancels_its_token_keeps_the_lock() {
    let guard = Locker::open("mem:").await.unwrap().lock("x").acquire().await.unwrap();
    guard.cancellation().cancel();
    guard.renew().await.unwrap();
    assert!(!guard.cancellation().is_cancelled());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_guard_ends_at_once_and_its_release_follows() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").acquire().await.unwrap();
    let cancelled = guard.cancellation();
    client.network.reset_counts();
    drop(guard);
    assert!(cancelled.is_cancelled());
    client.network.until(|counts| counts.writes == 1).await;
    client.env.sleep(Duration::from_millis(1)).await;
    assert!(client.is_free().await);
}

#[test]
fn a_guard_may_be_dropped_and_asked_outside_of_any_runtime() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let (kept, dropped) = runtime.block_on(async {
        let locker = Locker::open("mem:").await.unwrap();
        (locker.lock("a").acquire().await.unwrap(), locker.lock("b").acquire().await.unwrap())
    });
    drop(runtime);
    drop(dropped);
    kept.check().unwrap();
    assert!(kept.remaining() > SECOND);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    // The renewer ended with its runtime, so the lock is not released, and the call reports that.
    let _ = runtime.block_on(kept.release());
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_counts_from_the_grant_and_ends_on_time() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let period = SECOND * 600;
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    let granted = other.clock.now();
    client.env.sleep(SECOND * 200).await;
    assert_eq!(guard.release_with_cooldown(period).await.unwrap(), Released::Released);
    let held = locker(&other).lock("x").try_acquire().await.unwrap_err();
    assert!(held.holder().unwrap().in_cooldown, "{held}");
    locker(&other).lock("x").acquire().await.unwrap().release().await.unwrap();
    let rested = other.clock.now().longest_since(granted);
    assert!(rested >= period, "granted {rested:?} after the grant before");
    assert!(rested <= period.mul_f64(1.02) + SECOND, "the time that it was held counts: {rested:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_is_retried_for_the_lease_and_then_fails() {
    let world = World::new();
    let client = world.observer(1);
    let locker = locker(&client);
    let lock = locker.lock("x").ttl(TTL);
    let guard = lock.acquire().await.unwrap();
    client.network.every(Kind::Write, Outcome::Dropped);
    let in_cooldown = tokio::spawn(guard.release_with_cooldown(SECOND * 600));
    client.env.sleep(SECOND * 12).await;
    assert!(!in_cooldown.is_finished(), "given up while the lease still kept others out");
    client.network.heal();
    assert_eq!(in_cooldown.await.unwrap().unwrap(), Released::Released);
    assert!(lock.try_acquire().await.unwrap_err().holder().unwrap().in_cooldown);

    let guard = lock.acquire().await.unwrap();
    client.network.every(Kind::Write, Outcome::Dropped);
    let error = guard.release_with_cooldown(SECOND * 600).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.help().iter().any(|help| help.contains("before its cooldown ends")), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn an_unsupported_cooldown_releases_and_is_an_error() {
    let client = World::by_existence().observer(1);
    let lock = locker(&client).lock("x").ttl(TTL);
    let error = lock.acquire().await.unwrap().release_with_cooldown(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    lock.try_acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_are_one_contender_and_are_served_in_order() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let theirs = locker(&other).lock("x").ttl(TTL).acquire().await.unwrap();
    let locker = locker(&client);
    let order = Arc::new(std::sync::Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for n in 0..100 {
        let (locker, order) = (locker.clone(), order.clone());
        tasks.push(tokio::spawn(async move {
            let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
            order.lock().unwrap().push((n, guard.token().unwrap()));
            guard.release().await.unwrap();
        }));
        tokio::task::yield_now().await;
    }
    client.network.reset_counts();
    client.env.sleep(SECOND * 10).await;
    let polls = client.network.counts().reads;
    assert!(polls <= 700, "one contender polls at most every 15 ms here, not a hundred: {polls}");
    client.network.reset_counts();
    theirs.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let order = order.lock().unwrap();
    assert!(order.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 < pair[1].1), "{order:?}");
    let counts = client.network.counts();
    assert!(counts.writes <= 4 && counts.reads <= 2, "passed on among themselves: {counts:?}");
}

#[tokio::test(start_paused = true)]
async fn a_cold_acquire_costs_two_requests_and_a_warm_one_costs_one() {
    let world = World::new();
    let client = world.observer(1);
    let locker = locker(&client);
    for (reads, writes) in [(1, 1), (0, 1)] {
        client.network.reset_counts();
        let guard = locker.lock("x").acquire().await.unwrap();
        let counts = client.network.counts();
        assert_eq!((counts.reads, counts.writes), (reads, writes), "acquire");
        guard.release().await.unwrap();
        assert_eq!(client.network.counts().writes, writes + 1, "release");
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_in_the_holders_process_names_it_without_a_request() {
    let world = World::new();
    let client = world.observer(1);
    let locker = locker(&client);
    let guard = locker.lock("x").note("the first").acquire().await.unwrap();
    client.network.reset_counts();
    let error = locker.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(error.holder().unwrap().token, Some(guard.token().unwrap()));
    assert!(error.to_string().contains("the first"), "{error}");
    assert_eq!(client.network.counts().total(), 0);
    let error = locker.lock("x").acquire_within(SECOND).await.unwrap_err();
    assert!(error.kind() == ErrorKind::Held && error.to_string().contains("the first"), "{error}");
    // If the store does not respond, the error names no holder.
    client.network.stall();
    assert_eq!(locker.lock("y").acquire_within(SECOND).await.unwrap_err().kind(), ErrorKind::Unavailable);
}

/// The other task may wait for the store for any length of time.
#[tokio::test(start_paused = true)]
async fn a_try_during_another_tasks_request_names_no_holder() {
    let world = World::new();
    let client = world.observer(1);
    let lock = locker(&client).lock("x").ttl(TTL);
    client.network.next_read(Outcome::Stalled);
    let mut first = pin!(lock.acquire());
    assert!(first.as_mut().now_or_never().is_none());
    tokio::task::yield_now().await;
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert_eq!(error.to_string(), "lock `x` is being acquired by another task of this process");
    assert_eq!(error.holder().unwrap().holder, None, "there is no holder yet");
    assert!(!error.help().is_empty());
    let _guard = first.await.unwrap();
    assert!(lock.try_acquire().await.unwrap_err().holder().unwrap().holder.is_some());
}

#[tokio::test(start_paused = true)]
async fn with_drops_its_body_on_loss_and_releases_after_it() {
    let world = World::new();
    let client = world.observer(1);
    let locker = locker(&client);
    // Run this in a separate task, which requires the future to be `Send`.
    let lock = locker.lock("x").ttl(TTL);
    let sum = tokio::spawn(async move { lock.with(async |guard| guard.check().map(|()| 42)).await });
    assert_eq!(sum.await.unwrap().unwrap().unwrap(), 42);
    assert!(client.is_free().await);

    struct Dropped(Arc<AtomicUsize>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let witness = Dropped(drops.clone());
    client.network.stall();
    let lock = locker.lock("x").ttl(TTL);
    client.network.heal();
    let network = client.network.clone();
    let outcome = lock
        .with(async |_| {
            network.disconnect();
            std::future::pending::<()>().await;
            drop(witness);
        })
        .await;
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(drops.load(Ordering::SeqCst), 1);
}

/// After the machine and its clocks have paused, a renewal moves the deadline to an earlier time.
#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_in_time_after_the_clocks_stood_still() {
    let world = World::new();
    let client = world.dated(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    let (granted, lost) = (guard.deadline().unwrap(), guard.cancellation());
    client.clock.stand_still();
    world.clock.sleep(SECOND * 25).await;
    client.clock.resume();
    let renewed = guard.renewed(granted).await;
    let now = client.clock.now();
    assert!(renewed.remaining(now) + SECOND < granted.remaining(now), "{renewed:?} {granted:?}");
    client.network.stall();
    lost.cancelled().await;
    let late = client.clock.now().longest_since(renewed.start()) - renewed.span();
    assert!(late < SECOND / 10, "{late:?}");
}

/// The body may end before a renewal notices the eviction.
#[tokio::test(start_paused = true)]
async fn with_reports_an_eviction_that_only_the_store_knows_of() {
    let world = World::new();
    let (client, operator) = (world.observer(1), world.observer(2));
    let outcome = locker(&client)
        .lock("x")
        .ttl(TTL)
        .with(async |guard| {
            locker(&operator).evict(guard.name(), guard.token().unwrap()).await.unwrap();
            guard.check().unwrap();
        })
        .await;
    let error = outcome.unwrap_err();
    assert_eq!((error.kind(), &error.loss().unwrap().reason), (ErrorKind::Lost, &LossReason::Ended));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_renewed_resumed_and_released_by_any_process() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    let token = guard.token().unwrap();
    let ticket: Ticket = guard.into_ticket().await.unwrap().to_string().parse().unwrap();
    client.network.reset_counts();
    client.env.sleep(SECOND * 25).await;
    assert_eq!(client.network.counts().total(), 0, "a ticket is not renewed automatically");

    let remaining = locker(&other).renew(&ticket).await.unwrap();
    assert_eq!(remaining.remaining(), holder_span());
    other.env.sleep(SECOND * 25).await;
    let resumed = locker(&other).resume(&ticket).await.unwrap();
    assert_eq!(resumed.token().unwrap(), token);
    other.env.sleep(SECOND * 300).await;
    resumed.check().unwrap();

    assert_eq!(locker(&client).release(&ticket).await.unwrap(), Released::Released);
    assert_eq!(resumed.lost().await.reason, LossReason::Ended);
    assert_eq!(locker(&client).release(&ticket).await.unwrap(), Released::AlreadyLost);
    assert_eq!(locker(&client).renew(&ticket).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_ends_wait_free_and_the_next_renewal_reports_it() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    let freed = {
        let locker = locker(&other);
        tokio::spawn(async move { locker.wait_free(&name(), &|held| assert!(held.holder.is_some())).await })
    };
    other.env.sleep(SECOND * 60).await;
    assert!(!freed.is_finished());
    let wrong = leasehold::Token::new(guard.token().unwrap().get() + 1).unwrap();
    assert_eq!(locker(&other).evict(&name(), wrong).await.unwrap(), leasehold::Evicted::Changed);
    guard.check().unwrap();
    assert_eq!(
        locker(&other).evict(&name(), guard.token().unwrap()).await.unwrap(),
        leasehold::Evicted::Evicted
    );
    freed.await.unwrap().unwrap();
    assert_eq!(guard.lost().await.reason, LossReason::Ended);
}

/// A waker that tries the lock as soon as it is woken, as another thread of a runtime may do.
struct TryingWhenWoken {
    lock: Lock,
    /// For each try, whether it was refused without asking the store.
    refused: Mutex<Vec<bool>>,
}

impl Wake for TryingWhenWoken {
    fn wake(self: Arc<Self>) {
        let tried = pin!(self.lock.try_acquire()).poll(&mut Context::from_waker(Waker::noop()));
        self.refused.lock().unwrap().push(matches!(tried, Poll::Ready(Err(_))));
    }
}

#[tokio::test(start_paused = true)]
async fn after_a_release_or_refusal_a_process_does_not_refuse_itself() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let lock = locker(&client).lock("x").ttl(TTL);
    let woken_by = async |told: std::pin::Pin<&mut (dyn Future<Output = ()> + Send)>| {
        let waker = Arc::new(TryingWhenWoken { lock: lock.clone(), refused: Mutex::default() });
        assert!(told.poll(&mut Context::from_waker(&Waker::from(waker.clone()))).is_pending());
        client.env.sleep(SECOND * 5).await;
        let refused = waker.refused.lock().unwrap().clone();
        assert_eq!(refused, [false]);
    };
    // After half the ttl, each guard's renewer runs in a task.
    let guard = lock.acquire().await.unwrap();
    client.env.sleep(TTL / 2).await;
    woken_by(pin!(async { drop(guard.release().await) })).await;
    let guard = lock.acquire().await.unwrap();
    client.env.sleep(TTL / 2).await;
    woken_by(pin!(async { drop(guard.release_with_cooldown(SECOND).await) })).await;
    // The process does not remember a refusal: the next try asks the store.
    lock.acquire().await.unwrap().release().await.unwrap();
    lock.try_acquire().await.unwrap().release().await.unwrap();
    let _held = locker(&other).lock("x").ttl(TTL).acquire().await.unwrap();
    lock.try_acquire().await.unwrap_err();
    client.network.reset_counts();
    lock.try_acquire().await.unwrap_err();
    assert!(client.network.counts().reads > 0, "the store is asked");
}

/// The response to a grant arrives seven seconds late, so its lease ends soon.
#[tokio::test(start_paused = true)]
async fn a_grant_that_arrived_late_is_renewed_in_time() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let lock = locker.lock("x").ttl(SECOND * 10).store_timeout(SECOND * 30);
    lock.acquire().await.unwrap().release().await.unwrap();
    client.network.next_write(Outcome::AppliedLost);
    for _ in 0..3 {
        client.network.next_read(Outcome::Stalled);
    }
    let guard = lock.acquire().await.unwrap();
    assert!(guard.remaining() < SECOND * 5 / 2, "{:?}", guard.remaining());
    client.network.reset_counts();
    client.env.sleep(SECOND * 10).await;
    guard.check().unwrap();
    assert!(client.network.counts().writes >= 3);
}
