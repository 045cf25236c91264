//! The state that the machines of a history share: true time, the store, the resource, and the networks.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leasehold::clock::{Clock as _, TestClock};
use leasehold::env::Env;
use leasehold::lease::{LeaseStore, StoreOptions};
use leasehold::stores::memory::MemoryRegister;
use leasehold::stores::memory::server::{self, MemoryServer};
use leasehold::{Locker, Register, RegisterLeases};

use super::bucket::Bucket;
use super::calls::Calls;
use super::checker::Checker;
use super::cluster::Cluster;
use super::items::Items;
use super::network::Network;
use super::plan::{Fault, Plan, Store};
use super::recorder::Recorder;
use super::trace::{self, Judge, Trace, Traced};
use super::wire::Backend;
use crate::fault::{Chaos, FaultyRegister};
use crate::layer::LeaseLayered;
use crate::machine::Machine;

/// The state that the machines of a history share.
pub(super) struct World {
    pub(super) plan: Plan,
    pub(super) checker: Arc<Checker>,
    /// True time.
    clock: Arc<TestClock>,
    /// The store of the locks, unless they are in a file.
    pub(super) register: Arc<Recorder>,
    /// The writes to that store.
    trace: Arc<Trace>,
    /// The file with the locks, if they are in one.
    file: Option<Disk>,
    /// The server of the locks, if there is one.
    pub(super) server: Option<Arc<MemoryServer>>,
    /// The items of the locks, if they are in DynamoDB.
    pub(super) items: Option<Items>,
    /// The Kubernetes cluster with the locks, if there is one.
    pub(super) cluster: Option<Cluster>,
    /// The bucket of NATS with the locks, if they are in one.
    bucket: Option<Bucket>,
    /// The resource that holders write to.
    resource: Arc<Recorder>,
    links: Mutex<Vec<Link>>,
    spent: Mutex<Spent>,
    /// The processes that wait, by their seeds, in a history without faults.
    waiting: Mutex<HashMap<u64, Waiting>>,
}

/// The events that allow requests, in a history without contention.
#[derive(Debug, Default)]
struct Spent {
    acquisitions: usize,
    held: Duration,
    held_since: Option<Duration>,
    /// When any process last acquired something.
    progress: Duration,
}

/// The waiting tasks of a process.
#[derive(Clone, Copy, Debug, Default)]
struct Waiting {
    tasks: usize,
    /// When the process began to wait, or when one of its tasks was last served.
    since: Duration,
}

/// A file on the only machine of a history, the stores that have it open, and that machine's clock.
struct Disk {
    stores: Vec<Arc<dyn LeaseStore>>,
    clock: Arc<TestClock>,
    _folder: tempfile::TempDir,
}

impl Disk {
    async fn open(plan: &Plan) -> Self {
        let folder = tempfile::tempdir().unwrap_or_else(|error| unreachable!("no folder: {error}"));
        let rate = 1.0 + plan.rates() * (2.0 * fastrand::Rng::with_seed(plan.seed).f64() - 1.0);
        let (clock, mut stores) = (Arc::new(TestClock::with_rate(rate)), Vec::new());
        for n in 0..CONNECTIONS {
            let mut options = StoreOptions::default();
            options.env = Env::seeded(clock.clone(), plan.seed ^ n);
            let url = format!("sqlite:{}", folder.path().join("locks.db").display());
            let locker = Locker::open_with(&url, options).await;
            let locker = locker.unwrap_or_else(|error| unreachable!("the file cannot be opened: {error}"));
            stores.push(locker.store().clone());
        }
        Self { stores, clock, _folder: folder }
    }
}

/// How many connections to a file the processes of a history share.
const CONNECTIONS: u64 = 2;

/// The networks from one process to the store and to the resource.
#[derive(Clone)]
pub(super) struct Link {
    locks: Arc<dyn Network>,
    resource: Arc<dyn Network>,
    dead: Arc<AtomicBool>,
}

impl World {
    pub(super) async fn new(plan: &Plan, judge: Judge, checker: Arc<Checker>) -> Arc<Self> {
        let clock = Arc::new(TestClock::default());
        let env = |seed| Env::seeded(clock.clone(), plan.seed ^ seed);
        let deletes = plan.store == Store::Objects
            || plan.has(Fault::Deletions)
            || plan.store == Store::DynamoDb && plan.has(Fault::Strangers);
        let locks = MemoryRegister::new(env(0));
        let resource = if plan.seed.is_multiple_of(2) {
            MemoryRegister::new(env(1))
        } else {
            MemoryRegister::by_content(env(1))
        };
        let trace = Arc::new(Trace::new(plan, judge, checker.clone(), clock.clone()));
        let register = Arc::new(Recorder::of_locks(locks, trace.clone(), checker.clone(), deletes));
        let (commits, forgets) = (register.clone(), plan.has(Fault::Failovers));
        let server = move || {
            let commit = move |name: &str, before: Option<&[u8]>, record: &[u8]| {
                commits.commits(name, before, record, forgets);
            };
            let server = MemoryServer::new(env(2), plan.failover_grace(), commit);
            Arc::new(if plan.store == Store::Table { server.with_table() } else { server })
        };
        Arc::new(Self {
            plan: plan.clone(),
            server: plan.store.is_server().then(server),
            items: (plan.store == Store::DynamoDb).then(|| Items::new(env(3), register.clone())),
            cluster: (plan.store == Store::Kubernetes).then(|| Cluster::new(env(3), register.clone())),
            bucket: (plan.store == Store::Nats).then(|| Bucket::new(env(3), register.clone())),
            register,
            resource: Arc::new(Recorder::of_resource(resource, checker.clone())),
            trace,
            checker,
            clock,
            file: if plan.store == Store::File { Some(Disk::open(plan).await) } else { None },
            links: Mutex::default(),
            spent: Mutex::default(),
            waiting: Mutex::default(),
        })
    }

    /// Returns the true time since the history began.
    pub(super) fn now(&self) -> Duration {
        self.clock.now().since_boot()
    }

    pub(super) fn clock(&self) -> &TestClock {
        &self.clock
    }

    /// Waits in true time.
    pub(super) async fn clock_sleep(&self, duration: Duration) {
        self.clock.sleep(duration).await;
    }

    /// Connects a process that runs on `env`.
    pub(super) fn connect(
        self: &Arc<Self>,
        env: &Env,
        seed: u64,
        random: &mut fastrand::Rng,
    ) -> (Locker, Arc<dyn Register>, Link) {
        let skew_us = self.plan.front_ends().as_micros() as u64;
        let (store_clock, many_front_ends) = (random.bool(), random.bool());
        let skew = random.i64(-(skew_us as i64)..=skew_us as i64);
        let machine = |network: &FaultyRegister| {
            let machine = Machine::new(Arc::new(network.clone()), env.clone());
            Arc::new(if many_front_ends {
                machine.with_front_ends_within(skew_us)
            } else {
                machine.with_front_end_skew(skew)
            })
        };
        let mut options = StoreOptions::default();
        options.env = env.clone();
        options.store_clock = store_clock || self.server.is_some();
        // A smaller margin reveals other errors in the time bounds. But half of it must cover what a `Date` without
        // fractions of a second hides if the machines stand still with their clocks.
        if skew_us == 0 {
            options.margin = Duration::from_secs(if self.plan.has(Fault::StandStills) { 2 } else { 0 });
        }
        let (leases, locks): (Arc<dyn LeaseStore>, Arc<dyn Network>) = if let Some(file) = &self.file {
            let calls = self.calls(file, env, seed);
            let script = calls.script.clone();
            (Arc::new(LeaseLayered(calls)), script)
        } else {
            let network = self.network();
            (self.leases(machine(&network), seed, options), Arc::new(network))
        };
        let network = FaultyRegister::new(self.resource.clone()).observed(|_| {});
        let resource = machine(&network);
        let link = Link { locks, resource: Arc::new(network), dead: Arc::default() };
        link.recover(self.plan.chaos(seed));
        self.all_links().push(link.clone());
        (Locker::new(leases), resource, link)
    }

    /// Returns the leases in `register`, as `process` uses them.
    fn leases(&self, register: Arc<Machine>, process: u64, options: StoreOptions) -> Arc<dyn LeaseStore> {
        let StoreOptions { env, store_clock, margin, .. } = options.clone();
        let (trace, store_us) = (self.trace.clone(), AtomicU64::new(0));
        let traced = Traced { trace, process, env, store_clock, margin, store_us };
        let leases = match (self.plan.store, self.backend()) {
            (_, Some(backend)) => backend.leases(register, options),
            (Store::Server, _) => server::leases(register, options),
            (Store::Table, _) => server::leases_of_table(register, self.plan.failover_grace(), options)
                .unwrap_or_else(|error| unreachable!("no table: {error}")),
            (Store::Objects, _) => RegisterLeases::by_existence(register, options),
            _ => RegisterLeases::new(register, options),
        };
        Arc::new(leases.tapped(Arc::new(traced)))
    }

    fn calls(&self, file: &Disk, env: &Env, seed: u64) -> Calls {
        Calls {
            store: file.stores[(seed % CONNECTIONS) as usize].clone(),
            env: env.clone(),
            clock: self.clock.clone(),
            checker: self.checker.clone(),
            script: Arc::default(),
        }
    }

    /// Returns the server that has the locks, if the store's own requests reach one.
    pub(super) fn backend(&self) -> Option<&dyn Backend> {
        let items = self.items.as_ref().map(|items| items as &dyn Backend);
        let cluster = self.cluster.as_ref().map(|cluster| cluster as &dyn Backend);
        items.or(cluster).or_else(|| self.bucket.as_ref().map(|bucket| bucket as &dyn Backend))
    }

    fn locks(&self) -> Arc<dyn Register> {
        match (&self.server, self.backend()) {
            (Some(server), _) => server.clone(),
            (None, Some(backend)) => backend.served(),
            (None, None) => self.register.clone(),
        }
    }

    /// Creates a network to the register.
    fn network(&self) -> FaultyRegister {
        let register = self.locks();
        // The register counts what reaches it.
        let is_elsewhere = !matches!(self.plan.store, Store::Register | Store::Objects);
        let counts = is_elsewhere.then(|| self.register.clone());
        FaultyRegister::new(register).observed(move |_| {
            if let Some(register) = &counts {
                register.count();
            }
        })
    }

    /// Returns the clock of a new process's machine, or `None` if each process has its own machine.
    pub(super) fn machine_clock(&self) -> Option<Arc<TestClock>> {
        self.file.as_ref().map(|file| file.clock.clone())
    }

    /// Returns the operator's locker, on true time and on a good network.
    pub(super) fn operator(&self) -> Locker {
        let mut options = StoreOptions::default();
        options.env = Env::seeded(self.clock.clone(), self.plan.seed ^ 0x0e);
        let machine = Machine::new(self.locks(), options.env.clone());
        Locker::new(match &self.file {
            Some(file) => file.stores[0].clone(),
            None => self.leases(Arc::new(machine), trace::OPERATOR, options),
        })
    }

    /// Returns the networks of all processes, including dead ones.
    pub(super) fn links(&self) -> Vec<Link> {
        self.all_links().clone()
    }

    fn all_links(&self) -> std::sync::MutexGuard<'_, Vec<Link>> {
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a process has acquired the lock.
    pub(super) fn acquired(&self) {
        self.check_progress();
        let mut spent = self.spent();
        spent.progress = self.now();
        spent.acquisitions += 1;
        spent.held_since = Some(self.now());
    }

    /// Checks D1: in a rush, some process acquires its locks all the time.
    fn check_progress(&self) {
        let still = self.now() - self.spent().progress;
        if let Some(bound) = self.plan.longest_standstill().filter(|bound| still > *bound) {
            let what = format!("nothing was acquired for {still:?}, and {bound:?} are enough");
            self.checker.violated("D1", what);
        }
    }

    /// Records that the process has released the lock.
    pub(super) fn released(&self) {
        let mut spent = self.spent();
        let since = spent.held_since.take().unwrap_or_default();
        spent.held += self.now() - since;
    }

    /// Records that a task of the process with this seed starts to wait for the lock.
    pub(super) fn waits(&self, seed: u64) {
        let mut waiting = self.waiting();
        let process = waiting.entry(seed).or_default();
        if process.tasks == 0 {
            process.since = self.now();
        }
        process.tasks += 1;
    }

    /// Records that the task has stopped waiting.
    pub(super) fn waits_no_more(&self, seed: u64) {
        let mut waiting = self.waiting();
        let Some(process) = waiting.get_mut(&seed) else { return };
        process.tasks -= 1;
        let since = std::mem::replace(&mut process.since, self.now());
        drop(waiting);
        self.has_waited(since);
    }

    /// Checks F1 for processes that still wait at the end.
    pub(super) fn check_waits(&self) {
        self.check_progress();
        let waiting: Vec<_> = self.waiting().values().copied().collect();
        waiting.iter().filter(|process| process.tasks > 0).for_each(|process| self.has_waited(process.since));
    }

    fn has_waited(&self, since: Duration) {
        if self.plan.is_rush() {
            self.checker.waited(self.now() - since, self.plan.longest_wait());
        }
    }

    fn waiting(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Waiting>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn spent(&self) -> std::sync::MutexGuard<'_, Spent> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks I9: in a quiet history, each acquisition, release and renewal costs one request, and the first
    /// acquisition of a process costs one more. Renewals come every third of the ttl, or up to a tenth of that
    /// earlier.
    pub(super) fn check_budget(&self) {
        let Spent { acquisitions, held, held_since, .. } = *self.spent();
        let held = held + held_since.map_or(Duration::ZERO, |since| self.now() - since);
        let renewals = held.as_secs_f64() / (self.plan.ttl.as_secs_f64() / 3.0 * 0.9);
        // The latest acquisition may have been interrupted before its response arrived.
        let budget = 1 + 2 * acquisitions + 2 + renewals as usize;
        self.checker.spent(self.register.requests.load(Ordering::Relaxed), budget);
    }
}

impl Link {
    fn each(&self) -> [&dyn Network; 2] {
        [&*self.locks, &*self.resource]
    }

    pub(super) fn disconnect(&self) {
        self.each().into_iter().for_each(<dyn Network>::disconnect);
    }

    pub(super) fn stall(&self) {
        self.each().into_iter().for_each(<dyn Network>::stall);
    }

    /// Disconnects from the network permanently, because the process is dead.
    pub(super) fn die(&self) {
        self.dead.store(true, Ordering::Relaxed);
        self.disconnect();
    }

    /// Removes all faults.
    pub(super) fn heal(&self) {
        if !self.dead.load(Ordering::Relaxed) {
            self.each().into_iter().for_each(<dyn Network>::heal);
        }
    }

    /// Removes all faults, even after [`die`](Self::die).
    pub(super) fn revive(&self) {
        self.dead.store(false, Ordering::Relaxed);
        self.heal();
    }

    /// Removes all faults except `chaos`.
    pub(super) fn recover(&self, chaos: Chaos) {
        self.heal();
        self.locks.chaos(chaos.clone());
        self.resource.chaos(chaos);
    }

    pub(super) fn throttle(&self, wait: Option<Duration>) {
        self.each().into_iter().for_each(|network| network.throttle(wait));
    }

    /// Delivers the oldest request or response that is held back.
    pub(super) async fn deliver(&self) {
        for network in self.each() {
            network.deliver().await;
        }
    }

    pub(super) async fn deliver_all(&self) {
        for network in self.each() {
            while network.deliver().await {}
        }
    }
}
