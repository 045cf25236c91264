//! The rules that make locks on etcd safe, each tested on a real member. Each test fails without its rule.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{Clock, Moment, SystemClock, TestClock};
use leasehold::env::Env;
use leasehold::lease::{
    AcquireOutcome, Claim, Grant, LeaseStore, Released, Renewal, State, StoreOptions, Ttl,
};
use leasehold::url::StoreUrl;
use leasehold::{Holder, LockName};
use leasehold_testkit::process::within;
use leasehold_testkit::servers::Server;
use leasehold_testkit::stores::etcd::{Cluster, etcdctl, in_line};
use leasehold_testkit::tcp_proxy::{Answers, Wire};

const TTL: Duration = Duration::from_secs(30);
/// The ttl of locks that must lapse. Others keep their lease alive in the meantime.
const SHORT: Duration = Duration::from_secs(8);

struct Client {
    store: Arc<dyn LeaseStore>,
    prefix: String,
}

impl Client {
    async fn open(url: &str) -> Self {
        Self::open_with(url, StoreOptions::default()).await
    }

    async fn open_with(url: &str, options: StoreOptions) -> Self {
        let url = StoreUrl::parse(url).unwrap();
        let prefix = format!("{}/lock/", url.path().trim_matches('/'));
        Self { store: leasehold::stores::open(url, options).await.unwrap(), prefix }
    }

    fn env(&self) -> &Env {
        self.store.env()
    }

    fn claim(&self, name: &str, ttl: Duration) -> Claim {
        let name = LockName::new(name).unwrap();
        Claim::new(self.env(), name, Ttl::new(ttl).unwrap(), Holder::this_process())
    }

    fn waiting(&self) -> Claim {
        let mut claim = self.claim("lock", TTL);
        claim.waits = true;
        claim
    }

    async fn granted(&self, claim: &Claim) -> Grant {
        match self.store.try_acquire(claim).await.unwrap() {
            AcquireOutcome::Granted(grant) => grant,
            other => panic!("{other:?}"),
        }
    }

    async fn held(&self, claim: &Claim) -> leasehold::HolderInfo {
        match self.store.try_acquire(claim).await.unwrap() {
            AcquireOutcome::Held(held) => held,
            other => panic!("{other:?}"),
        }
    }

    async fn renewed(&self, grant: &mut Grant) {
        assert!(matches!(self.store.renew(grant).await.unwrap(), Renewal::Renewed));
    }

    async fn stand(&self, count: usize) {
        in_line(&Server::ETCD.address(), &self.prefix, count).await;
    }

    fn remaining(&self, grant: &Grant) -> Duration {
        grant.deadline.remaining(self.env().now())
    }
}

async fn two() -> (Client, Client) {
    let url = Server::ETCD.fresh_url();
    (Client::open(&url).await, Client::open(&url).await)
}

/// A clock on which sleeps above 9 s never end, so that a test passes only if its waiter is woken by an event.
#[derive(Debug)]
struct NoLongSleep;

#[async_trait::async_trait]
impl Clock for NoLongSleep {
    fn now(&self) -> Moment {
        SystemClock.now()
    }

    async fn sleep(&self, duration: Duration) {
        if duration > Duration::from_secs(9) {
            std::future::pending::<()>().await;
        }
        SystemClock.sleep(duration).await;
    }
}

/// A range cannot separate the keys of a lock from those of the locks below its name.
#[tokio::test]
async fn waiters_are_shown_also_behind_older_keys_of_other_locks() {
    const LONG: Duration = Duration::from_secs(60);
    let (one, two) = two().await;
    for n in 0..70 {
        one.granted(&one.claim(&format!("lock/{n}"), LONG)).await;
    }
    let grant = one.granted(&one.claim("lock", LONG)).await;
    let mut waiting = two.claim("lock", LONG);
    waiting.waits = true;
    two.held(&waiting).await;
    one.granted(&one.claim("lock/70", LONG)).await;
    let status = one.store.inspect(&grant.name).await.unwrap();
    assert_eq!((status.token, status.waiters.len()), (Some(grant.token), 1));
}

/// A client that waits for a job to end sees the cooldown begin. The key is written then, not deleted.
#[tokio::test]
async fn a_waiter_outside_the_line_is_woken_by_a_cooldown() {
    let url = Server::ETCD.fresh_url();
    let mut options = StoreOptions::default();
    options.env = Env::seeded(Arc::new(NoLongSleep), 1);
    let (one, two) = (Client::open(&url).await, Client::open_with(&url, options).await);
    let mut grant = one.granted(&one.claim("lock", TTL)).await;
    let claim = two.claim("lock", TTL);
    let seen = two.held(&claim).await;
    let told = within("hearing of the rest", two.store.turn(&claim, &seen));
    let rested = one.store.release(&mut grant, Some(Duration::from_secs(3_600)));
    let (told, rested) = futures_util::future::join(told, rested).await;
    told.unwrap();
    assert_eq!(rested.unwrap(), Released::Released);
    let held = two.held(&claim).await;
    assert!(held.in_cooldown && held.last_holder == Some(Holder::this_process()), "{held:?}");
    // The remaining time is read from etcd's lease, because the key contains only the length of the cooldown.
    assert!(held.held_for.is_some() && held.lapses_within <= Some(Duration::from_secs(3_600)));
}

/// Fault 28: the key of a claim in line expires with its lease. A client that takes the absence of keys before its own
/// for its turn would hold the lock by a key that no longer exists.
#[tokio::test]
async fn a_lost_place_in_line_is_not_a_grant() {
    let (one, two) = two().await;
    let mut first = one.granted(&one.claim("lock", TTL)).await;
    let claim = two.waiting();
    let seen = two.held(&claim).await;
    two.stand(2).await;
    etcdctl(&Server::ETCD.address(), &["del", &format!("{}{}", two.prefix, claim.id)]).await;
    within("hearing of the loss", two.store.turn(&claim, &seen)).await.unwrap();
    two.held(&claim).await;
    two.stand(2).await;
    etcdctl(&Server::ETCD.address(), &["del", &format!("{}{}", two.prefix, claim.id)]).await;
    one.store.release(&mut first, None).await.unwrap();
    let grant = two.granted(&claim).await;
    let status = one.store.inspect(&grant.name).await.unwrap();
    assert_eq!(status.token, Some(grant.token), "believes in a lock that it does not have");
}

/// The same for a client that has not noticed the loss of its place. The claims behind it now come first.
#[tokio::test]
async fn a_place_that_was_lost_unnoticed_is_retaken_at_the_end() {
    let (one, two) = two().await;
    let mut first = one.granted(&one.claim("lock", TTL)).await;
    let (lost, behind) = (two.waiting(), one.waiting());
    two.held(&lost).await;
    one.held(&behind).await;
    etcdctl(&Server::ETCD.address(), &["del", &format!("{}{}", two.prefix, lost.id)]).await;
    one.store.release(&mut first, None).await.unwrap();
    two.held(&lost).await;
    let mut grant = one.granted(&behind).await;
    two.held(&lost).await;
    one.store.release(&mut grant, None).await.unwrap();
    two.granted(&lost).await;
}

/// The first in line confirms its turn with a write. No client sees a token before that, and the token is that of the
/// write.
#[tokio::test]
async fn a_turn_is_confirmed_by_a_visible_write() {
    let (one, two) = two().await;
    let mut first = one.granted(&one.claim("lock", TTL)).await;
    let claim = two.waiting();
    let seen = two.held(&claim).await;
    one.store.release(&mut first, None).await.unwrap();
    within("the turn", two.store.turn(&claim, &seen)).await.unwrap();
    let State::Held(held) = one.store.inspect(&claim.name).await.unwrap().state else { panic!() };
    assert_eq!((held.holder.is_some(), held.token), (true, None), "in line, and not granted yet");
    let grant = two.granted(&claim).await;
    assert_eq!(one.store.inspect(&claim.name).await.unwrap().token, Some(grant.token));
    assert!(grant.token > first.token);
}

/// A claim that asks before its turn learns the holder, however often it asks, and keeps its place.
#[tokio::test]
async fn no_claim_is_granted_before_its_turn() {
    let (one, two) = two().await;
    let first = one.granted(&one.claim("lock", Duration::from_secs(60))).await;
    let (earlier, later) = (two.waiting(), two.waiting());
    for claim in [&earlier, &later, &earlier, &later] {
        assert_eq!(two.held(claim).await.token, Some(first.token));
    }
    two.stand(3).await;
    assert_eq!(two.store.evict(&first.name, first.token, None).await.unwrap(), leasehold::Evicted::Evicted);
    two.held(&later).await;
    let mut grant = two.granted(&earlier).await;
    two.held(&later).await;
    two.store.release(&mut grant, None).await.unwrap();
    two.granted(&later).await;
}

/// A claim that gives up leaves its place, and the next in line has its turn.
#[tokio::test]
async fn a_claim_that_is_withdrawn_leaves_the_line() {
    let (one, two) = two().await;
    let mut first = one.granted(&one.claim("lock", TTL)).await;
    let (earlier, later) = (two.waiting(), two.waiting());
    two.held(&earlier).await;
    let seen = two.held(&later).await;
    let mut given_up = Grant::new(&earlier, leasehold::Token::default(), first.deadline.start());
    two.store.release(&mut given_up, None).await.unwrap();
    two.stand(2).await;
    one.store.release(&mut first, None).await.unwrap();
    within("the turn", two.store.turn(&later, &seen)).await.unwrap();
    two.granted(&later).await;
}

/// Whatever the last response was, a claim whose key is in line is withdrawn only on request.
#[tokio::test]
async fn an_error_while_waiting_in_line_is_maybe_applied() {
    let (one, two) = two().await;
    let mut first = one.granted(&one.claim("lock", TTL)).await;
    let claim = two.waiting();
    two.held(&claim).await;
    etcdctl(&Server::ETCD.address(), &["put", "--ignore-lease", &format!("{}{}", two.prefix, claim.id), "x"])
        .await;
    one.store.release(&mut first, None).await.unwrap();
    let error = two.store.try_acquire(&claim).await.unwrap_err();
    assert!(matches!(error, leasehold::error::StoreError::MaybeApplied(_)), "{error:?}");
}

/// The lease was kept alive before the key was attached to it. The deadline counts from that keep-alive.
#[tokio::test]
async fn a_second_lock_on_a_lease_is_no_younger_than_the_lease() {
    let (one, _) = two().await;
    one.granted(&one.claim("lock", TTL)).await;
    one.env().sleep(Duration::from_millis(600)).await;
    let second = one.granted(&one.claim("other", TTL)).await;
    assert!(one.remaining(&second) + Duration::from_millis(600) <= second.ttl.holder_span(), "{second:?}");
}

/// However late the response to a keep-alive is, the deadline counts from before it was sent.
#[tokio::test]
async fn a_deadline_counts_from_before_the_keep_alive_was_sent() {
    const DELAY: Duration = Duration::from_millis(200);
    let url = Server::ETCD.fresh_url();
    let wire = Wire::to(&Server::ETCD.address()).await;
    let client = Client::open(&url.replace(&Server::ETCD.address(), &wire.address().to_string())).await;
    let mut grant = client.granted(&client.claim("lock", TTL)).await;
    wire.let_answers(Answers::ArriveAfter(DELAY));
    let sent = client.env().now();
    client.renewed(&mut grant).await;
    assert!(client.env().now().longest_since(sent) >= DELAY);
    // The response to the read that follows is delayed too.
    assert!(client.remaining(&grant) + 2 * DELAY <= grant.ttl.holder_span());
}

/// A grant that is not renewed lapses even if other grants keep its lease alive, but not too early.
#[tokio::test]
async fn a_grant_without_renewals_lapses_although_its_lease_lives() {
    let (one, two) = two().await;
    let mut kept = one.granted(&one.claim("other", SHORT)).await;
    let forgotten = one.granted(&one.claim("lock", SHORT)).await;
    let seen = two.held(&two.claim("lock", SHORT)).await;
    let renewing = async {
        loop {
            one.env().sleep(SHORT / 4).await;
            one.renewed(&mut kept).await;
        }
    };
    tokio::select! {
        () = renewing => {}
        changed = within("the lapse", two.store.changed(&forgotten.name, &seen)) => changed.unwrap(),
    }
    assert!(forgotten.deadline.passed(two.env().now()));
    two.granted(&two.claim("lock", TTL)).await;
    one.renewed(&mut kept).await;
}

/// A write whose response was lost is found by its key. It is granted once, renewed, and released.
#[tokio::test]
async fn a_lost_response_is_resolved() {
    let url = Server::ETCD.fresh_url();
    let wire = Wire::to(&Server::ETCD.address()).await;
    let one = Client::open(&url.replace(&Server::ETCD.address(), &wire.address().to_string())).await;
    let two = Client::open(&url).await;
    let ttl = Duration::from_secs(60);
    // Open the connections and the lease first.
    one.granted(&one.claim("other", ttl)).await;

    wire.let_answers(Answers::AreLost);
    let claim = one.claim("lock", ttl);
    let asked = one.granted(&claim);
    let heard = async {
        one.stand(1).await;
        wire.let_answers(Answers::Arrive);
    };
    let (mut grant, ()) = within("the grant", futures_util::future::join(asked, heard)).await;
    assert_eq!(two.held(&two.claim("lock", ttl)).await.token, Some(grant.token));
    one.renewed(&mut grant).await;

    wire.let_answers(Answers::AreLost);
    let released = one.store.release(&mut grant, None);
    let heard = async {
        two.stand(0).await;
        wire.let_answers(Answers::Arrive);
    };
    let (released, ()) = within("the release", futures_util::future::join(released, heard)).await;
    assert_eq!(released.unwrap(), Released::Released);
}

/// A place in line whose response was lost is found when its turn comes. It becomes a grant only with the confirming
/// write.
#[tokio::test]
async fn a_place_with_a_lost_response_is_confirmed_by_a_write() {
    let url = Server::ETCD.fresh_url();
    let wire = Wire::to(&Server::ETCD.address()).await;
    let one = Client::open(&url).await;
    let two = Client::open(&url.replace(&Server::ETCD.address(), &wire.address().to_string())).await;
    let ttl = Duration::from_secs(60);
    two.granted(&two.claim("other", ttl)).await;
    let mut first = one.granted(&one.claim("lock", ttl)).await;
    wire.let_answers(Answers::AreLost);
    let mut claim = two.claim("lock", ttl);
    claim.waits = true;
    let asked = two.granted(&claim);
    let released = async {
        one.stand(2).await;
        one.store.release(&mut first, None).await.unwrap();
        wire.let_answers(Answers::Arrive);
    };
    let (grant, ()) = within("the grant", futures_util::future::join(asked, released)).await;
    let State::Held(held) = one.store.inspect(&claim.name).await.unwrap().state else { panic!() };
    assert_eq!(held.token, Some(grant.token), "the store shows another token than the grant has");
}

/// The client is suspended while the response is under way. The keep-alive before it does not show that the lease still
/// lives, so a later one must.
#[tokio::test]
async fn a_late_grant_counts_from_a_keep_alive_after_it() {
    let url = Server::ETCD.fresh_url();
    let wire = Wire::to(&Server::ETCD.address()).await;
    let (two, clock) = (Client::open(&url).await, Arc::new(TestClock::default()));
    let mut options = StoreOptions::default();
    options.env = Env::seeded(clock.clone(), 1);
    let one =
        Client::open_with(&url.replace(&Server::ETCD.address(), &wire.address().to_string()), options).await;
    let mut claim = one.claim("lock", Duration::from_secs(60));
    // Open the connections and the lease first.
    one.granted(&one.claim("other", claim.ttl.get())).await;
    claim.store_timeout = Duration::from_secs(3_600);
    wire.let_answers(Answers::ArriveAfter(Duration::from_millis(500)));
    let asked = one.store.try_acquire(&claim);
    let slept = async {
        while matches!(two.store.inspect(&claim.name).await.unwrap().state, State::Free) {}
        clock.suspend(claim.ttl.get());
    };
    let (verdict, ()) = within("the verdict", futures_util::future::join(asked, slept)).await;
    let AcquireOutcome::Granted(grant) = verdict.unwrap() else { panic!("etcd still has its lease") };
    assert!(!grant.deadline.passed(one.env().now()), "it does not count from before the suspend");
    wire.let_answers(Answers::Arrive);
    assert!(matches!(two.store.inspect(&claim.name).await.unwrap().state, State::Held(_)));
}

/// A request that was given up may still be granted later. No client uses that grant. It ends by itself, although other
/// grants of the same client live on.
#[tokio::test]
async fn a_late_grant_that_is_not_used_ends_by_itself() {
    let (url, ttl) = (Server::ETCD.fresh_url(), Duration::from_secs(20));
    let wire = Wire::to(&Server::ETCD.address()).await;
    let one = Client::open(&url.replace(&Server::ETCD.address(), &wire.address().to_string())).await;
    let mut kept = one.granted(&one.claim("other", ttl)).await;
    let mut claim = one.claim("lock", ttl);
    claim.store_timeout = Duration::from_millis(300);
    wire.let_answers(Answers::AreLost);
    let error = one.store.try_acquire(&claim).await.unwrap_err();
    assert!(matches!(error, leasehold::error::StoreError::MaybeApplied(_)), "{error:?}");
    one.stand(1).await;
    wire.let_answers(Answers::Arrive);
    let renewing = async {
        loop {
            one.renewed(&mut kept).await;
            one.env().sleep(ttl / 4).await;
        }
    };
    let two = Client::open(&url).await;
    let next = async {
        let mut wanted = two.claim("lock", TTL);
        wanted.waits = true;
        loop {
            match two.store.try_acquire(&wanted).await.unwrap() {
                AcquireOutcome::Granted(grant) => return grant,
                AcquireOutcome::Held(held) => two.store.turn(&wanted, &held).await.unwrap(),
                AcquireOutcome::Lost(loss) => panic!("{loss}"),
            }
        }
    };
    tokio::select! {
        () = renewing => {}
        _ = within("the lock", next) => {}
    }
}

/// etcd may compact the revisions that a waiter has not read yet. The waiter then reads the keys again.
#[tokio::test]
async fn a_waiter_is_not_left_behind_by_a_compaction() {
    let cluster = Cluster::start(1, &[]).await;
    let (one, two) = (Client::open(&cluster.url()).await, Client::open(&cluster.url()).await);
    let mut first = one.granted(&one.claim("lock", TTL)).await;
    let claim = two.waiting();
    let seen = two.held(&claim).await;
    one.store.release(&mut first, None).await.unwrap();
    for _ in 0..5 {
        etcdctl(cluster.address(0), &["put", "x", "y"]).await;
    }
    let revision: serde_json::Value =
        serde_json::from_str(&etcdctl(cluster.address(0), &["get", "x", "-w", "json"]).await).unwrap();
    etcdctl(cluster.address(0), &["compact", &revision["header"]["revision"].to_string()]).await;
    within("the turn", two.store.turn(&claim, &seen)).await.unwrap();
    two.granted(&claim).await;
}
