//! Tests of takeovers from a dead holder: reboots, dead processes, lock delays, cooldowns.

use super::*;

#[tokio::test]
async fn a_grant_of_another_boot_has_lapsed() {
    let mut site = Site::new();
    let mut before = grant(&site.open().await).await;
    site.reboot();
    let store = site.open().await;
    assert!(matches!(store.inspect(&name()).await.unwrap().state, State::Lapsed(_)));
    let after = grant(&store).await;
    assert!(after.token > before.token);
    assert!(matches!(lost_by(&store, &mut before).await, LossReason::TakenOver { .. }));
}

#[tokio::test]
async fn a_container_with_its_own_boot_id_takes_no_held_lock() {
    let mut site = Site::new();
    let holder = site.open().await;
    let mut grant = grant(&holder).await;
    site.machine.boot = "container:another".into();
    let container = site.open().await;
    held(&container).await;
    assert!(matches!(holder.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(holder.release(&mut grant, None).await.unwrap(), Released::Released);
}

#[tokio::test]
async fn a_ticket_survives_a_reboot_without_a_takeover() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut claim = claim(&store);
    claim.detached = true;
    let AcquireOutcome::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    site.reboot();
    let store = site.open().await;
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Renewed));
    assert_eq!(held(&store).await.token, Some(first.token));
}

/// Another machine may hold it, for example by a `leasehold serve` that has restarted with the machine.
#[tokio::test]
async fn a_detached_grant_survives_a_reboot_until_its_ttl() {
    let mut site = Site::new();
    let store = site.open().await;
    let claim = Claim { detached: true, ..claim(&store) };
    let AcquireOutcome::Granted(first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    site.reboot();
    let store = site.open().await;
    let left = held(&store).await.lapses_within.unwrap();
    assert!(left <= span(), "{left:?}");
    site.clock.suspend(left);
    assert!(grant(&store).await.token > first.token);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_dead_holder_is_replaced_at_once() {
    let site = Site::new();
    let mut sleeper = Sleeper::start();
    let holder = site.open_as(&sleeper.process()).await;
    let store = site.open().await;
    let first = grant(&holder).await;
    let seen = held(&store).await;
    sleeper.kill();
    // No time has to pass: the waiter polls within milliseconds.
    assert!(matches!(store.inspect(&name()).await.unwrap().state, State::Lapsed(_)));
    store.changed(&name(), &seen).await.unwrap();
    assert!(grant(&store).await.token > first.token);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_holder_with_several_processes_ends_with_the_last() {
    let site = Site::new();
    let (mut sleeper, mut other) = (Sleeper::start(), Sleeper::start());
    let holder = site.open_as(&sleeper.process()).await;
    let store = site.open().await;
    let mut first = grant(&holder).await;
    store.add_processes(&name(), &[std::process::id()]).await.unwrap();
    holder.add_processes(&name(), &[other.process().pid]).await.unwrap();
    holder.add_processes(&name(), &[other.process().pid]).await.unwrap();
    // A renewal keeps the added processes.
    assert!(matches!(holder.renew(&mut first).await.unwrap(), Renewal::Renewed));
    sleeper.kill();
    let seen = held(&store).await;
    assert_eq!(seen.token, Some(first.token));
    other.kill();
    // The test's own process still runs, but `store` could not add it to the holder.
    assert!(matches!(store.inspect(&name()).await.unwrap().state, State::Lapsed(_)));
    store.changed(&name(), &seen).await.unwrap();
    assert!(grant(&store).await.token > first.token);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_detached_grant_outlives_its_process() {
    for at_once in [true, false] {
        let site = Site::new();
        let mut sleeper = Sleeper::start();
        let holder = site.open_as(&sleeper.process()).await;
        let mut claim = claim(&holder);
        claim.detached = at_once;
        let AcquireOutcome::Granted(mut first) = holder.try_acquire(&claim).await.unwrap() else { panic!() };
        if !at_once {
            holder.detach(&mut first).await.unwrap();
        }
        sleeper.kill();
        sleeper.reap();
        let store = site.open().await;
        assert_eq!(held(&store).await.token, Some(first.token));
        // A process that has the ticket continues to use the grant.
        assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Renewed));
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_grant_renewed_elsewhere_outlives_its_first_process() {
    let site = Site::new();
    let mut sleeper = Sleeper::start();
    let mut first = grant(&site.open_as(&sleeper.process()).await).await;
    let store = site.open().await;
    assert!(matches!(store.renew(&mut first).await.unwrap(), Renewal::Renewed));
    sleeper.kill();
    assert_eq!(held(&store).await.token, Some(first.token));
}

#[tokio::test(start_paused = true)]
async fn a_lock_delay_counts_from_the_lapse_and_not_from_a_release() {
    let site = Site::new();
    let store = site.open().await;
    let mut claim = claim(&store);
    claim.lock_delay = Duration::from_secs(5);
    let AcquireOutcome::Granted(mut first) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    site.clock.suspend(span());
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(5)));
    site.clock.suspend(Duration::from_secs(5));
    let mut second = grant(&store).await;
    assert!(second.token > first.token);
    store.release(&mut second, None).await.unwrap();
    claim.id = Id::random(&store.env.random);
    let AcquireOutcome::Granted(third) = store.try_acquire(&claim).await.unwrap() else { panic!() };
    first = third;
    store.release(&mut first, None).await.unwrap();
    grant(&store).await;
}

#[cfg(target_os = "linux")]
#[tokio::test(start_paused = true)]
async fn a_lock_delay_counts_from_when_a_process_was_seen_dead() {
    for seen_by_waiter in [true, false] {
        let site = Site::new();
        let mut sleeper = Sleeper::start();
        let holder = site.open_as(&sleeper.process()).await;
        let mut claim = claim(&holder);
        claim.lock_delay = Duration::from_secs(5);
        holder.try_acquire(&claim).await.unwrap();
        let store = site.open().await;
        let seen = held(&store).await;
        site.clock.suspend(Duration::from_secs(1));
        sleeper.kill();
        let start = store.env.now();
        if seen_by_waiter {
            store.changed(&name(), &seen).await.unwrap();
        } else {
            assert_eq!(held(&store).await.lapses_within, Some(claim.lock_delay));
            site.clock.suspend(Duration::from_secs(3));
            assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(2)));
            store.changed(&name(), &seen).await.unwrap();
        }
        let waited = store.env.now().longest_since(start);
        assert!(
            (claim.lock_delay..claim.lock_delay + Duration::from_millis(5)).contains(&waited),
            "{waited:?}"
        );
        grant(&store).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_lasts_as_long_as_asked_across_a_reboot() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, Some(Duration::from_secs(100))).await.unwrap();
    site.clock.suspend(Duration::from_secs(40));
    let in_cooldown = held(&store).await;
    assert!(in_cooldown.in_cooldown && in_cooldown.holder.is_none());
    assert_eq!(
        (in_cooldown.token, in_cooldown.lapses_within),
        (Some(first.token), Some(Duration::from_secs(60)))
    );
    site.reboot();
    let store = site.open().await;
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(60)));
    site.clock.suspend(Duration::from_secs(60));
    assert_eq!(store.inspect(&name()).await.unwrap().state, State::Free);
    assert!(grant(&store).await.token > first.token);
}

/// Another container, and this one after its restart, has another boot id, but the same boot clock.
#[tokio::test(start_paused = true)]
async fn a_cooldown_lasts_as_long_as_asked_in_every_container() {
    let mut site = Site::new();
    // The machine was started long before.
    site.clock.suspend(Duration::from_secs(1_000));
    for boot in ["boot 1", "container:a", "container:b"] {
        site.machine.boot = boot.into();
        let store = site.open().await;
        let mut first = grant(&store).await;
        store.release(&mut first, Some(Duration::from_secs(100))).await.unwrap();
        site.clock.suspend(Duration::from_secs(40));
        site.machine.boot = "container:another".into();
        let other = site.open().await;
        assert_eq!(held(&other).await.lapses_within, Some(Duration::from_secs(60)), "{boot}");
        site.clock.suspend(Duration::from_secs(60));
        assert_eq!(other.inspect(&name()).await.unwrap().state, State::Free, "{boot}");
    }
}

/// The boot ids do not show whether the machine was started again, so the clock that is ahead counts.
#[tokio::test(start_paused = true)]
async fn a_cooldown_in_a_container_ends_though_the_clock_is_set_back() {
    let mut site = Site::new();
    site.machine.boot = "container:a".into();
    site.clock.suspend(Duration::from_secs(1_000));
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, Some(Duration::from_secs(100))).await.unwrap();
    site.clock.step_wall(-3_600);
    site.machine.boot = "container:b".into();
    let other = site.open().await;
    assert_eq!(held(&other).await.lapses_within, Some(Duration::from_secs(100)));
    site.clock.suspend(Duration::from_secs(100));
    grant(&other).await;
}

/// The boot ids do not show the reboot. The boot clock shows it at first, but not once it has passed the beginning of
/// the cooldown.
#[tokio::test(start_paused = true)]
async fn a_cooldown_in_a_container_ends_once_despite_a_reboot() {
    let mut site = Site::new();
    site.machine.boot = "container:a".into();
    site.clock.suspend(Duration::from_secs(1_000));
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, Some(Duration::from_secs(600))).await.unwrap();
    site.reboot();
    let store = site.open().await;
    assert!(held(&store).await.lapses_within.unwrap() <= Duration::from_secs(600));
    for _ in 0..20 {
        site.clock.suspend(Duration::from_secs(100));
        let left = store.inspect(&name()).await.unwrap();
        let State::Held(held) = left.state else { continue };
        let most = Duration::from_secs(600).saturating_sub(site.clock.now().since_boot());
        assert!(held.lapses_within.unwrap() <= most, "{held:?}");
    }
    grant(&store).await;
}

/// The wall clock was years ahead when the cooldown began, and is right since the reboot. The cooldown does not last
/// for years.
#[tokio::test(start_paused = true)]
async fn a_cooldown_ends_though_a_reboot_sets_the_clock_back() {
    let mut site = Site::new();
    let store = site.open().await;
    let mut first = grant(&store).await;
    store.release(&mut first, Some(Duration::from_secs(100))).await.unwrap();
    site.reboot();
    site.clock.step_wall(-100_000_000);
    let store = site.open().await;
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(100)));
    site.clock.suspend(Duration::from_secs(99));
    assert_eq!(held(&store).await.lapses_within, Some(Duration::from_secs(1)));
    site.clock.suspend(Duration::from_secs(1));
    assert!(grant(&store).await.token > first.token);
}
