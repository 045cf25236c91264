//! The limit of a hold ([`leasehold::Lock::max_hold`]). Time is paused.

use std::time::Duration;

use crate::common::{Client, TTL, World, name};
use leasehold::clock::Clock;
use leasehold::lease::{End, Secret};
use leasehold::{ErrorKind, Guard, Locker, LossReason, Released, Ticket};
use leasehold_testkit::fault::Outcome;

const SECOND: Duration = Duration::from_secs(1);
const LIMIT: Duration = Duration::from_secs(100);

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

async fn limited(client: &Client) -> Guard {
    locker(client).lock("x").ttl(TTL).max_hold(LIMIT).acquire().await.unwrap()
}

fn reason(error: &leasehold::Error) -> &LossReason {
    &error.loss().unwrap().reason
}

async fn ends(client: &Client) -> Vec<End> {
    locker(client).inspect(&name()).await.unwrap().history.iter().map(|past| past.end).collect()
}

#[tokio::test(start_paused = true)]
async fn the_limit_ends_a_hold_that_is_renewed() {
    let world = World::new();
    let client = world.dated(1);
    let guard = limited(&client).await;
    let limit = guard.limit().unwrap();
    assert_eq!(limit.span(), LIMIT);
    // Renewed until the end, and valid until the limit.
    client.env.sleep(LIMIT - SECOND).await;
    guard.check().unwrap();
    assert!(guard.remaining() <= SECOND, "{:?}", guard.remaining());
    let loss = guard.lost().await;
    assert_eq!(loss.reason, LossReason::Limit);
    let held = client.clock.now().longest_since(limit.start());
    assert!(held >= LIMIT && held < LIMIT + SECOND / 10, "{held:?}");
    assert_eq!(reason(&guard.check().unwrap_err()), &LossReason::Limit);
    assert!(guard.remaining().is_zero() && guard.deadline().is_err());
}

/// The watchdog has not run, so only the clock shows the limit.
#[tokio::test(start_paused = true)]
async fn no_check_passes_after_the_limit() {
    let world = World::new();
    let client = world.dated(1);
    let guard = limited(&client).await;
    client.env.sleep(LIMIT - SECOND).await;
    guard.renew().await.unwrap();
    client.clock.suspend(SECOND * 2);
    assert_eq!(reason(&guard.check().unwrap_err()), &LossReason::Limit, "the lease itself is not over");
    // The renewer learns of the drop first.
    drop(guard);
    client.env.sleep(SECOND).await;
    assert_eq!(ends(&client).await, [End::Limit]);
}

/// Nothing releases the lock of a ticket at its limit, so others wait until its lease ends.
#[tokio::test(start_paused = true)]
async fn the_lease_of_a_ticket_is_no_longer_than_its_limit() {
    let world = World::new();
    let client = world.dated(1);
    let lock = locker(&client).lock("x").ttl(LIMIT * 6).max_hold(LIMIT);
    assert_eq!(lock.clone().for_ticket().acquire().await.unwrap().into_ticket().await.unwrap().ttl(), LIMIT);
    let several = locker(&client).lock_all(["a", "b"]).ttl(LIMIT * 6).max_hold(LIMIT).for_ticket();
    assert_eq!(several.acquire().await.unwrap().into_ticket().await.unwrap().ttl(), LIMIT);
    client.env.sleep(LIMIT * 2).await;
    let guard = lock.acquire().await.unwrap();
    assert!(guard.deadline().unwrap().span() <= LIMIT, "the hold of a process ends at the limit");
    assert_eq!(guard.into_ticket().await.unwrap().ttl(), LIMIT * 6);
}

/// The process may end after the release.
#[tokio::test(start_paused = true)]
async fn a_release_after_the_limit_frees_the_lock() {
    let world = World::new();
    let client = world.dated(1);
    let guard = limited(&client).await;
    guard.lost().await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(ends(&client).await, [End::Limit]);
}

#[tokio::test(start_paused = true)]
async fn a_hold_that_sleeps_past_its_limit_is_lost() {
    let world = World::new();
    let client = world.dated(1);
    let guard = locker(&client).lock("x").ttl(LIMIT * 6).max_hold(LIMIT).acquire().await.unwrap();
    client.clock.suspend(LIMIT);
    assert_eq!(reason(&guard.check().unwrap_err()), &LossReason::Limit);
}

#[tokio::test(start_paused = true)]
async fn at_the_limit_the_lock_is_free_when_the_work_has_ended() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let start = other.clock.now();
    let guard = limited(&client).await;
    let waiting = tokio::spawn({
        let lock = locker(&other).lock("x").ttl(TTL);
        async move { lock.acquire().await.unwrap() }
    });
    guard.lost().await;
    let token = guard.token().unwrap();
    drop(guard);
    let next = waiting.await.unwrap();
    let waited = other.clock.now().longest_since(start);
    assert!(waited < LIMIT + SECOND * 5, "not after a lease of {TTL:?}: {waited:?}");
    assert!(next.token().unwrap() > token);
    assert_eq!(ends(&other).await, [End::Limit]);
}

/// The work may still run, so others wait for the end of the lease and for the lock delay.
#[tokio::test(start_paused = true)]
async fn a_guard_that_is_kept_beyond_its_limit_lapses() {
    for (delay, lapses) in [(Duration::ZERO, false), (SECOND * 40, false), (SECOND * 40, true)] {
        let world = World::new();
        let (client, other) = (world.dated(1), world.dated(2));
        let lock = locker(&client).lock("x").ttl(TTL).lock_delay(delay);
        let start = other.clock.now();
        let mut guard = Some(lock.max_hold(LIMIT).acquire().await.unwrap());
        guard.as_ref().unwrap().lost().await;
        if lapses {
            guard.take().unwrap().lapse();
        }
        client.env.sleep(SECOND / 10).await;
        assert!(!client.is_free().await);
        let _next = locker(&other).lock("x").ttl(TTL).acquire().await.unwrap();
        let waited = other.clock.now().longest_since(start);
        assert!(waited > LIMIT + delay && waited < LIMIT + delay + TTL * 3 / 2, "{waited:?}");
    }
}

/// The work may still run, so a process that continues after a pause does not end the lock delay by a release.
#[tokio::test(start_paused = true)]
async fn a_lapsed_lease_with_a_lock_delay_is_not_released() {
    let world = World::new();
    let client = world.dated(1);
    for (delay, is_released) in [(Duration::ZERO, true), (SECOND * 40, false)] {
        let guard = locker(&client).lock("x").ttl(TTL).lock_delay(delay).acquire().await.unwrap();
        client.clock.suspend(TTL);
        guard.lost().await;
        client.env.sleep(SECOND).await;
        assert_eq!(client.is_free().await, is_released, "{delay:?}");
    }
}

/// A renewal is under way at the limit. It does not delay the release until the lease ends.
#[tokio::test(start_paused = true)]
async fn a_renewal_without_a_response_does_not_delay_the_release() {
    let world = World::new();
    let client = world.dated(1);
    let guard = limited(&client).await;
    client.env.sleep(LIMIT - SECOND).await;
    client.network.next_write(Outcome::Stalled);
    let renewal = tokio::spawn(guard.renew());
    assert_eq!(guard.lost().await.reason, LossReason::Limit);
    assert!(renewal.await.unwrap().is_err());
    drop(guard);
    client.env.sleep(TTL / 2).await;
    assert!(client.is_free().await);
}

/// The renewal is due again when the guard has just noticed the limit.
#[tokio::test(start_paused = true)]
async fn a_renewal_is_not_repeated_after_the_limit() {
    for drops in [false, true] {
        let world = World::new();
        let client = world.dated(1);
        let guard = limited(&client).await;
        client.env.sleep(LIMIT - SECOND).await;
        client.network.next_write(Outcome::Throttled(SECOND * 2));
        let renewal = tokio::spawn(guard.renew());
        client.env.sleep(SECOND / 10).await;
        let sent = client.network.counts().writes;
        client.clock.suspend(SECOND * 3);
        assert_eq!(reason(&guard.check().unwrap_err()), &LossReason::Limit);
        let released = usize::from(drops);
        if drops {
            drop(guard);
        }
        client.env.sleep(SECOND).await;
        assert_eq!(client.network.counts().writes, sent + released);
        assert!(renewal.await.unwrap().is_err());
    }
}

#[tokio::test(start_paused = true)]
async fn a_release_before_the_limit_is_not_the_limits() {
    let world = World::new();
    let client = world.dated(1);
    assert_eq!(limited(&client).await.release().await.unwrap(), Released::Released);
    assert_eq!(limited(&client).await.release_at_limit().await.unwrap(), Released::Released);
    assert_eq!(ends(&client).await, [End::Limit, End::Released]);
}

#[tokio::test(start_paused = true)]
async fn others_see_the_limit() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let _held = limited(&client).await;
    assert_eq!(other.held().await.max_hold(), Some(LIMIT));
    assert_eq!(world.raw().await["holder"]["max_hold_ms"], 100_000);
    let plain = locker(&client).lock("y").acquire().await.unwrap();
    assert_eq!(plain.limit(), None);
    assert!(world.raw().await["holder"].get("note").is_none());
}

/// Each task has the whole limit, however long the tasks before it had the lock by the same grant.
#[tokio::test(start_paused = true)]
async fn a_task_that_takes_over_has_its_own_limit() {
    let world = World::paced();
    let client = world.observer(1);
    let lock = locker(&client).lock("x").ttl(TTL).max_hold(LIMIT);
    // The first grant of a new record has only one token.
    lock.acquire().await.unwrap().release().await.unwrap();
    client.env.sleep(SECOND).await;
    let held = lock.try_acquire().await.unwrap();
    let tasks = [lock.clone(), lock].map(|lock| tokio::spawn(async move { lock.acquire().await.unwrap() }));
    // The store's clock advances, so that the next grant has room for several tokens.
    client.env.sleep(SECOND * 2).await;
    held.release().await.unwrap();
    let [first, second] = tasks;
    let first = first.await.unwrap();
    client.env.sleep(SECOND / 10).await;
    client.network.reset_counts();
    first.release().await.unwrap();
    let second = second.await.unwrap();
    assert_eq!(client.network.counts().writes, 0, "by the same grant");
    assert!(second.limit().unwrap().remaining(client.clock.now()) > LIMIT - SECOND / 20);
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_hold_ends_at_its_limit_with_all_its_parts() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let guard = locker(&client).rw_lock("x").ttl(TTL).max_hold(LIMIT).exclusive().await.unwrap();
    assert_eq!(guard.lost().await.reason, LossReason::Limit);
    drop(guard);
    let _guard = locker(&other).rw_lock("x").ttl(TTL).exclusive_within(SECOND * 5).await.unwrap();
}

/// The limit does not include the time for which the writer waits for readers.
#[tokio::test(start_paused = true)]
async fn the_limit_of_an_exclusive_hold_counts_from_its_last_part() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let reader = locker(&other).rw_lock("x").ttl(TTL).shared().await.unwrap();
    let writer = tokio::spawn({
        let lock = locker(&client).rw_lock("x").ttl(TTL).max_hold(LIMIT);
        async move { lock.exclusive().await.unwrap() }
    });
    other.env.sleep(LIMIT * 2).await;
    reader.release().await.unwrap();
    let guard = writer.await.unwrap();
    assert!(guard.remaining() > Duration::ZERO);
    assert!(guard.limit().unwrap().remaining(client.clock.now()) > LIMIT - SECOND);
    assert_eq!(guard.lost().await.reason, LossReason::Limit);
}

async fn ticket(client: &Client) -> Ticket {
    limited(client).await.into_ticket().await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_ticket_is_not_renewed_beyond_its_limit() {
    let world = World::new();
    // The clock of the other machine is far behind.
    let (client, other) = (world.dated(1), world.dated(2));
    other.clock.step_wall(-100_000);
    let ticket = ticket(&client).await;
    assert_eq!(ticket.max_hold(), Some(LIMIT));
    for _ in 0..9 {
        other.env.sleep(SECOND * 10).await;
        let held = locker(&other).renew(&ticket).await.unwrap();
        assert!(!held.remaining().is_zero());
    }
    let held = locker(&other).renew(&ticket).await.unwrap();
    assert!(held.remaining() < SECOND * 12, "the deadline is the limit: {:?}", held.remaining());
    // The lease itself would last longer.
    other.env.sleep(SECOND * 15).await;
    let error = locker(&other).renew(&ticket).await.unwrap_err();
    assert_eq!(reason(&error), &LossReason::Limit);
    assert!(!client.is_free().await, "another user of the ticket may see the limit later");
    assert_eq!(locker(&other).resume(&ticket).await.unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn a_guard_of_a_ticket_ends_at_the_limit_of_the_grant() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let ticket = ticket(&client).await;
    other.env.sleep(SECOND * 20).await;
    let guard = locker(&other).resume(&ticket).await.unwrap();
    let start = other.clock.now();
    // A ticket of this guard has the same limit.
    let guard = locker(&other).resume(&guard.into_ticket().await.unwrap()).await.unwrap();
    assert_eq!(guard.lost().await.reason, LossReason::Limit);
    let held = other.clock.now().longest_since(start);
    assert!(held > SECOND * 70 && held < SECOND * 82, "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn a_repeated_acquisition_keeps_the_limit_of_the_first() {
    let world = World::new();
    let client = world.dated(1);
    let lock = locker(&client).lock("x").ttl(TTL).max_hold(LIMIT);
    let secret = Secret::new(&client.env);
    lock.acquire_ticket(secret, Duration::ZERO).await.unwrap();
    // A repetition replaces a grant that created the record, with a higher token.
    lock.acquire_ticket(secret, Duration::ZERO).await.unwrap();
    for _ in 0..9 {
        client.env.sleep(SECOND * 10).await;
        lock.acquire_ticket(secret, Duration::ZERO).await.unwrap();
    }
    let held = lock.acquire_ticket(secret, Duration::ZERO).await.unwrap();
    assert!(held.remaining() < SECOND * 12, "{:?}", held.remaining());
    // A repetition after the limit does not renew the lease, also if other tasks of this process wait for the lock.
    client.env.sleep(SECOND * 12).await;
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire().await.unwrap() }
    });
    for _ in 0..3 {
        let error = lock.acquire_ticket(secret, Duration::ZERO).await.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Held | ErrorKind::Lost), "{error}");
        client.env.sleep(TTL / 4).await;
    }
    drop(waiting.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_ticket_with_a_limit_needs_the_time_of_the_grant() {
    let world = World::new();
    let client = world.dated(1);
    let guard = limited(&client).await;
    world
        .edit(|record| {
            record.as_object_mut().unwrap().remove("granted_at_us");
        })
        .await;
    // The next renewal finds the record changed.
    let error = guard.into_ticket().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
    assert!(error.to_string().contains("`x`") && !error.help().is_empty());
    let plain = locker(&client).lock("y").acquire().await.unwrap();
    plain.into_ticket().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_limit_out_of_range_is_named() {
    let world = World::new();
    let locker = locker(&world.dated(1));
    for limit in [Duration::ZERO, Duration::from_millis(499)] {
        let error = locker.lock("x").max_hold(limit).acquire().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(&format!("max hold {limit:?}")), "{error}");
    }
    let year = SECOND * 366 * 24 * 3600;
    locker.lock("x").max_hold(year).acquire().await.unwrap().release().await.unwrap();
    for limit in [year + SECOND, Duration::MAX] {
        let error = locker.lock("x").max_hold(limit).acquire().await.unwrap_err();
        assert!(error.to_string().contains("maximum 366 days"), "{error}");
    }
}
