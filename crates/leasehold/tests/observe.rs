//! Observers: each event is reported once and in order.

mod spans;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, TTL, World, name};
use leasehold::clock::timeout;
use leasehold::observe::{Event, Observer, Operation, Outcome};
use leasehold::{Eviction, Guard, Locker, Token};
use leasehold_testkit::fault::{Kind, Outcome as Fault};

const SECOND: Duration = Duration::from_secs(1);

/// Keeps a short text for each event of a lock, and the requests.
#[derive(Default)]
struct Log {
    events: Mutex<Vec<String>>,
    requests: Mutex<Vec<(Operation, Outcome)>>,
}

impl Log {
    fn events(&self) -> Vec<String> {
        std::mem::take(&mut self.events.lock().unwrap())
    }

    fn requests(&self) -> Vec<(Operation, Outcome)> {
        std::mem::take(&mut self.requests.lock().unwrap())
    }
}

impl Observer for Log {
    fn observe(&self, event: &Event<'_>) {
        let shown = match event {
            Event::Request { operation, outcome, .. } => {
                return self.requests.lock().unwrap().push((*operation, *outcome));
            }
            Event::WaitBegan { .. } => "waits".to_owned(),
            Event::WaitEnded { waited, acquired, .. } => format!("waited {}s {acquired}", waited.as_secs()),
            Event::Acquired { token, waited, .. } => format!("acquired {token} {}s", waited.as_secs()),
            Event::Resumed { token, .. } => format!("resumed {token}"),
            Event::Renewed { left, ttl, .. } => {
                assert!(*left > ttl.get() / 2 && *left < ttl.get(), "{left:?} of {ttl:?}");
                "renewed".to_owned()
            }
            Event::Lost { token, held, reason, .. } => {
                let reason = format!("{reason:?}");
                format!("lost {token} {}s {}", held.as_secs(), reason.split(' ').next().unwrap())
            }
            Event::Released { token, held, result, .. } => {
                format!("released {token} {}s {result}", held.as_secs())
            }
            Event::HandedOn { token, .. } => format!("handed on {token}"),
            Event::Evicted { token, why, .. } => format!("evicted {token} {}", why.map_or("", |why| &why.by)),
            other => panic!("{other:?}"),
        };
        self.events.lock().unwrap().push(shown);
    }
}

/// Creates a world in which the lock was held before, because the first grant of a lock takes longer.
async fn world() -> World {
    let world = World::new();
    let first = Locker::new(world.observer(9).leases).lock("x").acquire().await.unwrap();
    first.release().await.unwrap();
    world
}

fn observed(client: &Client) -> (Locker, Arc<Log>) {
    let log = Arc::new(Log::default());
    (Locker::new(client.leases.clone()).observed_by(log.clone()), log)
}

/// A process that holds the lock, and the log of its events since the grant.
struct Held {
    client: Client,
    locker: Locker,
    log: Arc<Log>,
    guard: Guard,
    token: Token,
    world: World,
}

async fn held() -> Held {
    let world = world().await;
    let client = world.observer(1);
    let (locker, log) = observed(&client);
    let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
    let token = guard.token().unwrap();
    assert_eq!(log.events(), [format!("acquired {token} 0s")]);
    Held { client, locker, log, guard, token, world }
}

#[tokio::test(start_paused = true)]
async fn a_hold_is_reported_from_acquired_to_released() {
    let Held { client, log, guard, token, .. } = held().await;
    client.env.sleep(SECOND * 25).await;
    assert_eq!(log.events(), ["renewed", "renewed"]);
    guard.release().await.unwrap();
    assert_eq!(log.events(), [format!("released {token} 25s released")]);
    let (done, asked) = (Outcome::Done, [Operation::Acquire, Operation::Renew, Operation::Renew]);
    let requests = asked.into_iter().chain([Operation::Release]).map(|asked| (asked, done));
    assert_eq!(log.requests(), requests.collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_wait_for_another_process_begins_and_ends_once() {
    let world = world().await;
    let (first, second) = (world.observer(1), world.observer(2));
    let guard = Locker::new(first.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
    let (locker, log) = observed(&second);
    let lock = locker.lock("x").ttl(TTL);
    lock.try_acquire().await.unwrap_err();
    assert!(log.events().is_empty(), "an attempt does not wait");
    lock.acquire_within(SECOND * 5).await.unwrap_err();
    // The acquisition that was given up ends in its own task.
    second.env.sleep(SECOND).await;
    assert_eq!(log.events(), ["waits", "waited 5s false"]);

    let waiting = tokio::spawn(async move { lock.acquire().await.unwrap() });
    second.env.sleep(SECOND * 10).await;
    assert_eq!(log.events(), ["waits"]);
    guard.release().await.unwrap();
    let guard = waiting.await.unwrap();
    let events = log.events();
    let [acquired, waited] = &events[..] else { panic!("{events:?}") };
    assert!(acquired.starts_with(&format!("acquired {} 1", guard.token().unwrap())), "{acquired}");
    assert!(waited.starts_with("waited 1") && waited.ends_with("s true"), "{waited}");
    assert_eq!(log.requests()[0], (Operation::Acquire, Outcome::Held));
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_passed_on_is_released_and_acquired() {
    let world = world().await;
    let client = world.observer(1);
    let (locker, log) = observed(&client);
    let lock = locker.lock("x").ttl(TTL);
    let guard = lock.acquire().await.unwrap();
    // The grant of the first waiter has a token for the second.
    let mut waiting = [(), ()].map(|()| {
        let lock = lock.clone();
        tokio::spawn(async move { lock.acquire().await.unwrap() })
    });
    client.env.sleep(SECOND).await;
    guard.release().await.unwrap();
    let first = (&mut waiting[0]).await.unwrap();
    log.events();
    log.requests();
    let passed_on = first.token().unwrap();
    first.release().await.unwrap();
    let second = (&mut waiting[1]).await.unwrap();
    let token = second.token().unwrap();
    let expected = [
        format!("released {passed_on} 0s passed_on"),
        format!("acquired {token} 1s"),
        "waited 1s true".to_owned(),
    ];
    assert_eq!(log.events(), expected);
    drop(second);
    client.env.sleep(SECOND).await;
    assert_eq!(log.events(), [format!("released {token} 0s released")]);
    let asked: Vec<_> = log.requests().into_iter().map(|(operation, _)| operation).collect();
    assert_eq!(asked, [Operation::Release], "a lock is passed on without a request");
}

#[tokio::test(start_paused = true)]
async fn a_loss_is_reported_once_at_the_deadline() {
    let Held { client, log, guard, token, .. } = held().await;
    client.network.every(Kind::Write, Fault::Stalled);
    guard.lost().await;
    // A release after the loss is not reported as a second end.
    guard.release().await.unwrap();
    client.env.sleep(TTL * 3).await;
    assert_eq!(log.events(), [format!("lost {token} 29s Expired")]);
    let given_up = log.requests().into_iter().filter(|(asked, _)| *asked == Operation::Release);
    assert_eq!(given_up.map(|(_, outcome)| outcome).collect::<Vec<_>>(), [Outcome::GivenUp]);
}

#[tokio::test(start_paused = true)]
async fn an_eviction_is_reported_on_both_sides() {
    let Held { client: holder, log, guard, token, world, .. } = held().await;
    let (operators, evictions) = observed(&world.observer(2));
    let why = Eviction::new("alice", "the machine is gone");
    operators.evict_for(&name(), token, &why).await.unwrap();
    operators.evict_for(&name(), token, &why).await.unwrap();
    assert_eq!(evictions.events(), [format!("evicted {token} alice")], "the second one found nothing");
    let asked = [(Operation::Evict, Outcome::Done), (Operation::Evict, Outcome::Lost)];
    assert_eq!(evictions.requests(), asked);
    guard.lost().await;
    holder.env.sleep(SECOND).await;
    let events = log.events();
    assert!(matches!(&events[..], [lost] if lost.starts_with(&format!("lost {token} "))), "{events:?}");
    assert!(events[0].ends_with(" Evicted"), "{events:?}");
}

/// The grant is evicted and then the guard is dropped, in one case while a renewal that finds the loss is under way.
#[tokio::test(start_paused = true)]
async fn a_loss_found_by_the_release_ends_the_hold_once() {
    let world = world().await;
    let (client, other) = (world.observer(1), world.observer(2));
    let ((locker, log), (operator, _)) = (observed(&client), observed(&other));
    for during_a_renewal in [false, true] {
        let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
        let token = guard.token().unwrap();
        log.events();
        operator.evict(&name(), token).await.unwrap();
        client.env.sleep(SECOND).await;
        if during_a_renewal {
            client.network.every(Kind::Read, Fault::Delayed(SECOND));
            client.network.every(Kind::Write, Fault::Delayed(SECOND));
            assert!(
                timeout(&*client.env.clock, SECOND / 2, guard.renew()).await.is_none(),
                "completed at once"
            );
        }
        drop(guard);
        client.env.sleep(TTL).await;
        assert_eq!(log.events(), [format!("released {token} 1s already_lost")]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_guard_did_not_see_is_not_reported() {
    let Held { client, log, guard, token, .. } = held().await;
    client.env.sleep(SECOND).await;
    client.network.every(Kind::Write, Fault::AnswerDelayed(SECOND));
    assert!(timeout(&*client.env.clock, SECOND / 2, guard.renew()).await.is_none(), "completed at once");
    drop(guard);
    client.env.sleep(TTL).await;
    assert_eq!(log.events(), [format!("released {token} 1s released")]);
    let (done, asked) = (Outcome::Done, [Operation::Acquire, Operation::Renew, Operation::Release]);
    assert_eq!(log.requests(), asked.map(|asked| (asked, done)));
}

#[tokio::test(start_paused = true)]
async fn a_release_without_a_response_is_unconfirmed() {
    let Held { client, log, guard, token, .. } = held().await;
    client.network.every(Kind::Write, Fault::Stalled);
    drop(guard);
    client.env.sleep(TTL * 3).await;
    assert_eq!(log.events(), [format!("released {token} 0s unconfirmed")]);
}

#[tokio::test(start_paused = true)]
async fn a_ticket_ends_a_hold_and_begins_one() {
    let Held { client, locker, log, guard, token, .. } = held().await;
    let ticket = guard.into_ticket().await.unwrap();
    client.env.sleep(SECOND).await;
    let guard = locker.resume(&ticket).await.unwrap();
    guard.release().await.unwrap();
    let expected = ["handed on TOKEN", "resumed TOKEN", "released TOKEN 0s released"];
    assert_eq!(log.events(), expected.map(|event| event.replace("TOKEN", &token.to_string())));
}

#[tokio::test(start_paused = true)]
async fn requests_of_a_locker_are_counted_by_their_outcome() {
    use futures_util::StreamExt as _;

    let world = world().await;
    let client = world.observer(1);
    let (locker, log) = observed(&client);
    let guard = locker.lock("x").acquire().await.unwrap();
    locker.inspect(&name()).await.unwrap();
    assert_eq!(locker.list("").count().await, 1);
    // A stream that its caller drops early is not a failure.
    assert_eq!(locker.list("").take(1).count().await, 1);
    guard.release().await.unwrap();
    client.network.every(Kind::Read, Fault::Stalled);
    assert!(timeout(&*client.env.clock, SECOND, locker.inspect(&name())).await.is_none(), "it hangs");
    let done = [Operation::Acquire, Operation::Inspect, Operation::List, Operation::List, Operation::Release];
    let mut expected: Vec<_> = done.into_iter().map(|operation| (operation, Outcome::Done)).collect();
    expected.push((Operation::Inspect, Outcome::GivenUp));
    assert_eq!(log.requests(), expected);
}

struct Panics;

impl Observer for Panics {
    fn observe(&self, event: &Event<'_>) {
        panic!("{event:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_does_not_lose_a_lock() {
    let world = world().await;
    let (first, second) = (world.observer(1), world.observer(2));
    let (locker, log) = observed(&second);
    // The observers after the one that panics still get the event.
    let panicking = Locker::new(first.leases.clone()).observed_by(Arc::new(Panics)).observed_by(log.clone());
    let guard = panicking.lock("x").ttl(TTL).acquire().await.unwrap();
    first.env.sleep(TTL * 4).await;
    guard.check().unwrap();
    locker.lock("x").try_acquire().await.unwrap_err();
    guard.release().await.unwrap();
    let events = log.events();
    assert!(events.iter().filter(|event| *event == "renewed").count() > 8, "{events:?}");
}
