//! How many requests a lock costs on etcd, as counted by the server.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use leasehold::clock::timeout;
use leasehold::lease::{AcquireOutcome, Claim, Evicted, Grant, LeaseStore, Renewal, Ttl};
use leasehold::{Holder, Leader, Locker, Released};
use leasehold_testkit::process::within;
use leasehold_testkit::stores::etcd::Cluster;
use leasehold_testkit::tcp_proxy::{Answers, Wire};

use crate::leases::{claim_of, granted_to};

const LONG: Duration = Duration::from_secs(120);

/// A server that receives no other requests.
struct Counted {
    cluster: Cluster,
    before: BTreeMap<String, u64>,
}

impl Counted {
    async fn start() -> Self {
        let cluster = Cluster::start(1, &[]).await;
        let before = cluster.requests(0).await;
        Self { cluster, before }
    }

    /// Returns the requests since the last call.
    async fn since(&mut self) -> Vec<(String, u64)> {
        let now = self.cluster.requests(0).await;
        let new = now.iter().map(|(kind, count)| (kind.clone(), count - self.before.get(kind).unwrap_or(&0)));
        let new = new.filter(|(_, count)| *count > 0).collect();
        self.before = now;
        new
    }

    /// Returns how many keep-alive streams there were in total.
    async fn streams(&self) -> u64 {
        self.cluster.calls(0).await.get("LeaseKeepAlive").copied().unwrap_or(0)
    }

    /// Returns how many times the keys were read since the last call. Ignores keep-alives, because etcd counts the end
    /// of a stream as another keep-alive.
    async fn looks(&mut self) -> u64 {
        self.since().await.into_iter().find(|(kind, _)| kind == "Txn").map_or(0, |(_, count)| count)
    }

    async fn expect(&mut self, what: &str, expected: &[(&str, u64)]) {
        let since = self.since().await;
        let since: Vec<_> = since.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(since, expected, "{what}");
    }
}

async fn granted(store: &dyn LeaseStore, name: &str) -> Grant {
    granted_for(store, name, LONG).await
}

async fn granted_for(store: &dyn LeaseStore, name: &str, ttl: Duration) -> Grant {
    granted_to(store, &claim_of(store, name, ttl)).await
}

#[tokio::test]
async fn each_step_of_a_lock_costs_what_the_documentation_says() {
    let mut counted = Counted::start().await;
    let locker = Locker::open(&counted.cluster.url()).await.unwrap();
    let store = &**locker.store();

    let mut first = granted(store, "first").await;
    counted.expect("the first acquisition of a process", &[("LeaseGrant", 1), ("Txn", 1)]).await;
    let mut grant = granted(store, "lock").await;
    counted.expect("an acquisition", &[("Txn", 1)]).await;
    store.release(&mut grant, None).await.unwrap();
    counted.expect("a release", &[("Txn", 1)]).await;
    store.renew(&mut first).await.unwrap();
    counted.expect("a renewal of a lock alone", &[("LeaseKeepAlive", 1), ("Txn", 1)]).await;
    store.inspect(&first.name).await.unwrap();
    counted.expect("a look", &[("Range", 1)]).await;
    let name = first.name.clone();
    let claim = Claim::new(store.env(), name, Ttl::new(LONG).unwrap(), Holder::this_process());
    assert!(matches!(store.try_acquire(&claim).await.unwrap(), AcquireOutcome::Held(_)));
    counted.expect("a refused try", &[("Txn", 1)]).await;
}

/// However many locks a process holds, it renews them with one keep-alive, and one read for each hundred locks.
#[tokio::test]
async fn many_locks_are_renewed_by_one_keep_alive() {
    const LOCKS: usize = 250;
    let mut counted = Counted::start().await;
    let locker = Locker::open(&counted.cluster.url()).await.unwrap();
    let store = &**locker.store();
    let mut grants = join_all((0..LOCKS).map(|n| {
        let name = format!("lock {n}");
        async move { granted(store, &name).await }
    }))
    .await;
    counted.since().await;
    for interval in 0..3 {
        for renewal in join_all(grants.iter_mut().map(|grant| store.renew(grant))).await {
            assert!(matches!(renewal.unwrap(), Renewal::Renewed));
        }
        counted.expect(&format!("interval {interval}"), &[("LeaseKeepAlive", 1), ("Txn", 3)]).await;
    }
    let evicted = store.evict(&grants[0].name, grants[0].token, None).await.unwrap();
    assert_eq!(evicted, Evicted::Evicted);
    counted.since().await;
    let renewals = join_all(grants.iter_mut().map(|grant| store.renew(grant))).await;
    let lost = renewals.iter().filter(|renewal| matches!(renewal, Ok(Renewal::Lost(_)))).count();
    assert_eq!(lost, 1);
    let expected = [("LeaseKeepAlive", 1), ("Range", 1), ("Txn", 4)];
    counted.expect("one lock of many is lost: who it was, and why", &expected).await;
}

async fn renewed(store: &dyn LeaseStore, grant: &mut Grant) {
    assert!(matches!(store.renew(grant).await.unwrap(), Renewal::Renewed));
}

#[tokio::test]
async fn one_stream_carries_the_keep_alives_of_all_leases() {
    let mut counted = Counted::start().await;
    let locker = Locker::open(&counted.cluster.url()).await.unwrap();
    let store = &**locker.store();
    let mut grants = [granted(store, "one").await, granted_for(store, "other", LONG / 2).await];
    counted.since().await;
    for _ in 0..5 {
        for grant in &mut grants {
            renewed(store, grant).await;
        }
    }
    counted.expect("ten beats", &[("LeaseKeepAlive", 10), ("Txn", 10)]).await;
    assert_eq!(counted.streams().await, 1);
}

/// Whatever happens to the stream, a retried renewal opens a new one.
#[tokio::test]
async fn a_stream_of_keep_alives_that_breaks_or_hangs_is_replaced() {
    let mut counted = Counted::start().await;
    let member = counted.cluster.address(0).to_owned();
    let wire = Wire::to(&member).await;
    let url = counted.cluster.url().replace(&member, &wire.address().to_string());
    let locker = Locker::open(&url).await.unwrap();
    let store = &**locker.store();
    let mut grant = granted_for(store, "lock", Duration::from_secs(12)).await;
    renewed(store, &mut grant).await;
    counted.since().await;
    assert_eq!(counted.streams().await, 1);

    // The response and the connection are lost. The client asks again at once, not only at the next renewal.
    wire.let_answers(Answers::AreLost);
    let asked = async {
        while counted.cluster.requests(0).await.get("LeaseKeepAlive") < Some(&2) {
            tokio::task::yield_now().await;
        }
        // The server counts the request before it responds.
        wire.until_lost().await;
        wire.let_answers(Answers::Arrive);
    };
    within("a renewal", async { tokio::join!(renewed(store, &mut grant), asked) }).await;
    assert_eq!((counted.streams().await, counted.looks().await), (2, 1));

    // Neither a response nor the end of the stream arrives. This renewal fails, but later ones must not.
    wire.let_answers(Answers::AreLost);
    within("giving up", store.renew(&mut grant)).await.unwrap_err();
    wire.let_answers(Answers::Arrive);
    renewed(store, &mut grant).await;
    let streams = counted.streams().await;
    counted.looks().await;
    renewed(store, &mut grant).await;
    assert_eq!((counted.streams().await, counted.looks().await), (streams, 1));
}

#[tokio::test]
async fn locks_that_are_held_for_a_moment_are_not_watched() {
    let mut counted = Counted::start().await;
    let locker = Locker::open(&counted.cluster.url()).await.unwrap();
    let lock = locker.lock("lock");
    lock.with(async |_| ()).await.unwrap();
    counted.since().await;
    for _ in 0..20 {
        // Yields to the renewer while the lock is held.
        lock.with(async |_| tokio::task::yield_now().await).await.unwrap();
    }
    counted.expect("twenty locks", &[("Txn", 40)]).await;
}

/// A holder notices the end of its key by one watch, which stays open while its lock is renewed.
#[tokio::test]
async fn a_holder_watches_its_key_once_however_often_it_renews() {
    // The first pause is longer than a hold without a watch. The others are shorter.
    const PAUSES: [Duration; 5] = [Duration::from_millis(1_500), PAUSE, PAUSE, PAUSE, PAUSE];
    const PAUSE: Duration = Duration::from_millis(20);
    let mut counted = Counted::start().await;
    let locker = Locker::open(&counted.cluster.url()).await.unwrap();
    let store = &**locker.store();
    let mut grant = granted(store, "lock").await;
    counted.since().await;
    for pause in PAUSES {
        // Waits as the renewer does, until a renewal is due.
        assert!(timeout(&*store.env().clock, pause, store.ended(&grant)).await.is_none());
        assert!(matches!(store.renew(&mut grant).await.unwrap(), Renewal::Renewed));
    }
    counted.expect("five renewals", &[("LeaseKeepAlive", 5), ("Txn", 5), ("Watch", 1)]).await;
    let (_, evicted) = tokio::join!(store.ended(&grant), store.evict(&grant.name, grant.token, None));
    assert_eq!(evicted.unwrap(), Evicted::Evicted);
}

/// However long a wait takes and however many tasks wait, it costs the place in line, one watch, and the confirmation.
#[tokio::test]
async fn a_hundred_waiting_tasks_cost_as_much_as_one() {
    const TASKS: usize = 100;
    let mut counted = Counted::start().await;
    let holder = Locker::open(&counted.cluster.url()).await.unwrap();
    let guard = holder.lock("lock").ttl(LONG).acquire().await.unwrap();
    let locker = Locker::open(&counted.cluster.url()).await.unwrap();
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let told = told.clone();
            let lock = locker.lock("lock").ttl(LONG).on_wait(move |_| {
                let _ = told.send(());
            });
            tokio::spawn(async move { lock.acquire().await.unwrap().release().await.unwrap() })
        })
        .collect();
    heard.recv().await.unwrap();
    counted.since().await;
    guard.release().await.unwrap();
    for task in tasks {
        task.await.unwrap();
    }
    let since: BTreeMap<_, _> = counted.since().await.into_iter().collect();
    assert_eq!(since.get("LeaseKeepAlive"), None, "{since:?}");
    // One for the holder's release, two for the confirmation and the release of the task in line, and two for each
    // other task.
    assert_eq!(since["Txn"], 1 + 2 + (TASKS as u64 - 1) * 2, "{since:?}");
}

/// An observer is woken by a watch. A change costs at most three reads, whenever it comes. Ten changes arrive in less
/// time than it would take to poll for them.
#[tokio::test]
async fn an_observer_sees_each_change_at_once() {
    let mut counted = Counted::start().await;
    let url = counted.cluster.url();
    let (here, there) = (Locker::open(&url).await.unwrap(), Locker::open(&url).await.unwrap());
    let candidate = here.election("lock").ttl(LONG).value("v");
    let mut changes = there.election("lock").observe();
    let handovers = async {
        assert_eq!(next(&mut changes).await, None);
        for _ in 0..5 {
            let (leadership, told) = tokio::join!(candidate.campaign(), next(&mut changes));
            assert_eq!(told.unwrap().term, leadership.as_ref().unwrap().term().ok());
            let (resigned, told) = tokio::join!(leadership.unwrap().resign(), next(&mut changes));
            assert_eq!((resigned.unwrap(), told), (Released::Released, None));
        }
    };
    let in_time = there.store().env().clock.clone();
    timeout(&*in_time, there.capabilities().poll_interval.min * 7, handovers).await.expect("ten changes");
    let reads = counted.since().await.into_iter().find(|(kind, _)| kind == "Range").unwrap().1;
    // After each status, one read before the watch begins and one when it fires. The second is not needed if the change
    // comes before the watch.
    assert!((21..=31).contains(&reads), "{reads} reads for ten changes and a first look");
}

async fn next(changes: &mut BoxStream<'static, leasehold::Result<Option<Leader>>>) -> Option<Leader> {
    changes.next().await.unwrap().unwrap()
}
