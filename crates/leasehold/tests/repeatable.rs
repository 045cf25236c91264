//! Acquisitions that callers repeat with the same secret, on several machines. Time is paused.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::{Client, TTL, World, holder_span, name};
use async_trait::async_trait;
use leasehold::RegisterLeases;
use leasehold::error::StoreError;
use leasehold::lease::{AcquireOutcome, Claim, Grant, LeaseStore, Renewal, Secret, Status};
use leasehold::{ErrorKind, HeldTicket, Lock, LockName, Locker, Released};
use leasehold_testkit::fault::{Kind, Outcome};
use leasehold_testkit::layer::{LeaseLayer, LeaseLayered};
use tokio::sync::mpsc;

const SECOND: Duration = Duration::from_secs(1);

fn locker(client: &Client) -> Locker {
    Locker::new(client.leases.clone())
}

fn lock(client: &Client) -> Lock {
    locker(client).lock("x").ttl(TTL)
}

fn secret(number: u64) -> Secret {
    format!("{number:032x}").parse().unwrap()
}

async fn acquired(client: &Client, seed: u64) -> HeldTicket {
    lock(client).acquire_ticket(secret(seed), Duration::ZERO).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_repetition_elsewhere_renews_the_hold() {
    let world = World::new();
    let (one, two) = (world.dated(1), world.dated(2));
    let earlier = acquired(&one, 9).await;
    locker(&one).release(earlier.ticket()).await.unwrap();
    let first = acquired(&one, 1).await;
    for client in [&two, &one, &two] {
        client.env.sleep(20 * SECOND).await;
        let again = acquired(client, 1).await;
        assert_eq!(again.ticket(), first.ticket());
        assert!(again.remaining() > 25 * SECOND);
    }
    locker(&one).renew(first.ticket()).await.unwrap();
    assert_eq!(
        lock(&two).acquire_ticket(secret(2), Duration::ZERO).await.unwrap_err().kind(),
        ErrorKind::Held
    );
}

/// A waiting client of a server has a short ttl until it confirms its grant. If it is frozen, it does not.
#[tokio::test(start_paused = true)]
async fn a_repetition_with_a_longer_ttl_prolongs_the_hold() {
    let world = World::new();
    let client = world.dated(1);
    let locker = locker(&client);
    for waits in [false, true] {
        let seed = 1 + 2 * u64::from(waits);
        let short = locker.lock("x").ttl(6 * SECOND);
        short.acquire_ticket(secret(seed), Duration::ZERO).await.unwrap();
        // The next client waits at the same server.
        let next = waits.then(|| {
            let short = short.clone();
            tokio::spawn(async move { short.acquire_ticket(secret(seed + 1), 600 * SECOND).await })
        });
        client.env.sleep(3 * SECOND).await;
        let held = locker.lock("x").ttl(TTL).acquire_ticket(secret(seed), Duration::ZERO).await.unwrap();
        assert!(held.remaining() > 25 * SECOND, "{:?}", held.remaining());
        client.env.sleep(20 * SECOND).await;
        assert!(next.as_ref().is_none_or(|next| !next.is_finished()), "two holders");
        locker.release(held.ticket()).await.unwrap();
        if let Some(next) = next {
            let began = client.env.now();
            next.await.unwrap().unwrap();
            // No one confirms this grant.
            lock(&world.dated(2)).acquire_within(60 * SECOND).await.unwrap().release().await.unwrap();
            let waited = client.env.now().longest_since(began);
            assert!(waited < 15 * SECOND, "{waited:?}");
        }
    }
}

/// If a repetition has a longer ttl, contenders also wait for that ttl.
#[tokio::test(start_paused = true)]
async fn a_record_lasts_as_long_as_the_lease_of_each_repetition() {
    let world = World::new();
    let (one, two, other) = (world.dated(1), world.dated(2), world.dated(3));
    let earlier = acquired(&one, 9).await;
    locker(&one).release(earlier.ticket()).await.unwrap();
    for (client, ttl) in [(&one, TTL), (&two, 4 * TTL), (&one, TTL)] {
        lock(client).ttl(ttl).acquire_ticket(secret(1), Duration::ZERO).await.unwrap();
    }
    let held = lock(&other).acquire_ticket(secret(2), Duration::ZERO).await.unwrap_err();
    assert!(held.holder().unwrap().lapses_within.unwrap() > 4 * TTL);
}

/// The token of a newly created lock is certain only after a renewal.
#[tokio::test(start_paused = true)]
async fn a_repetition_of_a_creation_supersedes_its_ticket() {
    let world = World::new();
    let (one, two) = (world.dated(1), world.dated(2));
    let first = acquired(&one, 1).await;
    let again = acquired(&two, 1).await;
    assert!(again.ticket().token() > first.ticket().token());
    assert_eq!(
        lock(&two).acquire_ticket(secret(2), Duration::ZERO).await.unwrap_err().kind(),
        ErrorKind::Held
    );
    assert_eq!(locker(&one).renew(first.ticket()).await.unwrap_err().kind(), ErrorKind::Lost);
    locker(&one).renew(again.ticket()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn rule_12_a_spent_id_is_never_granted_again() {
    let world = World::new();
    let (one, two) = (world.dated(1), world.dated(2));
    let held = acquired(&one, 1).await;
    locker(&two).release(held.ticket()).await.unwrap();
    for client in [&one, &two, &world.dated(3)] {
        let spent = lock(client).acquire_ticket(secret(1), SECOND).await.unwrap_err();
        assert_eq!(spent.kind(), ErrorKind::Lost, "{spent}");
    }
    let next = acquired(&two, 2).await;
    let spent = lock(&one).acquire_ticket(secret(1), Duration::ZERO).await.unwrap_err();
    assert_eq!(spent.kind(), ErrorKind::Lost, "{spent}");
    locker(&one).evict(&name(), next.ticket().token()).await.unwrap();
    assert_eq!(
        lock(&one).acquire_ticket(secret(2), Duration::ZERO).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
    assert_eq!(
        lock(&one).acquire_ticket(secret(1), Duration::ZERO).await.unwrap_err().kind(),
        ErrorKind::Lost
    );
}

/// A server does not learn that its grant was applied, and its client goes away. The client then acquires the lock
/// through another server. The first server must not clean up by the id.
#[tokio::test(start_paused = true)]
async fn a_server_that_gives_up_leaves_the_repetitions_hold() {
    let world = World::new();
    let (one, two) = (world.dated(1), world.dated(2));
    let earlier = acquired(&two, 9).await;
    locker(&two).release(earlier.ticket()).await.unwrap();
    one.network.next_write(Outcome::AppliedLost);
    one.network.every(Kind::Read, Outcome::Dropped);
    let given_up = lock(&one).acquire_ticket(secret(1), 3 * SECOND).await.unwrap_err();
    assert_eq!(given_up.kind(), ErrorKind::Unavailable, "{given_up}");
    let held = acquired(&two, 1).await;
    one.network.heal();
    // The first server's task outlives its request and then gives up its place.
    for _ in 0..20 {
        two.env.sleep(3 * SECOND).await;
        locker(&two).renew(held.ticket()).await.unwrap();
    }
    assert_eq!(locker(&two).release(held.ticket()).await.unwrap(), Released::Released);
}

#[tokio::test(start_paused = true)]
async fn a_repetition_behind_a_waiting_task_keeps_its_limit() {
    let world = World::new();
    let one = world.dated(1);
    let lock = lock(&one).store_timeout(SECOND);
    let _held = lock.acquire_ticket(secret(9), Duration::ZERO).await.unwrap();
    let waiting = tokio::spawn({
        let lock = lock.clone();
        async move { lock.acquire_ticket(secret(1), 600 * SECOND).await }
    });
    one.env.sleep(3 * SECOND).await;
    one.network.every(Kind::Read, Outcome::Dropped);
    for (limit, most) in [(Duration::ZERO, SECOND), (2 * SECOND, 2 * SECOND)] {
        let began = one.env.now();
        let error = lock.acquire_ticket(secret(2), limit).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        let took = one.env.now().longest_since(began);
        assert!(took >= most && took < most + SECOND / 2, "{took:?}");
    }
    // The time until the responses to its first requests is part of the limit.
    one.network.every(Kind::Read, Outcome::AnswerDelayed(SECOND / 2));
    let began = one.env.now();
    lock.acquire_ticket(secret(2), 4 * SECOND).await.unwrap_err();
    let took = one.env.now().longest_since(began);
    assert!(took >= 4 * SECOND && took < 4 * SECOND + SECOND / 2, "{took:?}");
    waiting.abort();
}

/// A server repeats a hold, and the response arrives after the lease has expired by this server's clock. By the clock
/// of the server that reported the hold, which is 0.3 % slower, the lease is still valid.
#[tokio::test(start_paused = true)]
async fn rule_12_a_late_grant_is_left_to_its_repetitions() {
    let world = World::new();
    let (one, two) = (world.dated(1), world.dated(2));
    let earlier = acquired(&two, 9).await;
    locker(&two).release(earlier.ticket()).await.unwrap();
    let held = acquired(&two, 1).await;
    one.network.next_write(Outcome::AnswerStalled);
    let late = lock(&one);
    let late = tokio::spawn(async move { late.acquire_ticket(secret(1), Duration::ZERO).await });
    while world.raw().await["heartbeat"] == 0 {
        tokio::task::yield_now().await;
    }
    two.clock.suspend(holder_span() - SECOND / 20);
    one.clock.suspend(holder_span() + SECOND / 20);
    one.network.deliver().await;
    assert_eq!(late.await.unwrap().unwrap_err().kind(), ErrorKind::Lost);
    assert!(!held.remaining().is_zero());
    locker(&two).renew(held.ticket()).await.unwrap();
}

/// As above, for a client that goes away while it waits, at the moment when the lock is granted.
#[tokio::test(start_paused = true)]
async fn a_grant_that_no_caller_takes_lapses_or_goes_to_a_repetition() {
    let world = World::new();
    let (one, two, holder) = (world.dated(1), world.dated(2), world.dated(3));
    let first = acquired(&holder, 9).await;
    let (seen, mut is_seen) = mpsc::unbounded_channel();
    let waiting = lock(&one).on_wait(move |_| seen.send(()).unwrap_or_default());
    let waiting = tokio::spawn(async move { waiting.acquire_ticket(secret(1), 600 * SECOND).await });
    is_seen.recv().await.unwrap();
    one.network.every(Kind::Write, Outcome::AnswerDelayed(5 * SECOND));
    locker(&holder).release(first.ticket()).await.unwrap();
    while holder.is_free().await {
        holder.env.sleep(SECOND / 10).await;
    }
    waiting.abort();
    let held = acquired(&two, 1).await;
    for _ in 0..20 {
        two.env.sleep(3 * SECOND).await;
        locker(&two).renew(held.ticket()).await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_gives_up_leaves_the_line() {
    let world = World::new();
    let (one, holder) = (world.dated(1), world.dated(3));
    let first = acquired(&holder, 9).await;
    let (seen, mut is_seen) = mpsc::unbounded_channel();
    let waiting =
        lock(&one).on_wait(move |held| held.ahead.map_or((), |_| seen.send(()).unwrap_or_default()));
    let waiting = tokio::spawn(async move { waiting.acquire_ticket(secret(1), 600 * SECOND).await });
    is_seen.recv().await.unwrap();
    let waiters = async || locker(&holder).inspect(&name()).await.unwrap().waiters.len();
    assert_eq!(waiters().await, 1);
    waiting.abort();
    while waiters().await > 0 {
        holder.env.sleep(SECOND / 10).await;
        locker(&holder).renew(first.ticket()).await.unwrap();
    }
}

/// Waiting tasks of the same server do not delay a repetition of the request that holds the lock.
#[tokio::test(start_paused = true)]
async fn a_repetition_does_not_queue_behind_those_who_wait_for_it() {
    let world = World::new();
    let one = world.dated(1);
    let locker = locker(&one);
    let lock = locker.lock("x").ttl(TTL);
    let first = lock.acquire_ticket(secret(1), Duration::ZERO).await.unwrap();
    let (seen, mut is_seen) = mpsc::unbounded_channel();
    let waiting = lock.clone().on_wait(move |_| seen.send(()).unwrap_or_default());
    let waiting = tokio::spawn(async move { waiting.acquire_ticket(secret(2), 600 * SECOND).await });
    is_seen.recv().await.unwrap();
    for limit in [Duration::ZERO, 600 * SECOND] {
        let again = lock.acquire_ticket(secret(1), limit).await.unwrap();
        assert_eq!(again.ticket(), first.ticket());
    }
    locker.release(first.ticket()).await.unwrap();
    waiting.await.unwrap().unwrap();
}

/// A store that renews by the id alone, like SQLite. If `next` is set, `inspect` releases the earlier ticket and grants
/// the claim before it returns the status that it read earlier.
#[derive(Debug)]
struct ByIdAlone {
    leases: Arc<RegisterLeases>,
    next: Mutex<Option<(HeldTicket, Claim)>>,
}

#[async_trait]
impl LeaseLayer for ByIdAlone {
    fn inner(&self) -> &dyn LeaseStore {
        &*self.leases
    }

    async fn renew(&self, grant: &mut Grant) -> Result<Renewal, StoreError> {
        let asked = grant.token;
        grant.token = self.leases.inspect(&grant.name).await?.token.unwrap();
        let renewal = self.leases.renew(grant).await;
        grant.token = asked;
        renewal
    }

    async fn inspect(&self, name: &LockName) -> Result<Status, StoreError> {
        let status = self.leases.inspect(name).await;
        let next = self.next.lock().unwrap().take();
        if let Some((earlier, claim)) = next {
            Locker::new(self.leases.clone()).release(earlier.ticket()).await.unwrap();
            assert!(matches!(self.leases.try_acquire(&claim).await?, AcquireOutcome::Granted(_)));
        }
        status
    }
}

/// The claim is granted between two requests of its repetition. The first response has the token of the previous
/// holder.
#[tokio::test(start_paused = true)]
async fn a_repetition_never_has_the_token_of_the_holder_before_it() {
    let world = World::new();
    let one = world.dated(1);
    let earlier = acquired(&one, 9).await;
    let token = earlier.ticket().token();
    let mut claim = one.claim();
    (claim.id, claim.repeatable) = (secret(1).id(), true);
    let store = ByIdAlone { leases: one.leases.clone(), next: Mutex::new(None) };
    let store = Arc::new(LeaseLayered(store));
    let lock = Locker::new(store.clone()).lock("x").ttl(TTL);
    // Another task of this process waits, so the repetition first asks whether its claim holds the lock.
    let (seen, mut is_seen) = mpsc::unbounded_channel();
    let waiting = lock.clone().on_wait(move |_| seen.send(()).unwrap_or_default());
    let waiting = tokio::spawn(async move { waiting.acquire_ticket(secret(2), 600 * SECOND).await });
    is_seen.recv().await.unwrap();
    *store.next.lock().unwrap() = Some((earlier, claim));
    let held = lock.acquire_ticket(secret(1), Duration::ZERO).await.unwrap();
    assert!(held.ticket().token() > token, "{:?}", held.ticket());
    waiting.abort();
}
