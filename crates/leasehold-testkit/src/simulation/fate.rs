//! Faults that affect all machines of a history: late deliveries, an operator, an overloaded store, and the
//! simultaneous death of all processes.

use std::sync::Arc;
use std::time::Duration;

use leasehold::{LockName, Locker, Register as _};
use tokio::task::JoinSet;

use super::client::{self, Client};
use super::items::Stranger;
use super::plan::{FOREIGN_LEASE, Fault, Store, Workload};
use super::trace::RECENT;
use super::wire::Backend;
use super::world::World;
use super::{LOCK, Plan, SEVERAL};

/// The source of the faults that affect all machines.
pub(super) struct Fate {
    world: Arc<World>,
    operator: Locker,
    random: fastrand::Rng,
    throttled_until: Duration,
    stranger: Stranger,
    machines: JoinSet<()>,
    started: u64,
}

impl Fate {
    pub(super) fn new(world: &Arc<World>) -> Self {
        let mut fate = Self {
            operator: world.operator(),
            random: fastrand::Rng::with_seed(world.plan.seed ^ 0xfa7e),
            world: world.clone(),
            throttled_until: Duration::ZERO,
            stranger: Stranger::default(),
            machines: JoinSet::new(),
            started: 0,
        };
        fate.start_machines();
        fate
    }

    fn plan(&self) -> &Plan {
        &self.world.plan
    }

    fn start_machines(&mut self) {
        for _ in 0..self.plan().machines {
            self.started += 1;
            let seed = self.plan().seed.wrapping_mul(31).wrapping_add(self.started);
            self.machines.spawn(client::run(Client::new(&self.world, seed)));
        }
    }

    /// Applies faults until the history is over, then ends all processes.
    pub(super) async fn take_its_course(mut self) {
        while self.world.now() < self.plan().length {
            self.world.clock_sleep(Duration::from_millis(self.random.u64(50..1_500))).await;
            let links = self.world.links();
            links[self.random.usize(..links.len())].deliver().await;
            let (deletes, evicts) = (self.random.u8(..6) < 2, self.random.u8(..10) == 0);
            let (throttles, restarts) = (self.random.u8(..20) == 0, self.random.u8(..40) == 0);
            let wait = Duration::from_millis(self.random.u64(200..FOREIGN_LEASE.as_millis() as u64));
            let evicted = match self.plan().workload {
                Workload::Several => SEVERAL[self.random.usize(..SEVERAL.len())],
                _ => LOCK,
            };
            let over = self.world.now() > self.plan().faults_until;
            let has = |fault| !over && self.world.plan.has(fault);
            if has(Fault::Throttling) && throttles {
                self.throttled_until = self.world.now() + 2 * wait;
                self.throttle(Some(wait));
            } else if self.world.now() > self.throttled_until {
                self.throttle(None);
            }
            if has(Fault::Deletions) && deletes {
                self.delete().await;
            }
            if has(Fault::Evictions) && evicts {
                self.evict(evicted).await;
            }
            if let Some(server) = &self.world.server {
                let (fails_over, sets_back, takes) =
                    (self.random.u8(..20) == 0, self.random.u8(..20) == 0, self.random.u8(..4) == 0);
                if has(Fault::Failovers) && fails_over {
                    // A token of the next server may repeat one that was lost if its clock is behind by the grace.
                    let grace_ms = self.plan().failover_grace().as_millis() as u64;
                    let ahead = Duration::from_millis(self.random.u64(..grace_ms));
                    server.fail_over(wait, ahead);
                    self.world.checker.lock().history.failovers += 1;
                }
                if has(Fault::ClockSetBack) && sets_back {
                    server.set_back(wait);
                }
                if has(Fault::Strangers) && takes && server.take(LOCK, wait) {
                    self.world.checker.taken(LOCK, self.world.now() + wait);
                }
            }
            if let Some(items) = self.world.items.as_ref().filter(|_| has(Fault::Strangers)) {
                self.stranger.act(items, &self.world.checker, self.world.now(), &mut self.random);
            }
            if let Some(cluster) = &self.world.cluster
                && has(Fault::Strangers)
                && self.random.u8(..3) == 0
            {
                cluster.other_client(&mut self.random, &self.world.checker, self.world.now());
            }
            if has(Fault::Restarts) && restarts {
                self.world.checker.lock().history.restarts += 1;
                self.end_machines().await;
                self.start_machines();
            }
        }
        self.throttle(None);
        self.end_machines().await;
    }

    /// Kills all processes.
    async fn end_machines(&mut self) {
        for link in self.world.links() {
            link.die();
        }
        self.machines.shutdown().await;
    }

    fn throttle(&self, wait: Option<Duration>) {
        for link in self.world.links() {
            link.throttle(wait);
        }
    }

    /// Deletes the record by hand.
    async fn delete(&self) {
        let key = match self.plan().store {
            Store::Objects => LOCK.to_owned(),
            _ => format!("{LOCK}.lock"),
        };
        if self.world.now() < self.world.checker.granted_last(LOCK) + RECENT {
            return;
        }
        if self.world.backend().is_some_and(Backend::delete) {
            self.world.checker.deleted(LOCK);
            return;
        }
        let register = &self.world.register.inner;
        if let Ok(Some(cell)) = register.read(&key).await {
            let _ = register.delete(&key, &cell.version).await;
            self.world.checker.deleted(LOCK);
        }
    }

    /// Evicts the current holder of `lock`, if any.
    async fn evict(&self, lock: &str) {
        let Ok(name) = LockName::new(lock) else { return };
        let status = self.operator.inspect(&name).await;
        if let Some(token) = status.ok().and_then(|status| status.token) {
            self.world.checker.evicting(lock, token.get());
            if let Ok(leasehold::Evicted::Evicted) = self.operator.evict(&name, token).await {
                self.world.checker.lock().history.evicted += 1;
            }
        }
    }
}
