//! Acquisitions whose time for waiting is over: what is finished, and what the error says. Time is paused.

use std::time::Duration;

use crate::common::{Client, TTL, World};
use leasehold::clock::Clock;
use leasehold::lease::Secret;
use leasehold::{ErrorKind, Locker};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

#[tokio::test(start_paused = true)]
async fn all_tasks_whose_time_is_over_name_the_holder() {
    for world in [World::paced(), World::by_existence()] {
        let (holder, client) = (world.dated(1), world.dated(2));
        let _held = locker(&holder).lock("x").ttl(TTL).owner("alice").acquire().await.unwrap();
        let locker = locker(&client);
        let tasks: Vec<_> = (0..50)
            .map(|_| {
                let lock = locker.lock("x").ttl(TTL);
                tokio::spawn(async move { lock.acquire_within(5 * SECOND).await })
            })
            .collect();
        for task in tasks {
            let error = task.await.unwrap().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Held, "{error}");
            assert!(error.to_string().contains("alice"), "{error}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn all_tasks_without_a_permit_in_time_say_that_all_are_held() {
    let world = World::paced();
    let (holder, client) = (world.dated(1), world.dated(2));
    let _held = locker(&holder).lock("x").ttl(TTL).owner("alice").semaphore(1).acquire().await.unwrap();
    let locker = locker(&client);
    let tasks: Vec<_> = (0..20)
        .map(|_| {
            let permits = locker.lock("x").ttl(TTL).semaphore(1);
            tokio::spawn(async move { permits.acquire_within(5 * SECOND).await })
        })
        .collect();
    for task in tasks {
        let error = task.await.unwrap().unwrap_err();
        assert!(error.kind() == ErrorKind::Held && error.to_string().contains("alice"), "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_is_under_way_is_finished() {
    let world = World::paced();
    let client = world.dated(1);
    client.network.every(Kind::Write, Outcome::Delayed(SECOND));
    let locker = locker(&client);
    let limit = SECOND / 5;
    locker.lock("a").acquire_within(limit).await.unwrap().release().await.unwrap();
    locker.lock("b").semaphore(3).acquire_within(limit).await.unwrap().release().await.unwrap();
    locker.lock("c").rw_lock().exclusive_within(limit).await.unwrap().release().await.unwrap();
    locker.lock("d").acquire_ticket(Secret::new(&client.env), limit).await.unwrap();
    // Tasks behind the one whose attempt is under way do not wait for it.
    let first = tokio::spawn({
        let lock = locker.lock("e");
        async move { lock.acquire_within(limit).await }
    });
    client.clock.sleep(limit / 2).await;
    let error = locker.lock("e").acquire_within(limit).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held, "{error}");
    drop(first.await.unwrap().unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_under_way_at_the_end_of_a_wait_is_used() {
    let world = World::paced();
    let (holder, client) = (world.dated(1), world.dated(2));
    let held = locker(&holder).lock("x").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = locker(&client).lock("x").ttl(TTL);
        async move { lock.acquire_within(5 * SECOND).await }
    });
    client.clock.sleep(4 * SECOND).await;
    client.network.every_write_of("x.lock", Outcome::Delayed(3 * SECOND));
    held.release().await.unwrap();
    waiting.await.unwrap().unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_silent_store_ends_a_wait_at_its_limit_or_after_two_seconds() {
    let world = World::new();
    let client = world.dated(1);
    client.network.stall();
    let locker = locker(&client);
    for (limit, least) in [(SECOND / 10, 2 * SECOND), (3 * SECOND, 3 * SECOND)] {
        let lock = locker.lock(format!("{limit:?}"));
        let permits = lock.clone().semaphore(2);
        let began = client.clock.now();
        let (plain, permit) = tokio::join!(lock.acquire_within(limit), permits.acquire_within(limit));
        for error in [plain.unwrap_err(), permit.unwrap_err()] {
            assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        }
        let took = client.clock.now().longest_since(began);
        assert!((least..least + SECOND / 10).contains(&took), "{took:?}");
        let other = locker.lock(format!("ticket-{limit:?}"));
        let error = other.acquire_ticket(Secret::new(&client.env), limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_at_the_limit_is_reported_to_all_tasks() {
    let world = World::new();
    let client = world.dated(1);
    client.network.disconnect();
    let locker = locker(&client);
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let lock = locker.lock("x").ttl(TTL);
            tokio::spawn(async move { lock.acquire_within(3 * SECOND).await })
        })
        .collect();
    for task in tasks {
        let error = task.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.to_string().contains("within 3.0s: injected"), "{error}");
    }
}

/// A store that refuses writes because other clients write all the time is not silent.
#[tokio::test(start_paused = true)]
async fn conflicts_at_the_limit_are_not_an_outage() {
    let world = World::paced();
    let (other, client) = (world.dated(1), world.dated(2));
    locker(&other).lock("x").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    client.network.every(Kind::Write, Outcome::Stalled);
    let limited = tokio::spawn({
        let lock = locker(&client).lock("x").ttl(TTL);
        async move { lock.acquire_within(SECOND).await }
    });
    client.clock.sleep(2 * SECOND).await;
    let held = locker(&other).lock("x").ttl(TTL).owner("alice").acquire().await.unwrap();
    client.network.heal();
    client.network.deliver_all().await;
    let error = limited.await.unwrap().unwrap_err();
    assert!(error.kind() == ErrorKind::Held && error.to_string().contains("alice"), "{error}");
    held.release().await.unwrap();
}
