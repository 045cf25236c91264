//! Waiters are woken when the lock is freed, long before its lease would have lapsed.

use std::time::Duration;

use leasehold::lease::{AcquireOutcome, Claim, Evicted, Grant, HeldLock, HolderInfo, Nested, Token};

use super::Harness;
use super::client::{Client, LONG, name};

/// A waiter is granted the lock when its holder releases it, although the lease would have lasted long.
pub async fn a_waiter_is_woken_by_a_release(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, harness.longest_ttl()).await;
    let seen = two.refused(&lock).await;
    let woken = async {
        two.store.changed(&lock, &seen).await.unwrap();
        two.wait(&lock, harness.ttl()).await
    };
    let released = async {
        // Lets the waiter start to wait. It is polled first, and its first request is under way.
        one.env().sleep(harness.ttl() / 4).await;
        one.release(&mut grant).await
    };
    let (next, _) = two.within("waking up", futures_util::future::join(woken, released)).await;
    two.assert_rises(grant.token, next.token);
}

/// A waiter notices a release that happens after it was refused and before it starts to wait.
pub async fn a_waiter_that_comes_after_the_release_is_not_left_waiting(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let mut grant = one.granted(&lock, harness.longest_ttl()).await;
    let seen = two.refused(&lock).await;
    one.release(&mut grant).await;
    two.within("waking up", two.store.changed(&lock, &seen)).await.unwrap();
    two.granted(&lock, harness.ttl()).await;
}

/// A waiter is granted the lock when its holder is evicted.
pub async fn a_waiter_is_woken_by_an_eviction(harness: &dyn Harness) {
    let (one, two) = (Client::open(harness, "one").await, Client::open(harness, "two").await);
    let lock = name("lock");
    let grant = one.granted(&lock, harness.longest_ttl()).await;
    two.refused(&lock).await;
    let evicted = async {
        one.env().sleep(harness.ttl() / 4).await;
        one.evict(&lock, grant.token).await
    };
    let (next, evicted) = futures_util::future::join(two.wait(&lock, harness.ttl()), evicted).await;
    assert_eq!(evicted, Evicted::Evicted);
    two.assert_rises(grant.token, next.token);
}

/// Waiters of different processes are granted the lock in the order in which they joined the line. Those that gave up
/// are left out. Each waiter learns who is directly before it. Applies to stores that keep a line
/// ([`fifo`](leasehold::lease::Capabilities::fifo)).
pub async fn waiters_are_granted_the_lock_in_order(harness: &dyn Harness) {
    const WAITERS: usize = 8;
    const GAVE_UP: usize = 2;
    let holder = Client::open(harness, "holder").await;
    if !holder.store.capabilities().fifo() {
        return;
    }
    let lock = name("lock");
    let mut grant = holder.granted(&lock, LONG).await;
    let mut waiters = Vec::new();
    for n in 0..WAITERS {
        let (client, claim, held) = joined(harness, &format!("waiter-{n}"), LONG).await;
        // A store that does not count the waiters does not report how many are before this one.
        let ahead = held.ahead.or(Some(n).filter(|n| *n > 0 && client.store.capabilities().watches));
        let before = waiters.last().map(|(before, _): &(Client, Claim)| before.who());
        assert_eq!((ahead, held.waiter_ahead.as_ref()), (Some(n), before), "waiter {n}");
        waiters.push((client, claim));
    }
    let (client, claim) = waiters.remove(GAVE_UP);
    withdraw(&client, &claim).await;
    let mut before = holder;
    for n in 0..waiters.len() {
        let (client, claim) = &waiters[n];
        let asked = before.env().now();
        before.release(&mut grant).await;
        // Neither the process that had the lock, nor the waiter behind, comes first.
        let mut again = before.claim(&lock, LONG);
        again.waits = true;
        let later = waiters.get(n + 1).map(|(later, claim)| (later, claim));
        for (other, claim) in [(&before, &again)].into_iter().chain(later) {
            if let AcquireOutcome::Granted(_) = other.attempt(claim).await {
                // A waiter that does not take the free lock is passed over. No store does that within a second.
                let passed = other.env().now().longest_since(asked);
                assert!(passed >= Duration::from_secs(1), "{:?} comes before waiter {n}", other.who());
                return;
            }
        }
        withdraw(&before, &again).await;
        let next = client.within("the lock", acquired(client, claim)).await;
        client.assert_rises(grant.token, next.token);
        (grant, before) = (next, client.clone());
    }
    before.release(&mut grant).await;
}

/// The line shows which locks a waiter holds, and the record of its grant does not. Applies to stores that keep a line
/// ([`fifo`](leasehold::lease::Capabilities::fifo)).
pub async fn the_line_shows_the_locks_that_a_waiter_holds(harness: &dyn Harness) {
    let holder = Client::open(harness, "holder").await;
    if !holder.store.capabilities().fifo() {
        return;
    }
    let lock = name("lock");
    let mut grant = holder.granted(&lock, LONG).await;
    let waiter = Client::open(harness, "waiter").await;
    let mut claim = waiter.claim(&lock, LONG);
    let token = Token::new(7).unwrap();
    let holds = vec![HeldLock { name: name("a"), token }, HeldLock { name: name("b/c"), token }];
    claim.nested = Some(Box::new(Nested { holds, id: claim.id, seen: vec![claim.id], stays: true }));
    let (claim, _) = joins(&waiter, claim).await;
    let waiters = holder.inspect(&lock).await.waiters;
    assert_eq!(waiters.first().map(|waiter| &waiter.holder.nested), Some(&claim.nested), "{waiters:?}");
    holder.release(&mut grant).await;
    let mut grant = waiter.within("the lock", acquired(&waiter, &claim)).await;
    let status = holder.inspect(&lock).await;
    assert_eq!(status.state.holder().unwrap().holder.as_ref(), Some(waiter.who()));
    waiter.release(&mut grant).await;
}

/// A waiter that dies without leaving the line is passed over. The next waiter is granted the lock before the one
/// after it. Applies to stores that keep a line ([`fifo`](leasehold::lease::Capabilities::fifo)).
pub async fn a_waiter_that_died_is_passed_over(harness: &dyn Harness) {
    let holder = Client::open(harness, "holder").await;
    if !holder.store.capabilities().fifo() {
        return;
    }
    let mut grant = holder.granted(&name("lock"), LONG).await;
    // This waiter never asks again. A live waiter with a short ttl asks often, so this one is soon passed over.
    joined(harness, "dead", harness.ttl()).await;
    let (next, next_claim, _) = joined(harness, "next", LONG).await;
    let (last, last_claim, held) = joined(harness, "last", LONG).await;
    assert_eq!(held.waiter_ahead.as_ref(), Some(next.who()));
    let asked = holder.env().now();
    holder.release(&mut grant).await;
    if let AcquireOutcome::Granted(_) = last.attempt(&last_claim).await {
        // No store passes over a waiter within a second.
        let passed = last.env().now().longest_since(asked);
        assert!(passed >= Duration::from_secs(1), "the last waiter comes before the next");
        return;
    }
    let mut later = next.within("the lock", acquired(&next, &next_claim)).await;
    next.assert_rises(grant.token, later.token);
    let AcquireOutcome::Held(held) = last.attempt(&last_claim).await else { panic!("the lock is held") };
    assert_eq!((held.ahead, held.waiter_ahead), (Some(0), None), "the last waiter is the first now");
    next.release(&mut later).await;
    let mut latest = last.within("the lock", acquired(&last, &last_claim)).await;
    last.assert_rises(later.token, latest.token);
    last.release(&mut latest).await;
}

/// Opens a client and puts its claim into the line of the held lock. Returns both, and what the client learned about
/// the holder.
async fn joined(harness: &dyn Harness, who: &str, ttl: Duration) -> (Client, Claim, HolderInfo) {
    let client = Client::open(harness, who).await;
    let claim = client.claim(&name("lock"), ttl);
    let (claim, held) = joins(&client, claim).await;
    (client, claim, held)
}

async fn joins(client: &Client, mut claim: Claim) -> (Claim, HolderInfo) {
    claim.waits = true;
    let joins = async {
        loop {
            let AcquireOutcome::Held(held) = client.attempt(&claim).await else { panic!("the lock is held") };
            // A store with notifications puts a claim into the line when it refuses it.
            if held.ahead.is_some() || client.store.capabilities().watches {
                return held;
            }
            client.store.turn(&claim, &held).await.unwrap();
        }
    };
    let held = client.within("joining the line", joins).await;
    (claim, held)
}

async fn acquired(client: &Client, claim: &Claim) -> Grant {
    loop {
        match client.attempt(claim).await {
            AcquireOutcome::Granted(grant) => return grant,
            AcquireOutcome::Held(held) => client.store.turn(claim, &held).await.unwrap(),
            AcquireOutcome::Lost(loss) => panic!("{loss}"),
        }
    }
}

async fn withdraw(client: &Client, claim: &Claim) {
    let mut withdrawn = Grant::new(claim, Token::default(), client.env().now());
    client.release(&mut withdrawn).await;
}
