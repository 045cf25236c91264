//! Semaphores: at most N holders, few requests, order within a process, and cleanup.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, TTL, World};
use leasehold::clock::timeout;
use leasehold::lease::LeaseStore;
use leasehold::{ErrorKind, Guard, LockName, Locker, Semaphore, State};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn semaphore(client: &Client, permits: usize) -> Semaphore {
    Locker::new(client.leases.clone()).semaphore("x", permits).ttl(TTL)
}

async fn held(client: &Client, permits: usize) -> usize {
    let mut held = 0;
    for permit in 1..=permits {
        let name = LockName::new(format!("x/permit-{permit}")).unwrap();
        held += usize::from(matches!(client.leases.inspect(&name).await.unwrap().state, State::Held(_)));
    }
    held
}

async fn all(semaphore: &Semaphore, permits: usize) -> Vec<Guard> {
    let mut guards = Vec::new();
    for _ in 0..permits {
        guards.push(semaphore.try_acquire().await.unwrap());
    }
    guards
}

/// Builds without optimisation copy a future on the stack several times.
#[tokio::test]
async fn the_futures_of_callers_are_small() {
    let client = World::new().observer(1);
    let (permits, lock) =
        (semaphore(&client, 3), Locker::new(client.leases.clone()).lock("y").ttl(TTL).rw_lock());
    let sizes = [
        size_of_val(&permits.acquire()),
        size_of_val(&permits.try_acquire()),
        size_of_val(&permits.acquire_within(SECOND)),
        size_of_val(&lock.shared()),
        size_of_val(&lock.exclusive()),
        size_of_val(&lock.try_exclusive()),
        size_of_val(&lock.exclusive_within(SECOND)),
    ];
    assert!(sizes.iter().all(|size| *size <= 2_048), "{sizes:?}");
}

#[tokio::test(start_paused = true)]
async fn all_permits_can_be_held_at_once_but_no_more() {
    let world = World::new();
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = tokio::task::JoinSet::new();
    for machine in 0..4 {
        let client = world.observer(machine);
        let semaphore = semaphore(&client, 3);
        for _ in 0..5 {
            let (semaphore, env) = (semaphore.clone(), client.env.clone());
            let (now, most) = (now.clone(), most.clone());
            tasks.spawn(async move {
                for _ in 0..4 {
                    let guard = semaphore.acquire().await.unwrap();
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    env.sleep(SECOND).await;
                    guard.check().unwrap();
                    now.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.unwrap();
                }
            });
        }
    }
    tasks.join_all().await;
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_free_permit_costs_one_lock_and_the_first_try_is_random() {
    let mut first = BTreeSet::new();
    for seed in 0..40 {
        let world = World::new();
        // The records have the number of permits.
        drop(all(&semaphore(&world.observer(seed + 100), 8), 8).await);
        let client = world.observer(seed);
        client.env.sleep(SECOND).await;
        let guard = semaphore(&client, 8).acquire().await.unwrap();
        let counts = client.network.counts();
        assert_eq!((counts.writes, counts.reads), (1, 1));
        first.insert(guard.name().clone());
    }
    assert_eq!(first.len(), 8, "{first:?}");
}

#[tokio::test(start_paused = true)]
async fn tasks_of_one_process_are_served_in_order_of_arrival() {
    let world = World::new();
    let client = world.observer(1);
    let holders = all(&semaphore(&client, 3), 3).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = tokio::task::JoinSet::new();
    let semaphore = semaphore(&client, 3);
    for n in 0..30 {
        let (semaphore, order) = (semaphore.clone(), order.clone());
        tasks.spawn(async move {
            let guard = semaphore.acquire().await.unwrap();
            order.lock().unwrap().push(n);
            guard.release().await.unwrap();
        });
        tokio::task::yield_now().await;
    }
    drop(holders);
    tasks.join_all().await;
    assert_eq!(*order.lock().unwrap(), (0..30).collect::<Vec<_>>());
}

/// Returns how many requests `tasks` waiting tasks of one process send in a minute while all three permits are held.
async fn requests_of_waiting(tasks: usize) -> usize {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let _held = all(&semaphore(&holder, 3), 3).await;
    let semaphore = semaphore(&client, 3);
    let mut waiting = tokio::task::JoinSet::new();
    for _ in 0..tasks {
        let semaphore = semaphore.clone();
        waiting.spawn(async move { drop(semaphore.acquire().await) });
    }
    client.env.sleep(SECOND * 60).await;
    client.network.counts().total()
}

#[tokio::test(start_paused = true)]
async fn a_hundred_waiting_tasks_are_one_contender() {
    let one = requests_of_waiting(1).await;
    let hundred = requests_of_waiting(100).await;
    assert!(one > 300 && hundred < one + one / 10, "{hundred} requests, and {one} of a single task");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_permits_of_this_process_sends_no_request() {
    let world = World::new();
    let client = world.observer(1);
    let semaphore = semaphore(&client, 3);
    let _held = all(&semaphore, 3).await;
    client.network.reset_counts();
    assert!(semaphore.acquire_within(SECOND * 5).await.is_err());
    assert_eq!(client.network.counts().total(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_second_permit_that_is_granted_in_the_same_moment_goes_back() {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let held_by_other = all(&semaphore(&holder, 3), 3).await;
    let waiting = {
        let semaphore = semaphore(&client, 3);
        tokio::spawn(async move { semaphore.acquire().await.unwrap() })
    };
    client.env.sleep(SECOND * 10).await;
    // All the writes are applied, and their responses arrive at the same time.
    client.network.every(Kind::Write, Outcome::AnswerDelayed(SECOND * 3));
    for guard in held_by_other {
        guard.release().await.unwrap();
    }
    let guard = waiting.await.unwrap();
    client.network.heal();
    let written = client.network.log().into_iter().filter(|sent| sent.kind == Kind::Write);
    assert!(
        written.map(|sent| sent.key).collect::<BTreeSet<_>>().len() > 1,
        "one grant alone proves nothing"
    );
    client.env.sleep(SECOND * 10).await;
    guard.check().unwrap();
    assert_eq!(held(&client, 3).await, 1);
}

#[tokio::test(start_paused = true)]
async fn concurrent_tries_of_one_process_all_get_free_permits() {
    let world = World::new();
    let semaphore = semaphore(&world.observer(1), 3);
    let (one, two, three) =
        tokio::join!(semaphore.try_acquire(), semaphore.try_acquire(), semaphore.try_acquire());
    let _guards = (one.unwrap(), two.unwrap(), three.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_try_neither_overtakes_a_waiter_nor_waits_for_it() {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let mut held = all(&semaphore(&holder, 2), 2).await;
    let semaphore = semaphore(&client, 2);
    let waiting = {
        let semaphore = semaphore.clone();
        tokio::spawn(async move { semaphore.acquire().await.unwrap() })
    };
    client.env.sleep(SECOND).await;
    for release in [false, true] {
        if release {
            held.pop().unwrap().release().await.unwrap();
        }
        let tried = timeout(&*client.clock, SECOND, semaphore.try_acquire()).await;
        let error = tried.expect("it waits").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    }
    waiting.await.unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_names_the_number_of_permits_and_the_holders() {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let _held = all(&semaphore(&holder, 6).owner("alice").note("frames"), 6).await;
    let tried = semaphore(&client, 6).try_acquire().await.unwrap_err();
    let waited = semaphore(&client, 6).acquire_within(SECOND * 5).await.unwrap_err();
    for error in [tried, waited] {
        assert_eq!(error.kind(), ErrorKind::Held);
        let text = error.to_string();
        assert!(text.starts_with("all 6 permits of `x` are held: `x/permit-1` by alice@"), "{text}");
        assert!(text.contains("frames") && text.ends_with("; and 2 more"), "{text}");
        assert_eq!(error.holder().unwrap().holder.as_ref().unwrap().name, "alice");
        // The observers are in one process.
        assert!(error.help()[0].contains("this process itself holds"), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_task_queued_behind_another_still_learns_the_holder() {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let _held = all(&semaphore(&holder, 2).owner("alice"), 2).await;
    let (semaphore, heard) = (semaphore(&client, 2), Arc::new(Mutex::new(0)));
    let first = {
        let semaphore = semaphore.clone();
        tokio::spawn(async move { drop(semaphore.acquire().await) })
    };
    client.env.sleep(SECOND).await;
    let queued = {
        let heard = heard.clone();
        semaphore.on_wait(move |held| {
            assert_eq!(held.holder.as_ref().unwrap().name, "alice");
            *heard.lock().unwrap() += 1;
        })
    };
    let error = queued.acquire_within(SECOND).await.unwrap_err();
    assert!(
        error.to_string().starts_with("all 2 permits of `x` are held, among others by alice@"),
        "{error}"
    );
    assert!(*heard.lock().unwrap() > 0);
    first.abort();
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_is_not_taken_for_one_that_is_full() {
    let world = World::new();
    let client = world.observer(1);
    client.network.stall();
    let error = semaphore(&client, 3).acquire_within(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_given_up_at_any_point_leaves_nothing_held() {
    for full in [false, true] {
        for polls in (0..60).step_by(3) {
            let world = World::new();
            let (holder, client) = (world.observer(1), world.observer(2));
            let mut guards = if full { all(&semaphore(&holder, 3), 3).await } else { Vec::new() };
            {
                let semaphore = semaphore(&client, 3);
                let mut acquire = pin!(semaphore.acquire());
                for poll in 0..polls {
                    if futures_util::future::poll_immediate(acquire.as_mut()).await.is_some() {
                        break;
                    }
                    if poll == 20 {
                        guards.pop();
                    }
                    client.env.sleep(Duration::from_millis(50)).await;
                }
            }
            client.env.sleep(SECOND * 5).await;
            assert_eq!(held(&client, 3).await, guards.len(), "given up after {polls} polls");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_of_a_permit_rise_from_holder_to_holder() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut before = None;
    for client in [&one, &two, &one, &two] {
        let guard = semaphore(client, 1).acquire().await.unwrap();
        assert_eq!(guard.name().as_str(), "x/permit-1");
        let token = guard.token().unwrap();
        assert!(before < Some(token));
        before = Some(token);
        guard.release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn bad_numbers_and_names_are_refused_before_anything_is_sent() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let long = "x".repeat(250);
    for (semaphore, says) in [
        (locker.semaphore("x", 0), "0 permits"),
        (locker.semaphore("x", 65), "65 permits"),
        (locker.semaphore("../x", 1), "segment"),
        (locker.semaphore(long, 1), "longer than 256 bytes"),
        (locker.semaphore("x", 1).ttl(Duration::ZERO), "ttl"),
    ] {
        let error = semaphore.acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(says) && !error.help().is_empty(), "{error:?}");
    }
    assert_eq!(client.network.counts().total(), 0);
}
