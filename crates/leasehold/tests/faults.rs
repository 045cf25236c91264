//! The faults of `docs/evidence/faults.md`, by their numbers, except those that are tested under a rule of the protocol. The
//! faults of guards are in `guard/faults.rs`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Client, TTL, World, contender_span, granted, holder_span, name};
use leasehold::clock::Clock;
use leasehold::lease::{Evicted, LeaseStore, Renewal};
use leasehold::{Holder, LockName, Locker, LossReason, Released};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

#[tokio::test(start_paused = true)]
async fn fault_5_an_acquire_arriving_after_its_release_is_rejected() {
    let world = World::new();
    let client = world.observer(1);
    let mut earlier = client.granted().await;
    client.leases.release(&mut earlier, None).await.unwrap();
    // The outcome of the first write is unknown. A read shows that it is not applied yet, so the client sends another
    // write.
    client.network.next_write(Outcome::HeldBack);
    let mut grant = client.granted().await;
    assert_eq!(client.leases.release(&mut grant, None).await.unwrap(), Released::Released);
    let free = world.raw().await;
    client.network.deliver_all().await;
    assert_eq!(world.raw().await, free, "what came late had an effect");
    assert!(client.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn fault_6_a_release_arriving_after_the_next_grant_is_rejected() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    for successor in [&client, &other] {
        let mut grant = client.granted().await;
        client.network.next_write(Outcome::HeldBack);
        assert_eq!(client.leases.release(&mut grant, None).await.unwrap(), Released::Released);
        let mut next = successor.granted().await;
        client.network.deliver_all().await;
        let record = world.raw().await;
        assert_eq!((&record["state"], record["token"].as_u64()), (&"held".into(), Some(next.token.get())));
        assert!(matches!(successor.leases.renew(&mut next).await.unwrap(), Renewal::Renewed));
        successor.leases.release(&mut next, None).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn fault_7_writes_that_are_delivered_twice_have_one_effect() {
    for twice in [Outcome::Twice, Outcome::TwiceSecondAnswer] {
        let world = World::new();
        let client = world.observer(1);
        // The first grant of a lock is not part of the test, because a create may need a second write for a certain
        // token.
        let mut grant = client.granted().await;
        client.network.every(Kind::Write, twice.clone());
        for token in grant.token.get() + 1..grant.token.get() + 4 {
            client.leases.release(&mut grant, None).await.unwrap();
            grant = client.granted().await;
            assert_eq!(grant.token.get(), token, "{twice:?}: one grant, one token");
            for beat in 1..4 {
                assert!(matches!(client.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
                assert_eq!(world.raw().await["heartbeat"], beat, "{twice:?}: one renewal, one beat");
            }
        }
        assert_eq!(client.leases.evict(&name(), grant.token, None).await.unwrap(), Evicted::Evicted);
        client.lost(&mut grant).await;
        let mut sent = HashMap::new();
        for body in client.network.log().into_iter().filter_map(|request| request.value) {
            *sent.entry(body).or_insert(0) += 1;
        }
        assert!(sent.values().all(|times| *times == 1), "the client sent a body twice");
    }
}

/// All processes die at once, including the holder, and restart without any memory.
#[tokio::test(start_paused = true)]
async fn fault_19_a_restarted_fleet_gets_the_lock_within_one_ttl() {
    for (store_clock, down, bound) in [
        // By observation alone, contenders watch the lease from the restart on.
        (false, Duration::ZERO, contender_span() + SECOND * 5),
        (false, SECOND * 300, contender_span() + SECOND * 5),
        // By the store's clock, the time for which the processes were down counts as well.
        (true, SECOND * 20, contender_span() - SECOND * 20 + SECOND * 12),
        (true, SECOND * 300, SECOND * 2),
    ] {
        let world = World::new();
        let dead = world.client(1, Default::default(), store_clock);
        dead.granted().await;
        dead.env.sleep(down).await;

        let restarted = world.clock.now();
        let holders = Arc::new(AtomicUsize::new(0));
        let mut fleet = tokio::task::JoinSet::new();
        for seed in 2..7 {
            let client = world.client(seed, Default::default(), store_clock);
            let (holders, clock) = (holders.clone(), world.clock.clone());
            fleet.spawn(async move {
                let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
                assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two hold it");
                let now = clock.now();
                client.env.sleep(SECOND / 10).await;
                holders.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                now
            });
        }
        let granted = fleet.join_next().await.unwrap().unwrap();
        let waited = granted.longest_since(restarted);
        assert!(waited <= bound, "{waited:?} of {bound:?}, store clock {store_clock}, down for {down:?}");
        assert!(down + waited > holder_span(), "granted while the dead one could have lived: {waited:?}");
        assert_eq!(fleet.join_all().await.len(), 4, "the others follow");
    }
}

/// A pod restarts under its old name, or a process id is reused. To the lock, this is another process.
#[tokio::test(start_paused = true)]
async fn fault_32_a_process_does_not_inherit_a_lock_by_its_name() {
    let world = World::new();
    let (before, after) = (world.observer(1), world.observer(2));
    let holder = Holder::this_process();
    let (mut earlier, mut claim) = (before.claim(), after.claim());
    (earlier.holder, claim.holder) = (holder.clone(), holder);
    let mut old = granted(before.leases.try_acquire(&earlier).await.unwrap());
    let written = world.raw().await;

    let mut waited = Duration::ZERO;
    let new = loop {
        match after.leases.try_acquire(&claim).await.unwrap() {
            leasehold::lease::AcquireOutcome::Granted(grant) => break grant,
            leasehold::lease::AcquireOutcome::Held(_) => assert_eq!(world.raw().await, written),
            leasehold::lease::AcquireOutcome::Lost(loss) => panic!("{loss}"),
        }
        after.env.sleep(SECOND).await;
        waited += SECOND;
    };
    assert!(waited >= contender_span() && new.token > old.token, "{waited:?}");
    before.lost(&mut old).await;
    assert_eq!(world.raw().await["token"].as_u64(), Some(new.token.get()), "nor is it taken back by name");
}

#[tokio::test(start_paused = true)]
async fn fault_33_throttling_causes_no_storm_and_the_lock_is_kept() {
    let world = World::new();
    let (holder, waiter) = (world.observer(1), world.observer(2));
    let guard = locker(&holder).lock("x").ttl(TTL).acquire().await.unwrap();
    let waiting = {
        let lock = locker(&waiter).lock("x").ttl(TTL).store_timeout(SECOND * 600);
        tokio::spawn(async move { lock.acquire().await })
    };
    waiter.network.until(|counts| counts.reads > 0).await;
    for client in [&holder, &waiter] {
        client.network.reset_counts();
        client.network.every(Kind::Read, Outcome::NotApplied);
        client.network.every(Kind::Write, Outcome::NotApplied);
    }
    // The throttling ends before the lease, so the holder's renewals succeed in time.
    holder.env.sleep(SECOND * 15).await;
    let (asked, waited) = (holder.network.counts().total(), waiter.network.counts().total());
    assert!((2..=20).contains(&asked), "{asked} requests of the holder in 15 s");
    assert!((2..=60).contains(&waited), "{waited} requests of the waiter in 15 s");
    holder.network.heal();
    holder.env.sleep(SECOND * 60).await;
    guard.check().unwrap();
    let waited = waiter.network.counts().total();
    assert!(waited <= 150, "{waited} requests of the waiter in 75 s");
    waiter.network.heal();
    guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
}

/// A well-meaning person deletes the record repeatedly. Each deletion is a loss for the holder, and tokens still rise.
#[tokio::test(start_paused = true)]
async fn fault_27_a_deleted_record_is_a_loss_and_tokens_still_rise() {
    let world = World::new();
    let mut last = None;
    for seed in 0..5 {
        let client = world.dated(seed);
        let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
        let token = guard.token().unwrap();
        assert!(last < Some(token), "{token} after {last:?}");
        last = Some(token);
        world.delete().await;
        let loss = guard.lost().await;
        assert_eq!((loss.reason, loss.token), (LossReason::Deleted, token));
        assert!(guard.check().is_err());
        let status = locker(&client).inspect(&LockName::new("x").unwrap()).await.unwrap();
        assert!(matches!(status.state, leasehold::State::Free), "a renewal brought it back: {status:?}");
    }
}
