//! The store's clock, and clocks that stood still.

use super::*;

#[tokio::test(start_paused = true)]
async fn the_records_ttl_and_lock_delay_count_not_the_contenders() {
    let world = World::new();
    let (holder, contender) = (world.observer(1), world.observer(2));
    let mut claim = holder.claim();
    claim.lock_delay = SECOND * 7;
    let mut grant = granted(holder.leases.try_acquire(&claim).await.unwrap());
    let mut hasty = contender.claim();
    hasty.ttl = leasehold::lease::Ttl::from_millis(1_000).unwrap();
    let AcquireOutcome::Held(held) = contender.leases.try_acquire(&hasty).await.unwrap() else { panic!() };
    assert_eq!(held.lapses_within, Some(contender_span() + SECOND * 7));
    // Contenders do not wait after a release.
    holder.leases.release(&mut grant, None).await.unwrap();
    granted(contender.leases.try_acquire(&hasty).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn by_the_stores_clock_a_try_takes_over_from_a_dead_holder() {
    let world = World::new();
    let (holder, contender, blind) = (world.dated(1), world.dated(2), world.observer(3));
    holder.granted().await;
    holder.env.sleep(contender_span() + SECOND * 2).await;
    contender.held().await; // The lease lapsed less than the margin ago.
    holder.env.sleep(SECOND * 6).await;
    blind.held().await; // By observation alone, the lease has not lapsed yet.
    contender.granted().await;
}

#[tokio::test(start_paused = true)]
async fn front_end_skew_within_the_margin_causes_no_early_takeover() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    // This front end is 4 s ahead of the holder's.
    let clock = Arc::new(TestClock::default());
    let env = leasehold::env::Env::seeded(clock, 9);
    let ahead = leasehold_testkit::machine::Machine::new(world.register.clone(), env.clone());
    let mut options = leasehold::lease::StoreOptions::default();
    options.env = env;
    let contender = leasehold::RegisterLeases::new(Arc::new(ahead.with_front_end_skew(4_000_000)), options);
    let claim = world.observer(3).claim();
    holder.env.sleep(holder_span() - SECOND).await;
    assert!(matches!(contender.try_acquire(&claim).await.unwrap(), AcquireOutcome::Held(_)));
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
}

#[tokio::test(start_paused = true)]
async fn a_store_clock_that_jumps_ends_no_live_lease() {
    for jump_us in [3_600_000_000, -3_600_000_000] {
        let world = World::new();
        let holder = world.dated(1);
        let mut grant = holder.granted().await;
        let env = leasehold::env::Env::seeded(Arc::new(TestClock::default()), 9);
        let machine = leasehold_testkit::machine::Machine::new(world.register.clone(), env.clone());
        let machine = Arc::new(machine);
        let mut options = leasehold::lease::StoreOptions::default();
        options.env = env.clone();
        let contender = leasehold::RegisterLeases::new(machine.clone(), options);
        let claim = || world.observer(3).claim();
        assert!(matches!(contender.try_acquire(&claim()).await.unwrap(), AcquireOutcome::Held(_)));
        // The store's clock is ahead at the next reading, or is set back and then ahead again.
        for skew_us in [jump_us, jump_us + 3_600_000_000] {
            machine.set_front_end_skew(skew_us);
            let verdict = contender.try_acquire(&claim()).await.unwrap();
            assert!(matches!(verdict, AcquireOutcome::Held(_)), "{verdict:?}");
        }
        assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
        // From now on, only observation counts.
        machine.set_front_end_skew(0);
        assert!(matches!(contender.try_acquire(&claim()).await.unwrap(), AcquireOutcome::Held(_)));
        env.sleep(contender_span()).await;
        granted(contender.try_acquire(&claim()).await.unwrap());
    }
}

/// A paused virtual machine does not notice the pause, because its clocks also stand still.
#[tokio::test(start_paused = true)]
async fn a_renewal_after_the_clocks_stood_still_counts_from_then() {
    let world = World::new();
    let (holder, contender) = (world.dated(1), world.dated(2));
    let mut grant = holder.granted().await;
    holder.clock.stand_still();
    world.clock.sleep(SECOND * 25).await;
    holder.clock.resume();
    holder.network.reset_counts();
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    // The response shows that the time in the record is too early. Others count from that time, so the holder does the
    // same.
    let left = grant.deadline.remaining(holder.clock.now());
    assert!(left > SECOND * 5 && left < SECOND * 10, "all but what half the margin of 5 s covers: {left:?}");
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert!(
        grant.deadline.remaining(holder.clock.now()) > holder_span() - SECOND,
        "now its bounds are right"
    );
    assert_eq!(holder.network.counts().writes, 2);
    // By the store's clock, the lease would seem to lapse 36 s after the grant.
    world.clock.sleep(SECOND * 14).await;
    contender.held().await;
    holder.network.reset_counts();
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(holder.network.counts().writes, 1, "now its clocks agree with the store's");
}

/// Contenders wait for a margin of 5 s. Front ends that disagree may use up half of it.
#[tokio::test(start_paused = true)]
async fn a_holder_that_stood_still_relies_on_half_the_margin() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    holder.clock.stand_still();
    world.clock.sleep(SECOND * 6).await;
    holder.clock.resume();
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    let left = grant.deadline.remaining(holder.clock.now());
    assert!(left < holder_span() - SECOND * 2, "{left:?}");
}

/// In true time, the lease has expired.
#[tokio::test(start_paused = true)]
async fn a_lock_is_lost_if_the_clocks_stop_for_its_ttl() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    holder.clock.stand_still();
    world.clock.sleep(TTL + SECOND * 7).await;
    holder.clock.resume();
    assert!(matches!(holder.lost(&mut grant).await.reason, LossReason::Expired { .. }));
}

#[tokio::test(start_paused = true)]
async fn a_grant_after_the_clocks_stood_still_is_renewed_first() {
    for created in [false, true] {
        let world = World::new();
        let (holder, contender) = (world.dated(1), world.dated(2));
        let mut grant = holder.granted().await;
        holder.leases.release(&mut grant, None).await.unwrap();
        if created {
            world.delete().await;
            assert!(holder.is_free().await);
        }
        holder.clock.stand_still();
        world.clock.sleep(SECOND * 60).await;
        holder.clock.resume();
        let grant = holder.granted().await;
        contender.held().await;
        assert!(grant.deadline.remaining(holder.clock.now()) > holder_span() - SECOND);
    }
}

/// If the clocks stand still between the send and the response, the response reveals this.
#[tokio::test(start_paused = true)]
async fn a_grant_is_renewed_if_clocks_stop_during_its_request() {
    for created in [false, true] {
        let world = World::new();
        let (holder, contender) = (world.dated(1), world.dated(2));
        if !created {
            let mut grant = holder.granted().await;
            holder.leases.release(&mut grant, None).await.unwrap();
        }
        holder.network.next_write(Outcome::Delayed(SECOND * 60));
        let acquisition = {
            let (leases, mut claim) = (holder.leases.clone(), holder.claim());
            claim.store_timeout = SECOND * 600;
            tokio::spawn(async move { leases.try_acquire(&claim).await })
        };
        let writes = holder.network.counts().writes;
        holder.network.until(|counts| counts.writes == writes + 1).await;
        holder.clock.stand_still();
        world.clock.sleep(SECOND * 60).await;
        holder.clock.resume();
        granted(acquisition.await.unwrap().unwrap());
        contender.held().await;
    }
}

/// The clocks also stand still during the renewal, so it comes too late.
#[tokio::test(start_paused = true)]
async fn a_grant_has_lapsed_if_clocks_stop_during_its_request_and_its_renewal() {
    let world = World::new();
    let holder = world.dated(1);
    let mut grant = holder.granted().await;
    holder.leases.release(&mut grant, None).await.unwrap();
    holder.network.reset_counts();
    holder.network.every(Kind::Write, Outcome::Delayed(SECOND * 60));
    let acquisition = {
        let (leases, mut claim) = (holder.leases.clone(), holder.claim());
        claim.store_timeout = SECOND * 600;
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    for writes in [1, 2] {
        holder.network.until(|counts| counts.writes == writes).await;
        holder.clock.stand_still();
        world.clock.sleep(SECOND * 60).await;
        holder.clock.resume();
    }
    holder.network.every(Kind::Write, Outcome::Fine);
    let outcome = acquisition.await.unwrap().unwrap();
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "{outcome:?}");
}
