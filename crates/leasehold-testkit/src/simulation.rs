//! Simulation: the real locks, keepers and protocol on paused time, over simulated stores behind bad networks.
//!
//! One seed is one history: machines with clocks of their own rate (within the bound), and everything that [`Fault`] names.
//! What the checker asserts holds in true time, and in the order in which the store commits, which nobody in the history
//! can see:
//!
//! - **I1** Once anybody has believed in a token, no check of a lower one passes: holds never overlap. Excused are those whom
//!   an operator has evicted, or whose record was deleted by hand, and nobody who was granted the lock after that. When a
//!   task is given a guard, that of the task of its process before it is dead, and for that there is no excuse. Excused is too
//!   who stood still with all clocks, until a renewal that was sent after that is committed.
//! - **I2** Tokens are unique, and rise in the order in which the store commits grants, also across deletions by hand. None is
//!   believed in that does not belong to a grant: above all that were committed before it, up to its own, and granted to
//!   whom the record names. No two guards have the same.
//! - **I3** A resource that holders write to through [fenced writes](leasehold::fence), also after a pause and after a loss,
//!   never accepts a lower token than before.
//! - **I4** No write has its effect twice: no nonce of a lock's record is committed twice, and no content of the resource.
//! - **I5** No check passes after the deadline: in true time, the latest that the slowest clock within the bound can show it
//!   when the latest write of the grant was sent at the instant in which it was committed.
//! - **I6** Once a holder was told that its lock is lost, nothing is sent that prolongs it, and no other task is given it.
//! - **I7** After all have died, a lock is free again within ttl (1 + rho) + delta, a poll, and the waits for the store's clock;
//!   counted from when a renewal of the dead one can have arrived last.
//! - **I8** Of a cancelled acquisition nothing is granted or prolonged once its patience is over; and one that is given up
//!   on a bad network leaves a lock that is free again within the same bound.
//! - **I9** In a history in which nothing goes wrong and nobody is in the way, requests stay within their budget.
//! - **I10** When a process was copied while it held a lock, only one of the copies goes on to renew it.
//! - **F1** In a history in which nothing goes wrong, no process waits for longer than nine stays of the other one take, whose
//!   tasks pass the lock on among themselves.
//! - **E1** Those who observe an election are told no term that is lower than an earlier one, none that was not granted, and
//!   with each what its leader advertises; and at the end of the history they are told of its last leader.
//! - **S1** No more checks of permits of one semaphore pass at once than it has permits.
//! - **S2** No check of an exclusive hold passes while one of a shared hold does, or of another exclusive one.
//! - **O1** Of a job that runs once per period: when the store was told that it ran, nobody begins it again before the
//!   period since its grant is over, as far as the store's front ends agree on the time.
//! - **O2** And then it can run again, also for a process that has only just started.
//! - **P1** Nothing panics, on no task and no thread of the history.
//!
//! A violation is printed with the line that replays it: `LEASEHOLD_SEED` and `LEASEHOLD_PLAN`, for the tests of
//! `crates/leasehold/tests/simulation.rs`. [`shrink`] makes it smaller first.
//!
//! ```
//! use leasehold_testkit::simulation::{Plan, run};
//! let history = run(&Plan::from_seed(7)).unwrap_or_else(|violation| panic!("{violation}"));
//! assert!(history.grants > 0);
//! ```

mod calls;
mod checker;
mod client;
mod copy;
mod fate;
mod host;
mod network;
mod observers;
mod once;
mod panics;
mod plan;
mod recorder;
mod shrink;
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
use self::world::World;

/// The lock that everybody wants.
const LOCK: &str = "x";

/// The object that holders write to.
const RESOURCE: &str = "resource";

/// What a history amounted to.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct History {
    /// Grants that the store committed.
    pub grants: usize,
    /// Checks that passed.
    pub checks: usize,
    /// Locks that were lost, and said so.
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
    /// How often a copy of a holder has renewed.
    pub copied: usize,
    /// Jobs that ran, and of which the store knows.
    pub runs: usize,
    /// Jobs that were not run, because they already had.
    pub already_ran: usize,
    /// Leaders that observers were told of.
    pub told: usize,
    /// How many held something at once.
    pub most: usize,
    /// Guards that were given out without a request, by a grant that another task of the process had before.
    pub handed: usize,
    /// Those of them that were lost.
    pub handed_lost: usize,
    /// The longest that a process waited, in a history in which nothing went wrong and its tasks wanted the lock all the time.
    pub waited: Duration,
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
            runs: sum.runs + history.runs,
            already_ran: sum.already_ran + history.already_ran,
            told: sum.told + history.told,
            most: sum.most.max(history.most),
            handed: sum.handed + history.handed,
            handed_lost: sum.handed_lost + history.handed_lost,
            waited: sum.waited.max(history.waited),
        })
    }
}

/// What a history has shown that must not be.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// Which invariant is violated: `I1`.
    pub invariant: &'static str,
    /// How.
    pub what: String,
    /// What has to happen for that.
    pub plan: Plan,
}

/// With the line that replays it.
impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { invariant, what, plan } = self;
        write!(f, "{invariant}: {what}\nreplay: LEASEHOLD_SEED={} LEASEHOLD_PLAN='{plan}'", plan.seed)
    }
}

/// Runs the history of `plan`.
///
/// # Errors
/// The first violation.
///
/// # Panics
/// When there is no runtime to be had.
pub fn run(plan: &Plan) -> Result<History, Box<Violation>> {
    examine(plan, |checker| simulate(plan, checker))
}

/// Runs what `history` makes, which is what becomes of `plan`.
fn examine<F: Future<Output = ()>>(
    plan: &Plan,
    history: impl FnOnce(Arc<Checker>) -> F,
) -> Result<History, Box<Violation>> {
    let (checker, panics) = (Arc::new(Checker::default()), Panics::default());
    // One thread for what blocks, so that calls are served in the order in which they were made.
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).max_blocking_threads(1);
    let of_blocking = panics.clone();
    let runtime = runtime.on_thread_start(move || of_blocking.listen()).build();
    let runtime = runtime.unwrap_or_else(|error| unreachable!("no runtime: {error}"));
    panics.listen();
    runtime.block_on(history(checker.clone()));
    // With its tasks, and with the thread that blocks: they may panic until then.
    drop(runtime);
    let panicked = panics.conclude().map(|what| ("P1", what));
    let mut checked = checker.lock();
    // What a panic has left undone may violate anything: it comes first.
    match panicked.or(checked.violation.take()) {
        Some((invariant, what)) => Err(Box::new(Violation { invariant, what, plan: plan.clone() })),
        None => Ok(checked.history),
    }
}

async fn simulate(plan: &Plan, checker: Arc<Checker>) {
    let world = World::new(plan, checker).await;
    let observers = Observers::start(&world);
    Fate::new(&world).take_its_course().await;
    if plan.is_quiet() {
        world.check_budget();
    }
    world.check_waits();
    for link in world.links() {
        link.deliver_all().await;
    }
    // All are dead; whoever comes now is lucky.
    let mut last = Client::new(&world, plan.seed ^ 0xdead);
    last.link.heal();
    if let Some(period) = plan.once_per {
        // What a wall clock that was set back does not show is rested once more. A `Date` is true to a second.
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
        observers.conclude(token).await;
    }
}

/// Begins an acquisition on a network that may do harm, gives it up at some moment, and waits until its network has answered
/// all that it may have sent.
async fn give_up_in_between(world: &Arc<World>) {
    let mut hasty = Client::new(world, world.plan.seed ^ 0xa5);
    let limit = world.plan.ttl.mul_f64(hasty.random.f64());
    let _ = timeout(world.clock(), limit, hasty.acquire()).await.map(|outcome| outcome.map(drop));
    // Its patience, from when it began; then what it was granted is not prolonged.
    world.clock_sleep(world.plan.longest_ttl() + Duration::from_secs(3)).await;
    hasty.link.heal();
    hasty.link.deliver_all().await;
}
