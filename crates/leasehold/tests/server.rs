//! Records on a server that executes one step at a time, and can lose its latest writes. Time is paused.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, TestClock};
use leasehold::env::Env;
use leasehold::error::StoreError;
use leasehold::lease::{
    AcquireOutcome, Claim, Grant, HolderInfo, LeaseStore, Renewal, StoreOptions, Ttl, Watch,
};
use leasehold::stores::memory::server::{self, MemoryServer};
use leasehold::{Holder, LockName, RegisterLeases, Released};
use leasehold_testkit::fault::{FaultyRegister, Kind, Outcome};

const TTL: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

/// A server, and the true time.
struct World {
    server: Arc<MemoryServer>,
    clock: Arc<TestClock>,
}

/// A process with its own connection.
struct Client {
    leases: RegisterLeases,
    network: FaultyRegister,
}

impl World {
    fn new() -> Self {
        Self::with_grace(Duration::ZERO)
    }

    fn with_grace(grace: Duration) -> Self {
        let clock = Arc::<TestClock>::default();
        let env = Env::seeded(clock.clone(), 0);
        Self { server: Arc::new(MemoryServer::new(env, grace, |_, _, _| {})), clock }
    }

    /// Returns a process that knows the server's time.
    async fn client(&self, seed: u64) -> Client {
        let network = FaultyRegister::new(self.server.clone());
        let mut options = StoreOptions::default();
        options.env = Env::seeded(self.clock.clone(), seed);
        options.margin = Duration::ZERO;
        let client = Client { leases: server::leases(Arc::new(network.clone()), options), network };
        client.leases.inspect(&LockName::new("other").unwrap()).await.unwrap();
        client.network.reset_counts();
        client
    }
}

impl Client {
    /// Returns how many requests were sent since the last call.
    fn requests(&self) -> usize {
        let sent = self.network.counts().total();
        self.network.reset_counts();
        sent
    }

    fn claim(&self) -> Claim {
        let name = LockName::new("x").unwrap();
        Claim::new(self.leases.env(), name, Ttl::new(TTL).unwrap(), Holder::this_process())
    }

    async fn asks(&self, claim: &Claim) -> AcquireOutcome {
        self.leases.try_acquire(claim).await.unwrap()
    }

    async fn granted(&self, claim: &Claim) -> Grant {
        match self.asks(claim).await {
            AcquireOutcome::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    async fn refused(&self, claim: &Claim) -> HolderInfo {
        match self.asks(claim).await {
            AcquireOutcome::Held(held) => held,
            other => panic!("{other:?}"),
        }
    }

    /// Returns a claim that has a place in the line.
    async fn joined(&self) -> Claim {
        let mut claim = self.claim();
        claim.waits = true;
        let held = self.refused(&claim).await;
        self.leases.turn(&claim, &held).await.unwrap();
        // It learns its place from what it has just read.
        assert!(self.refused(&claim).await.ahead.is_some());
        claim
    }

    async fn renews(&self, grant: &mut Grant) -> bool {
        matches!(self.leases.renew(grant).await.unwrap(), Renewal::Renewed)
    }

    async fn releases(&self, grant: &mut Grant) {
        assert_eq!(self.leases.release(grant, None).await.unwrap(), Released::Released);
    }
}

#[tokio::test(start_paused = true)]
async fn each_step_is_one_request() {
    let world = World::new();
    let (one, two) = (world.client(1).await, world.client(2).await);
    let mut last = None;
    for _ in 0..3 {
        let mut grant = one.granted(&one.claim()).await;
        assert_eq!(one.requests(), 1, "acquire");
        assert!(last.is_none() || grant.after == last, "the tokens in between are its own: {grant:?}");
        last = Some(grant.token);
        assert!(one.renews(&mut grant).await);
        assert_eq!(one.requests(), 1, "renew");
        two.refused(&two.claim()).await;
        assert_eq!(two.requests(), 1, "try a lock that is held");
        one.releases(&mut grant).await;
        assert_eq!(one.requests(), 1, "release");
    }
}

#[tokio::test(start_paused = true)]
async fn a_place_costs_one_request_and_a_hand_off_two() {
    let world = World::new();
    let (one, two, three) = (world.client(1).await, world.client(2).await, world.client(3).await);
    let mut grant = one.granted(&one.claim()).await;
    let (first, second) = (two.joined().await, three.joined().await);
    assert_eq!((two.requests(), three.requests()), (2, 2), "ask and join");
    let longest = u64::try_from(one.leases.capabilities().poll_interval.max.as_millis()).unwrap();
    assert!(world.server.pauses("x").iter().all(|pause| *pause >= longest), "{:?}", world.server.pauses("x"));
    one.requests();
    one.releases(&mut grant).await;
    assert!(three.refused(&second).await.reserved);
    assert_eq!(three.requests(), 1);
    let mut grant = two.granted(&first).await;
    assert_eq!((one.requests(), two.requests()), (1, 1));
    two.releases(&mut grant).await;
    assert!(one.refused(&one.claim()).await.reserved, "a newcomer comes last");
    let mut barging = one.claim();
    barging.barges = true;
    let mut grant = one.granted(&barging).await;
    one.releases(&mut grant).await;
    three.granted(&second).await;
}

#[tokio::test(start_paused = true)]
async fn a_waiter_learns_that_the_one_before_it_has_left() {
    let world = World::new();
    let (one, two, three) = (world.client(1).await, world.client(2).await, world.client(3).await);
    let mut grant = one.granted(&one.claim()).await;
    let (first, second) = (two.joined().await, three.joined().await);
    two.requests();
    two.leases.stop_waiting(&first).await.unwrap();
    assert_eq!(two.requests(), 1);
    let mut before = three.refused(&second).await;
    before.ahead = Some(1);
    three.leases.turn(&second, &before).await.unwrap();
    assert_eq!(three.refused(&second).await.ahead, Some(0));
    one.releases(&mut grant).await;
    three.granted(&second).await;
}

#[tokio::test(start_paused = true)]
async fn a_dead_waiter_is_passed_over_after_its_reservation() {
    let world = World::new();
    let (one, two, three) = (world.client(1).await, world.client(2).await, world.client(3).await);
    let mut grant = one.granted(&one.claim()).await;
    let (_dead, next) = (two.joined().await, three.joined().await);
    one.releases(&mut grant).await;
    let left = three.refused(&next).await.lapses_within.unwrap();
    world.clock.sleep(left).await;
    three.granted(&next).await;
    assert!(one.leases.inspect(&next.name).await.unwrap().waiters.is_empty());
}

/// The other client leaves no trace in the record.
#[tokio::test(start_paused = true)]
async fn a_lapsed_grant_does_not_revive_after_another_client() {
    let world = World::new();
    let (one, two) = (world.client(1).await, world.client(2).await);
    let mut claim = one.claim();
    claim.repeatable = true;
    let mut grant = one.granted(&claim).await;
    // The renewal arrives after the lease.
    one.network.every(Kind::Write, Outcome::Dropped);
    one.network.next_write(Outcome::HeldBack);
    assert!(!world.server.take("x", SECOND), "it is held");
    one.leases.renew(&mut grant).await.unwrap_err();
    world.clock.sleep(2 * TTL).await;
    one.network.every(Kind::Write, Outcome::Fine);
    assert!(world.server.take("x", SECOND));
    assert!(one.refused(&claim).await.foreign.is_some());
    world.clock.sleep(2 * SECOND).await;
    one.network.deliver().await;
    let outcome = one.asks(&claim).await;
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "the same process: {outcome:?}");
    let outcome = two.asks(&claim).await;
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "another process: {outcome:?}");
    two.granted(&two.claim()).await;
    let outcome = one.asks(&claim).await;
    assert!(matches!(outcome, AcquireOutcome::Lost(_)), "by its id in the history: {outcome:?}");
}

/// The server lost the latest renewal, and another client may have had the lock since.
#[tokio::test(start_paused = true)]
async fn a_holder_whose_record_has_lapsed_does_not_renew_it() {
    let world = World::new();
    let one = world.client(1).await;
    let mut grant = one.granted(&one.claim()).await;
    world.clock.sleep(25 * SECOND).await;
    assert!(one.renews(&mut grant).await);
    world.server.fail_over(5 * SECOND, Duration::ZERO);
    world.clock.sleep(10 * SECOND).await;
    assert!(world.server.take("x", SECOND));
    world.clock.sleep(2 * SECOND).await;
    assert!(!one.renews(&mut grant).await);
}

#[tokio::test(start_paused = true)]
async fn a_holder_continues_after_the_server_lost_its_renewal() {
    let world = World::with_grace(2 * TTL);
    let (one, two) = (world.client(1).await, world.client(2).await);
    let mut grant = one.granted(&one.claim()).await;
    assert!(one.renews(&mut grant).await);
    world.clock.sleep(10 * SECOND).await;
    assert!(one.renews(&mut grant).await);
    world.server.fail_over(5 * SECOND, Duration::ZERO);
    assert!(one.renews(&mut grant).await);
    one.releases(&mut grant).await;
    let held = two.refused(&two.claim()).await;
    assert!(held.withheld && held.lapses_within == Some(2 * TTL), "{held:?}");
    two.requests();
    // It asks again when the grace is over, and does not poll.
    let began = two.leases.env().now();
    two.leases.turn(&two.claim(), &held).await.unwrap();
    assert_eq!((two.leases.env().now().shortest_since(began), two.requests()), (2 * TTL, 0));
    two.granted(&two.claim()).await;
}

/// The first request may still be granted, so the claim cannot be refused at once.
#[tokio::test(start_paused = true)]
async fn a_claim_in_doubt_does_not_press_a_server_that_grants_nothing() {
    let world = World::with_grace(2 * TTL);
    let (one, two) = (world.client(1).await, world.client(2).await);
    one.releases(&mut one.granted(&one.claim()).await).await;
    world.server.fail_over(Duration::ZERO, Duration::ZERO);
    one.requests();
    let mut claim = one.claim();
    claim.store_timeout = 3 * SECOND;
    one.network.next_write(Outcome::Dropped);
    let error = one.leases.try_acquire(&claim).await.unwrap_err();
    assert!(matches!(error, StoreError::MaybeApplied(_)), "{error:?}");
    assert!(error.to_string().contains("failover_grace"), "{error}");
    let requests = one.requests();
    assert!((4..100).contains(&requests), "{requests} requests");
    // A waiter may be granted what it asked for before, because it asks with the same claim again.
    let mut waiting = two.claim();
    waiting.waits = true;
    two.network.next_write(Outcome::Dropped);
    assert!(two.refused(&waiting).await.withheld);
}

/// An operator may end the grace, or set the clock, while it sleeps.
#[tokio::test(start_paused = true)]
async fn a_waiter_asks_again_after_a_minute_of_a_long_grace() {
    let world = World::with_grace(3_600 * SECOND);
    let one = world.client(1).await;
    one.releases(&mut one.granted(&one.claim()).await).await;
    world.server.fail_over(Duration::ZERO, Duration::ZERO);
    let claim = one.claim();
    let held = one.refused(&claim).await;
    assert_eq!(held.lapses_within, Some(3_600 * SECOND));
    let began = one.leases.env().now();
    one.leases.turn(&claim, &held).await.unwrap();
    assert_eq!(one.leases.env().now().shortest_since(began), 60 * SECOND);
    one.leases.changed(&claim.name, &held).await.unwrap();
    assert_eq!(one.leases.env().now().shortest_since(began), 120 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn the_grace_passes_while_a_lock_is_held() {
    let world = World::with_grace(2 * TTL);
    let (one, two) = (world.client(1).await, world.client(2).await);
    let mut grant = one.granted(&one.claim()).await;
    world.server.fail_over(Duration::ZERO, Duration::ZERO);
    for _ in 0..2 {
        assert!(one.renews(&mut grant).await);
        world.clock.sleep(TTL / 2).await;
    }
    one.releases(&mut grant).await;
    assert_eq!(two.refused(&two.claim()).await.lapses_within, Some(TTL));
}

/// By the clock of the promoted server, the lease has lapsed.
#[tokio::test(start_paused = true)]
async fn a_promoted_server_whose_clock_is_ahead_grants_no_lock_that_is_held() {
    let world = World::with_grace(2 * TTL);
    let one = world.client(1).await;
    one.granted(&one.claim()).await;
    world.clock.sleep(SECOND).await;
    world.server.fail_over(Duration::ZERO, 2 * TTL - SECOND);
    let two = world.client(2).await;
    let held = two.refused(&two.claim()).await;
    assert!(held.withheld && held.lapses_within == Some(2 * TTL), "{held:?}");
}

#[tokio::test(start_paused = true)]
async fn nothing_is_granted_while_a_lost_grant_may_be_valid() {
    let world = World::with_grace(2 * TTL);
    let (one, two) = (world.client(1).await, world.client(2).await);
    let mut lost = one.granted(&one.claim()).await;
    world.server.fail_over(SECOND, Duration::ZERO);
    assert!(two.refused(&two.claim()).await.withheld);
    assert!(!one.renews(&mut lost).await);
    world.clock.sleep(2 * TTL).await;
    let next = two.granted(&two.claim()).await;
    assert!(next.token > lost.token);
    // The clock says that the server began to run in the future.
    world.server.set_back(600 * SECOND);
    world.server.fail_over(Duration::ZERO, Duration::ZERO);
    assert!(one.refused(&one.claim()).await.lapses_within.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_arrives_late_is_not_granted() {
    let world = World::new();
    let (one, two) = (world.client(1).await, world.client(2).await);
    one.network.next(Kind::Write, Outcome::HeldBack);
    let mut hasty = one.claim();
    hasty.store_timeout = SECOND / 10;
    one.network.every(Kind::Write, Outcome::Dropped);
    one.leases.try_acquire(&hasty).await.unwrap_err();
    world.clock.sleep(TTL).await;
    one.network.deliver().await;
    two.granted(&two.claim()).await;
}

#[tokio::test(start_paused = true)]
async fn a_lost_claim_of_a_lock_that_was_held_since_is_no_loss() {
    let world = World::new();
    let (one, two) = (world.client(1).await, world.client(2).await);
    let grant = one.granted(&one.claim()).await;
    world.clock.sleep(SECOND).await;
    for lost in [Outcome::Dropped, Outcome::AppliedLost] {
        two.network.next(Kind::Write, lost);
        let held = two.refused(&two.claim()).await;
        assert_eq!(held.token, Some(grant.token), "another client had it all the time");
    }
}

#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_passed_over_joins_again() {
    let world = World::new();
    let (one, two, three) = (world.client(1).await, world.client(2).await, world.client(3).await);
    let mut grant = one.granted(&one.claim()).await;
    let passed_over = two.joined().await;
    one.releases(&mut grant).await;
    // It is silent for longer than the lock is reserved for it.
    world.clock.sleep(60 * SECOND).await;
    let mut grant = loop {
        match three.asks(&three.claim()).await {
            AcquireOutcome::Granted(grant) => break grant,
            _ => world.clock.sleep(SECOND).await,
        }
    };
    let held = two.refused(&passed_over).await;
    two.leases.turn(&passed_over, &held).await.unwrap();
    assert_eq!(two.refused(&passed_over).await.ahead, Some(0), "it has a place again");
    three.releases(&mut grant).await;
    assert!(one.refused(&one.claim()).await.reserved, "the lock is reserved for it again");
    two.granted(&passed_over).await;
}
