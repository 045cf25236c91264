//! A simulated process with several tasks. The tasks share the locker, the machine and the network, die together, and
//! pass the lock on among themselves.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use leasehold::{Guard, Token};
use tokio::task::JoinSet;

use super::Client;

/// The state that the tasks of a process share besides their machine.
#[derive(Default)]
pub(in crate::simulation) struct Shared {
    /// Returns whether the guard that was given out last is invalid.
    latest: Mutex<Option<Box<dyn Fn() -> bool + Send>>>,
}

/// Runs the process of `first` with its tasks, then each process that replaces the previous one. Ends only if a task
/// panics.
pub(in crate::simulation) async fn run(mut first: Client) {
    loop {
        let world = first.world.clone();
        let mut tasks = JoinSet::new();
        for task in 1..world.plan.tasks as u64 {
            tasks.spawn(first.another(task).work());
        }
        tasks.spawn(first.work());
        // A task ends only when its process dies. Panics are detected elsewhere.
        let Some(Ok(seed)) = tasks.join_next().await else { return };
        tasks.shutdown().await;
        first = Client::new(&world, seed);
    }
}

impl Client {
    /// Creates another task of the same process.
    fn another(&self, task: u64) -> Self {
        Self {
            seed: self.seed,
            task,
            world: self.world.clone(),
            locker: self.locker.clone(),
            link: self.link.clone(),
            host: self.host.clone(),
            env: self.env.clone(),
            random: fastrand::Rng::with_seed(self.seed.wrapping_add(task << 32)),
            ttl: self.ttl,
            acquisitions: 0,
            wants_all: false,
            permits: None,
            limit: None,
            note: String::new(),
            resource: self.resource.clone(),
            process: self.process.clone(),
            successor: None,
            suspended: Duration::ZERO,
            paused: Duration::ZERO,
        }
    }

    /// Returns whether the process has several tasks.
    pub(in crate::simulation) fn has_company(&self) -> bool {
        self.plan().tasks > 1
    }

    /// Returns how many steps a hold has, and the longest pause in milliseconds. With several tasks, holds are mostly
    /// so short that other tasks get the lock under the same grant.
    pub(in crate::simulation) fn pace(&mut self) -> (u32, u64) {
        if self.has_company() && (self.plan().is_rush() || self.random.u8(..10) > 0) {
            (self.random.u32(1..4), 40)
        } else {
            (self.random.u32(1..40), 400)
        }
    }

    /// Pauses until the task wants the lock again.
    pub(in crate::simulation) async fn rest_between(&mut self) {
        if self.plan().is_rush() {
            return;
        }
        let soon = self.has_company() && self.random.u8(..4) > 0;
        self.rest(if soon { 60 } else { 1_000 }).await;
    }

    /// Records that this task was given `guard`. The previous guard of the process must be invalid.
    pub(in crate::simulation) fn given(&self, guard: &Guard) {
        if !self.plan().workload.is_one_lock() {
            return;
        }
        let (name, token) = (guard.name().as_str(), guard.token().map_or(0, Token::get));
        self.world.checker.given(name, token, &self.note);
        let over = guard.cancellation();
        let latest: Box<dyn Fn() -> bool + Send> = Box::new(move || over.is_cancelled());
        let before = self.process.latest.lock().unwrap_or_else(PoisonError::into_inner).replace(latest);
        if before.is_some_and(|is_dead| !is_dead()) {
            let what = format!("token {token} of {name} is given out, and the previous guard is still valid");
            self.world.checker.violated("I1", what);
        }
    }
}
