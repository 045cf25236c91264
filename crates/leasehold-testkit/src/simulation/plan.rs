//! The plan of one history, and its text form, from which it can be replayed.

use std::fmt;
use std::time::Duration;

use crate::fault::Chaos;

/// The longest pause between two polls of a waiter, before jitter.
pub(super) const LONGEST_POLL: Duration = Duration::from_millis(800);

/// The longest lease of another client than leasehold.
pub(super) const FOREIGN_LEASE: Duration = Duration::from_secs(3);

/// What the failover grace adds to a tenth of the ttl.
const AT_LEAST: Duration = Duration::from_millis(200);

/// What the machines of a history contend for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Workload {
    /// One lock.
    Lock,
    /// Leadership, with observers.
    Election,
    /// A permit of a semaphore with this many permits.
    Semaphore(usize),
    /// A shared or an exclusive hold.
    RwLock,
    /// Any of three locks, held together.
    Several,
}

impl Workload {
    /// Returns whether there is a single lock with one holder at a time, so that the tokens show everything.
    pub(super) fn is_one_lock(self) -> bool {
        matches!(self, Self::Lock | Self::Election)
    }

    /// Returns the workload with this printed name.
    pub(super) fn named(name: &str) -> Option<Self> {
        match name {
            "lock" => Some(Self::Lock),
            "election" => Some(Self::Election),
            "rw-lock" => Some(Self::RwLock),
            "several" => Some(Self::Several),
            _ => name.strip_prefix("semaphore:")?.parse().ok().map(Self::Semaphore),
        }
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock => f.write_str("lock"),
            Self::Election => f.write_str("election"),
            Self::Semaphore(permits) => write!(f, "semaphore:{permits}"),
            Self::RwLock => f.write_str("rw-lock"),
            Self::Several => f.write_str("several"),
        }
    }
}

/// The plan of one history.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The seed of all random choices.
    pub seed: u64,
    /// What the machines contend for.
    pub workload: Workload,
    /// Where the locks are stored.
    pub store: Store,
    /// How many machines contend.
    pub machines: usize,
    /// How many tasks the process on each machine has. Several tasks pass a lock on among themselves. With
    /// `once_per`, there is one task.
    pub tasks: usize,
    /// How long the history lasts, in true time.
    pub length: Duration,
    /// The leases' ttl.
    pub ttl: Duration,
    /// The probability of each network fault for each request.
    pub harm: f64,
    /// How far clock rates may be off. Above the bound of 0.005 the guarantees do not hold.
    pub rate_error: f64,
    /// How far the clock of each of the store's front ends may be off. Above half of the margin (5 s) the guarantees
    /// do not hold.
    pub skew: Duration,
    /// If set, all processes run a job once per this period instead of holding the lock now and then.
    pub once_per: Option<Duration>,
    /// Whether the resource checks the tokens of its writers.
    pub fenced: bool,
    /// The kinds of faults that may occur.
    pub faults: Faults,
    /// No fault occurs after this moment.
    pub faults_until: Duration,
}

/// Where the locks of a history are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// In a register, as records that remain.
    Register,
    /// In a SQLite file on one machine. The order of simultaneous calls depends on threads, so random choices can be
    /// replayed, but such races cannot.
    File,
    /// In Lease objects of a Kubernetes cluster, which another client takes too.
    Kubernetes,
    /// On a server that keeps records and executes one step at a time, like PostgreSQL and Redis.
    Server,
    /// In a table on such a server, whose lines of waiters are beside the records, like MariaDB.
    Table,
    /// In a register, as objects that exist while the lock is held, which is the protocol of simple clients. A
    /// release deletes the object.
    Objects,
    /// In a table of DynamoDB, as items that AWS's lock client takes too.
    DynamoDb,
    /// In a key-value bucket of NATS.
    Nats,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Fault {
    /// Requests are applied, but their responses are lost.
    LostAnswers,
    /// Requests are lost.
    LostRequests,
    /// Requests arrive late, even after their callers have given up.
    LateRequests,
    /// Responses arrive late.
    LateAnswers,
    /// Requests arrive twice: at once, with either response, or much later.
    Doubles,
    /// Requests are refused for now, or throttled.
    Refusals,
    /// A machine is cut off.
    Partitions,
    /// A machine's network accepts requests and responds to none.
    Hangs,
    /// A machine is suspended, and its clocks show it.
    Suspends,
    /// A process is stopped for a while, then resumes.
    Pauses,
    /// A virtual machine is restored from a snapshot, so its boot clock has missed the time since the snapshot.
    Restores,
    /// Wall clocks are stepped by up to an hour.
    WallSteps,
    /// Clocks run too fast or too slow.
    Rates,
    /// A process dies with everything that it holds, and another starts.
    Crashes,
    /// Acquisitions are given up before their response arrives, or their processes die.
    Cancellations,
    /// Contenders ask for different ttls.
    Ttls,
    /// An operator deletes records by hand.
    Deletions,
    /// An operator evicts.
    Evictions,
    /// All processes die at once, and others start.
    Restarts,
    /// The store asks all clients to slow down for a while.
    Throttling,
    /// The clocks of the store's front ends disagree.
    Skew,
    /// A virtual machine is paused together with its clocks, so that it does not notice that time has passed.
    StandStills,
    /// A process that holds a lock is copied while it runs, and the copy renews the lock too.
    Copies,
    /// The server is replaced by a standby that has not received the latest writes.
    Failovers,
    /// The server's clock is set back.
    ClockSetBack,
    /// Another client, which does not know of records, takes the lock of the server when a lease has lapsed. On
    /// DynamoDB, it also takes a lock that is free, and may delete it.
    Strangers,
}

impl Fault {
    /// All kinds, with their names.
    pub const ALL: [(Self, &'static str); 26] = [
        (Self::LostAnswers, "lost-answers"),
        (Self::LostRequests, "lost-requests"),
        (Self::LateRequests, "late-requests"),
        (Self::LateAnswers, "late-answers"),
        (Self::Doubles, "doubles"),
        (Self::Refusals, "refusals"),
        (Self::Partitions, "partitions"),
        (Self::Hangs, "hangs"),
        (Self::Suspends, "suspends"),
        (Self::Pauses, "pauses"),
        (Self::Restores, "restores"),
        (Self::WallSteps, "wall-steps"),
        (Self::Rates, "rates"),
        (Self::Crashes, "crashes"),
        (Self::Cancellations, "cancellations"),
        (Self::Ttls, "ttls"),
        (Self::Deletions, "deletions"),
        (Self::Evictions, "evictions"),
        (Self::Restarts, "restarts"),
        (Self::Throttling, "throttling"),
        (Self::Skew, "skew"),
        (Self::StandStills, "stand-stills"),
        (Self::Copies, "copies"),
        (Self::Failovers, "failovers"),
        (Self::ClockSetBack, "clock-set-back"),
        (Self::Strangers, "strangers"),
    ];
}

/// A set of kinds of fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults(u32);

impl Faults {
    /// No faults.
    pub const NONE: Self = Self(0);

    /// Returns the set of all faults.
    pub fn all() -> Self {
        Fault::ALL.into_iter().fold(Self::NONE, |faults, (fault, _)| faults.with(fault))
    }

    /// Adds `fault`.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        Self(self.0 | 1 << fault as u32)
    }

    /// Removes `fault`.
    #[must_use]
    pub fn without(self, fault: Fault) -> Self {
        Self(self.0 & !(1 << fault as u32))
    }

    /// Returns whether `fault` is in the set.
    pub fn has(self, fault: Fault) -> bool {
        self.0 & 1 << fault as u32 != 0
    }

    /// Returns how many faults the set has.
    pub fn count(self) -> u32 {
        self.0.count_ones()
    }
}

impl Plan {
    /// Returns the plan for `seed`: one lock in a register, and most kinds of fault.
    pub fn from_seed(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let length = Duration::from_secs(random.u64(30..60));
        let mut plan = Self {
            seed,
            workload: Workload::Lock,
            store: Store::Register,
            machines: random.usize(2..=4),
            tasks: 1,
            length,
            ttl: Duration::from_millis(random.u64(500..6_000)),
            harm: [0.0, 0.01, 0.03, 0.08][random.usize(..4)],
            rate_error: leasehold::clock::RATE_ERROR,
            skew: Duration::from_millis(2_500),
            once_per: None,
            fenced: true,
            faults: Faults::NONE,
            faults_until: length,
        };
        for (fault, _) in Fault::ALL {
            // Not every history has all faults, because some faults hide the effects of others.
            let one_in = if fault == Fault::Deletions { 4 } else { 3 };
            if (random.u8(..one_in) == 0) == (fault == Fault::Deletions) {
                plan.faults = plan.faults.with(fault);
            }
        }
        plan
    }

    /// Returns the plan for `seed`, with the lock on a server.
    pub fn server_from_seed(seed: u64) -> Self {
        let mut plan = Self { store: Store::Server, ..Self::from_seed(seed) };
        // A deletion by hand resets what a failover and a clock may not.
        plan.faults = plan.faults.without(Fault::Deletions);
        if plan.has(Fault::Failovers) {
            // A token may repeat one that a failover lost if the clock was set back too. Another client does not know
            // that the server has lost a grant. After a failover that has lost the takeover, the renewal of a machine
            // that stood still with its clocks does not show the loss.
            let without = [Fault::ClockSetBack, Fault::Strangers, Fault::StandStills];
            plan.faults = without.into_iter().fold(plan.faults, Faults::without);
        }
        plan
    }

    /// Returns the plan for `seed`, with the lock in a table of DynamoDB.
    pub fn dynamodb_from_seed(seed: u64) -> Self {
        let mut plan = Self { store: Store::DynamoDb, ..Self::from_seed(seed) };
        plan.faults = plan.faults.without(Fault::Failovers).without(Fault::ClockSetBack);
        plan
    }

    /// Returns the plan for `seed`, with the lock in a Kubernetes cluster.
    pub fn cluster_from_seed(seed: u64) -> Self {
        Self { store: Store::Kubernetes, ..Self::from_seed(seed) }
    }

    /// Returns the plan for `seed`, with the lock in a bucket of NATS.
    pub fn nats_from_seed(seed: u64) -> Self {
        let mut plan = Self { store: Store::Nats, ..Self::from_seed(seed) };
        // A simulated suspend passes no true time. The responses to reads and writes have no time that shows it.
        plan.faults = plan.faults.without(Fault::Suspends);
        // The time from which a new record takes its token may be old by the pause.
        if plan.has(Fault::StandStills) {
            plan.faults = plan.faults.without(Fault::Deletions);
        }
        plan
    }

    /// Returns the plan for `seed`, with a job that runs once per period.
    pub fn once_from_seed(seed: u64) -> Self {
        let period_ms = fastrand::Rng::with_seed(seed ^ 0x0ce).u64(2_000..40_000);
        let mut plan = Self { once_per: Some(Duration::from_millis(period_ms)), ..Self::from_seed(seed) };
        // Deleting the record by hand deletes the record of the run. An eviction ends the cooldown.
        plan.faults = plan.faults.without(Fault::Deletions).without(Fault::Evictions);
        plan
    }

    /// Returns the plan of a history without faults.
    pub fn quiet_from_seed(seed: u64) -> Self {
        Self { harm: 0.0, machines: 1, ..Self::from_seed(seed) }.with_faults(Faults::NONE)
    }

    /// Replaces the kinds of fault.
    #[must_use]
    pub fn with_faults(self, faults: Faults) -> Self {
        Self { faults, ..self }
    }

    /// Applies `knobs`, which have the form in which plans are printed: `machines=2,faults=crashes+rates`.
    ///
    /// # Errors
    /// The knob that does not exist or has an invalid value.
    pub fn with(mut self, knobs: &str) -> Result<Self, String> {
        for knob in knobs.split(',').filter(|knob| !knob.is_empty()) {
            let set = knob.split_once('=').and_then(|(name, value)| self.set(name, value));
            set.ok_or_else(|| format!("`{knob}` is not a setting of a plan with a valid value"))?;
        }
        Ok(self)
    }

    fn set(&mut self, name: &str, value: &str) -> Option<()> {
        let time = || value.parse().ok().map(Duration::from_millis);
        match name {
            "seed" => self.seed = value.parse().ok()?,
            "workload" => self.workload = Workload::named(value)?,
            "store" => self.store = Store::ALL.into_iter().find(|(_, name)| *name == value)?.0,
            "machines" => self.machines = value.parse().ok()?,
            "tasks" => self.tasks = value.parse().ok()?,
            "length-ms" => self.length = time()?,
            "ttl-ms" => self.ttl = time()?,
            "harm" => self.harm = value.parse().ok()?,
            "rate-error" => self.rate_error = value.parse().ok()?,
            "skew-ms" => self.skew = time()?,
            "once-per-ms" => self.once_per = if value == "never" { None } else { Some(time()?) },
            "fenced" => self.fenced = value.parse().ok()?,
            "until-ms" => self.faults_until = time()?,
            "faults" => {
                self.faults = Faults::NONE;
                for fault in value.split('+').filter(|fault| *fault != "none") {
                    let (fault, _) = Fault::ALL.into_iter().find(|(_, name)| *name == fault)?;
                    self.faults = self.faults.with(fault);
                }
            }
            _ => return None,
        }
        Some(())
    }

    pub(super) fn has(&self, fault: Fault) -> bool {
        self.faults.has(fault)
    }

    /// Returns the network's faults, drawn from `seed`.
    pub(super) fn chaos(&self, seed: u64) -> Chaos {
        let harm = |fault| if self.has(fault) { self.harm } else { 0.0 };
        let mut chaos = Chaos::seeded(seed);
        chaos.applied_lost = harm(Fault::LostAnswers);
        chaos.dropped = harm(Fault::LostRequests);
        (chaos.held_back, chaos.delayed) = (harm(Fault::LateRequests), harm(Fault::LateRequests));
        chaos.answer_delayed = harm(Fault::LateAnswers);
        (chaos.twice, chaos.twice_second_answer) = (harm(Fault::Doubles), harm(Fault::Doubles));
        chaos.twice_late = harm(Fault::Doubles);
        (chaos.not_applied, chaos.throttled) = (harm(Fault::Refusals), harm(Fault::Refusals) / 2.0);
        chaos.delay_most = self.ttl;
        chaos
    }

    /// Returns how far clock rates are off.
    pub(super) fn rates(&self) -> f64 {
        if self.has(Fault::Rates) { self.rate_error } else { 0.0 }
    }

    /// Returns how far the front ends' clocks are off. Returns zero if tokens are lost, because they then rise only
    /// as far as the front ends agree on the time, as documented. A server has no front ends.
    pub(super) fn front_ends(&self) -> Duration {
        if !self.has(Fault::Skew) || self.loses_tokens() || self.store.is_server() {
            Duration::ZERO
        } else if self.has(Fault::StandStills) {
            // Machines that stand still with their clocks use up half of the margin.
            self.skew / 2
        } else {
            self.skew
        }
    }

    /// Returns whether records are deleted by hand, or another client deletes the token that is stored with its lock.
    pub(super) fn loses_tokens(&self) -> bool {
        self.has(Fault::Deletions) || self.store == Store::Kubernetes && self.has(Fault::Strangers)
    }

    /// Returns the longest pause between two polls of a waiter, before jitter.
    pub(super) fn longest_poll(&self) -> Duration {
        if self.store == Store::Kubernetes { Duration::from_secs(2) } else { LONGEST_POLL }
    }

    /// Returns the failover grace of the server. It is longer than any lease.
    pub(super) fn failover_grace(&self) -> Duration {
        if self.has(Fault::Failovers) { self.longest_ttl().mul_f64(1.1) + AT_LEAST } else { Duration::ZERO }
    }

    /// Returns the longest ttl of any claim.
    pub(super) fn longest_ttl(&self) -> Duration {
        if self.has(Fault::Ttls) { 2 * self.ttl } else { self.ttl }
    }

    /// Returns how long no process may acquire anything in a rush for several locks: much longer than each hold and each
    /// poll.
    pub(super) fn longest_standstill(&self) -> Option<Duration> {
        let is_rush = self.workload == Workload::Several && self.is_rush();
        is_rush.then_some(Duration::from_secs(10))
    }

    /// Returns whether there are no faults and the tasks of each process want the lock all the time. Then no process
    /// may starve.
    pub(super) fn is_rush(&self) -> bool {
        self.tasks > 1 && self.faults == Faults::NONE
    }

    /// Returns how long a process may wait in a rush with one other process. There is no limit with more processes,
    /// because any of them may find the lock free.
    pub(super) fn longest_wait(&self) -> Option<Duration> {
        // A cohort period, and the hold that is in progress at its end.
        let period = LONGEST_POLL.min(self.ttl / 4) + Duration::from_millis(150);
        let (periods, polls) = match self.store {
            // A process notices other waiters after at most eight cohort periods. Then it backs off, and a waiter polls
            // once in that time.
            Store::Objects => (9, 3),
            // A process that asks again and again notices a waiter within the longest pause.
            Store::Register
            | Store::Server
            | Store::File
            | Store::DynamoDb
            | Store::Kubernetes
            | Store::Nats => (2, 3),
            // Each process finds the line before it takes the lock again, so its own pause is all that may be added.
            Store::Table => (1, 1),
        };
        let bound = periods * period + polls * self.longest_poll();
        (self.machines == 2).then_some(bound)
    }

    /// Returns whether there is neither contention nor a fault.
    pub(super) fn is_quiet(&self) -> bool {
        self.machines == 1 && self.tasks == 1 && self.faults == Faults::NONE
    }
}

impl Store {
    const ALL: [(Self, &'static str); 8] = [
        (Self::Register, "register"),
        (Self::Kubernetes, "kubernetes"),
        (Self::Server, "server"),
        (Self::Table, "table"),
        (Self::File, "file"),
        (Self::Objects, "objects"),
        (Self::DynamoDb, "dynamodb"),
        (Self::Nats, "nats"),
    ];

    /// Returns whether the store is a server that can fail over.
    pub(super) fn is_server(self) -> bool {
        matches!(self, Self::Server | Self::Table)
    }
}

/// Prints one line, in the form that `LEASEHOLD_PLAN` takes.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seed, workload, machines, tasks, harm, rate_error, fenced, .. } = self;
        let store =
            Store::ALL.into_iter().find(|(store, _)| *store == self.store).map_or("", |(_, name)| name);
        let names = Fault::ALL.into_iter().filter(|(fault, _)| self.has(*fault));
        let names: Vec<_> = names.map(|(_, name)| name).collect();
        let faults = if names.is_empty() { "none".to_owned() } else { names.join("+") };
        let once = self.once_per.map_or("never".to_owned(), |period| period.as_millis().to_string());
        let (length, ttl, skew) = (self.length.as_millis(), self.ttl.as_millis(), self.skew.as_millis());
        let until = self.faults_until.as_millis();
        write!(
            f,
            "seed={seed},workload={workload},store={store},machines={machines},tasks={tasks},length-ms={length},ttl-ms={ttl},harm={harm},\
             rate-error={rate_error},skew-ms={skew},once-per-ms={once},fenced={fenced},until-ms={until},faults={faults}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_plan_is_parsed_back() {
        for seed in 0..50 {
            let plan = Plan { workload: Workload::Semaphore(3), ..Plan::once_from_seed(seed) };
            assert_eq!(Plan::from_seed(seed + 1).with(&plan.to_string()), Ok(plan));
        }
        let quiet = Plan::quiet_from_seed(1);
        assert_eq!(Plan::from_seed(1).with(&quiet.to_string()), Ok(quiet));
        for bad in ["machines", "machines=many", "faults=crashes+luck", "workload=chess", "wind=5"] {
            assert!(Plan::from_seed(1).with(bad).unwrap_err().contains(bad));
        }
    }
}
