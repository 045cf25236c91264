//! Cycles of waiters ([`leasehold::Lock::while_holding`]). Time is paused.

mod histories;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, TTL, World};
use leasehold::clock::{Clock, timeout};
use leasehold::lease::LeaseStore;
use leasehold::observe::{Event, Observer};
use leasehold::{Error, ErrorKind, Guard, Lock, LockName, Locker, OnDeadlock};
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

type Outcome = leasehold::Result<Guard>;

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

async fn held(locker: &Locker, name: &str) -> Guard {
    locker.lock(name).ttl(TTL).acquire().await.unwrap()
}

/// Waits for `name` in a task that holds `guard`, and returns the guard with the outcome.
fn waits(lock: Lock, guard: Guard) -> JoinHandle<(Guard, Outcome)> {
    let lock = lock.ttl(TTL).while_holding(&guard);
    tokio::spawn(async move {
        let outcome = lock.acquire().await;
        (guard, outcome)
    })
}

async fn within(
    client: &Client,
    limit: Duration,
    task: &mut JoinHandle<(Guard, Outcome)>,
) -> Option<Outcome> {
    timeout(&*client.clock, limit, task).await.map(|joined| joined.unwrap().1)
}

fn deadlock(outcome: Outcome) -> Error {
    let error = outcome.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Deadlock, "{error:?}");
    error
}

/// The cycles that were reported, and whether the acquisition failed.
#[derive(Default)]
struct Reports(Mutex<Vec<(String, bool)>>);

impl Observer for Reports {
    fn observe(&self, event: &Event<'_>) {
        if let Event::Deadlock { cycle, fails, .. } = event {
            self.0.lock().unwrap().push(((*cycle).to_owned(), *fails));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_waiter_with_the_latest_hold_gives_up() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let (first, second) = (held(&locker(&one), "a").await, held(&locker(&two), "b").await);
    let reports = Arc::new(Reports::default());
    let mut older = waits(locker(&one).observed_by(reports.clone()).lock("b"), first);
    let mut later = waits(locker(&two).lock("a").owner("bob"), second);
    let error = deadlock(within(&one, MINUTE / 2, &mut later).await.expect("it is found in half a minute"));
    for part in ["bob@", "holds `b` (token ", "waits for `a`", "holds `a` (token ", "waits for `b`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(error.help()[0].contains("the same order"), "{error:?}");
    // The task of the later one ends, which releases its lock. The other goes on.
    let got = within(&one, MINUTE, &mut older).await.expect("it goes on").unwrap();
    assert_eq!(got.name().as_str(), "b");
    assert!(reports.0.lock().unwrap().iter().all(|(_, fails)| !fails));
}

#[tokio::test(start_paused = true)]
async fn exactly_one_of_three_gives_up() {
    let world = World::paced();
    let clients = [world.dated(1), world.dated(2), world.dated(3)];
    let mut guards = Vec::new();
    for (client, name) in clients.iter().zip(["a", "b", "c"]) {
        guards.push(held(&locker(client), name).await);
    }
    let mut tasks = Vec::new();
    for ((client, name), guard) in clients.iter().zip(["b", "c", "a"]).zip(guards) {
        tasks.push(waits(locker(client).lock(name), guard));
    }
    let mut failed = 0;
    // The last one fails and ends, then the second gets c, and then the first b.
    for n in [2, 1, 0] {
        match within(&clients[0], MINUTE, &mut tasks[n]).await.expect("no waiter is stuck") {
            Ok(guard) => drop(guard),
            outcome => {
                deadlock(outcome);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 1);
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_process_are_found_too() {
    let world = World::paced();
    let client = world.dated(1);
    let locker = locker(&client);
    let (first, second) = (held(&locker, "a").await, held(&locker, "b").await);
    let mut older = waits(locker.lock("b"), first);
    let mut later = waits(locker.lock("a"), second);
    deadlock(within(&client, MINUTE, &mut later).await.expect("it is found"));
    drop(within(&client, MINUTE, &mut older).await.expect("it goes on").unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_task_behind_another_in_its_process_is_seen() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let (locker_one, locker_two) = (locker(&one), locker(&two));
    let (first, second) = (held(&locker_one, "a").await, held(&locker_two, "b").await);
    // This task waits for b too, before the one of the cycle.
    let before = locker_one.lock("b").ttl(TTL);
    let before = tokio::spawn(async move { before.acquire().await });
    one.clock.sleep(SECOND).await;
    let mut older = waits(locker_one.lock("b"), first);
    let mut later = waits(locker_two.lock("a"), second);
    deadlock(within(&one, MINUTE, &mut later).await.expect("it is found"));
    before.await.unwrap().unwrap().release().await.unwrap();
    drop(within(&one, MINUTE, &mut older).await.expect("it goes on").unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_the_own_lock_fails_at_once() {
    let world = World::paced();
    let client = world.dated(1);
    let locker = locker(&client);
    let guard = held(&locker, "a").await;
    let began = client.clock.now();
    let error = deadlock(locker.lock("a").while_holding(&guard).acquire().await);
    assert!(client.clock.now().longest_since(began) < SECOND);
    assert!(error.to_string().contains("`a` is held by the task that waits for it"), "{error}");
    // Another lock of the same process is not the own one.
    let other = held(&locker, "b").await;
    let lock = locker.lock("a").while_holding(&other);
    assert!(timeout(&*client.clock, MINUTE, lock.acquire()).await.is_none());
    // Nor is the lock after the hold has ended.
    let (name, token) = (guard.name().clone(), guard.token().unwrap());
    guard.release().await.unwrap();
    let next = held(&locker, "a").await;
    let lock = locker.lock("a").while_other_holds(name, token);
    assert!(timeout(&*client.clock, MINUTE, lock.acquire()).await.is_none());
    drop(next);
}

/// The record has one token for all tasks of the process that pass the lock on.
#[tokio::test(start_paused = true)]
async fn a_hold_that_was_passed_on_is_not_the_own_one() {
    let world = World::paced();
    let (client, two) = (world.dated(1), world.dated(2));
    let other = held(&locker(&two), "a").await;
    let lock = locker(&client).lock("a").ttl(TTL);
    let mut waiting =
        [lock.clone(), lock.clone()].map(|lock| tokio::spawn(async move { lock.acquire().await }));
    client.clock.sleep(SECOND).await;
    other.release().await.unwrap();
    let guard = (&mut waiting[0]).await.unwrap().unwrap();
    let own = lock.while_holding(&guard);
    let name = guard.name().clone();
    let recorded = async || client.leases.inspect(&name).await.unwrap().token;
    let before = recorded().await;
    guard.release().await.unwrap();
    let passed_on = (&mut waiting[1]).await.unwrap().unwrap();
    assert_eq!(recorded().await, before, "it has the same grant");
    let mut waiting = tokio::spawn(async move { own.acquire().await });
    let early = timeout(&*client.clock, SECOND * 5, &mut waiting).await;
    assert!(early.is_none(), "the caller holds nothing any more: {early:?}");
    passed_on.release().await.unwrap();
    waiting.await.unwrap().unwrap().release().await.unwrap();
}

/// One reading shows the cycle, and the next one does not.
#[tokio::test(start_paused = true)]
async fn a_cycle_that_ends_between_two_readings_is_not_reported() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let (first, second) = (held(&locker(&one), "a").await, held(&locker(&two), "b").await);
    let reports = Arc::new(Reports::default());
    let older = waits(locker(&one).observed_by(reports.clone()).lock("b"), first);
    one.clock.sleep(SECOND).await;
    let mut later = waits(locker(&two).observed_by(reports.clone()).lock("a"), second);
    // The later one has seen the cycle, and has taken a new place to say so.
    let seen = async || {
        let waiters = locker(&one).inspect(&LockName::new("a").unwrap()).await.unwrap().waiters;
        waiters
            .iter()
            .any(|waiter| waiter.holder.nested.as_ref().is_some_and(|nested| !nested.seen.is_empty()))
    };
    while !seen().await {
        one.clock.sleep(SECOND / 20).await;
    }
    older.abort();
    drop(within(&two, MINUTE, &mut later).await.expect("it gets the lock").unwrap());
    assert!(reports.0.lock().unwrap().is_empty());
}

/// A command under the lock a has started another process, which waits for b and is killed. The command goes on.
#[tokio::test(start_paused = true)]
async fn a_dead_waiter_is_in_no_cycle() {
    let world = World::paced();
    let (one, nested, two) = (world.dated(1), world.dated(2), world.dated(3));
    let (first, second) = (held(&locker(&one), "a").await, held(&locker(&two), "b").await);
    let lock = locker(&nested).lock("b").ttl(TTL);
    let lock = lock.while_other_holds(first.name().clone(), first.token().unwrap());
    let waiting = tokio::spawn(async move { lock.acquire().await.map(drop) });
    one.clock.sleep(SECOND * 3).await;
    nested.network.disconnect();
    waiting.abort();
    one.clock.sleep(SECOND).await;
    let mut later = waits(locker(&two).lock("a"), second);
    assert!(within(&two, MINUTE * 5, &mut later).await.is_none(), "the holder of a may go on");
    let left = locker(&two).inspect(&LockName::new("b").unwrap()).await.unwrap().waiters;
    assert_eq!(left[0].holder.holds()[0].name.as_str(), "a", "its entry is left over");
    drop(first);
    drop(within(&two, MINUTE, &mut later).await.expect("it gets the lock").unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_with_a_limit_is_in_no_cycle() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let (first, second) = (held(&locker(&one), "a").await, held(&locker(&two), "b").await);
    let lock = locker(&one).lock("b").ttl(TTL).while_holding(&first);
    let limited = tokio::spawn(async move {
        let outcome = lock.acquire_within(MINUTE).await;
        drop(first);
        outcome
    });
    let mut later = waits(locker(&two).lock("a"), second);
    assert!(within(&two, MINUTE - SECOND, &mut later).await.is_none());
    assert_eq!(limited.await.unwrap().unwrap_err().kind(), ErrorKind::Held);
    drop(within(&two, MINUTE, &mut later).await.expect("it gets the lock").unwrap());
}

#[tokio::test(start_paused = true)]
async fn with_wait_the_cycle_is_only_reported() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let (first, second) = (held(&locker(&one), "a").await, held(&locker(&two), "b").await);
    let reports = Arc::new(Reports::default());
    let lock = |client: &Client, name: &str| {
        locker(client).observed_by(reports.clone()).lock(name).on_deadlock(OnDeadlock::Wait)
    };
    let mut tasks = [waits(lock(&one, "b"), first), waits(lock(&two, "a"), second)];
    for task in &mut tasks {
        assert!(within(&one, MINUTE, task).await.is_none());
    }
    let reports = reports.0.lock().unwrap();
    assert_eq!(reports.iter().map(|(_, fails)| *fails).collect::<Vec<_>>(), [false, false], "{reports:?}");
}

/// The guard ends although the acquisition still waits.
#[tokio::test(start_paused = true)]
async fn a_hold_that_ends_during_the_wait_is_no_longer_shown() {
    let world = World::paced();
    let (one, two) = (world.dated(1), world.dated(2));
    let first = held(&locker(&one), "a").await;
    let second = held(&locker(&two), "b").await;
    let lock = locker(&one).lock("b").ttl(TTL).while_holding(&first);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    one.clock.sleep(SECOND * 3).await;
    let holds = async || {
        let status = locker(&two).inspect(second.name()).await.unwrap();
        status.waiters[0].holder.holds().len()
    };
    assert_eq!(holds().await, 1);
    first.release().await.unwrap();
    one.clock.sleep(MINUTE).await;
    assert_eq!(holds().await, 0);
    second.release().await.unwrap();
    let got = waiting.await.unwrap().unwrap();
    let status = locker(&two).inspect(got.name()).await.unwrap();
    let holder = status.state.holder().unwrap().holder.clone().unwrap();
    assert_eq!(holder.nested, None, "only waiters tell it");
}

#[tokio::test(start_paused = true)]
async fn locks_of_another_store_are_not_shown() {
    let (world, elsewhere) = (World::paced(), World::paced());
    let (one, other) = (world.dated(1), elsewhere.dated(2));
    let guard = held(&locker(&other), "a").await;
    let holder = held(&locker(&one), "b").await;
    let mut waiting = waits(locker(&one).lock("b"), guard);
    assert!(within(&one, SECOND * 5, &mut waiting).await.is_none());
    let status = locker(&one).inspect(holder.name()).await.unwrap();
    assert!(status.waiters.iter().all(|waiter| waiter.holder.nested.is_none()), "{status:?}");
}

/// SQLite gives a place in the line with the first refusal.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_task_that_waits_for_itself_leaves_the_line() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("locks.db").display());
    let locker = Locker::open(&url).await.unwrap();
    let guard = locker.lock("a").acquire().await.unwrap();
    deadlock(locker.lock("a").while_holding(&guard).acquire().await);
    guard.release().await.unwrap();
    let waited = Arc::new(Mutex::new(Vec::new()));
    let seen = waited.clone();
    let lock = locker.lock("a").on_wait(move |held| seen.lock().unwrap().push(held.to_string()));
    lock.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(*waited.lock().unwrap(), [""; 0], "the lock was free");
}
