//! Thousands of processes that want one lock: far more than the line has places. Time is paused.
//!
//! `LEASEHOLD_CONTENDERS=10000 cargo test --workspace --all-features --test integration crowd:: -- --nocapture` prints
//! the figures of docs/design/waiting.md.

use std::time::Duration;

use crate::common::{TTL, World};
use leasehold::Locker;
use leasehold::clock::Clock;
use tokio::task::JoinSet;

const SECOND: Duration = Duration::from_secs(1);
const HOLD: Duration = Duration::from_millis(10);
/// The longest pause of a waiter.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// When one process asked, was granted the lock, and released it, and what it sent.
struct Turn {
    asked: Duration,
    granted: Duration,
    released: Duration,
    reads: usize,
    writes: usize,
}

/// All processes come within a second, and each takes the lock once.
#[tokio::test(start_paused = true)]
async fn each_process_of_a_crowd_is_served() {
    let count: u32 = std::env::var("LEASEHOLD_CONTENDERS").map_or(100, |count| count.parse().unwrap());
    let world = World::paced();
    let began = world.clock.now();
    let mut crowd = JoinSet::new();
    for n in 0..count {
        let (client, clock) = (world.dated(n.into()), world.clock.clone());
        crowd.spawn(async move {
            let now = || clock.now().longest_since(began);
            clock.sleep(SECOND * n / count).await;
            let asked = now();
            let guard = Locker::new(client.leases.clone()).lock("x").ttl(TTL).acquire().await.unwrap();
            let granted = now();
            clock.sleep(HOLD).await;
            let released = now();
            guard.release().await.unwrap();
            let counts = client.network.counts();
            Turn { asked, granted, released, reads: counts.reads, writes: counts.writes }
        });
    }
    let mut turns = crowd.join_all().await;
    turns.sort_by_key(|turn| turn.granted);
    let mut idle: Vec<_> = turns.windows(2).map(|two| two[1].granted.checked_sub(two[0].released)).collect();
    assert!(idle.iter().all(Option::is_some), "two held it at once");
    idle.sort();
    assert!(idle[idle.len() - 1] < Some(LONGEST_PAUSE + SECOND), "free for {:?}", idle[idle.len() - 1]);
    let mut waits: Vec<_> = turns.iter().map(|turn| turn.granted - turn.asked).collect();
    waits.sort();
    let of_each = |all: usize| all as f64 / f64::from(count);
    let reads = of_each(turns.iter().map(|turn| turn.reads).sum());
    let writes = of_each(turns.iter().map(|turn| turn.writes).sum());
    let at = |times: &[Option<Duration>], part: f64| times[(times.len() as f64 * part) as usize].unwrap();
    println!(
        "{count} processes in {:.0?}: {reads:.1} reads and {writes:.2} writes of each; from a release to the next grant: \
         median {:.0?}, p99 {:.0?}, longest {:.0?}; longest wait {:.0?}",
        turns[turns.len() - 1].granted,
        at(&idle, 0.5),
        at(&idle, 0.99),
        idle[idle.len() - 1].unwrap(),
        waits[waits.len() - 1],
    );
}
