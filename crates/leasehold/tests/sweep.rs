//! Sweeping on a register: concurrent acquisitions win, and lost responses are resolved.

use std::time::Duration;

use bytes::Bytes;

use crate::common::{Client, World, name};
use leasehold::error::StoreError;
use leasehold::lease::LeaseStore;
use leasehold::register::{Precondition, Register as _, Write};
use leasehold::{ErrorKind, Swept, Token};
use leasehold_testkit::fault::{Kind, Outcome};

const DAY: Duration = Duration::from_secs(86_400);

/// Creates a lock that was released two days ago. Returns its user, a sweeper and its last token.
async fn old(world: &World) -> (Client, Client, Token) {
    let (user, sweeper) = (world.dated(1), world.dated(2));
    let mut grant = user.granted().await;
    user.leases.release(&mut grant, None).await.unwrap();
    user.env.sleep(DAY * 2).await;
    (user, sweeper, grant.token)
}

async fn sweep(client: &Client) -> Swept {
    client.leases.sweep(&name(), DAY, false).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_grant_before_the_delete_lands_is_kept() {
    let world = World::new();
    let (user, sweeper, before) = old(&world).await;
    sweeper.network.next_delete(Outcome::Stalled);
    let network = sweeper.network.clone();
    let swept = tokio::spawn(async move { sweep(&sweeper).await });
    network.until(|counts| counts.deletes == 1).await;
    let mut grant = user.granted().await;
    assert!(grant.token > before);
    network.deliver().await;
    assert_eq!(swept.await.unwrap(), Swept::Kept);
    assert_eq!(world.raw().await["token"], grant.token.get());
    user.leases.renew(&mut grant).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_grant_before_the_delete_is_sent_is_kept() {
    let world = World::new();
    let (user, sweeper, _) = old(&world).await;
    sweeper.network.next_read(Outcome::AnswerStalled);
    let network = sweeper.network.clone();
    let swept = tokio::spawn(async move { sweep(&sweeper).await });
    network.until(|counts| counts.reads == 1).await;
    let mut grant = user.granted().await;
    network.deliver().await;
    assert_eq!(swept.await.unwrap(), Swept::Kept);
    assert_eq!(network.counts().deletes, 1, "of the version that it saw");
    assert_eq!(world.raw().await["token"], grant.token.get());
    user.leases.renew(&mut grant).await.unwrap();
}

/// On DynamoDB, the item of the line has the token of the next record.
#[tokio::test(start_paused = true)]
async fn a_line_that_was_written_after_the_delete_is_kept() {
    let world = World::new();
    let (_, sweeper, _) = old(&world).await;
    let write = async |expect: Precondition<'_>, text: &'static str| {
        world.register.write("x.line", expect, Bytes::from_static(text.as_bytes()).into()).await.unwrap()
    };
    let Write::Committed(version) = write(Precondition::Absent, "old").await else { panic!("there is none") };
    sweeper.network.next_delete(Outcome::AnswerStalled);
    let network = sweeper.network.clone();
    let swept = tokio::spawn(async move { sweep(&sweeper).await });
    network.until(|counts| counts.deletes == 1).await;
    write(Precondition::Version(&version), "new").await;
    network.deliver().await;
    assert_eq!(swept.await.unwrap(), Swept::Deleted);
    assert_eq!(world.register.read("x.line").await.unwrap().unwrap().value, "new");
}

#[tokio::test(start_paused = true)]
async fn a_sweep_with_a_lost_response_reports_the_deletion() {
    for (outcome, deletes) in [(Outcome::AppliedLost, 1), (Outcome::Dropped, 2)] {
        let world = World::new();
        let (user, sweeper, before) = old(&world).await;
        sweeper.network.next_delete(outcome.clone());
        assert_eq!(sweep(&sweeper).await, Swept::Deleted, "{outcome:?}");
        assert_eq!(sweeper.network.counts().deletes, deletes, "{outcome:?}");
        assert_eq!(world.register.read(crate::common::KEY).await.unwrap(), None);
        assert!(user.granted().await.token > before);
    }
}

/// The first delete arrives after the second was sent, which then finds no record.
#[tokio::test(start_paused = true)]
async fn a_sweep_whose_first_delete_comes_late_reports_the_deletion() {
    let world = World::new();
    let (_, sweeper, _) = old(&world).await;
    sweeper.network.next_delete(Outcome::HeldBack);
    sweeper.network.next_delete(Outcome::Stalled);
    let network = sweeper.network.clone();
    let swept = tokio::spawn(async move { sweep(&sweeper).await });
    network.until(|counts| counts.deletes == 2).await;
    network.deliver_all().await;
    assert_eq!(swept.await.unwrap(), Swept::Deleted);
}

#[tokio::test(start_paused = true)]
async fn a_sweep_that_deletes_nothing_does_not_report_a_deletion() {
    let world = World::new();
    let (_, sweeper, _) = old(&world).await;
    sweeper.network.next_delete(Outcome::Denied);
    let refused = sweeper.leases.sweep(&name(), DAY, false).await.unwrap_err();
    assert_eq!((refused.fault().kind, sweeper.network.counts().deletes), (ErrorKind::Denied, 1));
    world.delete().await;
    assert_eq!(sweep(&sweeper).await, Swept::Kept, "there is none");
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_and_a_young_record_send_no_delete() {
    let world = World::new();
    let (_, sweeper, _) = old(&world).await;
    assert_eq!(sweeper.leases.sweep(&name(), DAY, true).await.unwrap(), Swept::Deleted);
    assert_eq!(sweeper.leases.sweep(&name(), DAY * 3, false).await.unwrap(), Swept::Kept);
    assert_eq!(sweeper.network.counts().deletes, 0);
    assert!(sweeper.network.log().iter().all(|sent| sent.kind == Kind::Read));
}

#[tokio::test(start_paused = true)]
async fn age_is_judged_by_the_clock_of_the_store_alone() {
    let world = World::new();
    let (_, sweeper, _) = old(&world).await;
    // The machine's own clocks show that years have passed.
    sweeper.clock.suspend(DAY * 1_000);
    sweeper.clock.step_wall(100_000_000);
    assert_eq!(sweeper.leases.sweep(&name(), DAY * 3, false).await.unwrap(), Swept::Kept);
    let observer = world.observer(3);
    let refused = observer.leases.sweep(&name(), DAY, false).await.unwrap_err();
    let StoreError::NotApplied(fault) = refused else { panic!("{refused:?}") };
    assert_eq!(fault.kind, ErrorKind::Unsupported, "with store_clock=off");
}
