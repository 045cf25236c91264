//! Writes that arrive late.

use super::*;

#[tokio::test(start_paused = true)]
async fn a_late_renewal_brings_nothing_back() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut grant = one.granted().await;
    one.network.next_write(Outcome::HeldBack);
    one.renew(&mut grant).await;
    assert_eq!(one.release(&mut grant).await, Released::Released);
    assert_eq!(one.network.deliver().await, Some(Write::Conflict));
    assert_eq!(world.object().await, None);
    two.granted().await;
    // The same for a renewal that arrives after the next grant.
    world.remove().await;
    let mut grant = one.granted().await;
    one.network.next_write(Outcome::HeldBack);
    one.renew(&mut grant).await;
    one.release(&mut grant).await;
    let next = two.granted().await;
    assert_eq!(one.network.deliver().await, Some(Write::Conflict));
    assert_eq!(one.held().await.token, Some(next.token));
}

#[tokio::test(start_paused = true)]
async fn a_late_delete_does_not_free_the_successor() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut grant = one.granted().await;
    two.held().await;
    one.network.every(Kind::Delete, Outcome::HeldBack);
    assert!(one.leases.release(&mut grant, None).await.is_err(), "it is held, and no delete is answered");
    two.env.sleep(contender_span()).await;
    let mut next = two.granted().await;
    one.network.heal();
    for _ in 0..one.network.counts().deletes {
        one.network.deliver().await;
    }
    two.renew(&mut next).await;
    assert_eq!(one.held().await.token, Some(next.token));
}

#[tokio::test(start_paused = true)]
async fn a_late_holder_does_not_delete_its_successors_object() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    let mut grant = one.granted().await;
    two.held().await;
    two.env.sleep(contender_span()).await;
    let mut next = two.granted().await;
    assert_eq!(one.release(&mut grant).await, Released::AlreadyLost);
    two.renew(&mut next).await;
}

/// The first create is delayed, and the second one is granted and released. Then the first one arrives.
#[tokio::test(start_paused = true)]
async fn a_create_that_comes_after_the_release_is_found_and_deleted() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    one.network.next_write(Outcome::HeldBack);
    let mut grant = one.granted().await;
    assert_eq!(one.network.counts().writes, 2);
    one.release(&mut grant).await;
    assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
    two.held().await;
    assert!(
        matches!(one.leases.renew(&mut grant).await.unwrap(), Renewal::Lost(_)),
        "it must not be renewed"
    );
    one.env.sleep(SECOND * 4).await;
    assert_eq!(world.object().await, None, "the late object remains");
}

/// The same without a grant: the store does not respond, and the client gives up the acquisition.
#[tokio::test(start_paused = true)]
async fn a_create_that_comes_after_giving_up_is_found_and_deleted() {
    let world = World::by_existence();
    let one = world.observer(1);
    one.network.every(Kind::Write, Outcome::HeldBack);
    let lock = Locker::new(one.leases.clone()).lock("x").store_timeout(SECOND * 3);
    let error = lock.try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error:?}");
    one.network.heal();
    one.env.sleep(SECOND * 10).await;
    assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
    one.env.sleep(SECOND * 50).await;
    assert_eq!(world.object().await, None);
}

/// The cleanup identifies its own create by the nonce. It deletes no other grant, not even of the same claim.
#[tokio::test(start_paused = true)]
async fn cleaning_up_a_late_create_deletes_no_grant() {
    let world = World::by_existence();
    let one = world.observer(1);
    let claim = one.claim();
    one.network.next_write(Outcome::HeldBack);
    let mut grant = granted(one.leases.try_acquire(&claim).await.unwrap());
    one.release(&mut grant).await;
    assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
    // The same claim finds the late create and adopts it by another write.
    let mut again = granted(one.leases.try_acquire(&claim).await.unwrap());
    for _ in 0..12 {
        one.env.sleep(SECOND * 10).await;
        one.renew(&mut again).await;
    }
    assert_eq!(one.release(&mut again).await, Released::Released);
}

/// The object is deleted by hand, and then a late create of the same claim arrives. It does not restore the holder's
/// lock.
#[tokio::test(start_paused = true)]
async fn a_holders_own_late_create_is_not_its_lock() {
    let world = World::by_existence();
    let (one, two) = (world.observer(1), world.observer(2));
    one.network.next_write(Outcome::HeldBack);
    let mut grant = one.granted().await;
    world.remove().await;
    let mut between = two.granted().await;
    two.release(&mut between).await;
    assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
    let loss = one.lost(&mut grant).await;
    assert_eq!(loss.reason, LossReason::Ended);
}

/// The same for a ticket: the record has the ticket's claim id, but it is not the ticket's grant.
#[tokio::test(start_paused = true)]
async fn a_ticket_is_not_valid_for_a_late_create_of_its_claim() {
    for dates_only in [false, true] {
        let world = World::by_existence();
        let one = if dates_only { without_generations(&world, 1) } else { world.observer(1) };
        let two = world.observer(2);
        one.network.next_write(Outcome::HeldBack);
        let mut grant = one.granted().await;
        grant.memo = None; // As in a grant from a ticket.
        assert_eq!(
            two.leases.evict(&name(), token_in_store(&two).await, None).await.unwrap(),
            Evicted::Evicted
        );
        let mut between = two.granted().await;
        two.release(&mut between).await;
        assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
        assert_eq!(one.lost(&mut grant).await.reason, LossReason::Ended, "dates only: {dates_only}");
        assert_eq!(one.release(&mut grant).await, Released::AlreadyLost);
    }
}

/// A release reports whether the lock was still held. It deletes the late object in any case.
#[tokio::test(start_paused = true)]
async fn a_late_create_does_not_make_a_lost_lock_look_released() {
    for dates_only in [false, true] {
        let world = World::by_existence();
        let one = if dates_only { without_generations(&world, 1) } else { world.observer(1) };
        one.network.next_write(Outcome::HeldBack);
        let mut grant = one.granted().await;
        world.remove().await;
        assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
        assert_eq!(one.release(&mut grant).await, Released::AlreadyLost, "dates only: {dates_only}");
        one.env.sleep(SECOND * 4).await;
        assert_eq!(world.object().await, None);
    }
}

/// The same if a renewal finds the loss and no release follows.
#[tokio::test(start_paused = true)]
async fn a_create_that_comes_after_a_loss_is_found_and_deleted() {
    let world = World::by_existence();
    let one = world.observer(1);
    one.network.next_write(Outcome::HeldBack);
    let mut grant = one.granted().await;
    world.remove().await;
    assert_eq!(one.lost(&mut grant).await.reason, LossReason::Deleted);
    assert!(matches!(one.network.deliver().await, Some(Write::Committed(_))));
    one.env.sleep(SECOND * 4).await;
    assert_eq!(world.object().await, None);
}
