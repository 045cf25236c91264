//! Each test covers one fault of `docs/evidence/faults.md` and has the fault's number in its name.

use super::*;

#[tokio::test(start_paused = true)]
async fn fault_15_a_cut_off_holder_sees_its_loss_before_a_new_grant() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    let lost_first = Arc::new(AtomicBool::new(false));
    let successor = {
        let (locker, lost_first) = (locker(&other), lost_first.clone());
        tokio::spawn(async move {
            let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
            assert!(
                lost_first.load(Ordering::SeqCst),
                "granted while the first holder believed in its lease"
            );
            guard.token().unwrap()
        })
    };
    client.env.sleep(SECOND * 100).await;
    client.network.disconnect();
    let cancelled = guard.cancellation();
    let loss = guard.lost().await;
    lost_first.store(true, Ordering::SeqCst);
    assert!(cancelled.is_cancelled());
    let LossReason::Expired { last_error: Some(error) } = &loss.reason else { panic!("{loss}") };
    assert!(error.contains("lost"), "the loss says why: {error}");
    assert!(successor.await.unwrap() > guard.token().unwrap());
}

#[tokio::test(start_paused = true)]
async fn fault_15_a_hanging_renewal_does_not_delay_the_watchdog() {
    let world = World::new();
    let client = world.observer(1);
    let began = client.clock.now();
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    let deadline = client.clock.now().longest_since(began) + guard.remaining();
    client.network.stall();
    guard.cancellation().cancelled().await;
    let heard = client.clock.now().longest_since(began);
    assert!(heard >= deadline && heard <= deadline + Duration::from_millis(2), "{heard:?}, not {deadline:?}");
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn fault_12_a_suspended_holder_finds_its_lock_lost_on_waking() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.clock.suspend(SECOND * 3_600);
    // The check must fail before any timer has fired.
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
    let woken = client.clock.now();
    guard.cancellation().cancelled().await;
    assert!(client.clock.now().longest_since(woken) < SECOND);
}

#[tokio::test(start_paused = true)]
async fn fault_12_a_restored_snapshot_finds_its_lock_lost() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.clock.step_wall(3_600); // Its boot clock continues as if nothing had happened.
    assert_eq!(guard.check().unwrap_err().kind(), ErrorKind::Lost);
}

#[tokio::test(start_paused = true)]
async fn fault_13_a_wall_clock_step_makes_no_takeover_early_or_late() {
    for step in [3_600, -3_600] {
        let world = World::new();
        let (client, other) = (world.observer(1), world.observer(2));
        let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
        let waiter = {
            let locker = locker(&other);
            tokio::spawn(async move { locker.lock("x").ttl(TTL).acquire().await.unwrap().token().unwrap() })
        };
        client.env.sleep(SECOND * 50).await;
        other.clock.step_wall(step);
        client.env.sleep(SECOND * 50).await;
        guard.check().unwrap();
        assert!(!waiter.is_finished(), "{step}");
        client.network.disconnect();
        other.clock.step_wall(step);
        let cut = world.clock.now();
        waiter.await.unwrap();
        assert!(
            world.clock.now().longest_since(cut) < TTL * 2,
            "{step}: a step back costs one poll, not the hour"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn fault_16_a_renewal_confirmed_too_late_extends_nothing() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    // Writes are applied, but no response arrives.
    client.network.every(Kind::Write, Outcome::AnswerStalled);
    client.network.every(Kind::Read, Outcome::Stalled);
    let loss = guard.lost().await;
    client.network.heal();
    client.network.deliver_all().await;
    client.env.sleep(SECOND).await;
    assert!(guard.check().is_err(), "{loss}");
    // The write was applied. It is cleaned up, so that other clients need not wait for the lease to end.
    assert!(client.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn fault_16_a_response_after_a_suspend_past_the_lease_is_a_loss() {
    use leasehold::lease::LeaseStore;
    let world = World::new();
    let client = world.observer(1);
    let mut earlier = client.granted().await;
    client.leases.release(&mut earlier, None).await.unwrap();
    // The response to an acquisition arrives when the machine wakes.
    client.network.reset_counts();
    client.network.next_write(Outcome::AnswerStalled);
    let acquisition = {
        let (leases, claim) = (client.leases.clone(), client.claim());
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    client.network.sent(1).await;
    client.clock.suspend(TTL);
    client.network.deliver().await;
    match acquisition.await.unwrap() {
        Ok(leasehold::lease::AcquireOutcome::Lost(loss)) => {
            assert_eq!(loss.reason, LossReason::Expired { last_error: None });
        }
        other => panic!("not lost: {other:?}"),
    }
    assert!(client.is_free().await, "what came too late is released");
    let mut grant = client.granted().await;
    assert!(grant.deadline.remaining(client.clock.now()) > TTL / 2, "a fresh grant");
    // The same for the response to a renewal.
    client.network.reset_counts();
    client.network.next_write(Outcome::AnswerStalled);
    let (leases, network, clock) = (client.leases.clone(), client.network.clone(), client.clock.clone());
    let (renewal, ()) = tokio::join!(leases.renew(&mut grant), async {
        network.sent(1).await;
        clock.suspend(TTL);
        network.deliver().await;
    });
    assert!(matches!(renewal, Ok(leasehold::lease::Renewal::Lost(_))), "{renewal:?}");
}

/// The release waits for the renewal. The renewal's response shows that the lease is over.
#[tokio::test(start_paused = true)]
async fn fault_16_a_release_behind_a_late_renewal_frees_the_lock() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.env.sleep(SECOND).await;
    client.network.reset_counts();
    client.network.next_write(Outcome::AnswerStalled);
    let renewal = tokio::spawn(guard.renew());
    client.network.sent(1).await;
    let release = tokio::spawn(guard.release());
    tokio::task::yield_now().await;
    client.clock.suspend(TTL);
    client.network.deliver().await;
    assert!(renewal.await.unwrap().is_err());
    assert_eq!(release.await.unwrap().unwrap(), Released::AlreadyLost);
    assert!(client.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn fault_34_a_loss_names_credentials_withdrawn_while_held() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.reset_counts();
    client.network.every(Kind::Write, Outcome::Denied);
    let loss = guard.lost().await;
    assert!(loss.to_string().contains("access denied"), "{loss}");
    assert!(client.network.counts().writes < 40, "no storm: {:?}", client.network.counts());
}

#[tokio::test(start_paused = true)]
async fn fault_2_a_renewal_with_a_lost_response_is_found_by_its_nonce() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.every(Kind::Write, Outcome::AppliedLost);
    client.env.sleep(SECOND * 300).await;
    guard.check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn fault_3_a_renewal_that_arrives_late_extends_no_deadline() {
    let world = World::new();
    let client = world.observer(1);
    let mut grant = client.granted().await;
    let before = grant.deadline;
    client.network.every(Kind::Write, Outcome::HeldBack);
    use leasehold::lease::LeaseStore;
    assert!(!matches!(client.leases.renew(&mut grant).await, Ok(leasehold::lease::Renewal::Renewed)));
    assert_eq!(grant.deadline, before);
    client.network.deliver_all().await;
    assert_eq!(grant.deadline, before);
    assert_eq!(world.raw().await["heartbeat"], 1, "of all copies, one had its effect");
}

#[tokio::test(start_paused = true)]
async fn fault_31_an_acquisition_that_is_dropped_leaves_nothing_held() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    // The acquisition is dropped while its write is under way.
    client.network.next_write(Outcome::AnswerStalled);
    let locker = locker(&client);
    let acquisition = {
        let locker = locker.clone();
        tokio::spawn(async move { locker.lock("x").acquire().await.map(drop) })
    };
    client.network.until(|counts| counts.writes == 1).await;
    acquisition.abort();
    client.network.deliver_all().await;
    client.network.until(|counts| counts.writes == 2).await;
    client.env.sleep(Duration::from_millis(1)).await;
    assert!(other.is_free().await, "granted late, released in the background");

    // The acquisition is dropped while it waits for another holder.
    let guard = crate::common::granted({
        use leasehold::lease::LeaseStore;
        other.leases.try_acquire(&other.claim()).await.unwrap()
    });
    let waiting = {
        let locker = locker.clone();
        tokio::spawn(async move { locker.lock("x").acquire().await.map(drop) })
    };
    let reads = client.network.counts().reads;
    client.network.until(|counts| counts.reads > reads + 3).await;
    waiting.abort();
    client.env.sleep(SECOND).await;
    let reads = client.network.counts().reads;
    client.env.sleep(SECOND * 60).await;
    assert_eq!(client.network.counts().reads, reads, "a dropped acquisition no longer polls");
    drop(guard);
}

#[tokio::test(start_paused = true)]
async fn fault_4_a_failed_release_is_retried_in_the_background() {
    let world = World::new();
    let client = world.observer(1);
    let guard = locker(&client).lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.every(Kind::Write, Outcome::Dropped);
    let error = guard.release().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(!client.is_free().await);
    client.network.heal();
    client.env.sleep(SECOND * 3).await;
    assert!(client.is_free().await);
}
