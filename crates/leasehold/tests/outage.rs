//! Waiters and tries while the store does not respond: how long they continue, and what the error says. Time is paused.

use std::time::Duration;

use crate::common::{Client, TTL, World};
use leasehold::clock::timeout;
use leasehold::lease::Released;
use leasehold::{Error, ErrorKind, Locker};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

/// Returns the result of a waiter and how long it waited. Another process holds the lock and releases it after the
/// outage.
async fn waits_through(outage: Duration, patience: Option<Duration>) -> (Result<(), Error>, Duration) {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let held = locker(&holder).lock("x").ttl(TTL).acquire().await.unwrap();
    let mut lock = locker(&client).lock("x").ttl(TTL);
    if let Some(patience) = patience {
        lock = lock.store_timeout(patience);
    }
    let began = client.env.now();
    let waiter = tokio::spawn(async move { lock.acquire().await.map(drop) });
    client.env.sleep(5 * SECOND).await;
    client.network.disconnect();
    client.env.sleep(outage).await;
    client.network.heal();
    held.release().await.unwrap();
    (waiter.await.unwrap(), client.env.now().longest_since(began))
}

#[tokio::test(start_paused = true)]
async fn a_waiter_survives_an_outage() {
    waits_through(120 * SECOND, None).await.0.unwrap();
    waits_through(240 * SECOND, None).await.0.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_after_its_store_timeout() {
    for (patience, limit) in [(None, 300), (Some(60 * SECOND), 60)] {
        let (outcome, _) = waits_through(1_000 * SECOND, patience).await;
        let error = outcome.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let text = error.to_string();
        let tried: f64 = text
            .split("after ")
            .nth(1)
            .and_then(|rest| rest.split('s').next())
            .and_then(|seconds| seconds.parse().ok())
            .expect(&text);
        // The waiter may stop up to a pause before the limit, or up to a request after it.
        assert!((f64::from(limit) - 5.0..f64::from(limit) + 20.0).contains(&tried), "{text}");
        assert!(text.contains("memory"), "the store is named: {text}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_gives_up_sooner_without_any_response() {
    let world = World::new();
    let client = world.observer(1);
    client.network.disconnect();
    let began = client.env.now();
    let error = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let took = client.env.now().longest_since(began);
    assert!((14 * SECOND..20 * SECOND).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn a_limited_wait_ends_on_time_and_reports_the_cause() {
    let world = World::new();
    let client = world.observer(1);
    client.network.disconnect();
    let began = client.env.now();
    let error = locker(&client).lock("x").ttl(TTL).acquire_within(3 * SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let took = client.env.now().longest_since(began);
    assert!(took < 4 * SECOND, "{took:?}");
    let text = error.to_string();
    assert!(text.contains("within 3.0s") && text.contains("injected"), "{text}");
}

#[tokio::test(start_paused = true)]
async fn losing_races_is_not_an_error_for_a_waiter() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    // The first grants of a new record wait for the store's clock.
    for _ in 0..2 {
        locker(&other).lock("x").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    }
    let waiter = tokio::spawn({
        let lock = locker(&client).lock("x").ttl(TTL).store_timeout(SECOND);
        async move { lock.acquire().await }
    });
    // Each of its writes finds a record that another process has just changed.
    for _ in 0..40 {
        client.network.next_write(Outcome::Stalled);
    }
    let mut conflicts = 0;
    for _ in 0..40 {
        // The waiter may be faster than the other process. Then it has been granted the lock.
        if timeout(&*client.env.clock, 60 * SECOND, client.network.until(|counts| counts.writes > conflicts))
            .await
            .is_none()
        {
            break;
        }
        conflicts = client.network.counts().writes;
        locker(&other).lock("x").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
        client.network.deliver().await;
    }
    client.network.heal();
    client.network.deliver_all().await;
    assert!(conflicts >= 10, "{conflicts}");
    waiter.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn grants_that_come_too_late_end_in_an_error() {
    let world = World::new();
    let client = world.observer(1);
    let ttl = SECOND / 2;
    locker(&client).lock("x").ttl(ttl).acquire().await.unwrap().release().await.unwrap();
    client.network.reset_counts();
    // The client gives up each write after 250 ms. It learns the outcome only after the lease has expired.
    client.network.every(Kind::Write, Outcome::AnswerDelayed(SECOND * 3 / 10));
    client.network.every(Kind::Read, Outcome::AnswerDelayed(SECOND * 24 / 100));
    let error = locker(&client).lock("x").ttl(ttl).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = error.to_string();
    assert!(text.contains("500ms") && text.contains("expired before they arrived"), "{text}");
    assert!(client.network.counts().writes <= 12, "{:?}", client.network.counts());
}

#[tokio::test(start_paused = true)]
async fn a_release_ends_with_its_lease() {
    let world = World::new();
    let client = world.observer(1);
    let ttl = 6 * SECOND;
    let guard = locker(&client).lock("x").ttl(ttl).acquire().await.unwrap();
    client.network.stall();
    let began = client.env.now();
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(_) | Ok(Released::AlreadyLost)), "{outcome:?}");
    let took = client.env.now().longest_since(began);
    assert!(took < ttl, "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_holder_does_not_use_up_the_store_timeout() {
    let world = World::new();
    let (holder, client) = (world.observer(1), world.observer(2));
    let held = locker(&holder).lock("x").ttl(TTL).acquire().await.unwrap();
    let lock = locker(&client).lock("x").ttl(TTL).store_timeout(2 * SECOND);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    client.env.sleep(60 * SECOND).await;
    // The first request after the wait fails once.
    client.network.next_write(Outcome::NotApplied);
    held.release().await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
}
