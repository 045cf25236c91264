//! How many requests a lock costs on etcd, by the server's own count.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // A panic is how a test fails.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use leasehold::clock::timeout;
use leasehold::lease::{Claim, Evicted, Grant, LeaseStore, Renewal, Ttl, Verdict};
use leasehold::{Holder, Leader, LockName, Locker, Released};
use leasehold_testkit::etcd::Cluster;

const LONG: Duration = Duration::from_secs(120);

/// A server of its own, whose every request is ours.
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

    /// The requests since the last time.
    async fn since(&mut self) -> Vec<(String, u64)> {
        let now = self.cluster.requests(0).await;
        let new = now.iter().map(|(kind, count)| (kind.clone(), count - self.before.get(kind).unwrap_or(&0)));
        let new = new.filter(|(_, count)| *count > 0).collect();
        self.before = now;
        new
    }

    async fn expect(&mut self, what: &str, expected: &[(&str, u64)]) {
        let since = self.since().await;
        let since: Vec<_> = since.iter().map(|(kind, count)| (kind.as_str(), *count)).collect();
        assert_eq!(since, expected, "{what}");
    }
}

async fn granted(store: &dyn LeaseStore, name: &str) -> Grant {
    let name = LockName::new(name).unwrap();
    let claim = Claim::new(store.env(), name, Ttl::new(LONG).unwrap(), Holder::this_process());
    match store.try_acquire(&claim).await.unwrap() {
        Verdict::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
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
    assert!(matches!(store.try_acquire(&claim).await.unwrap(), Verdict::Held(_)));
    counted.expect("a try in vain", &[("Txn", 1)]).await;
}

/// However many locks a process holds: one keep-alive, and one look at each hundred of them.
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
    let evicted = store.evict(&grants[0].name, grants[0].token).await.unwrap();
    assert_eq!(evicted, Evicted::Evicted);
    counted.since().await;
    let renewals = join_all(grants.iter_mut().map(|grant| store.renew(grant))).await;
    let lost = renewals.iter().filter(|renewal| matches!(renewal, Ok(Renewal::Lost(_)))).count();
    assert_eq!(lost, 1);
    let expected = [("LeaseKeepAlive", 1), ("Range", 1), ("Txn", 4)];
    counted.expect("one lock of many is lost: who it was, and why", &expected).await;
}

/// Waiting costs the place in line, one watch, and the confirmation, however long it takes and however many wait.
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
    // The holder's release; a confirmation and a release of the one that stood in line; two for each other task.
    assert_eq!(since["Txn"], 1 + 2 + (TASKS as u64 - 1) * 2, "{since:?}");
}

/// An observer is told by a watch: a change costs three reads, whenever it comes. It hears of ten changes in less time
/// than it would take to ask for them at the pace of the store.
#[tokio::test]
async fn an_observer_hears_of_each_change_at_once() {
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
    timeout(&*in_time, there.capabilities().pace.first * 7, handovers).await.expect("ten changes");
    let reads = counted.since().await.into_iter().find(|(kind, _)| kind == "Range").unwrap().1;
    assert!((25..=35).contains(&reads), "{reads} reads for ten changes and a first look");
}

async fn next(changes: &mut BoxStream<'static, leasehold::Result<Option<Leader>>>) -> Option<Leader> {
    changes.next().await.unwrap().unwrap()
}
