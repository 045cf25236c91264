//! Several locks at once: all or none, in one order, held and lost together.

use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, TTL, World, holder_span};
use leasehold::lease::LeaseStore;
use leasehold::{ErrorKind, Guard, LockName, Locker, Locks, LossReason, Released, State, Ticket};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);
const NAMES: [&str; 3] = ["a", "b", "c"];

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

/// Returns locks that are given out of order.
fn abc(client: &Client) -> Locks {
    locker(client).lock_all(["c", "a", "b"]).ttl(TTL)
}

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

async fn held(client: &Client) -> Vec<&'static str> {
    let mut held = Vec::new();
    for lock in NAMES {
        if let State::Held(_) = client.leases.inspect(&name(lock)).await.unwrap().state {
            held.push(lock);
        }
    }
    held
}

async fn evict(client: &Client, lock: &str) {
    let token = client.leases.inspect(&name(lock)).await.unwrap().token.unwrap();
    client.leases.evict(&name(lock), token, None).await.unwrap();
}

/// Holds one of the locks by itself.
async fn alone(client: &Client, lock: &str) -> Guard {
    locker(client).lock(lock).ttl(TTL).owner("alice").acquire().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn names_are_acquired_in_the_order_of_their_bytes() {
    let world = World::new();
    let client = world.observer(1);
    client.network.reset_counts();
    let names = ["b", "\u{e9}", "a/b", "Z", "a"];
    let guard = locker(&client).lock_all(names).ttl(TTL).acquire().await.unwrap();
    let written: Vec<_> = client.network.log().into_iter().map(|sent| sent.key).collect();
    let mut order: Vec<_> = guard.names().map(|name| name.as_str().to_owned()).collect();
    assert_eq!(order, ["Z", "a", "a/b", "b", "\u{e9}"]);
    let first = |name: &String| written.iter().position(|key| key.starts_with(&format!("{name}.lock")));
    order.pop(); // Its key is encoded.
    let firsts: Vec<_> = order.iter().map(|name| first(name).unwrap()).collect();
    assert!(firsts.is_sorted(), "{firsts:?} of {written:?}");
    assert_eq!(guard.name().as_str(), "Z");
}

#[tokio::test(start_paused = true)]
async fn overlapping_sets_in_any_order_all_make_progress() {
    let world = World::new();
    let sets = [["a", "b"], ["b", "a"], ["b", "c"], ["c", "a"]];
    let mut tasks = tokio::task::JoinSet::new();
    for (machine, set) in sets.into_iter().enumerate() {
        let client = world.observer(machine as u64);
        tasks.spawn(async move {
            for _ in 0..20 {
                let guard = locker(&client).lock_all(set).ttl(TTL).acquire().await.unwrap();
                client.env.sleep(Duration::from_millis(100)).await;
                guard.check().unwrap();
                guard.release().await.unwrap();
            }
        });
    }
    tasks.join_all().await;
}

#[tokio::test(start_paused = true)]
async fn losing_one_lock_loses_all_and_frees_the_others() {
    for lost in NAMES {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        let guard = abc(&one).acquire().await.unwrap();
        evict(&two, lost).await;
        let cancelled = guard.cancellation();
        let loss = guard.lost().await;
        assert_eq!((loss.name.as_str(), &loss.reason), (lost, &LossReason::Ended));
        cancelled.cancelled().await;
        assert_eq!(guard.check().unwrap_err().loss(), Some(&loss));
        // The work may still run, so the other locks are free only when the guard is given up.
        one.env.sleep(SECOND).await;
        assert_eq!(held(&two).await.len(), NAMES.len() - 1, "{lost}");
        // The process may end after the release.
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        assert_eq!(held(&two).await, [""; 0], "{lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_several_locks_has_the_earliest_deadline() {
    for lock in NAMES {
        let world = World::new();
        let client = world.observer(1);
        let guard = abc(&client).acquire().await.unwrap();
        client.network.every_write_of(&format!("{lock}.lock"), Outcome::Stalled);
        client.env.sleep(SECOND * 20).await;
        let left = holder_span() - SECOND * 20;
        assert!(guard.remaining() <= left, "{lock}: {:?} and not {left:?}", guard.remaining());
        guard.check().unwrap();
        // The check must fail before any timer has fired.
        client.clock.suspend(left);
        assert_eq!(guard.check().unwrap_err().loss().unwrap().name.as_str(), lock);
        assert!(guard.remaining().is_zero());
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_attempt_or_wait_leaves_nothing_held() {
    for lock in NAMES {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        let _other = alone(&one, lock).await;
        // A release in the background would come too late.
        two.network.every(Kind::Write, Outcome::Delayed(SECOND / 10));
        for wait in [None, Some(Duration::ZERO), Some(SECOND * 5)] {
            let locks = abc(&two);
            let error = match wait {
                None => locks.try_acquire().await,
                Some(limit) => locks.acquire_within(limit).await,
            };
            let error = error.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Held);
            assert!(error.to_string().starts_with(&format!("lock `{lock}` is held by alice@")), "{error}");
            // Already when the call returns, because a command exits then.
            assert_eq!(held(&one).await, [lock], "after {wait:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_limit_is_the_limit_of_all_locks() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let (first, _second) = (alone(&one, "a").await, alone(&one, "b").await);
    let began = two.env.now();
    let locks = abc(&two);
    let waiting = tokio::spawn(async move { locks.acquire_within(SECOND * 10).await });
    one.env.sleep(SECOND * 8).await;
    first.release().await.unwrap();
    let error = waiting.await.unwrap().unwrap_err();
    assert!(error.to_string().starts_with("lock `b` is held"), "{error}");
    let took = two.env.now().longest_since(began);
    assert!(took < SECOND * 11, "{took:?}");
    assert_eq!(held(&one).await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn an_error_of_the_store_leaves_nothing_held() {
    let world = World::new();
    let client = world.observer(1);
    client.network.every_write_of("c.lock", Outcome::Denied);
    let error = abc(&client).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert_eq!(held(&client).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_several_given_up_anywhere_leaves_nothing_held() {
    for others in [&[][..], &["c"][..]] {
        for polls in (0..80).step_by(2) {
            let world = World::new();
            let (one, two) = (world.observer(1), world.observer(2));
            let _other = if others.is_empty() { None } else { Some(alone(&one, "c").await) };
            two.network.every(Kind::Write, Outcome::Delayed(Duration::from_millis(20)));
            {
                let locks = abc(&two);
                let mut acquisition = pin!(locks.acquire());
                for _ in 0..polls {
                    if futures_util::future::poll_immediate(acquisition.as_mut()).await.is_some() {
                        break;
                    }
                    two.env.sleep(Duration::from_millis(1)).await;
                }
            }
            two.env.sleep(SECOND * 5).await;
            assert_eq!(held(&one).await, others, "given up after {polls} polls");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_lost_while_waiting_for_the_next_is_acquired_again() {
    for lost in ["a", "b"] {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        let last = alone(&one, "c").await;
        let locks = abc(&two);
        let waiting = tokio::spawn(async move { locks.acquire().await.unwrap() });
        two.env.sleep(SECOND * 5).await;
        assert_eq!(held(&one).await, NAMES);
        evict(&one, lost).await;
        // Another process gets that lock. If it also wants `b`, it must not wait for this one, which waits for `c`.
        let others = locker(&one).lock_all([lost, "b"].into_iter().take(if lost == "a" { 2 } else { 1 }));
        let other = others.ttl(TTL).acquire_within(TTL).await.unwrap();
        other.check().unwrap();
        other.release().await.unwrap();
        // By then, a renewal has noticed the eviction.
        two.env.sleep(SECOND * 15).await;
        last.release().await.unwrap();
        let guard = waiting.await.unwrap();
        guard.check().unwrap();
        assert_eq!(held(&one).await, NAMES);
        guard.release().await.unwrap();
        assert_eq!(held(&one).await, [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn of_two_attempts_at_once_one_succeeds() {
    let world = World::paced();
    for round in 0..20 {
        let (one, two) = (world.observer(2 * round), world.observer(2 * round + 1));
        let locks = [abc(&one), abc(&two)];
        let [first, second] = &locks;
        let (first, second) = tokio::join!(first.try_acquire(), second.try_acquire());
        assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
        first.or(second).unwrap().release().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn names_that_cannot_be_held_together_are_errors() {
    let world = World::new();
    let client = world.observer(1);
    let error = async |names: &[&str]| {
        let error = locker(&client).lock_all(names.iter().copied()).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(!error.help().is_empty(), "{error}");
        error.to_string()
    };
    assert!(error(&[]).await.contains("0 locks"));
    assert!(error(&["b", "a", "b"]).await.contains("`b` is named twice"));
    assert!(error(&["a", "b//c"]).await.contains("b//c"));
    let many: Vec<_> = (0..=Locks::MAX_NAMES).map(|number| format!("n{number}")).collect();
    assert!(error(&many.iter().map(String::as_str).collect::<Vec<_>>()).await.contains("65 locks"));
    let ttl = locker(&client).lock_all(NAMES).ttl(Duration::ZERO).acquire().await.unwrap_err();
    assert_eq!(ttl.kind(), ErrorKind::Invalid);
    assert_eq!(client.network.counts().writes, 0);
    let most = locker(&client).lock_all(&many[1..]).ttl(TTL).acquire().await.unwrap();
    assert_eq!(most.tokens().unwrap().len(), Locks::MAX_NAMES);
    let ticket = most.into_ticket().await.unwrap();
    locker(&client).release(&ticket.to_string().parse().unwrap()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn each_lock_has_its_own_token() {
    let world = World::new();
    let client = world.observer(1);
    alone(&client, "b").await.release().await.unwrap();
    let guard = abc(&client).acquire().await.unwrap();
    let error = guard.token().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("3 locks"), "{error}");
    for (name, token) in guard.tokens().unwrap() {
        assert_eq!(client.leases.inspect(&name).await.unwrap().token, Some(token));
    }
    assert_eq!(guard.tokens().unwrap().into_keys().collect::<Vec<_>>(), NAMES.map(name));
    let one = locker(&client).lock_all(["d"]).acquire().await.unwrap();
    assert_eq!(one.tokens().unwrap().into_values().collect::<Vec<_>>(), [one.token().unwrap()]);
}

#[tokio::test(start_paused = true)]
async fn all_locks_end_before_any_release() {
    let world = World::new();
    let client = world.observer(1);
    let guard = abc(&client).acquire().await.unwrap();
    let cancelled = guard.cancellation();
    // By now the renewers run as tasks, so this task does not send the first request.
    client.env.sleep(TTL / 2).await;
    client.network.reset_counts();
    client.network.every(Kind::Write, Outcome::Delayed(SECOND));
    let mut release = pin!(guard.release());
    assert!(futures_util::future::poll_immediate(release.as_mut()).await.is_none());
    assert!(cancelled.is_cancelled() && client.network.counts().writes == 0);
    assert_eq!(release.await.unwrap(), Released::Released);
    assert_eq!(held(&client).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn the_limit_of_several_locks_counts_from_the_last() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let last = alone(&one, "c").await;
    let locks = abc(&two).max_hold(SECOND * 60);
    let waiting = tokio::spawn(async move { locks.acquire().await.unwrap() });
    two.env.sleep(SECOND * 20).await;
    last.release().await.unwrap();
    let guard = waiting.await.unwrap();
    let left = guard.limit().unwrap().remaining(two.env.now());
    assert!(left > SECOND * 55, "without the wait for the last lock: {left:?}");
    assert_eq!(guard.lost().await.reason, LossReason::Limit);
    // The work may still run until the guard is dropped.
    drop(guard);
    two.env.sleep(SECOND).await;
    assert_eq!(held(&one).await, [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn one_ticket_holds_all_locks() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let guard = abc(&one).for_ticket().acquire().await.unwrap();
    let tokens = guard.tokens().unwrap();
    let ticket: Ticket = guard.into_ticket().await.unwrap().to_string().parse().unwrap();
    assert_eq!(ticket.tokens(), tokens);
    assert!(format!("{ticket:?}").contains("\"b\""), "{ticket:?}");
    for _ in 0..3 {
        two.env.sleep(TTL / 2).await;
        assert!(locker(&two).renew(&ticket).await.unwrap().remaining() > TTL / 2);
    }
    assert_eq!(held(&two).await, NAMES);
    let cooldown = locker(&two).release_with_cooldown(&ticket, SECOND).await.unwrap_err();
    assert_eq!(cooldown.kind(), ErrorKind::Unsupported);
    let resumed = locker(&two).resume(&ticket).await.unwrap();
    two.env.sleep(TTL * 2).await;
    assert_eq!(resumed.tokens().unwrap(), tokens);
    assert_eq!(resumed.release().await.unwrap(), Released::Released);
    assert_eq!(held(&two).await, [""; 0]);
    assert_eq!(locker(&two).release(&ticket).await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_with_a_lost_lock_is_lost_as_a_whole() {
    for lost in NAMES {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        let ticket = abc(&one).for_ticket().acquire().await.unwrap().into_ticket().await.unwrap();
        evict(&two, lost).await;
        let error = locker(&one).renew(&ticket).await.unwrap_err();
        assert_eq!(error.loss().unwrap().name.as_str(), lost);
        assert_eq!(held(&two).await.len(), NAMES.len() - 1, "another user of the ticket may still work");
        assert_eq!(locker(&one).release(&ticket).await.unwrap(), Released::AlreadyLost);
        assert_eq!(held(&two).await, [""; 0], "{lost}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_ticket_that_one_lock_cannot_give_releases_all() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let guard = abc(&one).for_ticket().acquire().await.unwrap();
    evict(&two, "b").await;
    // The next renewal has not noticed the eviction yet.
    let ticket = guard.into_ticket().await;
    if let Ok(ticket) = &ticket {
        locker(&one).renew(ticket).await.unwrap_err();
        locker(&one).release(ticket).await.unwrap();
    }
    one.env.sleep(SECOND).await;
    assert_eq!(held(&two).await, [""; 0]);

    let guard = abc(&one).for_ticket().acquire().await.unwrap();
    one.env.sleep(SECOND).await;
    drop(guard.into_ticket());
    one.env.sleep(SECOND).await;
    assert_eq!(held(&two).await, [""; 0], "the caller gave up");
}

#[tokio::test(start_paused = true)]
async fn a_waiter_learns_which_lock_it_waits_for() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let second = alone(&one, "b").await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = seen.clone();
    let locks = abc(&two).on_wait_for(move |name, held| {
        let by = held.holder.as_ref().map(|holder| holder.name.clone());
        noted.lock().unwrap().push((name.to_string(), by));
    });
    let waiting = tokio::spawn(async move { locks.acquire().await.unwrap() });
    two.env.sleep(SECOND * 5).await;
    assert_eq!(held(&one).await, ["a", "b"]);
    second.release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
    let seen = seen.lock().unwrap();
    assert!(
        !seen.is_empty() && seen.iter().all(|seen| *seen == ("b".into(), Some("alice".into()))),
        "{seen:?}"
    );
}
