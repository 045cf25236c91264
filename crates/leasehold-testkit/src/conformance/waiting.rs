//! Waiters are woken when the lock is freed, long before its lease would have lapsed.

use std::time::Duration;

use leasehold::lease::{AcquireOutcome, Claim, Evicted, Grant, Token, deadline};

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
        // Lets the waiter start waiting: it is polled first, and its first request is under way.
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

/// Waiters of different processes are granted the lock in the order in which they joined the line, without those that gave
/// up. Applies to stores that keep a line ([`fifo`](leasehold::lease::Capabilities::fifo)).
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
        let client = Client::open(harness, &format!("waiter-{n}")).await;
        let mut claim = client.claim(&lock, LONG);
        claim.waits = true;
        client.within("joining the line", joined(&client, &claim)).await;
        waiters.push((client, claim));
    }
    let (client, claim) = waiters.remove(GAVE_UP);
    withdraw(&client, &claim).await;
    let mut before = holder;
    for n in 0..waiters.len() {
        let (client, claim) = &waiters[n];
        let asked = before.env().now();
        before.release(&mut grant).await;
        if let Some((later, claim)) = waiters.get(n + 1)
            && let AcquireOutcome::Granted(_) = later.attempt(claim).await
        {
            // A waiter that does not take the free lock is passed over. No store does that within a second.
            let passed = later.env().now().longest_since(asked);
            assert!(passed >= Duration::from_secs(1), "waiter {} comes before waiter {n}", n + 1);
            return;
        }
        let next = client.within("the lock", acquired(client, claim)).await;
        client.assert_rises(grant.token, next.token);
        (grant, before) = (next, client.clone());
    }
    before.release(&mut grant).await;
}

/// Asks for the lock, which is held, until `claim` is in the line.
async fn joined(client: &Client, claim: &Claim) {
    loop {
        let AcquireOutcome::Held(held) = client.attempt(claim).await else { panic!("the lock is held") };
        // A store with notifications puts a claim into the line when it refuses it.
        if held.ahead.is_some() || client.store.capabilities().watches {
            return;
        }
        client.store.turn(claim, &held).await.unwrap();
    }
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
    let mut withdrawn = Grant {
        name: claim.name.clone(),
        token: Token::default(),
        after: None,
        id: claim.id,
        ttl: claim.ttl,
        deadline: deadline(claim.ttl, client.env().now()),
        memo: None,
    };
    client.release(&mut withdrawn).await;
}
