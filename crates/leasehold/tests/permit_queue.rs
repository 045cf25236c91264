//! The queue of processes that wait for one of several permits: order, dead waiters, requests. Time is paused, and
//! stores have the poll interval of S3.

use std::time::Duration;

use crate::common::{Client, POLL_INTERVAL, TTL, World};
use leasehold::clock::Clock;
use leasehold::register::{Precondition, Register};
use leasehold::{ErrorKind, Guard, Lock, Locker, Semaphore};
use leasehold_testkit::fault::{Kind, Outcome};
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};

const SECOND: Duration = Duration::from_secs(1);
/// The ttl of the queue's lock.
const QUEUE_TTL: Duration = Duration::from_secs(10);

fn lock(client: &Client, owner: &str) -> Lock {
    Locker::new(client.leases.clone()).lock("x").ttl(TTL).owner(owner)
}

fn semaphore(client: &Client, owner: &str) -> Semaphore {
    lock(client, owner).semaphore(3)
}

/// Acquires all three permits.
async fn full(client: &Client) -> Vec<Guard> {
    let (semaphore, mut guards) = (semaphore(client, "holder"), Vec::new());
    for _ in 0..3 {
        guards.push(semaphore.try_acquire().await.unwrap());
    }
    guards
}

/// Grants the queue's lock once, because the first grant of a name takes longer than later ones.
async fn warm_up(client: &Client) {
    let queue = Locker::new(client.leases.clone()).lock("x/permit-queue").ttl(TTL);
    queue.acquire().await.unwrap().release().await.unwrap();
}

/// Lists the requests of `client`.
fn sent(client: &Client) -> String {
    let log = client.network.log().into_iter();
    log.map(|sent| format!("{:?} {} at {:?}\n", sent.kind, sent.key, sent.at)).collect()
}

/// Starts a process that waits for a permit and holds it for a second.
fn waiting(client: &Client, n: usize, granted: &mpsc::UnboundedSender<usize>) -> JoinHandle<()> {
    let (semaphore, env, granted) =
        (semaphore(client, &format!("waiter-{n}")), client.env.clone(), granted.clone());
    tokio::spawn(async move {
        let guard = semaphore.acquire().await.unwrap();
        granted.send(n).unwrap();
        env.sleep(SECOND).await;
        guard.release().await.unwrap();
    })
}

/// Starts `count` processes that wait for a permit, in this order. The permits are held for longer than the longest
/// pause.
async fn line_up(world: &World, count: usize, granted: &mpsc::UnboundedSender<usize>) -> Vec<Client> {
    let mut clients = Vec::new();
    for n in 0..count {
        let client = world.dated(10 + n as u64);
        waiting(&client, n, granted);
        client.env.sleep(SECOND * 6).await;
        clients.push(client);
    }
    clients
}

#[tokio::test(start_paused = true)]
async fn processes_are_granted_permits_in_the_order_of_arrival() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, mut order) = mpsc::unbounded_channel();
    let _clients = line_up(&world, 8, &granted).await;
    held.pop().unwrap().release().await.unwrap();
    for n in 0..8 {
        assert_eq!(order.recv().await, Some(n));
    }
}

/// The first process in the queue holds the queue's lock, so it is not in the line of that lock.
#[tokio::test(start_paused = true)]
async fn each_waiter_for_a_permit_learns_who_is_before_it() {
    let world = World::paced();
    let holder = world.dated(1);
    let _held = full(&holder).await;
    let (told, mut places) = mpsc::unbounded_channel();
    for n in 0..3 {
        let (client, told) = (world.dated(10 + n), told.clone());
        let waiter = semaphore(&client, &format!("waiter-{n}")).on_wait(move |held| {
            if let Some(ahead) = held.ahead {
                let _ = told.send((n, ahead, held.waiter_ahead.as_ref().map(|behind| behind.name.clone())));
            }
        });
        tokio::spawn(async move { waiter.acquire().await });
        holder.env.sleep(SECOND * 6).await;
    }
    for n in 1..3 {
        let behind = Some(format!("waiter-{}", n - 1));
        assert_eq!(places.recv().await, Some((n, n as usize, behind)));
    }
}

#[tokio::test(start_paused = true)]
async fn readers_are_granted_shared_holds_in_the_order_of_arrival() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = Vec::new();
    for _ in 0..8 {
        held.push(lock(&holder, "holder").rw_lock().try_shared().await.unwrap());
    }
    let (granted, mut order) = mpsc::unbounded_channel();
    let mut clients = Vec::new();
    for n in 0..5 {
        let (client, granted) = (world.dated(10 + n), granted.clone());
        let reader = lock(&client, "reader").rw_lock();
        tokio::spawn(async move {
            let guard = reader.shared().await.unwrap();
            granted.send(n).unwrap();
            guard.release().await.unwrap();
        });
        holder.env.sleep(SECOND * 3).await;
        clients.push(client);
    }
    held.pop().unwrap().release().await.unwrap();
    for n in 0..5 {
        assert_eq!(order.recv().await, Some(n));
    }
}

/// The permits' records show other processes that one waits.
#[tokio::test(start_paused = true)]
async fn a_free_permit_is_reserved_for_the_lease_of_a_dead_first() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, _order) = mpsc::unbounded_channel();
    let clients = line_up(&world, 1, &granted).await;
    let released = world.clock.now();
    clients[0].network.disconnect();
    held.pop().unwrap().release().await.unwrap();
    let newcomer = world.dated(2);
    let error = semaphore(&newcomer, "newcomer").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Held);
    assert!(error.to_string().contains("reserved for waiter-0@"), "{error}");
    assert_eq!(error.holder().unwrap().held_for, None, "the first holds no permit");
    let guard = semaphore(&newcomer, "newcomer").acquire().await.unwrap();
    let waited = world.clock.now().longest_since(released);
    let most = QUEUE_TTL.mul_f64(1.1) + 2 * POLL_INTERVAL.max;
    assert!((QUEUE_TTL / 2..most).contains(&waited), "{waited:?}: {}", sent(&newcomer));
    guard.release().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_dead_waiter_behind_the_first_costs_one_reservation() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, mut order) = mpsc::unbounded_channel();
    let clients = line_up(&world, 4, &granted).await;
    clients[1].network.disconnect();
    held.pop().unwrap().release().await.unwrap();
    assert_eq!(order.recv().await, Some(0));
    let first = world.clock.now();
    assert_eq!(order.recv().await, Some(2));
    let waited = world.clock.now().longest_since(first);
    // The dead waiter was the first in the line of the queue's lock.
    let reservation = 2 * POLL_INTERVAL.max + SECOND / 2;
    assert!(
        (reservation..reservation + 3 * SECOND).contains(&waited),
        "{waited:?}, and the reservation is {reservation:?}"
    );
    assert_eq!(order.recv().await, Some(3));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_barges_takes_a_reserved_permit() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, _order) = mpsc::unbounded_channel();
    let clients = line_up(&world, 1, &granted).await;
    clients[0].network.disconnect();
    held.pop().unwrap().release().await.unwrap();
    let client = world.dated(2);
    let barging = lock(&client, "barging").barge().semaphore(3);
    let guard = barging.try_acquire().await.unwrap();
    assert_eq!(barging.acquire_within(SECOND * 3).await.unwrap_err().kind(), ErrorKind::Held);
    guard.release().await.unwrap();
    assert!(!sent(&client).contains("queue"));
}

/// The first process has just left the queue, and the next one has not noticed this yet.
#[tokio::test(start_paused = true)]
async fn a_free_permit_is_reserved_while_the_queue_is_awaited() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, mut order) = mpsc::unbounded_channel();
    let clients = line_up(&world, 2, &granted).await;
    clients[1].network.disconnect();
    held.pop().unwrap().release().await.unwrap();
    order.recv().await;
    held.pop().unwrap().release().await.unwrap();
    let error = semaphore(&world.dated(2), "newcomer").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("reserved for waiter-1@"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_cannot_be_read_reserves_no_permit() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, _order) = mpsc::unbounded_channel();
    let clients = line_up(&world, 1, &granted).await;
    clients[0].network.disconnect();
    held.pop().unwrap().release().await.unwrap();
    let queue = "x/permit-queue.lock";
    let there = world.register.read(queue).await.unwrap().unwrap();
    let damaged: bytes::Bytes = "{\"leasehold\":1}".into();
    world.register.write(queue, Precondition::Version(&there.version), damaged.into()).await.unwrap();
    semaphore(&world.dated(2), "newcomer").try_acquire().await.unwrap().release().await.unwrap();
}

/// Returns how many permits' records show that processes wait.
async fn marked(world: &World) -> usize {
    let mut marked = 0;
    for n in 1..=3 {
        let record = world.register.read(&format!("x/permit-{n}.lock")).await.unwrap().unwrap();
        let record: serde_json::Value = serde_json::from_slice(&record.value).unwrap();
        marked += usize::from(record["awaited"] == true);
    }
    marked
}

/// Otherwise the next waiter would have to mark the record again.
#[tokio::test(start_paused = true)]
async fn a_grant_to_the_first_in_the_queue_keeps_and_makes_the_mark() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let (granted, mut order) = mpsc::unbounded_channel();
    let _clients = line_up(&world, 1, &granted).await;
    assert_eq!(marked(&world).await, 3);
    held.pop().unwrap().release().await.unwrap();
    order.recv().await;
    assert_eq!(marked(&world).await, 3, "kept, although no other process waits");

    let world = World::paced();
    let holder = world.dated(1);
    let held = full(&holder).await;
    warm_up(&holder).await;
    let clients: Vec<_> = (0..3).map(|n| world.dated(10 + n)).collect();
    for (n, client) in clients.iter().enumerate() {
        waiting(client, n, &granted);
    }
    holder.env.sleep(SECOND * 3 / 2).await;
    assert_eq!(marked(&world).await, 0);
    for guard in held {
        guard.release().await.unwrap();
    }
    for _ in 0..3 {
        order.recv().await;
    }
    assert_eq!(marked(&world).await, 1, "by the second, which knew that a third one waits");
}

/// The queue costs requests only while processes wait, and once for each permit after that.
#[tokio::test(start_paused = true)]
async fn permits_that_are_not_awaited_cost_no_request_for_the_queue() {
    let world = World::paced();
    let (holder, client) = (world.dated(1), world.dated(2));
    let held = full(&holder).await;
    let (granted, mut order) = mpsc::unbounded_channel();
    let _clients = line_up(&world, 2, &granted).await;
    for guard in held {
        guard.release().await.unwrap();
    }
    for _ in 0..2 {
        order.recv().await;
    }
    client.env.sleep(SECOND * 10).await;
    let cost = async || {
        client.network.reset_counts();
        for guard in full(&client).await {
            guard.release().await.unwrap();
        }
        client.network.counts()
    };
    cost().await;
    let counts = cost().await;
    // Three grants and three releases.
    assert_eq!((counts.reads, counts.writes), (0, 6), "{}", sent(&client));
}

#[tokio::test(start_paused = true)]
async fn a_short_wait_writes_nothing_to_the_permits() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    warm_up(&holder).await;
    let client = world.dated(2);
    let (granted, mut order) = mpsc::unbounded_channel();
    waiting(&client, 0, &granted);
    client.env.sleep(SECOND * 3 / 2).await;
    held.pop().unwrap().release().await.unwrap();
    order.recv().await;
    let log = client.network.log();
    let written =
        |key: &str| log.iter().filter(|sent| sent.kind == Kind::Write && sent.key.contains(key)).count();
    assert_eq!(
        (written("permit-queue"), written("permit-1") + written("permit-2") + written("permit-3")),
        (2, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_cannot_be_written_delays_no_permit() {
    let world = World::paced();
    let holder = world.dated(1);
    let mut held = full(&holder).await;
    let client = world.dated(2);
    client.network.every_write_of("x/permit-queue.lock", Outcome::Denied);
    let (granted, mut order) = mpsc::unbounded_channel();
    waiting(&client, 0, &granted);
    client.env.sleep(SECOND * 3).await;
    held.pop().unwrap().release().await.unwrap();
    assert_eq!(order.recv().await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn the_waiters_for_a_single_permit_are_in_its_line() {
    let world = World::paced();
    let (holder, client) = (world.dated(1), world.dated(2));
    let guard = lock(&holder, "holder").semaphore(1).acquire().await.unwrap();
    let waiting = lock(&client, "waiter").semaphore(1);
    let waiting = tokio::spawn(async move { waiting.acquire().await.unwrap() });
    client.env.sleep(SECOND * 2).await;
    guard.release().await.unwrap();
    waiting.await.unwrap().release().await.unwrap();
    assert!(client.network.log().iter().all(|sent| !sent.key.contains("queue")));
}

/// Prints the figures in docs/semaphores.md.
#[tokio::test(start_paused = true)]
async fn the_queue_costs_fewer_requests_than_barging() {
    let cases = [(3, 2_000, 16, 8), (8, 500, 32, 8), (8, 5_000, 32, 8), (8, 60_000, 32, 1)];
    for (permits, hold, processes, rounds) in cases {
        let mut reads = Vec::new();
        for barges in [true, false] {
            let world = World::paced();
            let began = world.clock.now();
            let mut tasks = JoinSet::new();
            for n in 0..processes {
                let client = world.dated(n + 1);
                let lock = lock(&client, "process");
                let semaphore = if barges { lock.barge() } else { lock }.semaphore(permits);
                tasks.spawn(async move {
                    for _ in 0..rounds {
                        let guard = semaphore.acquire().await.unwrap();
                        client.env.sleep(Duration::from_millis(hold)).await;
                        guard.release().await.unwrap();
                    }
                    client
                });
            }
            let mut counts = (0.0, 0.0);
            let grants = (rounds * processes) as f64;
            while let Some(client) = tasks.join_next().await {
                let client = client.unwrap();
                let of = client.network.counts();
                counts = (counts.0 + of.reads as f64 / grants, counts.1 + of.writes as f64 / grants);
            }
            let took = world.clock.now().longest_since(began);
            let ideal = grants * hold as f64 / 1_000.0 / permits as f64;
            println!(
                "{permits} permits, {hold} ms, {processes} processes, barges: {barges}: {took:.0?} (without pauses \
                 {ideal:.0} s), {:.1} reads and {:.1} writes per grant",
                counts.0, counts.1
            );
            reads.push(counts.0);
        }
        assert!(reads[1] < reads[0], "{reads:?}");
    }
}
