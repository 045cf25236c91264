//! Simulation: the real locks, keepers and protocol on paused time, over a store behind bad networks.
//!
//! One seed is one history: machines with clocks of their own rate (within the bound), wall clocks that step, suspends,
//! crashes, and networks that lose, delay, double and hold back requests and answers. What the checker asserts holds in
//! true time, which nobody in the history can see:
//!
//! - **I1** Once anybody has believed in a token, no check of a lower one passes: holds never overlap.
//! - **I2** Tokens are unique, and rise in the order in which the store commits grants, also across deletions by hand.
//! - **I5** A check never passes after the deadline that the contenders count by. (Part of I1, which is stronger.)
//! - **Elections**: those who observe are told no term that is lower than an earlier one, none that was not granted, and
//!   with each what its leader advertises; and at the end of the history they are told of its last leader.
//! - **I7** A lock is free again within a bound after its holder crashed: the history ends with a fresh acquisition.
//! - **S1** No more checks of permits of one semaphore pass at once than it has permits.
//! - **S2** No check of an exclusive hold passes while one of a shared hold does, or of another exclusive one.
//! - **O1** Of a job that runs once per period: when the store was told that it ran, nobody begins it again before the
//!   period since its grant is over.
//! - **O2** And then it can run again, also for a process that has only just started.
//!
//! ```
//! use leasehold_testkit::simulation::{Plan, run};
//! let history = run(&Plan::from_seed(7)).unwrap_or_else(|violation| panic!("{violation}"));
//! assert!(history.grants > 0);
//! ```

mod checker;
mod games;
mod observers;
mod once;

use std::iter::Sum;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::TestClock;
use leasehold::env::Env;
use leasehold::lease::StoreOptions;
use leasehold::stores::memory::MemoryRegister;
use leasehold::{Guard, Lock, Locker, Register as _, RegisterLeases};

use self::checker::{Checker, Witness};
pub use self::games::Game;
use self::games::Held;
use crate::fault::{Chaos, FaultyRegister};
use crate::machine::Machine;

/// The lock that everybody wants.
const LOCK: &str = "x";

/// What happens in one history.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All that is drawn at random follows from it.
    pub seed: u64,
    /// What they contend for.
    pub game: Game,
    /// How many machines contend.
    pub machines: usize,
    /// How long the history lasts, in true time.
    pub length: Duration,
    /// The leases' ttl.
    pub ttl: Duration,
    /// How likely each harm is for each request.
    pub harm: f64,
    /// How far clock rates may be off. More than the bound of 0.005 and the promise does not hold.
    pub rate_error: f64,
    /// Whether an operator deletes records by hand. Exclusion is then given up for; tokens are not.
    pub deletions: bool,
    /// Whether a lock is held while its object exists, as simple clients have it: a release deletes.
    pub by_existence: bool,
    /// Instead of holding the lock now and then: all run a job once per so long.
    pub once_per: Option<Duration>,
}

impl Plan {
    /// The plan that `seed` stands for.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        Self {
            seed,
            game: Game::Lock,
            machines: random.usize(2..=4),
            length: Duration::from_secs(90),
            ttl: Duration::from_millis(random.u64(500..6_000)),
            harm: [0.0, 0.01, 0.03, 0.08][random.usize(..4)],
            rate_error: leasehold::clock::RATE_ERROR,
            deletions: random.u8(..4) == 0,
            by_existence: false,
            once_per: None,
        }
    }

    /// The plan that `seed` stands for, with a job that runs once per period.
    pub fn once_from_seed(seed: u64) -> Self {
        let period_ms = fastrand::Rng::with_seed(seed ^ 0x0ce).u64(2_000..40_000);
        // Who deletes the record by hand deletes what tells that it ran.
        Self { once_per: Some(Duration::from_millis(period_ms)), deletions: false, ..Self::from_seed(seed) }
    }
}

/// What a history amounted to.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    /// Grants that the store committed.
    pub grants: usize,
    /// Checks that passed.
    pub checks: usize,
    /// Locks that were lost, and said so.
    pub losses: usize,
    /// Jobs that ran, and of which the store knows.
    pub runs: usize,
    /// Jobs that were not run, because they already had.
    pub already_ran: usize,
    /// Leaders that observers were told of.
    pub told: usize,
    /// How many held something at once.
    pub most: usize,
}

impl Sum for History {
    fn sum<I: Iterator<Item = Self>>(histories: I) -> Self {
        histories.fold(Self::default(), |sum, history| Self {
            grants: sum.grants + history.grants,
            checks: sum.checks + history.checks,
            losses: sum.losses + history.losses,
            runs: sum.runs + history.runs,
            already_ran: sum.already_ran + history.already_ran,
            told: sum.told + history.told,
            most: sum.most.max(history.most),
        })
    }
}

/// Runs the history of `plan`.
///
/// # Errors
/// The first violation, in words, with the seed that replays it.
pub fn run(plan: &Plan) -> Result<History, String> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .map_err(|error| format!("no runtime: {error}"))?;
    let checker = Arc::new(Checker::default());
    runtime.block_on(simulate(plan, checker.clone()));
    let checked = checker.lock();
    match &checked.violation {
        Some(violation) => Err(format!("{violation}\nreplay: {plan:?}")),
        None => Ok(checked.history),
    }
}

async fn simulate(plan: &Plan, checker: Arc<Checker>) {
    let store_clock = Arc::new(TestClock::default());
    let memory = Arc::new(MemoryRegister::new(Env::seeded(store_clock.clone(), plan.seed)));
    let by_existence = plan.by_existence;
    let key = (!matches!(plan.game, Game::Semaphore(_))).then(|| key(plan));
    let register = Arc::new(Witness { inner: memory.clone(), checker: checker.clone(), by_existence, key });
    let mut machines = tokio::task::JoinSet::new();
    let mut networks = Vec::new();
    for n in 0..plan.machines {
        let seed = plan.seed.wrapping_mul(31).wrapping_add(n as u64 + 1);
        let mut player = Player::new(plan, seed, register.clone(), checker.clone());
        networks.push(player.network.clone());
        machines.spawn(async move { player.play().await });
    }
    let observers = observers::Observers::start(plan, &register, &checker);
    let fate = fate(plan, &memory, &networks, &checker);
    let end = leasehold::clock::timeout(&*store_clock, plan.length, fate).await;
    debug_assert!(end.is_none(), "fate never ends");
    machines.shutdown().await;
    // Not healed: who has crashed would come back to life.
    for network in &networks {
        network.deliver_all().await;
    }
    // I7: whoever died holding it, the lock can be had again within one lapse and a poll.
    let mut last =
        Player::new(&Plan { harm: 0.0, ..plan.clone() }, plan.seed ^ 0xdead, register, checker.clone());
    last.calm();
    if let Some(period) = plan.once_per {
        // What a wall clock that was set back does not show is rested once more. A `Date` is true to a second.
        let bound = last.bound() + period.mul_f64(1.02) + Duration::from_secs(2);
        let due = leasehold::clock::timeout(&*store_clock, bound, last.runs_at_last(period)).await;
        if due.is_none() {
            checker.violated(format!("O2: not due within {bound:?} of the end"));
        }
        return;
    }
    let all = last.acquire_all().await;
    if let Some(guard) = all.first().filter(|_| plan.game.is_one_lock()) {
        let token = guard.token().unwrap().get();
        checker.believed(token);
        observers.conclude(token).await;
    }
}

/// What happens to all: held-back requests that arrive at some time, and an operator who deletes.
async fn fate(plan: &Plan, memory: &MemoryRegister, networks: &[FaultyRegister], checker: &Checker) {
    let mut random = fastrand::Rng::with_seed(plan.seed ^ 0xfa7e);
    let name = key(plan);
    loop {
        memory.env().sleep(Duration::from_millis(random.u64(50..1_500))).await;
        networks[random.usize(..networks.len())].deliver().await;
        if plan.deletions && random.u8(..6) == 0 {
            // Nobody deletes by hand what appeared within the last second while another's create is on its way: what
            // that does to tokens is said in the documentation.
            let created = memory.read(&name).await.ok().flatten();
            memory.env().sleep(Duration::from_millis(1_100)).await;
            if created.is_some()
                && let Ok(Some(cell)) = memory.read(&name).await
            {
                let _ = memory.delete(&name, &cell.version).await;
                if plan.by_existence {
                    checker.lock().deleted = true;
                }
            }
        }
    }
}

/// Under what the lock's record lies.
fn key(plan: &Plan) -> String {
    if plan.by_existence { LOCK.to_owned() } else { format!("{LOCK}.lock") }
}

/// One machine and the process on it.
struct Player {
    seed: u64,
    locker: Locker,
    network: FaultyRegister,
    clock: Arc<TestClock>,
    env: Env,
    random: fastrand::Rng,
    plan: Plan,
    register: Arc<Witness>,
    checker: Arc<Checker>,
    /// For how long in all, on its own clock. In this world no true time passes meanwhile.
    suspended: Duration,
}

impl Player {
    fn new(plan: &Plan, seed: u64, register: Arc<Witness>, checker: Arc<Checker>) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let clock = Arc::new(TestClock::with_rate(1.0 + plan.rate_error * (2.0 * random.f64() - 1.0)));
        let env = Env::seeded(clock.clone(), seed);
        let network = FaultyRegister::new(register.clone());
        let mut chaos = Chaos::all(seed, plan.harm);
        chaos.delay_most = plan.ttl;
        network.chaos(chaos);
        let mut options = StoreOptions::default();
        options.env = env.clone();
        options.store_clock = random.bool();
        let skew_us = random.i64(-2_000_000..2_000_000);
        let machine = Machine::new(Arc::new(network.clone()), env.clone()).with_front_end_skew(
            if plan.deletions || plan.once_per.is_some() {
                // A new record's token, and the end of a rest, are as good as the front ends agree; that is said in the
                // documentation.
                0
            } else {
                skew_us
            },
        );
        let leases = if plan.by_existence { RegisterLeases::by_existence } else { RegisterLeases::new };
        let locker = Locker::new(Arc::new(leases(Arc::new(machine), options)));
        let (plan, suspended) = (plan.clone(), Duration::ZERO);
        Self { seed, locker, network, clock, env, random, plan, register, checker, suspended }
    }

    fn calm(&self) {
        self.network.heal();
    }

    /// Acquires, holds, releases, and has accidents, for ever.
    async fn play(&mut self) {
        loop {
            self.rest(1_000).await;
            if let Some(period) = self.plan.once_per {
                self.run_once(period).await;
                continue;
            }
            let Ok((guard, how)) = self.acquire().await else { continue };
            let guard = self.checker.granted(guard, how, self.plan.game);
            self.hold(&guard, how).await;
            match self.random.u8(..4) {
                0 => drop(guard),
                1 => self.crash(guard),
                _ => {
                    if let Some(guard) = Arc::into_inner(guard) {
                        let _ = guard.release().await;
                    }
                }
            }
        }
    }

    fn lock(&self) -> Lock {
        self.locker.lock(LOCK).ttl(self.plan.ttl).patience(self.plan.ttl)
    }

    /// Holds the lock for a while, with accidents.
    async fn hold(&mut self, guard: &Guard, how: Held) {
        let steps = self.random.u32(1..40);
        for _ in 0..steps {
            if !self.check(guard, how) {
                break;
            }
            self.accident();
            // Straight after an accident, as a program that was stopped between two instructions.
            self.check(guard, how);
            self.rest(400).await;
        }
    }

    fn check(&self, guard: &Guard, how: Held) -> bool {
        let held = guard.check().is_ok();
        if held && how == Held::Alone {
            self.checker.believed(guard.token().unwrap().get());
        }
        // Of one lock, tokens tell more; and where records are deleted by hand, two may hold it.
        if held && !self.plan.game.is_one_lock() {
            self.checker.together(how);
        }
        if !held {
            self.checker.lock().history.losses += 1;
        }
        held
    }

    fn accident(&mut self) {
        match self.random.u8(..60) {
            // A clock that jumps while no true time passes is a suspend for a holder, and only for it: who holds one of
            // several locks may at the same time watch how long the others have shown no sign of life.
            0 if self.plan.game.is_one_lock() => {
                let suspended = self.plan.ttl.mul_f64(3.0 * self.random.f64());
                self.clock.suspend(suspended);
                self.suspended += suspended;
            }
            1 => self.clock.step_wall(self.random.i64(-3_600..3_600)),
            2 => self.network.disconnect(),
            3 => self.network.stall(),
            4..8 => {
                let seed = self.random.u64(..);
                self.recover(seed);
            }
            _ => {}
        }
    }

    /// The network heals; a machine with chaos has it again.
    fn recover(&self, seed: u64) {
        self.network.heal();
        let mut chaos = Chaos::all(seed, self.plan.harm);
        chaos.delay_most = self.plan.ttl;
        self.network.chaos(chaos);
    }

    /// The process dies while it holds the lock: nothing is released, and what is in the network may arrive. Another is
    /// started in its place, on the same machine.
    fn crash(&mut self, guard: impl Sized) {
        // For ever cut off; its tasks go on in vain.
        self.network.disconnect();
        std::mem::forget(guard);
        let seed = self.random.u64(..);
        *self = Self::new(&self.plan.clone(), seed, self.register.clone(), self.checker.clone());
    }

    async fn rest(&mut self, most_ms: u64) {
        let rest = Duration::from_millis(self.random.u64(..most_ms));
        self.env.sleep(rest).await;
    }
}
