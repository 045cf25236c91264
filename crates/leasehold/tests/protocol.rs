//! Tests of the rules of the lease protocol (see `docs/protocol.md`). Each rule has at least one test, which fails
//! without the rule.

mod clocks;
mod tokens;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use crate::common::{TTL, World, contender_span, granted, holder_span, name};
use leasehold::clock::{Clock, TestClock, timeout};
use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, Evicted, Grant, LeaseStore, Renewal};
use leasehold::{Locker, LossReason, Released, State};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn rule_1_the_holder_counts_from_before_the_first_send() {
    let world = World::new();
    let holder = world.observer(1);
    let mut earlier = holder.granted().await;
    holder.leases.release(&mut earlier, None).await.unwrap();
    holder.network.next_write(Outcome::AnswerDelayed(SECOND * 4));
    let mut grant = holder.granted().await;
    assert_eq!(grant.deadline.remaining(holder.clock.now()), holder_span() - SECOND * 4);

    holder.network.next_write(Outcome::AnswerDelayed(SECOND * 3));
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    assert_eq!(grant.deadline.remaining(holder.clock.now()), holder_span() - SECOND * 3);
}

#[tokio::test(start_paused = true)]
async fn rule_1_the_contender_counts_from_after_the_response() {
    let world = World::new();
    let (holder, contender) = (world.observer(1), world.observer(2));
    let _grant = holder.granted().await;
    contender.network.next_read(Outcome::AnswerDelayed(SECOND * 4));
    let held = contender.held().await;
    assert_eq!(held.lapses_within, Some(contender_span()), "the seconds under way are not an observation");
}

#[tokio::test(start_paused = true)]
async fn rule_1_a_read_across_a_renewal_causes_no_early_takeover() {
    let world = World::new();
    let (holder, contender) = (world.observer(1), world.observer(2));
    let mut grant = holder.granted().await;
    let held = contender.held().await;
    holder.env.sleep(SECOND * 9).await;
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    // By the contender's first observation, the lease has lapsed. But its conditional write fails, and it then reads a
    // renewed record.
    contender.env.sleep(held.lapses_within.unwrap()).await;
    contender.held().await;
    assert_eq!(world.raw().await["heartbeat"], 1);
}

#[tokio::test(start_paused = true)]
async fn rule_2_no_two_bodies_are_ever_equal() {
    let world = World::new();
    let client = world.observer(1);
    for outcome in
        [Outcome::Dropped, Outcome::NotApplied, Outcome::AppliedLost, Outcome::Twice, Outcome::Dropped]
    {
        client.network.next_write(outcome);
    }
    let mut grant = client.granted().await;
    for _ in 0..3 {
        client.network.next_write(Outcome::Dropped);
        client.leases.renew(&mut grant).await.unwrap();
    }
    client.leases.release(&mut grant, None).await.unwrap();
    let bodies: Vec<_> = client.network.log().into_iter().filter_map(|sent| sent.value).collect();
    assert!(bodies.len() > 10);
    let nonces: HashSet<_> = bodies
        .iter()
        .map(|body| serde_json::from_slice::<serde_json::Value>(body).unwrap()["nonce"].to_string())
        .collect();
    assert_eq!(nonces.len(), bodies.len(), "a nonce was used twice");
}

#[tokio::test(start_paused = true)]
async fn rule_3_a_release_deletes_nothing() {
    let world = World::new();
    let client = world.observer(1);
    let mut grant = client.granted().await;
    assert_eq!(client.leases.release(&mut grant, None).await.unwrap(), Released::Released);
    assert_eq!(client.network.counts().deletes, 0);
    let record = world.raw().await;
    assert_eq!((&record["state"], record["token"].as_u64()), (&"free".into(), Some(grant.token.get())));
}

#[tokio::test(start_paused = true)]
async fn rule_4_a_transient_refusal_is_retried_and_not_taken_for_held() {
    let world = World::new();
    let client = world.observer(1);
    client.network.next_read(Outcome::NotApplied);
    client.network.next_write(Outcome::NotApplied); // S3's 409 ConditionalRequestConflict
    client.network.next_write(Outcome::Throttled(SECOND * 3));
    let before = client.clock.now();
    client.granted().await;
    assert_eq!(client.network.counts().writes, 3);
    assert!(client.clock.now().longest_since(before) >= SECOND * 3, "the store asked to be left alone");
}

#[tokio::test(start_paused = true)]
async fn rule_4_every_lost_response_is_resolved_by_reading() {
    let world = World::new();
    let client = world.observer(1);
    client.granted().await; // The record exists now. Let its lease lapse.
    client.env.sleep(contender_span() * 2).await;
    for (outcome, writes) in
        [(Outcome::AppliedLost, 1), (Outcome::Dropped, 2), (Outcome::TwiceSecondAnswer, 1)]
    {
        client.network.reset_counts();
        client.network.next_write(outcome.clone());
        let mut grant = client.granted().await;
        assert_eq!(client.network.counts().writes, writes, "{outcome:?}");
        client.leases.release(&mut grant, None).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn rule_5_our_own_unexpected_record_is_adopted_only_by_a_write() {
    let world = World::new();
    let client = world.observer(1);
    let claim = client.claim();
    // The sender gives up while the request is under way. The request arrives afterwards.
    client.network.every(Kind::Write, Outcome::HeldBack);
    let gave_up = client.leases.try_acquire(&claim).await;
    assert!(matches!(gave_up, Err(StoreError::MaybeApplied(_))), "{gave_up:?}");
    client.network.deliver().await;
    // The release that follows is also late.
    let mut unheard = Grant::new(&claim, leasehold::Token::default(), client.clock.now());
    assert!(client.leases.release(&mut unheard, None).await.is_err());
    client.network.heal();
    client.network.reset_counts();

    let grant = granted(client.leases.try_acquire(&claim).await.unwrap());
    assert_eq!(client.network.counts().writes, 1, "adopted by a write");
    client.network.deliver_all().await;
    let record = world.raw().await;
    assert_eq!((&record["state"], record["token"].as_u64()), (&"held".into(), Some(grant.token.get())));
}

#[tokio::test(start_paused = true)]
async fn rule_6_a_release_during_a_renewal_ends_the_guard_first() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
    let cancelled = guard.cancellation();
    client.network.reset_counts();
    client.network.next_write(Outcome::Stalled); // The renewal hangs.
    client.network.next_write(Outcome::Stalled); // The release hangs as well.
    client.network.sent(1).await;
    let release = tokio::spawn(guard.release());
    cancelled.cancelled().await;
    assert_eq!(client.network.counts().writes, 1, "the guard ended before anything was sent");

    client.network.until(|counts| counts.writes == 2).await;
    // The renewal is applied before the release. The release finds the changed record and frees it.
    client.network.deliver_all().await;
    assert_eq!(release.await.unwrap().unwrap(), Released::Released);
    assert_eq!(world.raw().await["state"], "free");
}

#[tokio::test(start_paused = true)]
async fn rule_6_a_late_renewal_does_not_resurrect_the_lock() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.reset_counts();
    client.network.next_write(Outcome::Stalled);
    client.network.sent(1).await;
    assert_eq!(guard.release().await.unwrap(), Released::Released);
    client.network.deliver_all().await;
    assert_eq!(world.raw().await["state"], "free");
}

#[tokio::test(start_paused = true)]
async fn rule_7_a_renewal_does_not_take_a_record_of_another_grant() {
    let world = World::new();
    let (first, second) = (world.observer(1), world.observer(2));
    let mut old = first.granted().await;
    assert_eq!(second.leases.evict(&name(), old.token, None).await.unwrap(), Evicted::Evicted);
    let new = second.granted().await;
    assert!(new.token > old.token);
    let loss = first.lost(&mut old).await;
    assert_eq!(loss.reason, LossReason::Ended, "an eviction ended it: {loss}");
    assert_eq!(world.raw().await["token"].as_u64(), Some(new.token.get()));
    assert_eq!(first.leases.release(&mut old, None).await.unwrap(), Released::AlreadyLost);
    assert_eq!(world.raw().await["state"], "held", "the successor still has it");
}

#[tokio::test(start_paused = true)]
async fn rule_8_edits_by_others_do_not_prolong_a_lease() {
    let world = World::new();
    let (holder, contender) = (world.observer(1), world.observer(2));
    let old = holder.granted().await;
    let began = contender.clock.now();
    while contender.clock.now().longest_since(began) < contender_span() + SECOND {
        match contender.leases.try_acquire(&contender.claim()).await.unwrap() {
            AcquireOutcome::Granted(new) => return assert!(new.token > old.token),
            AcquireOutcome::Held(held) => {
                // Another version and another ETag, but the same (grant, heartbeat).
                world.edit(|record| record["edited"] = format!("{:?}", contender.clock.now()).into()).await;
                contender.env.sleep(held.lapses_within.unwrap().min(SECOND)).await;
            }
            AcquireOutcome::Lost(loss) => panic!("{loss}"),
        }
    }
    panic!("the lease was prolonged by edits");
}

#[tokio::test(start_paused = true)]
async fn rule_8_a_claim_granted_again_restarts_the_observation() {
    let world = World::new();
    let (holder, contender) = (world.observer(1), world.observer(2));
    let claim = holder.claim();
    let first = granted(holder.leases.try_acquire(&claim).await.unwrap());
    contender.held().await;
    contender.env.sleep(SECOND * 25).await;
    // The grant is evicted and its claim is granted again between two reads of the contender.
    holder.leases.evict(&name(), first.token, None).await.unwrap();
    let again = granted(holder.leases.try_acquire(&claim).await.unwrap());
    assert!(again.token > first.token);
    assert_eq!(
        contender.held().await.lapses_within,
        Some(contender_span()),
        "a new grant, a new observation"
    );
}

#[tokio::test(start_paused = true)]
async fn rule_9_a_loss_is_final_even_if_a_renewal_succeeds_late() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let guard = locker.lock("x").ttl(TTL).acquire().await.unwrap();
    client.network.stall();
    let loss = guard.lost().await;
    assert!(matches!(loss.reason, LossReason::Expired { .. }), "{loss}");
    client.network.heal();
    client.network.deliver_all().await;
    tokio::task::yield_now().await;
    assert!(guard.check().is_err() && guard.remaining().is_zero());
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    // Acquiring the lock again gives a new grant with a new token.
    let again = locker.lock("x").ttl(TTL).acquire().await.unwrap();
    assert!(again.token().unwrap() > loss.token);
}

/// Found by the simulation: a process that stood still between two attempts of a renewal prolonged a lease whose guard
/// had reported a loss.
#[tokio::test(start_paused = true)]
async fn rule_9_a_renewal_is_not_tried_again_after_the_deadline() {
    let world = World::new();
    let client = world.observer(1);
    let mut grant = client.granted().await;
    client.network.reset_counts();
    client.network.next_write(Outcome::NotApplied);
    let leases = client.leases.clone();
    let renewal = tokio::spawn(async move { leases.renew(&mut grant).await });
    client.network.sent(1).await;
    client.clock.suspend(TTL);
    assert!(matches!(renewal.await.unwrap().unwrap(), Renewal::Lost(_)));
    assert_eq!(client.network.counts().writes, 1);
}

#[tokio::test(start_paused = true)]
async fn rule_10_a_grant_possibly_held_in_between_is_reported_lost() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let mut seed = other.granted().await;
    other.leases.release(&mut seed, None).await.unwrap();

    client.network.next_write(Outcome::HeldBack);
    client.network.next_read(Outcome::Fine);
    client.network.next_read(Outcome::Stalled);
    let acquisition = {
        let (leases, claim) = (client.leases.clone(), client.claim());
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    client.network.until(|counts| counts.reads == 2).await;
    // The write is applied, but the client cannot know this yet.
    client.network.deliver().await;
    let ours = world.raw().await["token"].as_u64().unwrap();
    other.leases.evict(&name(), leasehold::Token::new(ours).unwrap(), None).await.unwrap();
    let successor = other.granted().await;
    client.network.deliver().await; // Only now does the client read.
    match acquisition.await.unwrap().unwrap() {
        AcquireOutcome::Lost(loss) => {
            assert!(loss.token.get() == ours && successor.token.get() > ours, "{loss}")
        }
        other => panic!("{other:?}"),
    }
    // Merely losing a race is not a loss.
    client.held().await;
}

#[tokio::test(start_paused = true)]
async fn rule_10_a_conflict_of_a_doubled_request_proves_nothing() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let mut seed = other.granted().await;
    other.leases.release(&mut seed, None).await.unwrap();

    client.network.next_write(Outcome::TwiceSecondAnswer);
    client.network.next_read(Outcome::Fine);
    client.network.next_read(Outcome::Stalled);
    let acquisition = {
        let (leases, claim) = (client.leases.clone(), client.claim());
        tokio::spawn(async move { leases.try_acquire(&claim).await })
    };
    // The write was refused, so the client reads the record.
    client.network.until(|counts| counts.reads == 2).await;
    let ours = world.raw().await["token"].as_u64().unwrap();
    other.leases.evict(&name(), leasehold::Token::new(ours).unwrap(), None).await.unwrap();
    let successor = other.granted().await;
    client.network.deliver().await;
    match acquisition.await.unwrap().unwrap() {
        AcquireOutcome::Lost(loss) => {
            assert!(loss.token.get() == ours && successor.token.get() > ours, "{loss}")
        }
        other => panic!("{other:?}"),
    }
}

/// Until the store accepts requests again, others get the lock twice. Their tokens are above that of the refused write.
#[tokio::test(start_paused = true)]
async fn rule_10_a_write_that_was_refused_for_now_is_no_loss() {
    let world = World::new();
    let (client, other) = (world.observer(1), world.observer(2));
    let mut seed = other.granted().await;
    other.leases.release(&mut seed, None).await.unwrap();
    client.network.next_write(Outcome::Throttled(SECOND * 3));
    let others = async {
        client.network.until(|counts| counts.writes == 1).await;
        let mut grant = other.granted().await;
        other.leases.release(&mut grant, None).await.unwrap();
        other.granted().await
    };
    tokio::join!(client.held(), others);
}

/// Renews the record as a copy of the holder would, if its machine were cloned while it ran.
async fn renewed_by_a_copy(world: &World) {
    world
        .edit(|record| {
            record["heartbeat"] = (record["heartbeat"].as_u64().unwrap() + 1).into();
            record["nonce"] = "0123456789abcdef0123456789abcdef".into();
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn rule_11_a_renewal_by_a_copy_of_the_holder_is_a_loss() {
    let world = World::new();
    let holder = world.observer(1);
    let mut grant = holder.granted().await;
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    renewed_by_a_copy(&world).await;
    assert_eq!(holder.lost(&mut grant).await.reason, LossReason::RenewedElsewhere);
    assert_eq!(world.raw().await["heartbeat"], 2, "the copy's");
}

#[tokio::test(start_paused = true)]
async fn rule_11_a_release_leaves_the_lock_to_the_copy_that_renewed() {
    let world = World::new();
    let holder = world.observer(1);
    let mut grant = holder.granted().await;
    renewed_by_a_copy(&world).await;
    assert_eq!(holder.leases.release(&mut grant, None).await.unwrap(), Released::AlreadyLost);
    assert_eq!(world.raw().await["state"], "held");
}

#[tokio::test(start_paused = true)]
async fn rule_11_one_copy_continues_also_when_responses_are_lost() {
    for outcome in [Outcome::AppliedLost, Outcome::Twice, Outcome::TwiceSecondAnswer, Outcome::Dropped] {
        let world = World::new();
        let holder = world.observer(1);
        let mut grant = holder.granted().await;
        for _ in 0..3 {
            holder.network.next_write(outcome.clone());
            let renewal = holder.leases.renew(&mut grant).await.unwrap();
            assert!(matches!(renewal, Renewal::Renewed), "{outcome:?}: {renewal:?}");
        }
        holder.network.next_write(outcome);
        renewed_by_a_copy(&world).await;
        assert_eq!(holder.lost(&mut grant).await.reason, LossReason::RenewedElsewhere);
    }
}

#[tokio::test(start_paused = true)]
async fn rule_11_every_owner_of_its_ticket_may_renew_a_grant() {
    let world = World::new();
    let (giver, other) = (world.observer(1), world.observer(2));
    let mut grant = giver.granted().await;
    let mut tickets = [grant.without_memo(), grant.without_memo()];
    for _ in 0..3 {
        for ticket in &mut tickets {
            assert!(matches!(other.leases.renew(ticket).await.unwrap(), Renewal::Renewed));
        }
    }
    assert_eq!(giver.lost(&mut grant).await.reason, LossReason::RenewedElsewhere);
    assert_eq!(other.leases.release(&mut tickets[0], None).await.unwrap(), Released::Released);
}

/// A renewal is sent twice, as by a proxy. One request is applied, and the other is refused for now.
#[tokio::test(start_paused = true)]
async fn rule_11_an_own_doubled_renewal_is_not_foreign() {
    let world = World::new();
    let holder = world.observer(1);
    let mut grant = holder.granted().await;
    holder.network.next_write(Outcome::AppliedRefused);
    assert!(matches!(holder.leases.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    holder.network.next_write(Outcome::AppliedRefused);
    assert_eq!(holder.leases.release(&mut grant, None).await.unwrap(), Released::Released);
}

/// A renewal that is dropped midway does not change the grant's memo.
#[tokio::test(start_paused = true)]
async fn rule_11_a_dropped_renewal_forgets_nothing() {
    let world = World::new();
    let holder = world.observer(1);
    let mut grant = holder.granted().await;
    holder.network.next_write(Outcome::Stalled);
    let dropped = timeout(&*holder.env.clock, SECOND, holder.leases.renew(&mut grant)).await;
    assert!(dropped.is_none());
    // A copy of the process renews.
    world
        .edit(|record| {
            record["heartbeat"] = (record["heartbeat"].as_u64().unwrap() + 1).into();
            record["nonce"] = "0123456789abcdef0123456789abcdef".into();
        })
        .await;
    assert_eq!(holder.leases.release(&mut grant, None).await.unwrap(), Released::AlreadyLost);
}

#[tokio::test(start_paused = true)]
async fn a_cooldown_keeps_the_lock_from_being_granted_early() {
    for store_clock in [true, false] {
        let world = World::new();
        let client = world.client(1, TestClock::default(), store_clock);
        let other = world.client(2, TestClock::default(), store_clock);
        let mut grant = client.granted().await;
        client.leases.release(&mut grant, Some(SECOND * 60)).await.unwrap();
        let held = other.held().await;
        assert!(held.in_cooldown && held.lapses_within.unwrap() >= SECOND * 60, "{held:?}");
        other.env.sleep(SECOND * 55).await;
        other.held().await;
        other.env.sleep(SECOND * 8).await;
        assert!(other.granted().await.token > grant.token);
    }
}

#[tokio::test(start_paused = true)]
async fn foreign_newer_and_damaged_records_are_never_taken_over() {
    use leasehold::register::{Precondition, Register};
    for (body, held) in
        [("\n", true), ("1", true), ("{\"leasehold\":2}", false), ("{\"leasehold\":1}", false)]
    {
        let world = World::new();
        let client = world.dated(1);
        world.register.write(crate::common::KEY, Precondition::Absent, body.into()).await.unwrap();
        client.env.sleep(contender_span() * 100).await;
        let verdict = client.leases.try_acquire(&client.claim()).await;
        match verdict {
            Ok(AcquireOutcome::Held(who)) if held => {
                assert!(who.foreign.is_some() && who.lapses_within.is_none())
            }
            Err(StoreError::NotApplied(fault)) if !held => assert!(fault.help.is_some(), "{fault:?}"),
            other => panic!("{body:?}: {other:?}"),
        }
        assert_eq!(client.network.counts().writes, 0);
        assert!(!matches!(client.leases.inspect(&name()).await.map(|status| status.state), Ok(State::Free)));
    }
}
