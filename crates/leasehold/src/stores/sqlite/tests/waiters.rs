//! Tests of the line of waiters.

use super::super::calls;
use super::*;
use crate::stores::sqlite::waiters::RESERVATION;
use futures_util::FutureExt as _;

fn waiting(store: &SqliteLeases) -> Claim {
    let mut claim = claim(store);
    claim.waits = true;
    claim
}

async fn refused(store: &SqliteLeases, claim: &Claim) -> HolderInfo {
    match store.try_acquire(claim).await.unwrap() {
        AcquireOutcome::Held(held) => held,
        other => panic!("not held: {other:?}"),
    }
}

async fn granted(store: &SqliteLeases, claim: &Claim) -> Grant {
    match store.try_acquire(claim).await.unwrap() {
        AcquireOutcome::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

#[tokio::test]
async fn waiters_are_granted_the_lock_in_the_order_of_arrival() {
    let site = Site::new();
    let store = site.open().await;
    let mut grant = grant(&store).await;
    let claims: Vec<_> = (0..5).map(|_| waiting(&store)).collect();
    for claim in &claims {
        refused(&store, claim).await;
    }
    for (n, claim) in claims.iter().enumerate() {
        store.release(&mut grant, None).await.unwrap();
        for later in &claims[n + 1..] {
            refused(&store, later).await;
        }
        grant = granted(&store, claim).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_try_leaves_a_free_lock_to_the_first_waiter() {
    let site = Site::new();
    let store = site.open().await;
    let mut grant = grant(&store).await;
    let mut first = waiting(&store);
    first.holder.name = "first".into();
    refused(&store, &first).await;
    store.release(&mut grant, None).await.unwrap();
    let kept = held(&store).await;
    assert_eq!(kept.holder.map(|holder| holder.name).as_deref(), Some("first"));
    assert_eq!(kept.lapses_within, Some(RESERVATION));
    granted(&store, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_does_not_come_is_passed_over_once() {
    let site = Site::new();
    let store = site.open().await;
    let mut grant = grant(&store).await;
    let (stopped, next) = (waiting(&store), waiting(&store));
    refused(&store, &stopped).await;
    refused(&store, &next).await;
    store.release(&mut grant, None).await.unwrap();
    // The time during which the lock was held does not count.
    site.clock.suspend(RESERVATION);
    refused(&store, &next).await;
    site.clock.suspend(RESERVATION - Duration::from_millis(1));
    refused(&store, &next).await;
    site.clock.suspend(Duration::from_millis(1));
    let mut grant = granted(&store, &next).await;
    // The stopped waiter joins again.
    refused(&store, &stopped).await;
    store.release(&mut grant, None).await.unwrap();
    held(&store).await;
    granted(&store, &stopped).await;
}

/// Before its reservation is over, a claim that ignores the queue takes the lock, again and again.
#[tokio::test(start_paused = true)]
async fn the_reservation_of_a_stopped_waiter_adds_up_over_grants() {
    let site = Site::new();
    let store = site.open().await;
    let mut grant = grant(&store).await;
    let (stopped, next, last) = (waiting(&store), waiting(&store), waiting(&store));
    for claim in [&stopped, &next, &last] {
        refused(&store, claim).await;
    }
    for _ in 0..2 {
        store.release(&mut grant, None).await.unwrap();
        refused(&store, &next).await;
        site.clock.suspend(RESERVATION * 2 / 5);
        refused(&store, &next).await;
        let mut barging = waiting(&store);
        barging.barges = true;
        grant = granted(&store, &barging).await;
    }
    store.release(&mut grant, None).await.unwrap();
    refused(&store, &next).await;
    assert_eq!(refused(&store, &last).await.ahead, Some(2), "it has not seen the earlier times");
    site.clock.suspend(RESERVATION / 5);
    let mut grant = granted(&store, &next).await;
    // The waiter behind it had no time to ask, and keeps its place.
    refused(&store, &stopped).await;
    store.release(&mut grant, None).await.unwrap();
    refused(&store, &stopped).await;
    granted(&store, &last).await;
}

#[tokio::test]
async fn a_claim_that_is_withdrawn_leaves_the_queue() {
    let site = Site::new();
    let store = site.open().await;
    let mut grant = grant(&store).await;
    let claim = waiting(&store);
    refused(&store, &claim).await;
    let mut withdrawn = Grant::withdrawn(name(), claim.id, claim.ttl, store.env.now());
    store.release(&mut withdrawn, None).await.unwrap();
    store.release(&mut grant, None).await.unwrap();
    super::grant(&store).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dead_waiter_delays_no_other() {
    let site = Site::new();
    let store = site.open().await;
    let mut grant = grant(&store).await;
    let mut sleeper = Sleeper::start();
    let other = site.open_as(&sleeper.process()).await;
    refused(&other, &waiting(&other)).await;
    store.release(&mut grant, None).await.unwrap();
    held(&store).await;
    sleeper.kill();
    super::grant(&store).await;
}

#[tokio::test]
async fn waiters_of_an_earlier_boot_are_gone() {
    let mut site = Site::new();
    let store = site.open().await;
    grant(&store).await;
    refused(&store, &waiting(&store)).await;
    site.reboot();
    grant(&site.open().await).await;
}

/// The boot ids of containers do not show a reboot, but the boot clock does: it is now before the call.
#[tokio::test]
async fn a_waiter_that_was_called_before_a_reboot_is_gone() {
    let mut site = Site::new();
    site.machine.boot = "container:a".into();
    let store = site.open().await;
    grant(&store).await;
    refused(&store, &waiting(&store)).await;
    site.clock.suspend(Duration::from_secs(36_000));
    // The lease has ended, so this claim calls the first waiter.
    refused(&store, &waiting(&store)).await;
    site.reboot();
    site.clock.suspend(Duration::from_secs(60));
    grant(&site.open().await).await;
}

#[tokio::test]
async fn rows_of_waiters_that_cannot_be_read_are_removed() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    refused(&store, &waiting(&store)).await;
    site.sql("UPDATE waiter SET holder = '{'");
    store.release(&mut held, None).await.unwrap();
    grant(&store).await;
}

#[tokio::test]
async fn a_sweep_removes_waiters_with_their_lock() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    refused(&store, &waiting(&store)).await;
    store.release(&mut held, None).await.unwrap();
    assert_eq!(store.sweep(&name(), Duration::ZERO, false).await.unwrap(), Swept::Deleted);
    grant(&store).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_another_waits_for_its_turn() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let (first, second) = (waiting(&store), waiting(&store));
    refused(&store, &first).await;
    let seen = refused(&store, &second).await;
    store.release(&mut held, None).await.unwrap();
    // Calls the first waiter.
    store.turn(&second, &seen).await.unwrap();
    let seen = refused(&store, &second).await;
    let began = store.env.now();
    store.turn(&second, &seen).await.unwrap();
    assert_eq!(store.env.now().longest_since(began), RESERVATION);
    granted(&store, &second).await;
}

#[tokio::test(start_paused = true)]
async fn several_unresponsive_waiters_delay_only_once() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let silent: Vec<_> = (0..5).map(|_| waiting(&store)).collect();
    let live = waiting(&store);
    for claim in silent.iter().chain([&live]) {
        refused(&store, claim).await;
    }
    let late = waiting(&store);
    refused(&store, &late).await;
    site.clock.suspend(Duration::from_millis(1));
    store.release(&mut held, None).await.unwrap();
    let began = store.env.now();
    let wait = async |claim: &Claim| {
        loop {
            match store.try_acquire(claim).await.unwrap() {
                AcquireOutcome::Granted(grant) => return grant,
                AcquireOutcome::Held(seen) => store.turn(claim, &seen).await.unwrap(),
                AcquireOutcome::Lost(loss) => panic!("{loss}"),
            }
        }
    };
    let both = async {
        tokio::join!(wait(&late), async {
            let mut grant = wait(&live).await;
            let waited = store.env.now().longest_since(began);
            assert!((RESERVATION..RESERVATION + POLL_INTERVAL.max).contains(&waited), "{waited:?}");
            store.release(&mut grant, None).await.unwrap();
            grant.token
        })
    };
    let (later, first) = both.await;
    assert!(later.token > first);
}

/// Returns three waiters. The lock is free and kept for the first of them. The last one has asked since.
async fn with_a_silent_first(site: &Site, store: &SqliteLeases) -> [(Claim, HolderInfo); 3] {
    let mut held = grant(store).await;
    let mut waiters = Vec::new();
    for claim in [waiting(store), waiting(store), waiting(store)] {
        let seen = refused(store, &claim).await;
        waiters.push((claim, seen));
    }
    site.clock.suspend(Duration::from_millis(1));
    store.release(&mut held, None).await.unwrap();
    refused(store, &waiters[2].0).await;
    waiters.try_into().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_waiter_behind_a_silent_one_asks_and_keeps_its_place() {
    let site = Site::new();
    let store = site.open().await;
    let [_, (second, seen), (third, _)] = with_a_silent_first(&site, &store).await;
    let began = store.env.now();
    store.turn(&second, &seen).await.unwrap();
    let waited = store.env.now().longest_since(began);
    assert!((RESERVATION / 2..RESERVATION / 2 + POLL_INTERVAL.max).contains(&waited), "{waited:?}");
    refused(&store, &second).await;
    site.clock.suspend(RESERVATION / 2);
    refused(&store, &third).await;
    granted(&store, &second).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_asks_late_keeps_its_place() {
    let site = Site::new();
    let store = site.open().await;
    let [_, (second, _), _] = with_a_silent_first(&site, &store).await;
    site.clock.suspend(RESERVATION);
    granted(&store, &second).await;
}

#[tokio::test(start_paused = true)]
async fn inspection_and_refusals_show_the_queue() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let names = ["bob", "carol"];
    for (ahead, name) in names.iter().enumerate() {
        let mut waiter = waiting(&store);
        waiter.holder.name = (*name).into();
        let told = refused(&store, &waiter).await;
        assert_eq!(told.ahead, Some(ahead));
        let behind = ahead.checked_sub(1).map(|before| names[before]);
        assert_eq!(told.waiter_ahead.as_ref().map(|holder| &*holder.name), behind);
    }
    assert_eq!(super::held(&store).await.ahead, None, "a try is not in the queue");
    site.clock.suspend(Duration::from_secs(9));
    let waiters = store.inspect(&name()).await.unwrap().waiters;
    assert_eq!(waiters.iter().map(|waiter| &*waiter.holder.name).collect::<Vec<_>>(), names);
    assert!(waiters.iter().all(|waiter| waiter.waited >= Some(Duration::from_secs(9))));
    store.release(&mut held, None).await.unwrap();
    let kept = super::held(&store).await;
    assert!(kept.reserved && kept.holder.is_some_and(|holder| holder.name == "bob"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_barges_takes_a_kept_lock_and_never_joins() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let (first, mut barging) = (waiting(&store), waiting(&store));
    barging.barges = true;
    assert_eq!(refused(&store, &barging).await.ahead, None);
    refused(&store, &first).await;
    store.release(&mut held, None).await.unwrap();
    let mut held = granted(&store, &barging).await;
    store.release(&mut held, None).await.unwrap();
    granted(&store, &first).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_is_called_again_after_another_took_the_lock() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let (first, second, mut barging) = (waiting(&store), waiting(&store), waiting(&store));
    barging.barges = true;
    refused(&store, &first).await;
    refused(&store, &second).await;
    store.release(&mut held, None).await.unwrap();
    refused(&store, &second).await; // calls the first
    let mut held = granted(&store, &barging).await;
    site.clock.suspend(RESERVATION * 2);
    store.release(&mut held, None).await.unwrap();
    refused(&store, &second).await;
    granted(&store, &first).await;
}

/// Returns whether `step` calls `claim`, which waits.
async fn calls(store: &SqliteLeases, claim: &Claim, step: impl Future<Output = ()>) -> bool {
    let call = calls::expect(claim.id, &store.machine);
    step.await;
    call.called().now_or_never().is_some()
}

#[tokio::test]
async fn every_step_that_frees_the_lock_calls_the_first() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let [one, two, three] = [(); 3].map(|()| waiting(&store));
    for claim in [&one, &two, &three] {
        refused(&store, claim).await;
    }
    assert!(
        calls(&store, &one, async {
            store.release(&mut held, None).await.unwrap();
        })
        .await
    );
    let mut held = None;
    assert!(calls(&store, &two, async { held = Some(granted(&store, &one).await) }).await, "it is first now");
    let token = held.unwrap().token;
    assert!(
        calls(&store, &two, async {
            store.evict(&name(), token, None).await.unwrap();
        })
        .await
    );
    assert!(
        calls(&store, &two, async { drop(refused(&store, &three).await) }).await,
        "the lock is kept for it"
    );
    assert!(calls(&store, &three, async { store.stop_waiting(&two).await.unwrap() }).await);
    assert!(!calls(&store, &three, async { drop(store.inspect(&name()).await.unwrap()) }).await);
}

#[tokio::test(start_paused = true)]
async fn a_called_waiter_asks_at_once() {
    let site = Site::new();
    let store = Arc::new(site.open().await);
    let mut held = grant(&store).await;
    let first = waiting(&store);
    let seen = refused(&store, &first).await;
    // Its pauses have become long.
    site.clock.suspend(Duration::from_secs(10));
    let waits = tokio::spawn({
        let (store, first) = (store.clone(), first.clone());
        async move { store.turn(&first, &seen).await.unwrap() }
    });
    store.env.sleep(Duration::from_millis(1)).await;
    let released = store.env.now();
    store.release(&mut held, None).await.unwrap();
    waits.await.unwrap();
    let took = store.env.now().longest_since(released);
    assert!(took < Duration::from_millis(10), "{took:?}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dead_first_waiter_is_skipped_by_the_call() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let mut sleeper = Sleeper::start();
    let other = site.open_as(&sleeper.process()).await;
    refused(&other, &waiting(&other)).await;
    let live = waiting(&store);
    refused(&store, &live).await;
    sleeper.kill();
    assert!(
        calls(&store, &live, async {
            store.release(&mut held, None).await.unwrap();
        })
        .await
    );
}

#[tokio::test]
async fn many_waiters_poll_rarely() {
    let store = Site::new().open().await;
    let polls: f64 = (1..500).map(|ahead| 1.0 / store.behind(ahead).as_secs_f64()).sum();
    assert!(polls < 350.0, "{polls} polls a second");
    assert!(store.behind(1) < Duration::from_millis(120), "the next but one notices a death soon");
}

#[tokio::test]
async fn a_waiter_that_is_refused_again_writes_nothing() {
    let site = Site::new();
    let store = site.open().await;
    let _held = grant(&store).await;
    let claim = waiting(&store);
    refused(&store, &claim).await;
    let other = rusqlite::Connection::open(site.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_eq!(refused(&store, &claim).await.ahead, Some(0));
    held(&store).await;
}

/// The head of a long line must ask; those far behind poll too rarely for that, and keep their places.
#[tokio::test(start_paused = true)]
async fn only_the_head_of_the_line_must_ask() {
    let site = Site::new();
    let store = site.open().await;
    let mut held = grant(&store).await;
    let claims: Vec<Claim> = (0..9).map(|_| waiting(&store)).collect();
    for claim in &claims {
        refused(&store, claim).await;
    }
    site.clock.suspend(Duration::from_millis(1));
    store.release(&mut held, None).await.unwrap();
    refused(&store, &claims[1]).await;
    site.clock.suspend(RESERVATION);
    granted(&store, &claims[1]).await;
    let left = store.inspect(&name()).await.unwrap().waiters.len();
    assert_eq!(left, claims.len() - 6, "the first, and the four behind the second, have not asked");
}
