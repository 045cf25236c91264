//! Random histories: tasks of several processes take two or three locks in any order and tell what they hold. Some
//! processes are killed while they wait, and those that started them go on. The networks of some histories lose requests.
//!
//! The test knows who waits for whom, which no process does. Only a waiter that was in a cycle may fail because of one,
//! and no cycle may last for longer than a minute.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use leasehold::clock::{Clock, Moment};
use leasehold::{ErrorKind, Guard, Locker};
use leasehold_testkit::fault::Chaos;

use super::{MINUTE, SECOND, TTL, World, locker};

const LENGTH: Duration = Duration::from_secs(180);

/// Who waits for whom.
#[derive(Default)]
struct Truth {
    started: usize,
    /// The waiting acquisitions: the lock that each waits for, and the locks that it holds.
    waiting: HashMap<usize, (&'static str, Vec<&'static str>)>,
    /// Those that were in a cycle.
    in_cycle: HashSet<usize>,
    /// The cycles that have formed, and when.
    cycles: Vec<(Moment, Vec<usize>)>,
    failed: usize,
    killed: usize,
    acquired: usize,
}

impl Truth {
    fn begins(&mut self, lock: &'static str, holds: Vec<&'static str>, now: Moment) -> usize {
        self.started += 1;
        let this = self.started;
        self.waiting.insert(this, (lock, holds));
        let mut paths = vec![vec![this]];
        while let Some(path) = paths.pop() {
            let (wants, _) = &self.waiting[path.last().unwrap()];
            for (holder, (_, holds)) in &self.waiting {
                if holds.contains(wants) && *holder == this {
                    self.in_cycle.extend(&path);
                    self.cycles.push((now, path.clone()));
                } else if holds.contains(wants) && !path.contains(holder) {
                    paths.push(path.iter().copied().chain([*holder]).collect());
                }
            }
        }
        this
    }

    /// Returns the cycle that has lasted for longer than `limit`, if there is one.
    fn stuck(&mut self, limit: Duration, now: Moment) -> Option<Vec<usize>> {
        let waiting = &self.waiting;
        self.cycles.retain(|(_, cycle)| cycle.iter().all(|one| waiting.contains_key(one)));
        let old = self.cycles.iter().find(|(since, _)| now.shortest_since(*since) > limit)?;
        Some(old.1.clone())
    }
}

struct History {
    world: World,
    truth: Mutex<Truth>,
    has_chaos: bool,
    seed: u64,
}

impl History {
    /// Acquires `name` under `guards`. Returns `None` if that was given up, or its process was killed.
    async fn nested(
        &self,
        own: &Locker,
        name: &'static str,
        guards: &[(&'static str, Guard)],
        random: &mut fastrand::Rng,
    ) -> Option<Guard> {
        let clock = &self.world.clock;
        let holds = guards.iter().map(|(name, _)| *name).collect();
        let is_killed = !guards.is_empty() && random.u8(..6) == 0;
        let this = self.truth.lock().unwrap().begins(name, holds, clock.now());
        let outcome = if is_killed {
            let process = self.client(random.u64(..));
            let lock = guards.iter().fold(locker(&process).lock(name).ttl(TTL), |lock, (_, guard)| {
                lock.while_other_holds(guard.name().clone(), guard.token().unwrap())
            });
            let acquires = tokio::spawn(async move { lock.acquire().await });
            clock.sleep(Duration::from_millis(random.u64(..60_000))).await;
            process.network.disconnect();
            acquires.abort();
            {
                let mut truth = self.truth.lock().unwrap();
                truth.killed += 1;
                truth.waiting.remove(&this);
            }
            // What started the process goes on under its locks.
            clock.sleep(Duration::from_millis(random.u64(..60_000))).await;
            return None;
        } else {
            let lock = own.lock(name).ttl(TTL);
            guards.iter().fold(lock, |lock, (_, guard)| lock.while_holding(guard)).acquire().await
        };
        let mut truth = self.truth.lock().unwrap();
        truth.waiting.remove(&this);
        match outcome {
            Ok(guard) => {
                truth.acquired += 1;
                Some(guard)
            }
            Err(error) => {
                if error.kind() == ErrorKind::Deadlock {
                    truth.failed += 1;
                    assert!(truth.in_cycle.contains(&this), "seed {}: a false one: {error}", self.seed);
                }
                None
            }
        }
    }

    fn client(&self, seed: u64) -> super::Client {
        let client = self.world.dated(seed);
        if self.has_chaos {
            let mut chaos = Chaos::seeded(seed);
            (chaos.applied_lost, chaos.dropped, chaos.delayed, chaos.answer_delayed) =
                (0.02, 0.02, 0.02, 0.02);
            chaos.delay_most = TTL / 6;
            client.network.chaos(chaos);
        }
        client
    }

    async fn task(self: Arc<Self>, own: Locker, seed: u64) {
        let mut random = fastrand::Rng::with_seed(seed);
        loop {
            let mut names = ["a", "b", "c"];
            random.shuffle(&mut names);
            let mut guards = Vec::new();
            for name in &names[..random.usize(2..=3)] {
                let Some(guard) = self.nested(&own, name, &guards, &mut random).await else { break };
                guards.push((*name, guard));
                self.world.clock.sleep(Duration::from_millis(random.u64(..4_000))).await;
            }
            for (_, guard) in guards {
                drop(guard.release().await);
            }
            self.world.clock.sleep(Duration::from_millis(random.u64(..8_000))).await;
        }
    }

    async fn run(seed: u64) -> Arc<Self> {
        let has_chaos = seed % 2 == 1;
        let world = if has_chaos { World::new() } else { World::paced() };
        let history = Arc::new(Self { world, truth: Mutex::default(), has_chaos, seed });
        let mut tasks = tokio::task::JoinSet::new();
        for process in 0..2 + seed % 3 {
            let client = locker(&history.client(seed * 100 + process));
            for task in 0..1 + seed % 2 {
                tasks.spawn(history.clone().task(client.clone(), seed * 1_000 + process * 10 + task));
            }
        }
        let clock = history.world.clock.clone();
        let start = clock.now();
        // A lost request takes more time to be repeated.
        let limit = if has_chaos { MINUTE * 2 } else { MINUTE };
        while clock.now().shortest_since(start) < LENGTH {
            clock.sleep(SECOND).await;
            if let Some(Err(error)) = tasks.try_join_next() {
                std::panic::resume_unwind(error.into_panic());
            }
            let stuck = history.truth.lock().unwrap().stuck(limit, clock.now());
            assert_eq!(stuck, None, "seed {seed}: a cycle has lasted for {limit:?}");
        }
        history
    }
}

#[test]
fn in_no_history_a_deadlock_is_false_or_lasts() {
    let seeds: u64 = std::env::var("LEASEHOLD_SEEDS").map_or(2_000, |seeds| seeds.parse().unwrap());
    let (mut failed, mut killed, mut acquired) = (0, 0, 0);
    let seeds = (seeds / 100).max(1);
    let only = std::env::var("LEASEHOLD_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in only.map_or(0..seeds, |seed| seed..seed + 1) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        let history = runtime.unwrap().block_on(History::run(seed));
        let truth = history.truth.lock().unwrap();
        failed += truth.failed;
        killed += truth.killed;
        acquired += truth.acquired;
    }
    println!("{seeds} histories: {acquired} acquired, {failed} deadlocks, {killed} killed");
    assert!(seeds < 15 || failed as u64 > seeds && killed as u64 > seeds, "{failed} {killed}");
}
