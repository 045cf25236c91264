//! How many requests a lock costs on GCS, counted on the wire.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold::clock::{Clock, SystemClock};
use leasehold::lease::Claim;
use leasehold::{Holder, LockName, Locker, lease};
use leasehold_testkit::proxy::{Harm, Proxy, Seen};
use leasehold_testkit::servers::{self, Server};

/// Uploads have the object's name in their body, so all requests are counted.
const ALL: &str = "";

/// A client whose requests go through a proxy of its own. It has convinced itself already that the server honours
/// preconditions, which Google's own it would not examine.
async fn counted(url: &str) -> (Proxy, Locker) {
    let proxy = Proxy::start(Server::FakeGcs.address()).await;
    let locker = Locker::open(&servers::through(url, proxy.address())).await.unwrap();
    locker.lock("another").acquire().await.unwrap().release().await.unwrap();
    proxy.reset();
    (proxy, locker)
}

fn lock_name() -> LockName {
    LockName::new("lock").unwrap()
}

fn claim(locker: &Locker, ttl: Duration) -> Claim {
    let ttl = lease::Ttl::new(ttl).unwrap();
    Claim::new(locker.store().env(), lock_name(), ttl, Holder::this_process())
}

async fn granted(locker: &Locker) -> lease::Grant {
    match locker.store().try_acquire(&claim(locker, Duration::from_secs(60))).await.unwrap() {
        lease::AcquireOutcome::Granted(grant) => grant,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_step_of_a_lock_costs_what_the_documentation_says() {
    let url = Server::FakeGcs.fresh_url();
    let (proxy, locker) = counted(&url).await;
    let store = locker.store();

    let mut grant = granted(&locker).await;
    assert_eq!(proxy.methods(ALL), ["GET", "POST"], "the first acquisition ever: read and create");
    proxy.reset();
    store.renew(&mut grant).await.unwrap();
    store.renew(&mut grant).await.unwrap();
    assert_eq!(proxy.methods(ALL), ["POST", "POST"], "two renewals");
    proxy.reset();
    store.release(&mut grant, None).await.unwrap();
    assert_eq!(proxy.methods(ALL), ["POST"], "a release");
    proxy.reset();
    let mut grant = granted(&locker).await;
    assert_eq!(proxy.methods(ALL), ["POST"], "a warm acquisition");
    store.release(&mut grant, None).await.unwrap();

    let (proxy, locker) = counted(&url).await;
    granted(&locker).await;
    assert_eq!(proxy.methods(ALL), ["GET", "POST"], "a cold acquisition");
}

/// No more with the protocol of simple clients: a release is a delete.
#[tokio::test]
async fn each_step_of_a_lock_that_is_an_object_costs_as_much() {
    let url = format!("{}&protocol=existence", Server::FakeGcs.fresh_url());
    let (proxy, locker) = counted(&url).await;
    let store = locker.store();
    let mut grant = granted(&locker).await;
    assert_eq!(proxy.methods(ALL), ["GET", "POST"], "a cold acquisition");
    proxy.reset();
    store.renew(&mut grant).await.unwrap();
    assert_eq!(proxy.methods(ALL), ["POST"], "a renewal");
    proxy.reset();
    store.release(&mut grant, None).await.unwrap();
    assert_eq!(proxy.methods(ALL), ["DELETE"], "a release");
    proxy.reset();
    granted(&locker).await;
    assert_eq!(proxy.methods(ALL), ["POST"], "a warm acquisition");
}

#[tokio::test]
async fn a_waiter_reads_and_never_writes() {
    let url = Server::FakeGcs.fresh_url();
    let holder = Locker::open(&url).await.unwrap();
    let mut grant = granted(&holder).await;
    let (proxy, locker) = counted(&url).await;
    let waiter = tokio::spawn(async move { locker.lock("lock").acquire().await });
    proxy.until(|log| log.iter().filter(|seen| seen.path.ends_with(ALL)).count() >= 4).await;
    assert!(proxy.methods(ALL).iter().all(|method| method == "GET"), "{:?}", proxy.methods(ALL));
    holder.store().release(&mut grant, None).await.unwrap();
    waiter.await.unwrap().unwrap().release().await.unwrap();
    assert_eq!(proxy.count("POST", ALL), 2, "one write to acquire, one to release");
}

/// The tasks of one process queue up in the process: one of them asks the store, whatever their number.
#[tokio::test]
async fn a_hundred_waiting_tasks_cost_as_much_as_one() {
    const TASKS: usize = 100;
    const POLLS: usize = 6;
    let url = Server::FakeGcs.fresh_url();
    let holder = Locker::open(&url).await.unwrap();
    let mut grant = granted(&holder).await;
    let (proxy, locker) = counted(&url).await;
    let pace = locker.capabilities().pace.min;
    let start = SystemClock.now();
    let asking = Arc::new(AtomicUsize::new(0));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..TASKS {
        let (locker, asking) = (locker.clone(), asking.clone());
        tasks.spawn(async move {
            let told = asking.clone();
            let lock = locker.lock("lock").on_wait(move |_| {
                told.fetch_add(1, Ordering::Relaxed);
            });
            lock.acquire().await.unwrap().release().await.unwrap();
        });
    }
    let reads = |log: &[Seen]| log.iter().filter(|seen| seen.path.ends_with(ALL)).count();
    proxy.until(|log| reads(log) >= POLLS).await;
    assert!(proxy.methods(ALL).iter().all(|method| method == "GET"));
    // So many reads by one contender take so long, with room for jitter. Of a hundred they would have come at once.
    let took = SystemClock.now().longest_since(start);
    assert!(took >= pace * POLLS as u32 / 2, "{POLLS} reads within {took:?}");
    holder.store().release(&mut grant, None).await.unwrap();
    while let Some(task) = tasks.join_next().await {
        task.unwrap();
    }
    assert_eq!(proxy.count("POST", ALL), 2, "one grant, which they passed on, and its release");
    assert!(asking.load(Ordering::Relaxed) > 0);
}

/// An applied write whose answer was lost is not sent again as if it had not been: it is read back and recognised.
#[tokio::test]
async fn a_lost_answer_costs_one_read_more() {
    let (proxy, locker) = counted(&Server::FakeGcs.fresh_url()).await;
    let mut grant = granted(&locker).await;
    locker.store().release(&mut grant, None).await.unwrap();
    proxy.reset();
    proxy.next("POST", Harm::AnswerLost);
    let again = granted(&locker).await;
    assert!(again.token > grant.token);
    let methods = proxy.methods(ALL);
    assert_eq!(&methods[..2], ["POST", "GET"], "the write is resolved by a read: {methods:?}");
    assert!(methods.len() <= 3, "{methods:?}");
}
