//! Local hand-off: the tasks of one process pass a grant on among themselves.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Client, TTL, World, name};
use leasehold::clock::Clock;
use leasehold::lease::LeaseStore;
use leasehold::{ErrorKind, Guard, Lock, Locker, Released, Ticket, Token};
use leasehold_testkit::fault::Outcome;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const MILLISECOND: Duration = Duration::from_millis(1);

fn lock(client: &Client) -> Lock {
    Locker::new(client.leases.clone()).lock("x").ttl(TTL)
}

/// Returns a client that has already held the lock, so that the record is not new. The first grant of a new record has
/// only one token.
async fn settled(world: &World, seed: u64) -> Client {
    let client = world.observer(seed);
    lock(&client).acquire().await.unwrap().release().await.unwrap();
    client.env.sleep(SECOND).await;
    client.network.reset_counts();
    client
}

/// Starts a task that waits for the lock and sends its guard to the channel. The task is in line when this function
/// returns.
async fn waiting(lock: &Lock, guards: &mpsc::UnboundedSender<Guard>) -> JoinHandle<()> {
    let (lock, guards) = (lock.clone(), guards.clone());
    let task = tokio::spawn(async move {
        let guard = lock.acquire().await.unwrap();
        let _ = guards.send(guard);
    });
    tokio::task::yield_now().await;
    task
}

/// Holds the lock, starts a waiting task for each of `locks`, and releases the lock. Returns a channel with the guards
/// that the tasks get.
async fn line(client: &Client, locks: &[Lock]) -> mpsc::UnboundedReceiver<Guard> {
    let (guards, got) = mpsc::unbounded_channel();
    let before = locks[0].try_acquire().await.unwrap();
    for lock in locks {
        waiting(lock, &guards).await;
    }
    // Let the store's clock advance, so that the next grant has room for several tokens.
    client.env.sleep(2 * SECOND).await;
    before.release().await.unwrap();
    got
}

fn token(guard: &Guard) -> Token {
    guard.token().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_pass_on_two_grants_with_rising_tokens() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let mut got = line(&client, &vec![lock(&client); 100]).await;
    let mut last = Token::default();
    for _ in 0..100 {
        let guard = got.recv().await.unwrap();
        assert!(token(&guard) > last);
        last = token(&guard);
        assert!(got.try_recv().is_err(), "two have it at once");
        assert_eq!(guard.release().await.unwrap(), Released::Released);
    }
    let counts = client.network.counts();
    assert_eq!(counts.writes, 4, "two grants and two releases: {counts:?}");
    assert!(counts.reads <= 2, "at most two reads to see whether other processes wait: {counts:?}");
    assert!(world.raw().await["token"].as_u64().unwrap() >= last.get());
    assert!(client.granted().await.token > last);
}

#[tokio::test(start_paused = true)]
async fn the_first_grant_of_a_record_has_one_token() {
    let world = World::new();
    let client = world.observer(1);
    let lock = lock(&client);
    let (guards, mut got) = mpsc::unbounded_channel();
    for _ in 0..3 {
        waiting(&lock, &guards).await;
    }
    // While the first task waits for the store's clock, the others line up.
    let first = got.recv().await.unwrap();
    assert_eq!(world.raw().await["token"], token(&first).get());
    client.network.reset_counts();
    first.release().await.unwrap();
    let second = got.recv().await.unwrap();
    assert_eq!(client.network.counts().writes, 2, "a release and a grant");
    second.release().await.unwrap();
    got.recv().await.unwrap().release().await.unwrap();
    assert_eq!(client.network.counts().writes, 3, "passed on, and released");
}

#[tokio::test(start_paused = true)]
async fn over_an_unconfirmed_record_the_earlier_token_is_unknown() {
    let world = World::new();
    settled(&world, 1).await;
    for (unconfirmed, known) in [(true, false), (false, true)] {
        world.edit(|record| record["unconfirmed"] = unconfirmed.into()).await;
        // Another client reads the record.
        let reader = world.observer(2);
        let before = world.raw().await["token"].as_u64();
        let mut claim = reader.claim();
        claim.tokens = 3;
        let mut grant = crate::common::granted(reader.leases.try_acquire(&claim).await.unwrap());
        assert_eq!(grant.after.map(Token::get), before.filter(|_| known));
        reader.leases.release(&mut grant, None).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_previous_guard_ends_before_the_next_token_is_issued() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let mut got = line(&client, &vec![lock(&client); 3]).await;
    let first = got.recv().await.unwrap();
    let (over, observed) = (first.cancellation(), Arc::new(AtomicBool::new(false)));
    // Records that the guard's cancellation token was cancelled.
    let watcher = {
        let (over, observed) = (over.clone(), observed.clone());
        tokio::spawn(async move {
            over.cancelled().await;
            observed.store(true, Ordering::SeqCst);
        })
    };
    drop(first);
    let second = got.recv().await.unwrap();
    assert!(over.is_cancelled());
    watcher.await.unwrap();
    assert!(observed.load(Ordering::SeqCst));
    second.check().unwrap();
    // A lost guard is not passed on, even if its renewer has not noticed the loss.
    client.clock.suspend(SECOND * 3_600);
    assert_eq!(second.release().await.unwrap(), Released::AlreadyLost);
    client.network.reset_counts();
    let third = got.recv().await.unwrap();
    assert!(client.network.counts().writes > 0, "the store was asked");
    third.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_passed_on_lock_is_renewed_and_lost_like_any_other() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let mut got = line(&client, &vec![lock(&client); 3]).await;
    got.recv().await.unwrap().release().await.unwrap();
    let second = got.recv().await.unwrap();
    client.env.sleep(SECOND * 100).await;
    second.check().unwrap();
    let began = client.clock.now();
    let deadline = second.remaining();
    client.network.stall();
    second.cancellation().cancelled().await;
    let heard = client.clock.now().longest_since(began);
    assert!(heard >= deadline && heard <= deadline + 2 * MILLISECOND, "{heard:?}, not {deadline:?}");
    assert_eq!(second.check().unwrap_err().kind(), ErrorKind::Lost);
    assert!(got.try_recv().is_err(), "a lost grant is not passed on");
    let lost = token(&second);
    drop(second);
    client.network.heal();
    let third = got.recv().await.unwrap();
    assert!(token(&third) > lost);
}

#[tokio::test(start_paused = true)]
async fn a_lock_with_less_than_half_its_ttl_left_is_not_passed_on() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let lock = lock(&client).ttl(SECOND * 20);
    for (late, writes) in [(SECOND * 6, 1), (SECOND * 11, 2)] {
        let (guards, mut got) = mpsc::unbounded_channel();
        let before = lock.try_acquire().await.unwrap();
        for _ in 0..2 {
            waiting(&lock.clone().store_timeout(SECOND * 60), &guards).await;
        }
        // Long enough for a new cohort period to begin afterwards.
        client.env.sleep(SECOND).await;
        // The grant is applied, but its response is lost. The client can read the record only after `late`.
        client.network.next_write(Outcome::Fine);
        client.network.next_write(Outcome::AppliedLost);
        before.release().await.unwrap();
        tokio::task::yield_now().await;
        client.network.disconnect();
        client.env.sleep(late).await;
        client.network.heal();
        let first = got.recv().await.unwrap();
        client.network.reset_counts();
        first.release().await.unwrap();
        got.recv().await.unwrap().release().await.unwrap();
        assert_eq!(client.network.counts().writes, writes + (writes - 1), "{late:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_eviction_reaches_the_task_the_lock_was_passed_to() {
    let world = World::new();
    let (client, operator) = (settled(&world, 1).await, world.observer(2));
    let mut got = line(&client, &vec![lock(&client); 3]).await;
    got.recv().await.unwrap().release().await.unwrap();
    let second = got.recv().await.unwrap();
    let shown = operator.held().await.token.unwrap();
    assert!(shown >= token(&second), "the token of the record is the highest that may be in use");
    operator.leases.evict(&name(), shown, None).await.unwrap();
    second.lost().await;
    let third = got.recv().await.unwrap();
    assert!(token(&third) > shown, "granted again by the store");
}

/// The grant is evicted while a task holds it for longer than a poll, and another process is granted the lock before
/// the holder notices.
#[tokio::test(start_paused = true)]
async fn an_evicted_grant_is_not_passed_on() {
    let world = World::new();
    let (client, operator) = (settled(&world, 1).await, world.observer(2));
    let mut got = line(&client, &vec![lock(&client); 3]).await;
    got.recv().await.unwrap().release().await.unwrap();
    let second = got.recv().await.unwrap();
    let shown = operator.held().await.token.unwrap();
    operator.leases.evict(&name(), shown, None).await.unwrap();
    let other = operator.granted().await;
    // This is longer than a poll interval and shorter than a cohort period.
    client.env.sleep(3 * MILLISECOND).await;
    second.check().unwrap();
    client.network.reset_counts();
    assert_eq!(second.release().await.unwrap(), Released::AlreadyLost);
    tokio::task::yield_now().await;
    assert!(got.try_recv().is_err(), "another process has it");
    assert_eq!(client.network.counts().writes, 0);
    let mut other = other;
    operator.leases.release(&mut other, None).await.unwrap();
    assert!(token(&got.recv().await.unwrap()) > other.token);
}

#[tokio::test(start_paused = true)]
async fn a_lock_is_passed_on_only_if_others_see_no_difference() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let plain = lock(&client);
    for (other, passed_on) in [
        (plain.clone(), true),
        (plain.clone().on_wait(|_| {}).store_timeout(SECOND), true),
        (plain.clone().ttl(TTL * 2), false),
        (plain.clone().note("another"), false),
        (plain.clone().owner("somebody"), false),
        (plain.clone().lock_delay(SECOND), false),
        (plain.clone().for_ticket(), false),
    ] {
        client.network.reset_counts();
        let mut got = line(&client, &[plain.clone(), plain.clone(), other.clone()]).await;
        for _ in 0..3 {
            got.recv().await.unwrap().release().await.unwrap();
        }
        let writes = client.network.counts().writes;
        assert_eq!(writes, if passed_on { 4 } else { 6 }, "{other:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_leader_of_one_process_has_its_own_grant() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let election = lock(&client).election();
    let first = election.campaign().await.unwrap();
    let (leaders, mut leads) = mpsc::unbounded_channel();
    for _ in 0..2 {
        let (election, leaders) = (election.clone(), leaders.clone());
        tokio::spawn(async move { leaders.send(election.campaign().await.unwrap()).map_err(drop).unwrap() });
        tokio::task::yield_now().await;
    }
    client.network.reset_counts();
    first.resign().await.unwrap();
    leads.recv().await.unwrap().resign().await.unwrap();
    let _leader = leads.recv().await.unwrap();
    assert_eq!(client.network.counts().writes, 4, "each has a separate grant, which observers see");
}

/// Starts tasks of `client` that acquire the lock, hold it for a millisecond, and repeat. Returns how often they have
/// held it.
fn busy(client: &Client, tasks: usize) -> Arc<AtomicUsize> {
    let (lock, rounds) = (lock(client), Arc::new(AtomicUsize::new(0)));
    for _ in 0..tasks {
        let (lock, rounds, env) = (lock.clone(), rounds.clone(), client.env.clone());
        tokio::spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                env.sleep(MILLISECOND).await;
                guard.release().await.unwrap();
                rounds.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    rounds
}

#[tokio::test(start_paused = true)]
async fn tasks_that_pass_a_lock_on_let_other_processes_in() {
    let world = World::new();
    let (client, other) = (settled(&world, 1).await, world.observer(2));
    let rounds = busy(&client, 8);
    client.env.sleep(SECOND).await;
    for _ in 0..20 {
        let before = rounds.load(Ordering::SeqCst);
        let guard = lock(&other).acquire_within(SECOND * 10).await.unwrap();
        let meanwhile = rounds.load(Ordering::SeqCst) - before;
        // With the memory store's intervals, a cohort period lasts 20 ms. A backoff follows every eighth period at
        // first, and later every period.
        assert!(meanwhile <= 9 * 21, "the others were served {meanwhile} times before it");
        guard.release().await.unwrap();
    }
}

/// The task reacquires the lock before another process can see that it is free.
#[tokio::test(start_paused = true)]
async fn a_task_that_reacquires_at_once_lets_other_processes_in() {
    let world = World::new();
    let (client, other) = (settled(&world, 1).await, world.observer(2));
    let rounds = busy(&client, 1);
    for _ in 0..20 {
        let before = rounds.load(Ordering::SeqCst);
        let guard = lock(&other).acquire_within(SECOND * 10).await.unwrap();
        let meanwhile = rounds.load(Ordering::SeqCst) - before;
        // With the memory store's intervals, a cohort period lasts 20 ms. A backoff follows every eighth period, or
        // every period once another process was noticed.
        assert!(meanwhile <= 9 * 21, "the other was served {meanwhile} times before it");
        guard.release().await.unwrap();
        other.env.sleep(SECOND / 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn processes_that_take_turns_rarely_leave_the_lock_free() {
    let world = World::new();
    let clients = [settled(&world, 1).await, world.observer(2)];
    let rounds: Vec<_> = clients.iter().map(|client| busy(client, 4)).collect();
    clients[0].env.sleep(SECOND * 10).await;
    let rounds: Vec<_> = rounds.iter().map(|rounds| rounds.load(Ordering::SeqCst)).collect();
    let all: usize = rounds.iter().sum();
    // The maximum is 10,000. If every backoff took its full time, the lock would be free half of the time.
    assert!(all > 7_000, "{rounds:?}");
    assert!(rounds.iter().all(|rounds| *rounds > all / 3), "{rounds:?}");
}

#[tokio::test(start_paused = true)]
async fn tasks_that_keep_coming_share_few_grants() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let rounds = busy(&client, 4);
    client.env.sleep(SECOND * 10).await;
    let (rounds, writes) = (rounds.load(Ordering::SeqCst), client.network.counts().writes);
    // Each cohort period of 20 ms costs one grant and one release.
    assert!(rounds > 8_000 && writes <= rounds / 8, "{writes} writes for {rounds}");
}

#[tokio::test(start_paused = true)]
async fn a_task_aborted_while_being_served_does_not_keep_the_lock() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let lock = lock(&client);
    let mut got = line(&client, std::slice::from_ref(&lock)).await;
    let (guards, mut later) = mpsc::unbounded_channel();
    let gone = waiting(&lock, &guards).await;
    waiting(&lock, &guards).await;
    let first = got.recv().await.unwrap();
    let release = tokio::spawn(first.release());
    gone.abort();
    release.await.unwrap().unwrap();
    let guard = later.recv().await.unwrap();
    guard.check().unwrap();
    guard.release().await.unwrap();
    let _again = lock.try_acquire().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_passed_on_lock_has_a_cooldown_and_becomes_a_ticket() {
    let world = World::new();
    let client = settled(&world, 1).await;
    let mut got = line(&client, &vec![lock(&client); 3]).await;
    got.recv().await.unwrap().release().await.unwrap();
    let second = got.recv().await.unwrap();
    let held = token(&second);
    let ticket: Ticket = second.into_ticket().await.unwrap();
    assert!(ticket.token() >= held, "no token that others may have");
    let locker = Locker::new(client.leases.clone());
    let resumed = locker.resume(&ticket).await.unwrap();
    assert_eq!(token(&resumed), ticket.token());
    resumed.release().await.unwrap();
    let third = got.recv().await.unwrap();
    assert!(token(&third) > ticket.token());

    third.release().await.unwrap();
    let mut got = line(&client, &vec![lock(&client); 2]).await;
    let first = got.recv().await.unwrap();
    first.release().await.unwrap();
    let second = got.recv().await.unwrap();
    assert_eq!(second.release_with_cooldown(SECOND * 60).await.unwrap(), Released::Released);
    assert!(lock(&client).try_acquire().await.unwrap_err().holder().unwrap().in_cooldown);
}

/// Without another process, the lock is idle only during the requests that end one cohort period and begin the next.
#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_without_other_processes_do_not_pause() {
    const TASKS: u32 = 100;
    for hold in [SECOND / 10, 2 * SECOND] {
        let world = World::paced();
        let client = world.dated(1);
        let lock = Locker::new(client.leases.clone()).lock("x").ttl(TTL);
        // The first grant of a name takes longer.
        lock.acquire().await.unwrap().release().await.unwrap();
        client.network.reset_counts();
        let began = client.env.now();
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (lock, env) = (lock.clone(), client.env.clone());
            tasks.spawn(async move {
                let guard = lock.acquire().await.unwrap();
                env.sleep(hold).await;
                guard.release().await.unwrap();
            });
        }
        tasks.join_all().await;
        let (pauses, counts) =
            (client.env.now().longest_since(began).saturating_sub(TASKS * hold), client.network.counts());
        println!("{TASKS} tasks, {hold:?} each: {pauses:?} in addition, {counts:?}");
        // Each request takes 30 ms.
        assert!(pauses <= Duration::from_millis(35) * counts.total() as u32, "{pauses:?}, {counts:?}");
        assert!(counts.total() <= 2 * TASKS as usize + 2, "{counts:?}");
    }
}
