//! A simulated machine with a process: the work of the process, and the faults that occur.

mod process;

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::{TestClock, timeout};
use leasehold::env::Env;
use leasehold::{ErrorKind, Guard, Lock, Locker, Locks, Object, Register, Token};

use self::process::Shared;
pub(super) use self::process::run;
use super::checker::Held;
use super::host::Host;
use super::plan::{Fault, Store};
use super::world::{Link, World};
use super::{LOCK, Plan, RESOURCE, copy};

/// How long after its store timeout an abandoned acquisition may still send a request. It may wait some seconds for
/// the store's clock, and the process may pause.
const AFTERMATH: Duration = Duration::from_secs(10);

/// A machine and the process on it.
pub(super) struct Client {
    pub(super) seed: u64,
    /// The number of this task within its process.
    pub(super) task: u64,
    pub(super) world: Arc<World>,
    pub(super) locker: Locker,
    pub(super) link: Link,
    pub(super) host: Arc<Host>,
    pub(super) env: Env,
    pub(super) random: fastrand::Rng,
    pub(super) ttl: Duration,
    pub(super) acquisitions: u32,
    /// Whether it acquires all of several locks.
    pub(super) wants_all: bool,
    /// How many permits the acquisitions of the last client ask for.
    pub(super) permits: Option<usize>,
    /// The limit of the hold of the latest acquisition, and when that hold was known to have begun, in true time.
    limit: Option<(Duration, Duration)>,
    /// The note of the latest acquisition.
    pub(super) note: String,
    /// The resource, as this machine reaches it.
    pub(super) resource: Arc<dyn Register>,
    /// The state that it shares with the other tasks of its process.
    pub(super) process: Arc<Shared>,
    /// The seed of the process that replaces this one; set when this one has died.
    pub(super) successor: Option<u64>,
    /// By how much its clock has jumped in total. No true time passes during a jump.
    pub(super) suspended: Duration,
    /// For how long it was stopped in total.
    pub(super) paused: Duration,
}

impl Client {
    pub(super) fn new(world: &Arc<World>, seed: u64) -> Self {
        let plan = &world.plan;
        let mut random = fastrand::Rng::with_seed(seed);
        let rate = 1.0 + plan.rates() * (2.0 * random.f64() - 1.0);
        let clock = world.machine_clock().unwrap_or_else(|| Arc::new(TestClock::with_rate(rate)));
        let host = Arc::new(Host::new(clock));
        let env = Env::seeded(host.clone(), seed);
        let ttl = plan.ttl.mul_f64(if plan.has(Fault::Ttls) { 0.5 + 1.5 * random.f64() } else { 1.0 });
        let (locker, resource, link) = world.connect(&env, seed, &mut random);
        Self {
            seed,
            task: 0,
            world: world.clone(),
            locker,
            link,
            host,
            env,
            random,
            ttl: ttl.max(leasehold::lease::Ttl::MIN),
            acquisitions: 0,
            wants_all: false,
            permits: None,
            limit: None,
            note: String::new(),
            resource,
            process: Arc::default(),
            successor: None,
            suspended: Duration::ZERO,
            paused: Duration::ZERO,
        }
    }

    pub(super) fn plan(&self) -> &Plan {
        &self.world.plan
    }

    /// Acquires, holds and releases locks, with faults, until its process dies. Returns the seed of the next process.
    pub(super) async fn work(mut self) -> u64 {
        loop {
            if let Some(seed) = self.successor {
                return seed;
            }
            self.rest_between().await;
            if let Some(period) = self.plan().once_per {
                self.run_once(period).await;
                continue;
            }
            let Some((guard, how)) = self.acquire_or_give_up().await else { continue };
            self.world.acquired();
            self.given(&guard);
            self.limit = guard.limit().map(|limit| (limit.span(), self.world.now()));
            let guard = self.world.checker.granted(guard, how, self.plan().workload);
            self.hold(&guard, how).await;
            self.world.released();
            match self.random.u8(..4) {
                0 => drop(guard),
                1 if self.plan().has(Fault::Crashes) => self.crash(guard),
                _ => {
                    if let Some(guard) = Arc::into_inner(guard) {
                        let _ = guard.release().await;
                    }
                }
            }
        }
    }

    /// Returns the lock, with a note that no other acquisition has, or with one that only the tasks of this process
    /// share. With a shared note, they pass the lock on among themselves.
    pub(super) fn lock(&mut self) -> Lock {
        let max_hold = self.begins();
        let lock = self.locker.lock(LOCK).ttl(self.ttl).store_timeout(self.ttl).note(&self.note);
        max_hold.into_iter().fold(lock, Lock::max_hold)
    }

    /// Does the same for several locks.
    pub(super) fn several(&mut self, names: Vec<&str>) -> Locks {
        let max_hold = self.begins();
        let locks = self.locker.lock_all(names).ttl(self.ttl).store_timeout(self.ttl).note(&self.note);
        max_hold.into_iter().fold(locks, Locks::max_hold)
    }

    /// Chooses the note of the next acquisition, and returns its limit.
    fn begins(&mut self) -> Option<Duration> {
        self.acquisitions += 1;
        self.note = if self.has_company() && self.random.u8(..6) > 0 {
            format!("{:x}", self.seed)
        } else {
            format!("{:x}-{}-{}", self.seed, self.task, self.acquisitions)
        };
        // Without a random number, so that all other choices stay the same. The last client keeps what it acquires.
        let limited = self.acquisitions.is_multiple_of(5) && !self.plan().is_quiet() && !self.wants_all;
        limited.then_some(self.ttl)
    }

    async fn acquire_or_give_up(&mut self) -> Option<(Guard, Held)> {
        if !self.plan().has(Fault::Cancellations) || self.faultless() || self.random.u8(..5) > 0 {
            self.world.waits(self.seed);
            let acquired = self.acquire().await.ok();
            self.world.waits_no_more(self.seed);
            return acquired;
        }
        let limit = self.ttl.mul_f64(self.random.f64());
        let dies = self.random.bool();
        let clock = self.host.clone();
        match timeout(&*clock, limit, self.acquire()).await {
            Some(outcome) => outcome.ok(),
            None => {
                // The requests of the acquisition continue in the background until its store timeout is over.
                let until = self.world.now() + 4 * self.plan().longest_ttl() + AFTERMATH;
                // A note without a task number is shared with other tasks, whose acquisitions may continue.
                let note = Some(&*self.note).filter(|note| note.contains('-'));
                self.world.checker.cancelled(note, until);
                if dies {
                    self.crash(());
                }
                None
            }
        }
    }

    /// Holds the lock for a while, with faults.
    pub(super) async fn hold(&mut self, guard: &Guard, how: Held) {
        let (steps, most_ms) = self.pace();
        for _ in 0..steps {
            if !self.check(guard, how) {
                break;
            }
            self.accident().await;
            if self.random.u8(..8) == 0 {
                // Writes without a check, like a program that was stopped after its check.
                self.write(guard).await;
            }
            // Checks right after a fault, like a program that was stopped between two instructions.
            self.check(guard, how);
            self.rest(most_ms).await;
        }
        if self.random.u8(..4) == 0 {
            self.write(guard).await;
        }
    }

    fn check(&self, guard: &Guard, how: Held) -> bool {
        let (workload, checker) = (self.plan().workload, &self.world.checker);
        let token = guard.token().map_or(0, Token::get);
        let held = guard.check().is_ok();
        if held && how == Held::Together {
            let tokens = guard.tokens().unwrap_or_default();
            checker.hold_of(tokens.len());
            for (name, token) in tokens {
                checker.believed(name.as_str(), token.get(), &self.note, self.world.now());
            }
        }
        if held && (how == Held::Alone || workload.is_one_lock()) {
            checker.believed(guard.name().as_str(), token, &self.note, self.world.now());
        }
        let in_time = |&(limit, began): &(Duration, Duration)| {
            // A machine that stood still together with its clocks does not know of this time.
            self.plan().has(Fault::StandStills)
                || self.world.now() <= began + limit.mul_f64(1.0 + 2.0 * self.plan().rate_error)
        };
        if held && !self.limit.as_ref().is_none_or(in_time) {
            checker.violated("I5", format!("token {token} is believed in after the limit of its hold"));
        }
        // Only for several locks. For one lock, the checks of tokens are stricter, and after a deletion by hand the lock
        // may have two holders.
        if held && !workload.is_one_lock() && how != Held::Together {
            checker.together(how);
        }
        // A hold with several locks loses all of them when it loses one. The others may still be renewed for a moment.
        if !held && workload.is_one_lock() {
            checker.lost(guard.name().as_str(), token);
        }
        held
    }

    /// Writes to the resource, with the guard's token.
    async fn write(&mut self, guard: &Guard) {
        if !self.plan().workload.is_one_lock() {
            return;
        }
        let Ok(token) = guard.token() else { return };
        let content = format!("{token} {:x}-{:x}", self.seed, self.random.u64(..));
        let written = if self.plan().fenced {
            let object = Object::new(self.resource.clone(), RESOURCE).within(self.ttl);
            object.write_fenced(token, content).await
        } else {
            overwrite(&*self.resource, content).await
        };
        if written.is_err_and(|error| error.kind() == ErrorKind::Lost) {
            self.world.checker.lock().history.refused += 1;
        }
    }

    /// Returns whether the time of faults is over.
    fn faultless(&self) -> bool {
        self.world.now() > self.plan().faults_until
    }

    async fn accident(&mut self) {
        let (fault, ttl) = (self.random.u8(..60), self.ttl);
        let length = ttl.mul_f64(3.0 * self.random.f64());
        let (seconds, seed) = (self.random.i64(-3_600..3_600), self.random.u64(..));
        if self.faultless() {
            return self.link.heal();
        }
        let has = |fault| self.world.plan.has(fault);
        match fault {
            // The simulated suspend is a jump of the clock during which no true time passes. The jump would distort how long
            // this process measures that the lock of another holder is unchanged: one of several locks, or this one after
            // an eviction. The jump also moves the extrapolated store clock ahead, and with it the next token. If tokens
            // are lost, that token would be too high.
            0 if has(Fault::Suspends)
                && !self.plan().loses_tokens()
                && self.plan().workload.is_one_lock()
                && self.world.checker.is_latest(LOCK, self.seed, self.world.now()) =>
            {
                self.host.machine().suspend(length);
                self.suspended += length;
            }
            1 if has(Fault::WallSteps) => self.host.machine().step_wall(seconds),
            2 if has(Fault::Partitions) => self.link.disconnect(),
            3 if has(Fault::Hangs) => self.link.stall(),
            4..8 => self.link.recover(self.plan().chaos(seed)),
            8 | 9 if has(Fault::Pauses) => self.pause(length).await,
            // Only the wall clock shows a restore, and a step of it could hide one. So a history has restores or steps,
            // not both.
            10 if has(Fault::Restores) && !has(Fault::WallSteps) && self.plan().store != Store::File => {
                self.pause(length).await;
                self.host.restored(length);
            }
            11 | 12 if has(Fault::StandStills) && self.knows_nothing_of_time() => {
                self.stand_still(length / 2).await
            }
            13 if has(Fault::Copies)
                && self.plan().workload.is_one_lock()
                && matches!(self.plan().store, Store::Register | Store::Objects) =>
            {
                copy::run(&self.world, self.seed, seed);
            }
            _ => {}
        }
    }

    /// Stops the process while true time passes.
    async fn pause(&mut self, length: Duration) {
        self.host.stop_process();
        self.world.clock_sleep(length).await;
        self.host.resume_process();
        self.paused += length;
    }

    /// Returns whether the machine may be paused without noticing. Checks of its grants then pass for too long until
    /// the next renewal. The checker can exempt them only for a single lock. The pause would also lengthen a
    /// cooldown.
    fn knows_nothing_of_time(&self) -> bool {
        let plan = self.plan();
        plan.workload.is_one_lock() && plan.once_per.is_none() && plan.store != Store::File
    }

    /// Stops the machine together with its clocks while true time passes.
    async fn stand_still(&mut self, length: Duration) {
        let from = self.world.now();
        self.host.stop_clocks();
        self.pause(length).await;
        self.host.resume_clocks();
        self.world.checker.stood_still(self.seed, from, self.world.now());
    }

    /// Kills the process with all its tasks and everything that it holds. It releases nothing, and its requests in
    /// the network may still arrive. Another process replaces it.
    pub(super) fn crash(&mut self, guard: impl Sized) {
        // Its tasks still run, but nothing that they send arrives.
        self.link.die();
        std::mem::forget(guard);
        self.successor = Some(self.random.u64(..));
    }

    pub(super) async fn rest(&mut self, most_ms: u64) {
        let rest = Duration::from_millis(self.random.u64(..most_ms));
        self.env.sleep(rest).await;
    }
}

/// Overwrites the resource, like a program that does not use tokens.
async fn overwrite(register: &dyn Register, content: String) -> leasehold::Result<()> {
    leasehold::update(register, RESOURCE, async |_| Ok::<_, leasehold::Error>(Some(content.clone().into())))
        .await
        .map(|_| ())
}
