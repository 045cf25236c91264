//! Many claims at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join_all;
use leasehold::lease::{AcquireOutcome, Grant};
use leasehold::{LockName, Token};

use super::Harness;
use super::client::{Client, LONG, name};

const CLIENTS: usize = 4;
const TASKS: usize = 16;

async fn clients(harness: &dyn Harness) -> Vec<Client> {
    join_all((0..CLIENTS).map(async |n| Client::open(harness, &format!("client {n}")).await)).await
}

/// Makes 16 claims at once, each in a separate task. Returns the grants.
async fn race(clients: &[Client], lock: &LockName) -> Vec<Grant> {
    let tasks = (0..TASKS).map(|n| {
        let client = clients[n % CLIENTS].clone();
        let lock = lock.clone();
        tokio::spawn(async move { client.attempt(&client.claim(&lock, LONG)).await })
    });
    let verdicts = join_all(tasks).await;
    let granted = verdicts.into_iter().filter_map(|verdict| match verdict.unwrap() {
        AcquireOutcome::Granted(grant) => Some(grant),
        AcquireOutcome::Held(_) => None,
        AcquireOutcome::Lost(loss) => panic!("no grant can be lost yet: {loss}"),
    });
    granted.collect()
}

/// Of 16 simultaneous claims on 4 clients exactly one is granted, on a lock that never existed and on one that is
/// free.
pub async fn one_of_many_racing_claims_is_granted(harness: &dyn Harness) {
    let clients = clients(harness).await;
    let lock = name("lock");
    for _ in 0..harness.rounds() {
        let mut granted = race(&clients, &lock).await;
        assert_eq!(granted.len(), 1, "{granted:?}");
        clients[0].assert_held_by(&lock, &granted[0]).await;
        clients[CLIENTS - 1].release(&mut granted[0]).await;
    }
}

/// Of 16 claims on 4 clients that all wait for a dead holder, exactly one takes over.
pub async fn one_of_many_racing_takeovers_succeeds(harness: &dyn Harness) {
    let clients = clients(harness).await;
    let lock = name("lock");
    let first = clients[0].granted(&lock, harness.ttl()).await;
    let (won, mut winners) = tokio::sync::mpsc::unbounded_channel();
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..TASKS {
        let (client, lock, won) = (clients[n % CLIENTS].clone(), lock.clone(), won.clone());
        tasks.spawn(async move { won.send(client.wait(&lock, LONG).await) });
    }
    drop(won);
    let winner = clients[0].within("a takeover", winners.recv()).await.unwrap();
    clients[0].assert_passed(first.deadline);
    clients[0].assert_rises(first.token, winner.token);
    // By the time all clients have been refused, a second takeover after the same lapse would have arrived.
    for client in &clients {
        assert_eq!(client.refused(&lock).await.token, Some(winner.token));
    }
    assert!(winners.try_recv().is_err(), "a second takeover of one lease");
    tasks.abort_all();
}

/// 16 tasks on 4 clients add to a counter that only the lock protects. No addition is lost, and the tokens rise in the
/// order of the additions.
pub async fn a_counter_under_the_lock_is_exact_and_tokens_rise_with_it(harness: &dyn Harness) {
    let clients = clients(harness).await;
    let lock = name("lock");
    let counter = Arc::new(Counter::default());
    let rounds = harness.rounds();
    let tasks = (0..TASKS).map(|n| {
        let (client, lock, counter) = (clients[n % CLIENTS].clone(), lock.clone(), counter.clone());
        tokio::spawn(async move {
            for _ in 0..rounds {
                let mut grant = client.wait(&lock, LONG).await;
                counter.add_one_carelessly(&client, &grant).await;
                client.release(&mut grant).await;
            }
        })
    });
    for task in clients[0].within("counting", join_all(tasks)).await {
        task.unwrap();
    }
    assert_eq!(counter.value.load(Ordering::Relaxed), (TASKS * rounds) as u64);
}

/// A value, and the token of its last write.
#[derive(Default)]
struct Counter {
    value: AtomicU64,
    token: AtomicU64,
}

impl Counter {
    /// Reads, yields to other tasks, then writes, so that two simultaneous holders would lose an addition.
    async fn add_one_carelessly(&self, client: &Client, grant: &Grant) {
        let value = self.value.load(Ordering::Relaxed);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        let before = self.token.swap(grant.token.get(), Ordering::Relaxed);
        client.assert_rises(Token::new(before).unwrap(), grant.token);
        self.value.store(value + 1, Ordering::Relaxed);
    }
}
