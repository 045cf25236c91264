//! On etcd, futures that are no longer polled, and runtimes that end or stop running, delay no other lock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::StreamExt;
use leasehold::LockName;
use leasehold::clock::{Clock, SystemClock, timeout};
use leasehold::lease::{Grant, LeaseStore, Released, Renewal};
use leasehold::random::Random;
use leasehold_testkit::process::within;
use leasehold_testkit::stores::etcd::Cluster;

use crate::leases::{claim_of, granted_to, open, refused_to};

const TTL: Duration = Duration::from_secs(12);

type Store = Arc<dyn LeaseStore>;

async fn granted(store: &Store, name: &str, ttl: Duration) -> Grant {
    granted_to(&**store, &claim_of(&**store, name, ttl)).await
}

/// Awaits `operation` for the rest of `grant`'s lease. After that the lock would be lost.
async fn in_time<T>(store: &Store, grant: &Grant, what: &str, operation: impl Future<Output = T>) -> T {
    let left = grant.deadline.remaining(store.env().now());
    timeout(&SystemClock, left, operation)
        .await
        .unwrap_or_else(|| panic!("a held lock was lost: {what} hangs"))
}

async fn renewed(store: &Store, grant: &mut Grant) {
    let before = grant.deadline;
    let left = before.remaining(store.env().now());
    let renewal =
        timeout(&SystemClock, left, store.renew(grant)).await.expect("a renewal hangs: the lock is lost");
    assert!(matches!(renewal.unwrap(), Renewal::Renewed));
    assert_ne!(grant.deadline, before);
}

/// The number of kinds of call. `call` sets up what a call needs. Each call has its own lock.
const KINDS: usize = 9;

async fn call(store: &Store, kind: usize, n: usize) -> BoxFuture<'static, ()> {
    let (store, name) = (store.clone(), format!("{kind}-{n}"));
    match kind {
        0 => async move { drop(store.try_acquire(&claim_of(&*store, &name, TTL)).await) }.boxed(),
        // This call needs a lease with another ttl.
        1 => {
            let ttl = TTL + Duration::from_secs(1 + n as u64);
            async move { drop(store.try_acquire(&claim_of(&*store, &name, ttl)).await) }.boxed()
        }
        2 => {
            let mut grant = granted(&store, &name, TTL).await;
            async move { drop(store.renew(&mut grant).await) }.boxed()
        }
        3 => {
            let mut grant = granted(&store, &name, TTL).await;
            async move { drop(store.release(&mut grant, None).await) }.boxed()
        }
        4 => async move { drop(store.inspect(&LockName::new(&name).unwrap()).await) }.boxed(),
        5 => async move { drop(store.list("").collect::<Vec<_>>().await) }.boxed(),
        6 => {
            let grant = granted(&store, &name, TTL).await;
            async move { store.ended(&grant).await }.boxed()
        }
        7 => {
            granted(&store, &name, TTL).await;
            let mut waiting = claim_of(&*store, &name, TTL);
            waiting.waits = true;
            let seen = refused_to(&*store, &waiting).await;
            async move { drop(store.turn(&waiting, &seen).await) }.boxed()
        }
        _ => {
            let mut grant = granted(&store, &name, TTL).await;
            async move { drop(store.detach(&mut grant).await) }.boxed()
        }
    }
}

/// Polls a future this many times, with time for its requests in between, and returns it.
async fn frozen(mut future: BoxFuture<'static, ()>, polls: u64, random: &Random) -> BoxFuture<'static, ()> {
    for _ in 0..polls {
        if (&mut future).now_or_never().is_some() {
            return async {}.boxed();
        }
        SystemClock.sleep(Duration::from_millis(random.bits() as u64 % 4)).await;
    }
    future
}

#[tokio::test]
async fn calls_that_are_kept_unpolled_delay_no_other_lock() {
    let cluster = Cluster::start(1, &[]).await;
    for seed in 0..6 {
        let random = Random::seeded(seed);
        let store = open(&format!("{}{seed}/", cluster.url())).await;
        let mut kept = Vec::new();
        let mut lock = granted(&store, "lock", TTL).await;
        let mut other = granted(&store, "other", TTL).await;
        for n in 0..24 {
            // Use each kind at least twice. The other kinds are random.
            let kind = if n < 2 * KINDS { n % KINDS } else { random.bits() as usize % KINDS };
            let future = in_time(&store, &lock, "a call", call(&store, kind, n)).await;
            kept.push(frozen(future, 1 + random.bits() as u64 % 6, &random).await);
            renewed(&store, &mut lock).await;
        }
        renewed(&store, &mut lock).await;
        let released = in_time(&store, &lock, "a release", store.release(&mut other, None)).await;
        assert_eq!(released.unwrap(), Released::Released, "seed {seed}");
        for (name, ttl) in [("other", TTL), ("new", TTL), ("of another length", 2 * TTL)] {
            let mut next = in_time(&store, &lock, name, granted(&store, name, ttl)).await;
            renewed(&store, &mut next).await;
        }
        in_time(&store, &lock, "a look", store.inspect(&lock.name)).await.unwrap();
        renewed(&store, &mut lock).await;
        drop(kept);
    }
}

/// What happens to the runtime that first used a store.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// It is shut down.
    Ends,
    /// It exists, but is no longer run.
    StandsStill,
}

#[test]
fn a_runtime_that_ends_or_stands_still_blocks_no_store() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let own = runtime();
    let cluster = own.block_on(Cluster::start(1, &[]));
    for fate in [Fate::Ends, Fate::StandsStill] {
        let first = runtime();
        // Opens the connections and the lease. A call of each kind is in progress when the runtime stops.
        let (store, mut lock, begun) = first.block_on(async {
            let store = open(&format!("{}{fate:?}/", cluster.url())).await;
            let mut lock = granted(&store, "lock", TTL).await;
            renewed(&store, &mut lock).await;
            let mut begun = Vec::new();
            for kind in 0..KINDS {
                let mut future = in_time(&store, &lock, "a call", call(&store, kind, 0)).await;
                if (&mut future).now_or_never().is_none() {
                    begun.push(future);
                }
            }
            (store, lock, begun)
        });
        let idle = match fate {
            Fate::Ends => {
                drop(first);
                None
            }
            Fate::StandsStill => Some(first),
        };
        own.block_on(async {
            renewed(&store, &mut lock).await;
            let mut next = in_time(&store, &lock, "an acquisition", granted(&store, "next", TTL)).await;
            renewed(&store, &mut next).await;
            let released = in_time(&store, &next, "a release", store.release(&mut lock, None)).await;
            assert_eq!(released.unwrap(), Released::Released, "{fate:?}");
            let mut waiting = claim_of(&*store, "next", TTL);
            waiting.waits = true;
            let seen = refused_to(&*store, &waiting).await;
            let turn = store.turn(&waiting, &seen);
            let released = store.release(&mut next, None);
            let (turn, released) = within("the turn", futures_util::future::join(turn, released)).await;
            assert!(turn.is_ok() && released.is_ok(), "{fate:?}");
        });
        drop((begun, idle));
    }
    // Drop the cluster inside the runtime to which its processes belong.
    own.block_on(async move { drop(cluster) });
}
