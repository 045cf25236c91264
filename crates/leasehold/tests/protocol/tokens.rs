//! Tokens rise, even across deletions and creates that arrive late.

use super::*;

/// A duplicate of a create arrives after its grant has ended and the record was deleted. It has the claim id of that
/// grant but another token.
#[tokio::test(start_paused = true)]
async fn a_late_grant_of_the_same_claim_is_not_renewed() {
    let late = |record: &mut serde_json::Value| {
        record["token"] = (record["token"].as_u64().unwrap() + 1).into();
        record["nonce"] = "0123456789abcdef0123456789abcdef".into();
    };
    let world = World::new();
    let holder = world.observer(1);
    let mut grant = holder.granted().await;
    world.edit(late).await;
    assert!(matches!(holder.lost(&mut grant).await.reason, LossReason::Ended));

    // The same for a grant from a ticket, which has no memo.
    let world = World::new();
    let (holder, heir) = (world.observer(1), world.observer(2));
    let ticket =
        Locker::new(holder.leases.clone()).lock("x").acquire().await.unwrap().into_ticket().await.unwrap();
    let locker = Locker::new(heir.leases.clone());
    locker.renew(&ticket).await.unwrap();
    world.edit(late).await;
    let heir = Locker::new(world.observer(3).leases.clone());
    let error = heir.renew(&ticket).await.unwrap_err();
    assert!(matches!(error.loss().unwrap().reason, LossReason::Ended), "{error:?}");
}

/// How long after a grant its record is not deleted by hand.
const RECENT: Duration = Duration::from_secs(3);

#[tokio::test(start_paused = true)]
async fn tokens_rise_across_deletions_by_hand_with_a_coarse_clock() {
    let world = World::new();
    let mut last = 0;
    for seed in 0..20 {
        // Each client is a new process that remembers nothing.
        let client = world.dated(seed);
        let mut grant = client.granted().await;
        assert!(grant.token.get() > last, "{} after {last}", grant.token);
        last = grant.token.get();
        client.env.sleep(RECENT).await;
        world.delete().await;
        let loss = client.lost(&mut grant).await;
        assert_eq!(loss.reason, LossReason::Deleted);
        // The next `Date` is further from the store's time than this one.
        client.env.sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_late_create_gets_a_token_above_all_granted_meanwhile() {
    let world = World::new();
    let (slow, quick) = (world.dated(1), world.dated(2));
    slow.network.next_write(Outcome::HeldBack);
    slow.network.next_read(Outcome::Fine);
    slow.network.next_read(Outcome::Stalled);
    let acquisition = {
        let (leases, claim) = (slow.leases.clone(), slow.claim());
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    slow.network.until(|counts| counts.reads == 2).await;
    let between = quick.granted().await;
    quick.env.sleep(RECENT).await;
    world.delete().await;
    // The create is applied, with a token from before.
    slow.network.deliver().await;
    slow.network.deliver().await;
    let grant = granted(acquisition.await.unwrap().unwrap());
    assert!(grant.token > between.token, "{} after {}", grant.token, between.token);
}

#[tokio::test(start_paused = true)]
async fn a_takeover_from_a_late_create_gets_the_highest_token() {
    let world = World::new();
    let (slow, quick) = (world.dated(1), world.dated(2));
    slow.network.every(Kind::Write, Outcome::HeldBack);
    let claim = slow.claim();
    slow.leases.try_acquire(&claim).await.unwrap_err();
    // When the create is applied, its token and its write time are old, so its lease has already lapsed.
    quick.env.sleep(contender_span() * 2).await;
    let between = quick.granted().await;
    quick.env.sleep(RECENT).await;
    world.delete().await;
    slow.network.deliver().await;
    let next = quick.granted().await;
    assert!(next.token > between.token, "{} after {}", next.token, between.token);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_finds_a_late_create_distrusts_its_token() {
    let world = World::new();
    let (slow, quick) = (world.dated(1), world.dated(2));
    slow.network.next_write(Outcome::HeldBack);
    let mut grant = slow.granted().await; // Granted by a second create.
    slow.env.sleep(RECENT).await;
    world.delete().await;
    slow.network.deliver().await; // The first one is applied, with a lower token.
    slow.leases.release(&mut grant, None).await.unwrap();
    let free = world.raw().await;
    // The next token is only certainly higher if it comes from the clock, which the mark demands.
    assert_eq!((&free["state"], &free["unconfirmed"]), (&"free".into(), &true.into()));
    let next = quick.granted().await;
    assert!(next.token > grant.token, "{} after {}", next.token, grant.token);
}

/// Other clients create the record, are granted the lock, and delete it, while a create is under way for longer than
/// its token counts.
#[tokio::test(start_paused = true)]
async fn a_create_that_was_slow_to_arrive_gets_another_token() {
    let world = World::new();
    let (slow, quick) = (world.dated(1), world.dated(2));
    slow.network.next_write(Outcome::Stalled);
    let acquisition = {
        let (leases, claim) = (slow.leases.clone(), slow.claim());
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    slow.network.until(|counts| counts.writes == 1).await;
    let between = quick.granted().await;
    quick.env.sleep(RECENT).await;
    world.delete().await;
    slow.network.deliver().await;
    let grant = granted(acquisition.await.unwrap().unwrap());
    assert!(grant.token > between.token, "{} after {}", grant.token, between.token);
}

#[tokio::test(start_paused = true)]
async fn a_first_grant_takes_two_requests_and_no_wait() {
    let world = World::new();
    let client = world.dated(1);
    let began = client.clock.now();
    client.granted().await;
    assert_eq!((client.network.counts().reads, client.network.counts().writes), (1, 1));
    assert_eq!(client.clock.now().longest_since(began), Duration::ZERO);
}

/// The same claim creates the record twice, and the second `Date` has the same second as the first.
#[tokio::test(start_paused = true)]
async fn each_create_of_a_claim_has_a_token_of_its_own() {
    let world = World::new();
    let client = world.dated(1);
    client.network.next_write(Outcome::HeldBack);
    let grant = client.granted().await; // Granted by a second create.
    world.clock.sleep(RECENT).await;
    world.delete().await;
    client.network.deliver().await; // The first one is applied.
    assert_ne!(world.raw().await["token"].as_u64(), Some(grant.token.get()));
}
