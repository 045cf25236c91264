//! The line of waiters on stores that keep records: who is next, and what a dead waiter costs. Time is paused.

mod position;
mod waiter;

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Client, TTL, World, granted, name};
use leasehold::clock::{Clock, timeout};
use leasehold::lease::LeaseStore;
use leasehold::register::Register;
use leasehold::{Lock, Locker};
use leasehold_testkit::fault::{Kind, Outcome};
use tokio::sync::mpsc;

use self::waiter::{LINE, Waiter, in_line, write_line};

const SECOND: Duration = Duration::from_secs(1);

fn lock(client: &Client) -> Lock {
    Locker::new(client.leases.clone()).lock("x").ttl(TTL)
}

#[tokio::test(start_paused = true)]
async fn waiters_are_granted_the_lock_in_the_order_of_joining() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let mut waiters = Vec::new();
    for n in 0..8 {
        let waiter = Waiter::joined(&world, 10 + n).await;
        assert_eq!(waiter.refused().await.ahead, Some(n as usize));
        waiters.push(waiter);
    }
    // The last waiters ask first.
    let (granted, mut order) = mpsc::unbounded_channel();
    for (n, waiter) in waiters.into_iter().enumerate().rev() {
        let granted = granted.clone();
        tokio::spawn(async move {
            let mut grant = waiter.acquires().await;
            granted.send(n).unwrap();
            waiter.client.clock.sleep(SECOND).await;
            waiter.release(&mut grant).await;
        });
    }
    holder.leases.release(&mut grant, None).await.unwrap();
    for n in 0..8 {
        assert_eq!(order.recv().await, Some(n));
    }
}

#[tokio::test(start_paused = true)]
async fn a_holder_renews_and_releases_a_record_that_was_marked() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let waiter = Waiter::joined(&world, 2).await;
    assert_eq!(world.raw().await["awaited"], true);
    for _ in 0..2 {
        assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), leasehold::lease::Renewal::Renewed));
    }
    holder.leases.release(&mut grant, None).await.unwrap();
    assert_eq!(world.raw().await["awaited"], true, "the free lock is still awaited");
    waiter.granted().await;
    assert_eq!(world.raw().await.get("awaited"), None);
}

#[tokio::test(start_paused = true)]
async fn a_free_lock_is_reserved_for_the_first_waiter() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    for newcomer in [holder.held().await, Waiter::new(&world, 3).refused().await] {
        assert!(newcomer.reserved && newcomer.token == Some(grant.token));
        assert_eq!(newcomer.holder.as_ref().map(|holder| &*holder.name), Some("waiter-2"));
        assert!(newcomer.to_string().contains("reserved for waiter-2@"), "{newcomer}");
    }
    let earlier = holder.held().await;
    holder.env.sleep(SECOND / 10).await;
    let later = holder.held().await;
    assert_eq!(later.free_for.unwrap() - earlier.free_for.unwrap(), SECOND / 10);
    assert_eq!(earlier.lapses_within.unwrap() - later.lapses_within.unwrap(), SECOND / 10);
    let mut grant = first.granted().await;
    first.release(&mut grant).await;
    holder.granted().await;
}

#[tokio::test(start_paused = true)]
async fn an_inspection_reads_the_line_only_if_a_process_waits() {
    let world = World::new();
    let (holder, other) = (world.dated(1), world.dated(2));
    holder.granted().await;
    for waiters in [0, 1] {
        if waiters == 1 {
            Waiter::joined(&world, 3).await;
        }
        other.network.reset_counts();
        assert_eq!(other.leases.inspect(&name()).await.unwrap().waiters.len(), waiters);
        assert_eq!(other.network.counts().total(), 1 + waiters);
    }
    other.env.sleep(SECOND * 10).await;
    let waited = other.leases.inspect(&name()).await.unwrap().waiters[0].waited.unwrap();
    assert!((SECOND * 8..=SECOND * 11).contains(&waited), "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_barges_takes_a_reserved_lock_at_once() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    let trying = lock(&world.dated(3));
    assert!(trying.try_acquire().await.unwrap_err().holder().unwrap().reserved);
    trying.barge().try_acquire().await.unwrap().release().await.unwrap();
    let mut waiting = Waiter::new(&world, 4);
    assert!(waiting.refused().await.reserved);
    waiting.claim.barges = true;
    let mut grant = waiting.granted().await;
    waiting.release(&mut grant).await;
    assert_eq!(in_line(&world).await, ["waiter-2"], "the first waiter keeps its place");
    first.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_barges_waits_without_a_place_in_the_line() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    let mut barging = Waiter::new(&world, 3);
    barging.claim.barges = true;
    let task = tokio::spawn(async move {
        let mut grant = barging.acquires().await;
        barging.release(&mut grant).await;
    });
    world.clock.sleep(SECOND * 5).await;
    assert_eq!(in_line(&world).await, ["waiter-2"]);
    holder.leases.release(&mut grant, None).await.unwrap();
    task.await.unwrap();
    let mut grant = first.granted().await;
    first.release(&mut grant).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_waiter_is_passed_over_once_after_its_reservation() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    // This waiter does not ask again until it has been passed over.
    let dead = Waiter::joined(&world, 2).await;
    let next = Waiter::joined(&world, 3).await;
    let last = Waiter::joined(&world, 4).await;
    // The time for which the lock was held does not count.
    holder.clock.sleep(TTL / 2).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    let released = world.clock.now();
    let mut grant = next.acquires().await;
    let reservation = 2 * holder.leases.capabilities().poll_interval.max + SECOND / 2;
    let waited = world.clock.now().longest_since(released);
    assert!(
        (reservation..reservation + SECOND).contains(&waited),
        "{waited:?}, and the reservation is {reservation:?}"
    );
    assert_eq!(in_line(&world).await, ["waiter-4"], "the dead waiter has lost its place");
    next.release(&mut grant).await;
    let mut grant = last.granted().await;
    // It was passed over, so it joins again at the end.
    assert_eq!(dead.refused().await.ahead, None);
    last.release(&mut grant).await;
    dead.granted().await;
}

/// Takes the lock again and again, whatever the line is: for `hold`, after it was free for `free`.
async fn barge(client: Client, free: Duration, hold: Duration) {
    let lock = lock(&client).barge();
    loop {
        if let Ok(guard) = lock.try_acquire().await {
            client.clock.sleep(hold).await;
            guard.release().await.unwrap();
        }
        client.clock.sleep(free).await;
    }
}

/// Before its reservation is over, a client that ignores the line takes the lock, again and again.
#[tokio::test(start_paused = true)]
async fn grants_past_the_line_do_not_renew_a_dead_reservation() {
    for seed in 0..10 {
        let world = World::paced();
        let holder = world.dated(1);
        let mut grant = holder.granted().await;
        for dead in 2..4 {
            Waiter::joined(&world, 10 * seed + dead).await;
        }
        let next = Waiter::joined(&world, 10 * seed + 4).await;
        holder.clock.sleep(SECOND * 6).await;
        holder.leases.release(&mut grant, None).await.unwrap();
        let released = world.clock.now();
        let barging = tokio::spawn(barge(world.dated(10 * seed + 5), SECOND, SECOND * 3 / 10));
        timeout(&*world.clock, SECOND * 60, next.acquires()).await.expect("it starves");
        barging.abort();
        // The waiter polls only now and then while the lock is held, so it does not see it free from the beginning.
        let reservation = 2 * (2 * holder.leases.capabilities().poll_interval.max) + 2 * SECOND / 2;
        let waited = world.clock.now().longest_since(released);
        assert!(
            (reservation..4 * reservation).contains(&waited),
            "{waited:?}, and the reservation is {reservation:?}"
        );
        assert!(in_line(&world).await.is_empty(), "the dead waiters have lost their places");
    }
}

#[tokio::test(start_paused = true)]
async fn live_waiters_keep_their_order_beside_grants_past_the_line() {
    for (seed, (free_ms, hold_ms)) in
        [(1_000, 300), (300, 3_000), (150, 1_000), (4_000, 10)].into_iter().enumerate()
    {
        for seed in (0..5).map(|n| 100 * seed as u64 + 10 * n) {
            let world = World::paced();
            let holder = world.dated(1);
            let mut grant = holder.granted().await;
            let first = Waiter::joined(&world, seed + 2).await;
            let second = Waiter::joined(&world, seed + 3).await;
            holder.clock.sleep(SECOND * 6).await;
            holder.leases.release(&mut grant, None).await.unwrap();
            let (free, hold) = (Duration::from_millis(free_ms), Duration::from_millis(hold_ms));
            let barging = tokio::spawn(barge(world.dated(seed + 4), free, hold));
            let (granted, mut order) = mpsc::unbounded_channel();
            for (n, waiter) in [second, first].into_iter().enumerate() {
                let granted = granted.clone();
                tokio::spawn(async move {
                    let mut grant = waiter.acquires().await;
                    granted.send(n).unwrap();
                    waiter.release(&mut grant).await;
                });
            }
            assert_eq!(
                (order.recv().await, order.recv().await),
                (Some(1), Some(0)),
                "{free:?} {hold:?} {seed}"
            );
            barging.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_keeps_the_mark_while_others_wait() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    let _second = Waiter::joined(&world, 3).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    first.granted().await;
    assert_eq!(world.raw().await["awaited"], true);
}

#[tokio::test(start_paused = true)]
async fn a_process_without_a_place_passes_over_dead_waiters_too() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let _dead = Waiter::joined(&world, 2).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    let newcomer = Waiter::new(&world, 3);
    let mut grant = newcomer.acquires().await;
    assert!(in_line(&world).await.is_empty(), "the dead waiter has lost its place");
    newcomer.release(&mut grant).await;
    holder.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_grant_removes_the_mark_if_the_line_was_deleted() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let _waiter = Waiter::joined(&world, 2).await;
    let line = world.register.read(LINE).await.unwrap().unwrap();
    world.register.delete(LINE, &line.version).await.unwrap();
    holder.leases.release(&mut grant, None).await.unwrap();
    holder.granted().await;
    assert_eq!(world.raw().await.get("awaited"), None);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_leaves_the_line() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let first = Waiter::joined(&world, 2).await;
    let second = Waiter::joined(&world, 3).await;
    first.withdraws().await;
    assert_eq!(in_line(&world).await, ["waiter-3"]);
    holder.leases.release(&mut grant, None).await.unwrap();
    second.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_times_out_leaves_the_line() {
    let world = World::new();
    let (holder, waiter) = (world.dated(1), world.dated(2));
    let guard = lock(&holder).acquire().await.unwrap();
    lock(&waiter).acquire_within(SECOND * 3).await.unwrap_err();
    // The waiter leaves the line in the background.
    while !in_line(&world).await.is_empty() {
        waiter.clock.sleep(Duration::from_millis(10)).await;
    }
    guard.release().await.unwrap();
    lock(&holder).try_acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_line_that_cannot_be_read_delays_no_one() {
    for line in [
        "",
        "{",
        "[]",
        r#"{"leasehold":2,"last":1,"waiters":[]}"#,
        r#"{"leasehold":1,"last":9007199254740992,"waiters":[]}"#,
    ] {
        let world = World::new();
        let holder = world.dated(1);
        let mut grant = holder.granted().await;
        let waiter = Waiter::joined(&world, 2).await;
        write_line(&world, line).await;
        holder.leases.release(&mut grant, None).await.unwrap();
        let newcomer = world.dated(3);
        let mut grant = newcomer.granted().await;
        let next = Waiter::joined(&world, 4).await;
        assert_eq!(in_line(&world).await, ["waiter-4"], "the line begins again");
        newcomer.leases.release(&mut grant, None).await.unwrap();
        let mut grant = next.granted().await;
        next.release(&mut grant).await;
        waiter.granted().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_line_that_was_deleted_begins_again() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    for seed in 2..5 {
        let waiter = Waiter::joined(&world, seed).await;
        holder.leases.release(&mut grant, None).await.unwrap();
        grant = waiter.granted().await;
        waiter.release(&mut grant).await;
        grant = holder.granted().await;
    }
    let line = world.register.read(LINE).await.unwrap().unwrap();
    world.register.delete(LINE, &line.version).await.unwrap();
    let waiter = Waiter::joined(&world, 6).await;
    assert_eq!(in_line(&world).await, ["waiter-6"], "its number is above those that were served");
    holder.leases.release(&mut grant, None).await.unwrap();
    assert!(holder.held().await.reserved);
    waiter.granted().await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_marks_a_record_that_a_taker_wrote_unmarked() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let waiter = Waiter::joined(&world, 2).await;
    world.edit(|record| drop(record.as_object_mut().unwrap().remove("awaited"))).await;
    let held = waiter.refused().await;
    let waiting = tokio::spawn(async move {
        waiter.turn(&held).await;
        waiter
    });
    while world.raw().await.get("awaited").is_none() {
        world.clock.sleep(Duration::from_millis(50)).await;
    }
    holder.leases.release(&mut grant, None).await.unwrap();
    waiting.await.unwrap().granted().await;
}

#[tokio::test(start_paused = true)]
async fn joining_survives_lost_responses_and_conflicts() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let waiter = Waiter::new(&world, 2);
    let held = waiter.refused().await;
    waiter.client.network.next_write(Outcome::AppliedLost);
    waiter.client.network.next_write(Outcome::Dropped);
    let waiting = tokio::spawn(async move {
        let mut held = held;
        while held.ahead.is_none() {
            waiter.turn(&held).await;
            held = waiter.refused().await;
        }
        waiter
    });
    let waiter = waiting.await.unwrap();
    assert_eq!(in_line(&world).await, ["waiter-2"], "it joined once");
    holder.leases.release(&mut grant, None).await.unwrap();
    waiter.acquires().await;
}

#[tokio::test(start_paused = true)]
async fn the_line_holds_no_more_than_fit_and_all_are_served() {
    const WAITERS: usize = 80;
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..WAITERS {
        let waiter = Waiter::new(&world, 10 + n as u64);
        tasks.spawn(async move {
            let mut grant = waiter.acquires().await;
            waiter.release(&mut grant).await;
        });
    }
    holder.clock.sleep(TTL / 2).await;
    assert_eq!(in_line(&world).await.len(), 64);
    holder.leases.release(&mut grant, None).await.unwrap();
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
}

/// The pauses are as long as they become, because the lock has been held for long.
#[tokio::test(start_paused = true)]
async fn waiters_beyond_a_full_line_join_soon_when_it_has_room() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let mut full = Vec::new();
    for n in 0..64 {
        full.push(Waiter::joined(&world, 10 + n).await);
        holder.leases.renew(&mut grant).await.unwrap();
    }
    let mut networks = Vec::new();
    let mut waiting = tokio::task::JoinSet::new();
    for n in 0..12 {
        let waiter = Waiter::new(&world, 100 + n);
        networks.push(waiter.client.network.clone());
        waiting.spawn(async move { waiter.acquires().await });
    }
    for _ in 0..6 {
        holder.clock.sleep(TTL / 3).await;
        holder.leases.renew(&mut grant).await.unwrap();
    }
    networks.iter().for_each(leasehold_testkit::fault::FaultyRegister::reset_counts);
    for _ in 0..3 {
        holder.clock.sleep(TTL / 3).await;
        holder.leases.renew(&mut grant).await.unwrap();
    }
    // Each of the twelve polls three times, and reads the record and the line.
    let requests: usize = networks.iter().map(|network| network.counts().total()).sum();
    assert!((60..=90).contains(&requests), "{requests} requests in {TTL:?}");
    for waiter in full {
        waiter.withdraws().await;
    }
    let since = world.clock.now();
    while in_line(&world).await.len() < 12 {
        let waited = world.clock.now().longest_since(since);
        // After a conflict with each other, they try again at their next polls.
        assert!(waited < 20 * SECOND, "{} have joined after {waited:?}", in_line(&world).await.len());
        world.clock.sleep(SECOND / 10).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_without_waiters_costs_no_request_for_the_line() {
    let world = World::new();
    let client = world.dated(1);
    let mut grant = client.granted().await;
    client.leases.release(&mut grant, None).await.unwrap();
    client.network.reset_counts();
    let mut grant = client.granted().await;
    client.leases.release(&mut grant, None).await.unwrap();
    let counts = client.network.counts();
    assert_eq!((counts.reads, counts.writes), (0, 2));
    assert!(world.register.read(LINE).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn without_the_stores_clock_a_try_ignores_the_line() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    Waiter::joined(&world, 2).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    world.observer(3).granted().await;
}

/// The write of the try may still be applied, and then no other process can take the lock.
#[tokio::test(start_paused = true)]
async fn a_try_with_a_lost_response_does_not_yield_to_the_line() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let waiter = Waiter::joined(&world, 2).await;
    let line = world.register.read(LINE).await.unwrap().unwrap().value;
    waiter.withdraws().await;
    holder.leases.release(&mut grant, None).await.unwrap();
    let trying = Arc::new(world.dated(3));
    trying.network.next_write(Outcome::HeldBack);
    trying.network.every(Kind::Read, Outcome::Delayed(SECOND / 10));
    let task = tokio::spawn({
        let trying = trying.clone();
        async move { trying.leases.try_acquire(&trying.claim()).await.unwrap() }
    });
    while trying.network.counts().writes == 0 {
        world.clock.sleep(SECOND / 100).await;
    }
    write_line(&world, std::str::from_utf8(&line).unwrap()).await;
    granted(task.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_deletes_the_line_too() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    let waiter = Waiter::joined(&world, 2).await;
    holder.leases.release(&mut grant, None).await.unwrap();
    let mut grant = waiter.granted().await;
    waiter.release(&mut grant).await;
    holder.clock.sleep(SECOND * 60).await;
    holder.leases.sweep(&name(), SECOND, false).await.unwrap();
    assert!(world.register.read(LINE).await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_refuses_the_line_still_grants_locks() {
    let world = World::new();
    let holder = world.dated(1);
    let guard = lock(&holder).acquire().await.unwrap();
    let waiter = world.dated(2);
    waiter.network.every(Kind::Write, Outcome::Denied);
    let (waiting, network) = (lock(&waiter), Arc::new(waiter));
    let task = tokio::spawn(async move { waiting.acquire().await });
    holder.clock.sleep(SECOND * 3).await;
    network.network.heal();
    guard.release().await.unwrap();
    drop(task.await.unwrap().unwrap());
}

/// The waiter is far from the store, so the record has changed again before the waiter's mark arrives.
#[tokio::test(start_paused = true)]
async fn a_busy_process_notices_a_waiter_that_cannot_mark_the_record() {
    let world = World::new();
    let (busy, far) = (world.dated(1), world.dated(2));
    let mut grant = busy.granted().await;
    let waiter = Waiter { claim: Waiter::new(&world, 2).claim, client: far };
    let held = waiter.refused().await;
    waiter.client.network.every_write_of("x.lock", Outcome::Dropped);
    waiter.turn(&held).await;
    assert_eq!(in_line(&world).await, ["waiter-2"]);
    assert_eq!(world.raw().await.get("awaited"), None);
    waiter.client.network.heal();
    busy.leases.release(&mut grant, None).await.unwrap();
    let lock = lock(&busy);
    let longest = busy.leases.capabilities().poll_interval.max;
    let mut cycles = 0;
    let refused = loop {
        match lock.try_acquire().await {
            Ok(guard) => {
                busy.clock.sleep(longest / 4).await;
                guard.release().await.unwrap();
                cycles += 1;
            }
            Err(error) => break error,
        }
        assert!(cycles < 10, "it does not look at the line");
    };
    assert!(refused.holder().unwrap().reserved, "{refused}");
    assert!(cycles >= 4, "{cycles}: it looks too often");
    waiter.granted().await;
}
