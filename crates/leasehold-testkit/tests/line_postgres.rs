//! The line of waiters in PostgreSQL. Each test fails without its rule.

use std::sync::Arc;
use std::time::Duration;

use leasehold::lease::{AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, StoreOptions, Token, Ttl};
use leasehold::url::StoreUrl;
use leasehold::{Holder, LockName};
use leasehold_testkit::harness::Fresh;
use leasehold_testkit::stores;
use leasehold_testkit::stores::postgres::{psql, table};

/// The ttl of all claims, which is longer than any test.
const TTL: Duration = Duration::from_secs(3_600);

fn lock() -> LockName {
    LockName::new("lock").unwrap()
}

/// A lock on a separate table, and the process that holds it.
struct World {
    fresh: Fresh,
    holder: Waiter,
}

impl World {
    async fn new() -> Self {
        let fresh = stores::fresh("postgres");
        let holder = Waiter::on(&fresh, "holder").await;
        Self { fresh, holder }
    }

    async fn waiter(&self, name: &str) -> Waiter {
        Waiter::on(&self.fresh, name).await
    }

    async fn joined(&self, name: &str) -> Waiter {
        let waiter = self.waiter(name).await;
        let held = waiter.refused().await;
        waiter.turn(&held).await;
        // It learns its place from what it has just read.
        waiter.refused().await;
        waiter
    }

    async fn set(&self, set: &str) {
        psql(self.fresh.url(), &format!("UPDATE {} SET {set}", table(self.fresh.url()))).await;
    }

    /// Makes the reservations long, so that it does not end by chance.
    async fn are_slow(&self) {
        let slow = r#"waiter || '{"polls_ms": 10000}'"#;
        self.set(&format!(
            "line = (SELECT jsonb_agg({slow} ORDER BY place)
                FROM jsonb_array_elements(line) WITH ORDINALITY AS w(waiter, place))"
        ))
        .await;
    }

    /// Changes the table as if an hour had passed since the lock was released or has lapsed.
    async fn an_hour_later(&self) {
        self.set("lock_until = lock_until - interval '1 hour', written_us = written_us - 3600000000").await;
    }

    /// Returns the names of the waiters that were not served, in order.
    async fn in_line(&self) -> String {
        let sql = format!(
            "SELECT string_agg(waiter->'holder'->>'name', ' ' ORDER BY place)
             FROM {}, jsonb_array_elements(line) WITH ORDINALITY AS w(waiter, place)
             WHERE (waiter->>'number')::int8 > served",
            table(self.fresh.url())
        );
        psql(self.fresh.url(), &sql).await
    }
}

/// A claim and its store.
struct Waiter {
    store: Arc<dyn LeaseStore>,
    claim: Claim,
}

impl Waiter {
    async fn on(fresh: &Fresh, name: &str) -> Self {
        let url = StoreUrl::parse(fresh.url()).unwrap();
        let store = leasehold::stores::open(url, StoreOptions::default()).await.unwrap();
        let mut holder = Holder::this_process();
        holder.name = name.to_owned();
        let mut claim = Claim::new(store.env(), lock(), Ttl::new(TTL).unwrap(), holder);
        claim.waits = true;
        Self { store, claim }
    }

    async fn ask(&self) -> AcquireOutcome {
        self.store.try_acquire(&self.claim).await.unwrap()
    }

    async fn granted(&self) -> Grant {
        match self.ask().await {
            AcquireOutcome::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&self) -> HolderInfo {
        match self.ask().await {
            AcquireOutcome::Held(held) => held,
            other => panic!("{other:?}"),
        }
    }

    async fn turn(&self, held: &HolderInfo) {
        self.store.turn(&self.claim, held).await.unwrap();
    }

    async fn release(&self, grant: &mut Grant) {
        self.store.release(grant, None).await.unwrap();
    }
}

#[tokio::test]
async fn waiters_are_granted_the_lock_in_the_order_of_joining() {
    let world = World::new().await;
    let mut grant = world.holder.granted().await;
    let (first, second) = (world.joined("first").await, world.joined("second").await);
    let (of_first, of_second) = (first.refused().await, second.refused().await);
    assert_eq!((of_first.ahead, of_first.waiter_ahead), (Some(0), None));
    assert_eq!((of_second.ahead, of_second.waiter_ahead), (Some(1), Some(first.claim.holder.clone())));
    assert_eq!(world.in_line().await, "first second");
    let status = second.store.inspect(&lock()).await.unwrap();
    assert_eq!(status.waiters[1].holder.name, "second");
    assert!(status.waiters[0].waited.is_some());
    world.joined("third").await;
    let third = format!("SELECT line->2->'polls_ms' FROM {}", table(world.fresh.url()));
    assert_eq!(psql(world.fresh.url(), &third).await, "1500", "three times as long as the first");
    world.are_slow().await;
    world.holder.release(&mut grant).await;
    for other in [second.refused().await, world.waiter("newcomer").await.refused().await] {
        assert!(other.reserved, "{other:?}");
        assert_eq!(other.holder.as_ref().map(|holder| &*holder.name), Some("first"));
    }
    let mut grant = first.granted().await;
    assert_eq!(world.in_line().await, "second third");
    first.release(&mut grant).await;
    second.granted().await;
    assert_eq!(world.in_line().await, "third");
}

#[tokio::test]
async fn a_dead_waiter_is_passed_over_after_its_reservation() {
    let world = World::new().await;
    let mut grant = world.holder.granted().await;
    let dead = world.joined("dead").await;
    let next = world.joined("next").await;
    let last = world.joined("last").await;
    world.are_slow().await;
    world.holder.release(&mut grant).await;
    assert!(next.refused().await.reserved);
    world.an_hour_later().await;
    let mut grant = next.granted().await;
    assert_eq!(world.in_line().await, "last", "the dead waiter has lost its place");
    // The waiter is alive after all, and joins the line at the end.
    dead.turn(&dead.refused().await).await;
    assert_eq!(world.in_line().await, "last dead");
    next.release(&mut grant).await;
    last.granted().await;
}

#[tokio::test]
async fn a_claim_that_barges_ignores_the_line_and_leaves_it_unchanged() {
    let world = World::new().await;
    let mut grant = world.holder.granted().await;
    let first = world.joined("first").await;
    world.are_slow().await;
    world.holder.release(&mut grant).await;
    let mut barging = world.waiter("barging").await;
    barging.claim.barges = true;
    let mut grant = barging.granted().await;
    assert_eq!(world.in_line().await, "first");
    barging.release(&mut grant).await;
    first.granted().await;
}

#[tokio::test]
async fn a_claim_that_is_withdrawn_leaves_the_line() {
    let world = World::new().await;
    let mut grant = world.holder.granted().await;
    let (first, second) = (world.joined("first").await, world.joined("second").await);
    let mut withdrawn = Grant::new(&first.claim, Token::default(), first.store.env().now());
    world.are_slow().await;
    first.store.release(&mut withdrawn, None).await.unwrap();
    assert_eq!(world.in_line().await, "second");
    world.holder.release(&mut grant).await;
    second.granted().await;
}

/// Returns SQL of a line with this many waiters.
fn line_of(count: usize) -> String {
    format!(
        r#"(SELECT jsonb_agg(jsonb_build_object('number', n, 'claim', lpad(n::text, 32, '0'), 'polls_ms', 10000))
            FROM generate_series(1, {count}) AS n)"#
    )
}

#[tokio::test]
async fn a_line_with_ten_thousand_entries_delays_no_one_for_long() {
    let world = World::new().await;
    let mut grant = world.holder.granted().await;
    world.set(&format!("line = {}", line_of(10_000))).await;
    let waiter = world.waiter("waiter").await;
    assert_eq!(waiter.store.inspect(&lock()).await.unwrap().waiters.len(), 64);
    world.holder.release(&mut grant).await;
    let held = waiter.refused().await;
    assert!(held.reserved && held.lapses_within.unwrap() <= Duration::from_secs(52), "{held:?}");
    world.an_hour_later().await;
    waiter.granted().await;
}

#[tokio::test]
async fn a_line_that_was_damaged_by_hand_delays_no_one_for_long() {
    let world = World::new().await;
    let claim = "00112233445566778899aabbccddeeff";
    let entries = format!(
        r#"'[7, {{"number":"x"}}, {{"number":1e300,"claim":"{claim}"}}, {{"number":2,"claim":"x"}},
            {{"number":3.5,"claim":"{claim}","polls_ms":1e300,"holder":7}}]'"#
    );
    for (damaged, joins) in [
        ("'7'", true),
        ("'{}'", true),
        ("'null'", true),
        ("NULL", true),
        (&*entries, true),
        (&*line_of(64), false),
    ] {
        let mut grant = world.holder.granted().await;
        world.set(&format!("line = {damaged}")).await;
        let waiter = world.waiter("waiter").await;
        let held = waiter.refused().await;
        if joins {
            waiter.turn(&held).await;
            assert!(waiter.refused().await.ahead.is_some(), "{damaged}");
        }
        world.holder.release(&mut grant).await;
        world.an_hour_later().await;
        let mut grant = waiter.granted().await;
        waiter.release(&mut grant).await;
        // The next round repeats the holder's claim, so the table must not show that the claim was granted before.
        psql(world.fresh.url(), &format!("DELETE FROM {}", table(world.fresh.url()))).await;
    }
}

/// The row has no record of leasehold when they join.
#[tokio::test]
async fn waiters_for_a_lock_of_another_client_have_their_order() {
    let world = World::new().await;
    let name = table(world.fresh.url());
    let theirs = format!(
        "INSERT INTO {name} (name, lock_until, locked_at, locked_by)
         VALUES ('lock', timezone('utc', clock_timestamp()) + interval '1 hour', now(), 'host-1')"
    );
    psql(world.fresh.url(), &theirs).await;
    let first = world.waiter("first").await;
    let held = first.refused().await;
    let waiting = tokio::spawn(async move {
        first.turn(&held).await;
        first
    });
    let has_joined = format!("SELECT jsonb_array_length(line) FROM {name}");
    while psql(world.fresh.url(), &has_joined).await != "1" {
        tokio::task::yield_now().await;
    }
    world.are_slow().await;
    world.set("lock_until = timezone('utc', clock_timestamp())").await;
    assert!(world.waiter("newcomer").await.refused().await.reserved);
    let first = waiting.await.unwrap();
    let mut grant = first.granted().await;
    first.release(&mut grant).await;
    world.waiter("newcomer").await.granted().await;
}
