//! Shared and exclusive holds: a writer excludes all others, and its parts form one hold.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{Client, TTL, World, holder_span};
use leasehold::lease::LeaseStore;
use leasehold::{ErrorKind, Guard, LockName, Locker, LossReason, Released, RwLock, State};
use leasehold_testkit::fault::{Kind, Outcome};

const SECOND: Duration = Duration::from_secs(1);

fn index(client: &Client) -> RwLock {
    Locker::new(client.leases.clone()).rw_lock("x").ttl(TTL)
}

/// Returns the names of all parts of an exclusive hold.
fn parts() -> Vec<LockName> {
    let permits = (1..=RwLock::DEFAULT_READERS).map(|permit| format!("x/shared-{permit}"));
    std::iter::once("x".to_owned()).chain(permits).map(|name| LockName::new(name).unwrap()).collect()
}

async fn held(client: &Client) -> usize {
    let mut held = 0;
    for name in parts() {
        held += usize::from(matches!(client.leases.inspect(&name).await.unwrap().state, State::Held(_)));
    }
    held
}

async fn evict(client: &Client, name: &str) {
    let name = LockName::new(name).unwrap();
    let token = client.leases.inspect(&name).await.unwrap().token.unwrap();
    client.leases.evict(&name, token, None).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shared_holders_are_together_and_an_exclusive_one_is_alone() {
    let world = World::new();
    let (shared, exclusive) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let together = Arc::new(AtomicBool::new(false));
    let mut tasks = tokio::task::JoinSet::new();
    for machine in 0..6 {
        let client = world.observer(machine);
        let (shared, exclusive, together) = (shared.clone(), exclusive.clone(), together.clone());
        tasks.spawn(async move {
            for _ in 0..15 {
                let alone = machine < 2;
                let index = index(&client);
                let guard = if alone { index.exclusive().await } else { index.shared().await }.unwrap();
                let count = if alone { &exclusive } else { &shared };
                count.fetch_add(1, Ordering::SeqCst);
                client.env.sleep(SECOND).await;
                guard.check().unwrap();
                let (readers, writers) = (shared.load(Ordering::SeqCst), exclusive.load(Ordering::SeqCst));
                assert!(writers == 0 || (writers, readers) == (1, 0), "{writers} beside {readers}");
                together.fetch_or(readers > 1, Ordering::SeqCst);
                count.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.unwrap();
                client.env.sleep(Duration::from_millis(200 + 37 * machine)).await;
            }
        });
    }
    tasks.join_all().await;
    assert!(together.load(Ordering::SeqCst), "there were never two shared holders at once");
}

#[tokio::test(start_paused = true)]
async fn a_shared_hold_with_any_permit_keeps_an_exclusive_one_out() {
    for permit in 1..=RwLock::DEFAULT_READERS {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        // Holding any permit is a shared hold.
        let reader =
            Locker::new(one.leases.clone()).lock(format!("x/shared-{permit}")).ttl(TTL).owner("alice");
        let reader = reader.acquire().await.unwrap();
        let error = index(&two).try_exclusive().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Held);
        let text = error.to_string();
        assert!(
            text.starts_with(&format!("lock `x` is held shared: `x/shared-{permit}` by alice@")),
            "{text}"
        );
        // The failed attempt has released all parts that it had acquired.
        assert_eq!(held(&one).await, 1);
        reader.check().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn eight_hold_it_shared_and_a_ninth_waits() {
    let world = World::new();
    let mut guards: Vec<Guard> = Vec::new();
    for machine in 0..RwLock::DEFAULT_READERS as u64 {
        guards.push(index(&world.observer(machine)).try_shared().await.unwrap());
    }
    let ninth = world.observer(9);
    let error = index(&ninth).try_shared().await.unwrap_err();
    assert!(error.to_string().starts_with("all 8 shared permits of `x` are held: "), "{error}");
    assert_eq!(index(&ninth).shared_within(SECOND * 5).await.unwrap_err().kind(), ErrorKind::Held);
    let waiting = tokio::spawn(async move { index(&ninth).shared().await.unwrap() });
    guards.pop().unwrap().release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_hold_is_not_starved_by_shared_ones() {
    let world = World::new();
    let mut readers = tokio::task::JoinSet::new();
    for machine in 0..10 {
        let client = world.observer(machine);
        readers.spawn(async move {
            loop {
                let guard = index(&client).shared().await.unwrap();
                client.env.sleep(SECOND * 4).await;
                guard.release().await.unwrap();
            }
        });
    }
    let writer = world.observer(99);
    writer.env.sleep(SECOND * 20).await;
    // The writer waits for the current readers and for those past the gate: two holds of four seconds, and some polls.
    let guard = index(&writer).exclusive_within(SECOND * 20).await.unwrap();
    guard.check().unwrap();
    readers.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn a_shared_waiter_at_the_gate_costs_one_read_per_poll() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let guard = index(&one).owner("alice").exclusive().await.unwrap();
    let error = index(&two).try_shared().await.unwrap_err();
    assert!(error.to_string().starts_with("lock `x` is held by alice@"), "{error}");
    two.network.reset_counts();
    let error = index(&two).shared_within(SECOND * 60).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    let counts = two.network.counts();
    two.network.reset_counts();
    let plain = Locker::new(two.leases.clone()).lock("x").acquire_within(SECOND * 60).await;
    assert_eq!(plain.unwrap_err().kind(), ErrorKind::Held);
    let most = two.network.counts().reads * 11 / 10;
    assert!(counts.writes == 0 && counts.reads < most, "{counts:?}, and {most} for a plain lock");
    let waiting = tokio::spawn(async move { index(&two).shared().await.unwrap() });
    one.env.sleep(SECOND * 5).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().check().unwrap();
}

#[tokio::test(start_paused = true)]
async fn losing_one_part_loses_the_whole_and_frees_the_other_parts() {
    for part in parts() {
        let world = World::new();
        let (one, two) = (world.observer(1), world.observer(2));
        let guard = index(&one).exclusive().await.unwrap();
        assert_eq!(guard.name().as_str(), "x");
        evict(&two, part.as_str()).await;
        let cancelled = guard.cancellation();
        let loss = guard.lost().await;
        assert_eq!((&loss.name, &loss.reason), (&part, &LossReason::Ended));
        cancelled.cancelled().await;
        assert!(guard.remaining().is_zero());
        assert_eq!(guard.check().unwrap_err().loss(), Some(&loss));
        // The work may still run, so the other parts are free only when the guard is given up.
        one.env.sleep(SECOND).await;
        assert_eq!(held(&two).await, parts().len() - 1, "{part}");
        assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
        one.env.sleep(SECOND).await;
        assert_eq!(held(&two).await, 0, "{part}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_hold_is_valid_until_its_earliest_deadline() {
    for part in parts() {
        let world = World::new();
        let client = world.observer(1);
        let guard = index(&client).exclusive().await.unwrap();
        // From now on, renewals of this part get no response.
        let key = format!("{part}.lock");
        client.network.every_write_of(&key, Outcome::Stalled);
        client.env.sleep(SECOND * 20).await;
        let left = holder_span() - SECOND * 20;
        assert!(guard.remaining() <= left, "{part}: {:?} and not {left:?}", guard.remaining());
        guard.check().unwrap();
        // The check must fail before any timer has fired.
        client.clock.suspend(left);
        assert_eq!(guard.check().unwrap_err().loss().unwrap().name, part);
        assert!(guard.remaining().is_zero());
        guard.cancellation().cancelled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_part_that_cannot_be_renewed_ends_the_whole_at_its_deadline() {
    let world = World::new();
    let client = world.observer(1);
    let guard = index(&client).exclusive().await.unwrap();
    client.network.every_write_of("x/shared-4.lock", Outcome::Dropped);
    let loss = guard.lost().await;
    assert_eq!(loss.name.as_str(), "x/shared-4");
    assert!(matches!(loss.reason, LossReason::Expired { last_error: Some(_) }), "{loss}");
    drop(guard);
    client.env.sleep(SECOND).await;
    assert!(held(&client).await <= 1, "only the part that cannot be written is left to lapse");
}

#[tokio::test(start_paused = true)]
async fn all_parts_end_before_any_release_and_the_gate_goes_last() {
    let world = World::new();
    let client = world.observer(1);
    let guard = index(&client).exclusive().await.unwrap();
    let cancelled = guard.cancellation();
    // By now the renewers run as tasks, so this task does not send the first request.
    client.env.sleep(TTL / 2).await;
    client.network.reset_counts();
    client.network.every(Kind::Write, Outcome::Delayed(SECOND));
    let mut release = pin!(guard.release());
    assert!(futures_util::future::poll_immediate(release.as_mut()).await.is_none());
    assert!(cancelled.is_cancelled() && client.network.counts().writes == 0);
    assert_eq!(release.await.unwrap(), Released::Released);
    let writes: Vec<_> = client.network.log().into_iter().map(|sent| (sent.key, sent.at)).collect();
    assert_eq!(writes.len(), 9, "{writes:?}");
    let (gate, at) = writes.last().unwrap();
    assert_eq!(gate, "x.lock");
    let answered = |sent: &leasehold::clock::Moment| at.shortest_since(*sent) >= SECOND;
    assert!(writes[..8].iter().all(|(_, sent)| answered(sent)), "{writes:?}");
    assert_eq!(held(&client).await, 0);
}

#[tokio::test(start_paused = true)]
async fn a_release_reports_a_part_that_was_no_longer_held() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let guard = index(&one).exclusive().await.unwrap();
    evict(&two, "x/shared-8").await;
    assert_eq!(guard.release().await.unwrap(), Released::AlreadyLost);
    assert_eq!(held(&two).await, 0);
}

#[tokio::test(start_paused = true)]
async fn exclusive_and_plain_holds_exclude_each_other_and_tokens_rise() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let plain = Locker::new(two.leases.clone()).lock("x").ttl(TTL);
    let exclusive = index(&one).exclusive().await.unwrap();
    assert_eq!(plain.try_acquire().await.unwrap_err().kind(), ErrorKind::Held);
    let first = exclusive.token().unwrap();
    exclusive.release().await.unwrap();
    let guard = plain.acquire().await.unwrap();
    assert_eq!(index(&one).try_exclusive().await.unwrap_err().kind(), ErrorKind::Held);
    assert_eq!(index(&one).try_shared().await.unwrap_err().kind(), ErrorKind::Held);
    let second = guard.token().unwrap();
    guard.release().await.unwrap();
    let third = index(&one).exclusive().await.unwrap().token().unwrap();
    assert!(first < second && second < third);
}

/// This limit is documented.
#[tokio::test(start_paused = true)]
async fn a_plain_lock_does_not_see_current_shared_holders() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let _reader = index(&one).shared().await.unwrap();
    let _plain = Locker::new(two.leases.clone()).lock("x").ttl(TTL).try_acquire().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_gate_lost_while_waiting_for_permits_is_acquired_again() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let reader = index(&one).shared().await.unwrap();
    let writer = waiting_writer(&two).await;
    evict(&one, "x").await;
    two.env.sleep(SECOND * 15).await;
    let gate = one.leases.inspect(&LockName::new("x").unwrap()).await.unwrap();
    assert!(matches!(gate.state, State::Held(_)), "{gate:?}");
    granted_at_last(&one, reader, writer).await;
}

#[tokio::test(start_paused = true)]
async fn a_permit_lost_while_waiting_for_others_is_acquired_again() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let reader = index(&one).shared().await.unwrap();
    let writer = waiting_writer(&two).await;
    let of_writer = if reader.name().as_str() == "x/shared-1" { "x/shared-2" } else { "x/shared-1" };
    evict(&one, of_writer).await;
    two.env.sleep(SECOND * 15).await;
    granted_at_last(&one, reader, writer).await;
}

/// Starts a writer, which acquires every part except the one that a shared holder has.
async fn waiting_writer(client: &Client) -> tokio::task::JoinHandle<Guard> {
    let index = index(client);
    let writer = tokio::spawn(async move { index.exclusive().await.unwrap() });
    client.env.sleep(SECOND * 5).await;
    assert_eq!(held(client).await, 9);
    writer
}

async fn granted_at_last(client: &Client, reader: Guard, writer: tokio::task::JoinHandle<Guard>) {
    assert!(!writer.is_finished());
    reader.release().await.unwrap();
    let guard = writer.await.unwrap();
    guard.check().unwrap();
    assert_eq!(held(client).await, 9);
    guard.release().await.unwrap();
    assert_eq!(held(client).await, 0);
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_wait_given_up_at_any_point_leaves_nothing_held() {
    for shared in [0, 1] {
        for polls in (0..80).step_by(4) {
            let world = World::new();
            let (one, two) = (world.observer(1), world.observer(2));
            let _reader = if shared == 1 { Some(index(&one).shared().await.unwrap()) } else { None };
            two.network.every(Kind::Write, Outcome::Delayed(Duration::from_millis(20)));
            {
                let index = index(&two);
                let mut exclusive = pin!(index.exclusive());
                for _ in 0..polls {
                    if futures_util::future::poll_immediate(exclusive.as_mut()).await.is_some() {
                        break;
                    }
                    two.env.sleep(Duration::from_millis(1)).await;
                }
            }
            two.env.sleep(SECOND * 5).await;
            assert_eq!(held(&one).await, shared, "given up after {polls} polls");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_wait_that_times_out_names_the_holder() {
    let world = World::new();
    let (one, two) = (world.observer(1), world.observer(2));
    let reader = index(&one).owner("alice").shared().await.unwrap();
    let error = index(&two).exclusive_within(SECOND * 5).await.unwrap_err();
    assert!(error.to_string().starts_with("lock `x` is held shared: `x/shared-"), "{error}");
    assert_eq!(error.holder().unwrap().holder.as_ref().unwrap().name, "alice");
    two.env.sleep(SECOND).await;
    reader.release().await.unwrap();
    let _writer = index(&one).owner("bob").exclusive().await.unwrap();
    let error = index(&two).exclusive_within(SECOND * 5).await.unwrap_err();
    assert!(error.to_string().starts_with("lock `x` is held by bob@"), "{error}");
    two.network.stall();
    let error = index(&two).exclusive_within(SECOND).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test(start_paused = true)]
async fn an_exclusive_hold_has_a_ticket_and_no_cooldown() {
    let world = World::new();
    let client = world.observer(1);
    let locker = Locker::new(client.leases.clone());
    let guard = index(&client).exclusive().await.unwrap();
    let (name, token) = (guard.name().clone(), guard.token().unwrap());
    assert_eq!(guard.tokens().unwrap().into_iter().collect::<Vec<_>>(), [(name, token)]);
    let ticket = guard.into_ticket().await.unwrap();
    assert_eq!(ticket.tokens().len(), 1, "the caller knows no permits");
    client.env.sleep(TTL / 2).await;
    locker.renew(&ticket).await.unwrap();
    client.env.sleep(TTL * 3 / 4).await;
    assert_eq!(held(&client).await, 9);
    assert_eq!(locker.release(&ticket).await.unwrap(), Released::Released);
    assert_eq!(held(&client).await, 0);
    let guard = index(&client).exclusive().await.unwrap();
    let error = guard.release_with_cooldown(SECOND * 600).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(!error.help().is_empty());
    assert_eq!(held(&client).await, 0);
    let ticket = index(&client).for_ticket().shared().await.unwrap().into_ticket().await.unwrap();
    assert_eq!(index(&client).try_exclusive().await.unwrap_err().kind(), ErrorKind::Held);
    locker.release(&ticket).await.unwrap();
    index(&client).try_exclusive().await.unwrap().check().unwrap();
}
