//! Simulation: the real locks, renewal and protocol on paused time, over simulated stores behind bad networks.
//!
//! One seed is one history: machines whose clocks have different rates (within the bound), and the faults that
//! [`Fault`] names. The checker asserts the following invariants in true time and in the order in which the store
//! commits. No process in the history can see either.
//!
//! - **I1** Once a check of a token has passed, no check of a lower one passes, so holds never overlap. Holders that
//!   an operator has evicted or whose record was deleted by hand are exempt, but holders that were granted the lock
//!   after that are not. A holder that stood still together with all its clocks is also exempt, until the store
//!   commits a renewal that it sent afterwards. When a task is given a guard, the previous guard of the same process
//!   is invalid, without exemption.
//! - **I2** Tokens are unique and rise in the order in which the store commits grants, even across deletions by hand.
//!   A token whose check passes belongs to a grant: it is higher than all tokens committed before that grant, at most
//!   the grant's own token, and held by the holder that the record names. No two guards have the same token.
//! - **I3** A resource that holders write to with [fenced writes](leasehold::fence) never accepts a lower token than
//!   before, even after a pause or a loss.
//! - **I4** No write takes effect twice: no nonce of a lock's record is committed twice, nor is any content of the
//!   resource.
//! - **I5** No check passes after the deadline in true time. The deadline assumes the slowest clock within the bound,
//!   and that the latest write of the grant was committed in the instant in which it was sent.
//! - **I6** Once a holder has noticed that its lock is lost, it sends nothing that prolongs the lock, and no other
//!   task is given the lock.
//! - **I7** After all processes have died, a lock is free again within ttl (1 + rho) + delta, plus a poll, plus the
//!   waits for the store's clock. This counts from the last moment at which a renewal of the dead holder can have
//!   arrived.
//! - **I8** Once the store timeout of a cancelled acquisition is over, nothing is granted to it or prolonged for it.
//!   An acquisition that is given up on a bad network leaves a lock that is free again within the same bound as in
//!   I7.
//! - **I9** In a history without faults and without contention, the requests stay within their budget.
//! - **I10** If a process is copied while it holds a lock, only one of the copies keeps renewing it.
//! - **F1** In a history without faults, no process waits for longer than nine cohort periods of another process. A
//!   cohort period is the time for which the tasks of one process pass the lock on among themselves.
//! - **E1** An observer of an election sees no term that is lower than an earlier one and none that was not granted.
//!   With each term it sees the value that the leader advertises. At the end of the history it sees the last leader.
//! - **S1** A semaphore with n permits never has more than n guards whose checks pass at the same time.
//! - **S2** No check of an exclusive hold passes at the same time as one of a shared hold or of another exclusive one.
//! - **D1** In a history of several locks without faults, in which all processes want locks all the time, one of them
//!   acquires its locks at least every ten seconds, whichever locks they have in common. **I1**, **I2** and **I5** hold
//!   for each lock of a guard: no check of the guard passes when one of its locks is lost.
//! - **O1** Once the store has recorded that a job ran, no process starts the job again before the end of its period,
//!   which began with the grant. This is only as exact as the store's front ends agree on the time.
//! - **O2** After the period the job can run again, even on a process that has just started.
//! - **M1** Each write of a lock's record that the store commits is a step that a model of the protocol allows. The caller
//!   of [`run_with`] has the model. Not for locks in a file.
//! - **P1** Nothing panics, on no task and no thread of the history.
//!
//! A violation is printed with the line that replays it: `LEASEHOLD_SEED` and `LEASEHOLD_PLAN`, which the tests of
//! `crates/leasehold/tests/simulation.rs` read. Before that, [`shrink`] makes its plan smaller.
//!
//! ```
//! use leasehold_testkit::simulation::{Plan, run};
//! let history = run(&Plan::from_seed(7)).unwrap_or_else(|violation| panic!("{violation}"));
//! assert!(history.grants > 0);
//! ```

mod bucket;
mod calls;
mod checker;
mod client;
mod cluster;
mod copy;
mod fate;
mod host;
mod items;
mod network;
mod observers;
mod once;
mod panics;
mod plan;
mod recorder;
mod shrink;
mod trace;
mod wire;
mod workloads;
mod world;

use std::fmt;
use std::iter::Sum;
use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::timeout;

use self::checker::Checker;
use self::client::Client;
use self::fate::Fate;
use self::observers::Observers;
use self::panics::Panics;
pub use self::plan::{Fault, Faults, Plan, Store, Workload};
pub use self::shrink::shrink;
pub use self::trace::{Judge, KINDS, Past, Record, Step, Writer};
use self::world::World;

/// The lock that all processes contend for.
const LOCK: &str = "x";

/// The locks of the workload [`Workload::Several`].
const SEVERAL: [&str; 3] = ["x/1", "x/2", "x/3"];

/// The object that holders write to.
const RESOURCE: &str = "resource";

/// Counts of what happened in a history.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct History {
    /// Grants that the store committed.
    pub grants: usize,
    /// Checks that passed.
    pub checks: usize,
    /// Locks that holders found to be lost.
    pub losses: usize,
    /// Writes that the resource accepted.
    pub accepted: usize,
    /// Writes that the resource refused.
    pub refused: usize,
    /// Acquisitions that were given up.
    pub cancelled: usize,
    /// Holders that were evicted.
    pub evicted: usize,
    /// Records that were deleted by hand.
    pub deleted: usize,
    /// How often all processes died at once, before the end.
    pub restarts: usize,
    /// How often a machine stood still with its clocks.
    pub stood_still: usize,
    /// How often the copy of a holder renewed.
    pub copied: usize,
    /// Failovers of the server.
    pub failovers: usize,
    /// How often another client took the lock of the server.
    pub taken: usize,
    /// Runs of jobs that the store has recorded.
    pub runs: usize,
    /// Jobs that were skipped because they had already run.
    pub already_ran: usize,
    /// Leaders that observers saw.
    pub leaders_seen: usize,
    /// The most simultaneous holders.
    pub most: usize,
    /// Guards that were given out without a request, because another task of the process already had the grant.
    pub handed: usize,
    /// How many of those guards were lost.
    pub handed_lost: usize,
    /// How often a client asked for another number of permits than the store had.
    pub disagreed: usize,
    /// How often such a client changed the number.
    pub resized: usize,
    /// The longest wait of a process, in a history without faults in which its tasks want the lock all the time.
    pub waited: Duration,
    /// How many writes of locks' records were of each kind, as the [`Judge`] numbers them.
    pub steps: [usize; KINDS],
}

impl Sum for History {
    fn sum<I: Iterator<Item = Self>>(histories: I) -> Self {
        histories.fold(Self::default(), |sum, history| Self {
            grants: sum.grants + history.grants,
            checks: sum.checks + history.checks,
            losses: sum.losses + history.losses,
            accepted: sum.accepted + history.accepted,
            refused: sum.refused + history.refused,
            cancelled: sum.cancelled + history.cancelled,
            evicted: sum.evicted + history.evicted,
            deleted: sum.deleted + history.deleted,
            restarts: sum.restarts + history.restarts,
            stood_still: sum.stood_still + history.stood_still,
            copied: sum.copied + history.copied,
            failovers: sum.failovers + history.failovers,
            taken: sum.taken + history.taken,
            runs: sum.runs + history.runs,
            already_ran: sum.already_ran + history.already_ran,
            leaders_seen: sum.leaders_seen + history.leaders_seen,
            most: sum.most.max(history.most),
            handed: sum.handed + history.handed,
            handed_lost: sum.handed_lost + history.handed_lost,
            disagreed: sum.disagreed + history.disagreed,
            resized: sum.resized + history.resized,
            waited: sum.waited.max(history.waited),
            steps: std::array::from_fn(|kind| sum.steps[kind] + history.steps[kind]),
        })
    }
}

/// The violation of an invariant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// The invariant that was violated, such as `I1`.
    pub invariant: &'static str,
    /// A description of the violation.
    pub what: String,
    /// The plan of the history.
    pub plan: Plan,
}

/// Includes the line that replays the violation.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, what, plan } = self;
        write!(f, "{invariant}: {what}\nreplay: LEASEHOLD_SEED={} LEASEHOLD_PLAN='{plan}'", plan.seed)
    }
}

/// Runs the history of `plan`.
///
/// # Errors
/// The first violation found.
///
/// # Panics
/// When no runtime can be created.
pub fn run(plan: &Plan) -> Result<History, Box<Violation>> {
    run_with(plan, |_| Ok(0))
}

/// Runs the history of `plan`, and checks each write of a lock's record with `judge` (**M1**).
///
/// # Errors
/// The first violation found.
///
/// # Panics
/// When no runtime can be created.
pub fn run_with(plan: &Plan, judge: Judge) -> Result<History, Box<Violation>> {
    examine(plan, |checker| simulate(plan, judge, checker))
}

/// Runs the future that `history` returns, which executes `plan`.
fn examine<F: Future<Output = ()>>(
    plan: &Plan,
    history: impl FnOnce(Arc<Checker>) -> F,
) -> Result<History, Box<Violation>> {
    let (checker, panics) = (Arc::new(Checker::default()), Panics::default());
    // A single thread for blocking calls serves them in order.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).max_blocking_threads(1);
    let of_blocking = panics.clone();
    let runtime = runtime.on_thread_start(move || of_blocking.listen()).build();
    let runtime = runtime.unwrap_or_else(|error| unreachable!("no runtime: {error}"));
    panics.listen();
    runtime.block_on(history(checker.clone()));
    // Drops all tasks and joins the blocking thread. Until then, they may panic.
    drop(runtime);
    let panicked = panics.conclude().map(|what| ("P1", what));
    let mut checked = checker.lock();
    // Work that a panic interrupted may violate anything, so a panic is reported first.
    match panicked.or(checked.violation.take()) {
        Some((invariant, what)) => Err(Box::new(Violation { invariant, what, plan: plan.clone() })),
        None => Ok(checked.history),
    }
}

async fn simulate(plan: &Plan, judge: Judge, checker: Arc<Checker>) {
    let world = World::new(plan, judge, checker).await;
    let observers = Observers::start(&world);
    Fate::new(&world).take_its_course().await;
    if plan.is_quiet() {
        world.check_budget();
    }
    world.check_waits();
    for link in world.links() {
        link.deliver_all().await;
    }
    // All processes are dead. One more client must find the locks free.
    let mut last = Client::new(&world, !plan.seed);
    last.link.heal();
    if let Some(period) = plan.once_per {
        // If a wall clock was set back, its client may wait for a whole cooldown again. A `Date` is exact to a second.
        let bound = last.bound() + period.mul_f64(1.02) + Duration::from_secs(2) + 2 * plan.front_ends();
        if timeout(world.clock(), bound, last.runs_at_last(period)).await.is_none() {
            world.checker.violated("O2", format!("not due within {bound:?} of the end"));
        }
        return;
    }
    let mut all = last.acquire_all("I7").await;
    if plan.has(Fault::Cancellations) {
        all.clear();
        give_up_in_between(&world).await;
        all = last.acquire_all("I8").await;
    }
    if let Some(guard) = all.first().filter(|_| plan.workload.is_one_lock()) {
        let token = guard.token().map_or(0, leasehold::Token::get);
        world.checker.believed(guard.name().as_str(), token, &last.note, world.now());
        observers.conclude(token, guard).await;
    }
}

/// Starts an acquisition on a bad network, gives it up at a random moment, and waits until the network has delivered
/// everything that it may have sent.
async fn give_up_in_between(world: &Arc<World>) {
    let mut hasty = Client::new(world, !world.plan.seed ^ 0xa5);
    let limit = world.plan.ttl.mul_f64(hasty.random.f64());
    let _ = timeout(world.clock(), limit, hasty.acquire()).await.map(|outcome| outcome.map(drop));
    // Waits for the store timeout of the acquisition, counted from its start. After that its grant is no longer
    // prolonged.
    world.clock_sleep(world.plan.longest_ttl() + Duration::from_secs(3)).await;
    hasty.link.heal();
    hasty.link.deliver_all().await;
}
