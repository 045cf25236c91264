//! Jobs that run once per period: what counts as a run, how the period is measured, who sees the run, and what errors
//! say.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Client, TTL, World, name};
use leasehold::clock::{Clock, TestClock};
use leasehold::{AlreadyRan, Due, Error, ErrorKind, Guard, Locker, Once, OncePer};
use leasehold_testkit::fault::Outcome;

const SECOND: Duration = Duration::from_secs(1);
const PERIOD: Duration = Duration::from_secs(600);

type Said = Result<Once<u32, &'static str>, Error>;

fn job(client: &Client) -> OncePer {
    Locker::new(client.leases.clone()).lock("x").ttl(TTL).once_per(PERIOD)
}

async fn ok(once: &OncePer) -> Said {
    once.run(async |_| Ok(1)).await
}

#[track_caller]
fn already_ran(said: Said) -> AlreadyRan {
    match said {
        Ok(Once::AlreadyRan(ran)) => ran,
        other => panic!("{other:?}"),
    }
}

/// Returns how long after `start` the job runs again. A new process tries it every two seconds.
async fn due_after(world: &World, start: leasehold::clock::Moment) -> Duration {
    for seed in 100.. {
        let fresh = world.dated(seed);
        match job(&fresh).try_run(async |_| Ok::<_, ()>(())).await.unwrap() {
            Once::Ran(_) => break,
            Once::AlreadyRan(_) => fresh.env.sleep(SECOND * 2).await,
        }
    }
    world.clock.now().longest_since(start)
}

#[tokio::test(start_paused = true)]
async fn a_fast_clock_shortens_no_cooldown() {
    let world = World::new();
    let client = world.client(1, TestClock::with_rate(1.005), true);
    let start = world.clock.now();
    let long = async |_: &Guard| {
        client.env.sleep(SECOND * 5_000).await;
        Ok::<_, ()>(())
    };
    let once = Locker::new(client.leases.clone()).lock("x").ttl(TTL).once_per(SECOND * 6_000);
    assert_eq!(once.run(long).await.unwrap(), Once::Ran(Ok(())));
    let due = due_after(&world, start).await;
    assert!(due >= SECOND * 6_000, "{due:?}");
}

#[tokio::test(start_paused = true)]
async fn a_job_that_ends_after_its_lease_is_lost_whatever_it_returns() {
    let client = World::new().dated(1);
    for says in [Ok(()), Err("failed")] {
        let suspended = async |_: &Guard| {
            client.clock.suspend(TTL * 2);
            says
        };
        assert_eq!(job(&client).run(suspended).await.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_that_was_evicted_unnoticed_is_lost_whatever_it_returns() {
    let world = World::new();
    let (client, operator) = (world.dated(1), world.dated(2));
    for says in [Ok(()), Err("failed")] {
        let said = job(&client)
            .run(async |guard| {
                Locker::new(operator.leases.clone()).evict(&name(), guard.token().unwrap()).await.unwrap();
                says
            })
            .await;
        assert_eq!(said.unwrap_err().kind(), ErrorKind::Lost);
    }
}

#[tokio::test(start_paused = true)]
async fn the_period_counts_from_the_grant_even_for_a_new_process() {
    for (seed, step) in [(1, 0), (2, 3_600), (3, -3_600)] {
        let world = World::new();
        let client = world.dated(seed);
        let start = world.clock.now();
        let said = job(&client)
            .run(async |_| {
                client.env.sleep(PERIOD / 2).await;
                client.clock.step_wall(step);
                Ok::<_, ()>(())
            })
            .await;
        if step > 0 {
            // Every lock is lost if the wall clock jumps far ahead, because the machine may have been restored from a
            // snapshot.
            assert_eq!(said.unwrap_err().kind(), ErrorKind::Lost);
            continue;
        }
        assert_eq!(said.unwrap(), Once::Ran(Ok(())));
        let after = due_after(&world, start).await;
        // If the clock was set back, a process may wait for a whole cooldown again.
        let most = if step == 0 { PERIOD.mul_f64(1.005) } else { PERIOD.mul_f64(1.505) };
        assert!(after >= PERIOD && after <= most + SECOND * 4, "{after:?}");
    }
}

/// `store_clock=off` applies only to dead holders. A process that has just started has observed nothing, so without the
/// store's clock it would never see the end of a cooldown.
#[tokio::test(start_paused = true)]
async fn a_cooldown_ends_on_time_with_store_clock_off() {
    let world = World::new();
    already_ran_after_one(&world, &world.observer(1)).await;
    world.clock.sleep(PERIOD + SECOND * 3).await;
    assert_eq!(ok(&job(&world.observer(2))).await.unwrap(), Once::Ran(Ok(1)));
}

async fn already_ran_after_one(world: &World, client: &Client) {
    assert_eq!(ok(&job(client)).await.unwrap(), Once::Ran(Ok(1)));
    let ran = already_ran(ok(&job(&world.observer(77))).await);
    assert_eq!(ran.by.unwrap(), leasehold::Holder::this_process());
    assert!(ran.token.is_some() && ran.ago.is_some_and(|ago| ago < SECOND * 4), "{:?}", ran.ago);
    assert!(ran.again_within.is_some_and(|left| left > PERIOD - SECOND * 4 && left < PERIOD + SECOND * 4));
}

#[tokio::test(start_paused = true)]
async fn a_waiter_learns_that_it_ran_during_the_cooldown() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let Due::Now(guard) = job(&client).acquire().await.unwrap() else { panic!("it never ran") };
    let waiter = tokio::spawn(async move { (ok(&job(&other)).await, other.clock.now()) });
    client.env.sleep(SECOND * 60).await;
    assert!(!waiter.is_finished());
    guard.release_with_cooldown(PERIOD).await.unwrap();
    let rested = client.clock.now();
    let (said, at) = waiter.await.unwrap();
    already_ran(said);
    assert!(at.longest_since(rested) < SECOND * 5, "{:?}", at.longest_since(rested));
}

#[tokio::test(start_paused = true)]
async fn a_hundred_tasks_of_one_process_run_it_once() {
    let world = World::new();
    let client = world.dated(1);
    let (once, start) = (job(&client), world.clock.now());
    let runs = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..100)
        .map(|_| {
            let (once, runs) = (once.clone(), runs.clone());
            tokio::spawn(async move {
                let said = once.run(async |guard| {
                    runs.fetch_add(1, Ordering::SeqCst);
                    guard.check().map_err(|_| "lost")?;
                    Ok::<u32, &str>(1)
                });
                said.await.unwrap()
            })
        })
        .collect();
    let mut already = 0;
    for task in tasks {
        already += usize::from(matches!(task.await.unwrap(), Once::AlreadyRan(_)));
    }
    assert_eq!((runs.load(Ordering::SeqCst), already), (1, 99));
    assert!(world.clock.now().longest_since(start) < SECOND * 10);
    let counts = client.network.counts();
    assert!(counts.writes <= 3 && counts.reads <= 102, "those who come after it ask once each: {counts:?}");
}

/// A task of this process waits for the end of the cooldown and keeps its turn while it waits.
#[tokio::test(start_paused = true)]
async fn a_task_waiting_for_a_cooldown_does_not_delay_others() {
    let world = World::new();
    let client = world.dated(1);
    let once = job(&client);
    assert_eq!(ok(&once).await.unwrap(), Once::Ran(Ok(1)));
    let lock = Locker::new(client.leases.clone());
    let locker = lock.clone();
    let waiter = tokio::spawn(async move { locker.lock("x").ttl(TTL).acquire().await.map(drop) });
    client.env.sleep(SECOND * 5).await;
    let asked = client.clock.now();
    let once = lock.lock("x").ttl(TTL).once_per(PERIOD);
    already_ran(ok(&once).await);
    already_ran(once.try_run(async |_| Ok(1)).await);
    assert!(client.clock.now().longest_since(asked) < SECOND);
    assert!(!waiter.is_finished());
    waiter.await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_failure_is_tried_again_within_the_period_unless_it_counts() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    assert_eq!(job(&client).run(async |_| Err::<u32, _>("no")).await.unwrap(), Once::Ran(Err("no")));
    let counted = job(&other).cooldown_after_failure(true);
    assert_eq!(counted.run(async |_| Err::<u32, _>("no")).await.unwrap(), Once::Ran(Err("no")));
    already_ran(ok(&job(&client)).await);
}

#[tokio::test(start_paused = true)]
async fn a_try_that_does_not_wait_names_the_runner() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let Due::Now(guard) = job(&client).acquire().await.unwrap() else { panic!("it never ran") };
    for refused in [
        job(&other).try_run(async |_| Ok::<_, ()>(())).await,
        job(&other).run_within(SECOND * 100, async |_| Ok::<_, ()>(())).await,
    ] {
        let refused = refused.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Held);
        assert!(refused.holder().unwrap().holder.is_some(), "{refused:?}");
    }
    // The guard is dropped during the run, so the run does not count.
    drop(guard);
    assert_eq!(ok(&job(&other)).await.unwrap(), Once::Ran(Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn a_job_longer_than_its_period_may_run_again_at_once() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let said = job(&client)
        .run(async |_| {
            client.env.sleep(PERIOD * 2).await;
            Ok::<_, ()>(())
        })
        .await;
    let waiter = tokio::spawn(async move { ok(&job(&other)).await });
    assert_eq!(said.unwrap(), Once::Ran(Ok(())));
    assert_eq!(waiter.await.unwrap().unwrap(), Once::Ran(Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn an_unrecorded_run_is_an_error_that_says_it_ran() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let error = job(&client)
        .run(async |_| {
            client.network.disconnect();
            Ok::<_, ()>(())
        })
        .await
        .unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().starts_with("`x` ran, but the run could not be recorded"), "{error}");
    assert!(error.help()[0].contains("may run again"), "{error:?}");
    assert_eq!(ok(&job(&other)).await.unwrap(), Once::Ran(Ok(1)));
}

/// A lost response or a refusal does not make the job run twice.
#[tokio::test(start_paused = true)]
async fn recording_a_cooldown_is_retried_until_it_succeeds() {
    for trouble in [Outcome::AppliedLost, Outcome::Dropped, Outcome::NotApplied, Outcome::Denied] {
        let world = World::new();
        let client = world.dated(1);
        let said = job(&client)
            .run(async |_| {
                client.network.next_write(trouble.clone());
                Ok::<_, ()>(())
            })
            .await;
        assert_eq!(said.unwrap(), Once::Ran(Ok(())), "{trouble:?}");
        already_ran(ok(&job(&world.dated(2))).await);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_lock_drops_the_job_and_the_error_says_what_ran() {
    let world = World::new();
    let (client, other) = (world.dated(1), world.dated(2));
    let said = job(&client)
        .run(async |guard| {
            Locker::new(other.leases.clone()).evict(&name(), guard.token().unwrap()).await.unwrap();
            std::future::pending::<Result<(), ()>>().await
        })
        .await;
    let lost = said.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lost.help()[0].contains("before it finished"), "{lost:?}");
    // The grant is evicted after the last renewal. The release with a cooldown finds that.
    let said = job(&client)
        .run(async |guard| {
            Locker::new(other.leases.clone()).evict(&name(), guard.token().unwrap()).await.unwrap();
            Ok::<_, ()>(())
        })
        .await;
    let lost = said.unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Lost);
    assert!(lost.to_string().contains("ran") && lost.help()[0].contains("may run again"), "{lost:?}");
    assert_eq!(ok(&job(&other)).await.unwrap(), Once::Ran(Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn an_operator_ends_a_cooldown() {
    let world = World::new();
    let client = world.dated(1);
    assert_eq!(ok(&job(&client)).await.unwrap(), Once::Ran(Ok(1)));
    let ran = already_ran(ok(&job(&client)).await);
    let locker = Locker::new(client.leases.clone());
    assert_eq!(locker.evict(&name(), ran.token.unwrap()).await.unwrap(), leasehold::Evicted::Evicted);
    assert_eq!(ok(&job(&client)).await.unwrap(), Once::Ran(Ok(1)));
}

#[tokio::test(start_paused = true)]
async fn a_period_that_cannot_be_kept_is_refused_before_the_job_runs() {
    let world = World::new();
    let client = world.dated(1);
    let lock = Locker::new(client.leases.clone()).lock("x");
    for bad in [Duration::ZERO, Duration::from_secs(366 * 86_400 + 1)] {
        let refused = lock.clone().once_per(bad).run(async |_| -> Result<(), ()> { panic!("it ran") }).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid, "{bad:?}");
    }
    let world = World::by_existence();
    let forgetful = world.dated(1);
    let refused = job(&forgetful).run(async |_| -> Result<(), ()> { panic!("it ran") }).await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Unsupported);
    assert_eq!(forgetful.network.counts().total() + client.network.counts().total(), 0);
}

#[tokio::test(start_paused = true)]
async fn the_longest_period_is_kept() {
    let world = World::new();
    let client = world.dated(1);
    let year = Duration::from_secs(366 * 86_400);
    let once = Locker::new(client.leases.clone()).lock("x").once_per(year);
    assert_eq!(ok(&once).await.unwrap(), Once::Ran(Ok(1)));
    let ran = already_ran(ok(&once).await);
    assert!(ran.again_within.is_some_and(|left| left > year - SECOND * 4 && left < year + SECOND * 4));
}
