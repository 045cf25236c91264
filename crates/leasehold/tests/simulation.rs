//! Runs the real code through thousands of simulated histories, each generated from a seed. `LEASEHOLD_SEEDS=100000`
//! runs more, `LEASEHOLD_SEED=7` replays one, and `LEASEHOLD_PLAN=machines=2,faults=crashes` changes the plan.
#![allow(clippy::disallowed_methods, reason = "reports how long histories take, in real time")]

mod model;

use std::env::var;
use std::time::{Duration, Instant};

use leasehold_model::trace::Step;
use leasehold_testkit::simulation::{
    Fault, Faults, History, Judge, Plan, Store, Violation, Workload, run_with, shrink,
};

use self::model::{Altered, NOTHING, count, explain, run};

#[test]
fn no_history_breaks_the_promise() {
    many(Plan::from_seed, 1, |total, seeds| {
        let steps = [Step::Create, Step::Grant, Step::Takeover, Step::Renewal, Step::Release];
        let steps = steps.into_iter().chain([Step::Eviction, Step::Edit]);
        busy(total, seeds)
            && everything_happened(total, seeds)
            && steps.into_iter().all(|step| count(total, step) > seeds / 10)
            && count(total, Step::Adoption) >= seeds / 50
    });
}

/// A release deletes the lock's object, so a create that arrives late may succeed.
#[test]
fn no_history_of_locks_that_are_objects_breaks_the_promise() {
    many(
        |seed| Plan { store: Store::Objects, ..Plan::from_seed(seed) },
        2,
        |total, seeds| busy(total, seeds) && count(total, Step::Deletion) > seeds,
    );
}

/// The server loses its latest writes, its clock is set back, and other clients take its locks.
#[test]
fn no_history_of_locks_on_a_server_breaks_the_promise() {
    many(Plan::server_from_seed, 2, |total, seeds| {
        busy(total, seeds) && total.failovers > seeds / 10 && total.taken > seeds / 10
    });
}

/// DynamoDB's requests and conditions, on a server in memory. AWS's lock client takes and deletes the same items.
#[cfg(feature = "dynamodb")]
#[test]
fn no_history_of_locks_in_dynamodb_breaks_the_promise() {
    many(Plan::dynamodb_from_seed, 32, |total, seeds| busy(total, seeds) && total.taken > seeds);
}

/// The same faults, and a claim that has not read the record does not see the line beside it.
#[cfg(feature = "mysql")]
#[test]
fn no_history_of_locks_in_a_table_breaks_the_promise() {
    let plan = |seed| Plan { store: Store::Table, ..Plan::server_from_seed(seed) };
    many(plan, 4, |total, seeds| {
        busy(total, seeds) && total.failovers > seeds / 10 && total.taken > seeds / 10
    });
}

/// Lease objects in a cluster, with client-go's election beside leasehold.
#[cfg(feature = "kubernetes")]
#[test]
fn no_history_of_locks_in_a_cluster_breaks_the_promise() {
    many(Plan::cluster_from_seed, 2, |total, seeds| {
        let counted = [total.cancelled, total.evicted, total.deleted, total.restarts, total.taken];
        busy(total, seeds) && counted.into_iter().all(|count| count > seeds / 10)
    });
}

/// The requests of the store for NATS to a bucket in memory, and the copies that its waiters watch.
#[cfg(feature = "nats")]
#[test]
fn no_history_of_locks_in_a_bucket_of_nats_breaks_the_promise() {
    many(Plan::nats_from_seed, 2, |total, seeds| {
        let counted = [total.cancelled, total.evicted, total.deleted, total.restarts];
        busy(total, seeds) && counted.into_iter().all(|count| count > seeds / 10)
    });
}

/// Processes on one machine share a file. No history deletes rows by hand, because the documentation allows that only
/// while no process uses them.
#[cfg(feature = "sqlite")]
#[test]
fn no_history_of_locks_in_a_file_breaks_the_promise() {
    let plan = |seed| {
        let plan = Plan { store: Store::File, ..Plan::from_seed(seed) };
        let (length, faults) = (plan.length / 3, plan.faults.without(Fault::Deletions));
        Plan { length, faults_until: length, faults, ..plan }
    };
    many(plan, 8, |total, seeds| total.grants > seeds && total.losses > seeds / 10);
}

/// Tasks of one process pass a lock on among themselves, under all kinds of faults.
#[test]
fn no_history_of_tasks_that_pass_the_lock_on_breaks_the_promise() {
    many(of_tasks, 2, |total, seeds| {
        total.handed > seeds && total.handed_lost > seeds / 10 && everything_happened(total, seeds)
    });
}

/// Grants are not passed on if the store assigns the tokens.
#[test]
fn no_history_of_tasks_on_objects_breaks_the_promise() {
    let plan = |seed| Plan { store: Store::Objects, ..of_tasks(seed) };
    many(plan, 16, |total, seeds| total.grants > 3 * seeds && total.handed == 0);
}

#[cfg(feature = "sqlite")]
#[test]
fn no_history_of_hand_off_in_a_file_breaks_the_promise() {
    let plan = |seed| {
        let plan = of_tasks(seed);
        Plan { store: Store::File, faults: plan.faults.without(Fault::Deletions), ..plan }
    };
    many(plan, 16, |total, seeds| total.handed > seeds && total.handed_lost > 0);
}

/// There are no faults, and all tasks of both processes want the lock all the time.
#[test]
fn no_process_starves_beside_another_that_passes_the_lock_on() {
    let plan = |seed| Plan { machines: 2, ..of_tasks(seed).with_faults(Faults::NONE) };
    many(plan, 20, |total, seeds| total.handed > 10 * seeds && total.waited > Duration::from_millis(500));
}

/// A process that passes the lock on knows its record, which does not show who waits.
#[cfg(feature = "mysql")]
#[test]
fn no_process_starves_for_a_lock_in_a_table() {
    let plan = |seed| Plan { machines: 2, store: Store::Table, ..of_tasks(seed).with_faults(Faults::NONE) };
    many(plan, 20, |total, seeds| total.handed > 10 * seeds && total.waited > Duration::from_millis(500));
}

#[test]
fn in_no_history_a_job_runs_twice_in_its_period() {
    many(Plan::once_from_seed, 4, |total, seeds| total.runs > seeds / 2 && total.already_ran > 5 * seeds);
}

/// Candidates lead in turns, and observers must never see a wrong leader.
#[test]
fn no_history_of_an_election_breaks_the_promise() {
    let plan = |seed: u64| Plan {
        workload: Workload::Election,
        store: if seed.is_multiple_of(4) { Store::Objects } else { Store::Register },
        ..Plan::from_seed(seed)
    };
    many(plan, 4, |total, seeds| busy(total, seeds) && total.leaders_seen > 0);
}

/// There are never more holders than permits, under either protocol.
#[test]
fn no_history_of_a_semaphore_has_more_holders_than_permits() {
    let plan = |seed| Plan { workload: Workload::Semaphore(1 + seed as usize % 3), ..of_several(seed) };
    many(plan, 16, |total, seeds| {
        total.grants > 3 * seeds && total.most == 3 && total.disagreed > seeds && total.resized > seeds / 4
    });
}

/// An exclusive holder excludes all other holders, under either protocol.
#[test]
fn no_history_of_an_rw_lock_breaks_exclusive_holds() {
    let plan = |seed| Plan { workload: Workload::RwLock, ..of_several(seed) };
    many(plan, 16, |total, seeds| total.grants > 3 * seeds && total.most > 2);
}

/// No check of a guard of several locks passes after the loss of one of them.
#[test]
fn no_history_of_several_locks_breaks_the_promise() {
    let plan = |seed| {
        let plan = of_several(seed);
        let faults = if seed.is_multiple_of(2) { plan.faults.with(Fault::Evictions) } else { plan.faults };
        Plan { workload: Workload::Several, faults, ..plan }
    };
    many(plan, 8, |total, seeds| total.grants > 5 * seeds && total.evicted > seeds / 10 && total.most == 3);
}

/// The names of the acquisitions are in any order, and overlap in any way.
#[test]
fn several_locks_at_once_never_wait_for_each_other() {
    let plan = |seed| {
        let plan = of_tasks(seed).with_faults(Faults::NONE);
        Plan { workload: Workload::Several, machines: 2 + seed as usize % 3, ..plan }
    };
    many(plan, 20, |total, seeds| total.grants > 20 * seeds && total.most == 3);
}

/// Without faults and contention, no unnecessary request is sent.
#[test]
fn quiet_histories_stay_within_their_budget() {
    many(Plan::quiet_from_seed, 20, |total, seeds| total.grants > 3 * seeds && total.losses == 0);
}

fn of_several(seed: u64) -> Plan {
    let plan = Plan::from_seed(seed);
    let store = if seed.is_multiple_of(4) { Store::Objects } else { Store::Register };
    let faults = plan.faults.without(Fault::Deletions).without(Fault::Evictions);
    Plan { machines: plan.machines + 2, store, faults, ..plan }
}

/// Returns a plan whose processes run several tasks each. Its histories are shorter, because more happens in the same
/// time.
fn of_tasks(seed: u64) -> Plan {
    let plan = Plan::from_seed(seed);
    let length = plan.length / 2;
    Plan { tasks: 2 + seed as usize % 3, length, faults_until: length, ..plan }
}

/// With fewer histories than this, too little may happen for the check of `enough`.
const FEW: u64 = 15;

/// Runs one in `one_in` of the requested histories. Fails if not `enough` happened in them, because such a run proves
/// nothing.
fn many(plan: fn(u64) -> Plan, one_in: u64, enough: fn(&History, usize) -> bool) {
    let plan = |seed| plan(seed).with(&var("LEASEHOLD_PLAN").unwrap_or_default()).expect("LEASEHOLD_PLAN");
    if let Ok(seed) = var("LEASEHOLD_SEED") {
        let plan = plan(seed.parse().expect("LEASEHOLD_SEED is a number"));
        let history = run(&plan).unwrap_or_else(|violation| panic!("{violation}"));
        println!("{history:?}");
        return;
    }
    let asked = var("LEASEHOLD_SEEDS");
    let asked: u64 = asked.map_or(2_000, |seeds| seeds.parse().expect("LEASEHOLD_SEEDS is a number"));
    let seeds = (asked / one_in).max(1);
    let began = Instant::now();
    let histories: Vec<_> = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
        let workers: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || every(plan, first, threads, seeds))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a violation, see above")).collect()
    });
    let total: History = histories.into_iter().sum();
    println!("{seeds} histories, {:.0} per second: {total:?}", seeds as f64 / began.elapsed().as_secs_f64());
    assert!(seeds < FEW || enough(&total, seeds as usize), "{total:?}");
}

fn every(plan: impl Fn(u64) -> Plan, first: u64, step: u64, seeds: u64) -> History {
    let seeds = (first..seeds).step_by(step as usize);
    seeds.map(|seed| run(&plan(seed)).unwrap_or_else(|violation| panic!("{}", smaller(violation)))).sum()
}

/// Describes the violation and a smaller plan that also shows it.
fn smaller(violation: Box<Violation>) -> String {
    // Print it now, because shrinking takes a while.
    eprintln!("{violation}");
    format!("{violation}\nshrunk: {}", shrink(violation.clone(), run))
}

fn busy(total: &History, seeds: usize) -> bool {
    total.grants > 3 * seeds && total.losses > seeds / 10
}

/// Returns whether every counted kind of fault occurred often enough. Otherwise the run proves little.
fn everything_happened(total: &History, seeds: usize) -> bool {
    let counted = [total.cancelled, total.evicted, total.deleted, total.restarts, total.refused];
    let counted = counted.into_iter().chain([total.stood_still, total.copied]).collect::<Vec<_>>();
    total.accepted > seeds && counted.iter().all(|count| *count > seeds / 10)
}

/// Returns a violation of `invariant` from up to 400 histories. This proves that the checker can detect it.
fn found(invariant: &str, plan: impl Fn(u64) -> Plan) -> Box<Violation> {
    let violations = (0..400).filter_map(|seed| run(&plan(seed)).err());
    let mut others = violations.filter(|violation| violation.invariant == invariant);
    others.next().unwrap_or_else(|| panic!("{invariant} is violated in none of 400 histories"))
}

/// If clock rates are off by 30 %, holders and contenders disagree, and holders rely on their lease for too long.
#[test]
fn i1_clocks_outside_the_bound_are_detected() {
    let plan = |seed| {
        let plan = Plan { rate_error: 0.3, ..Plan::from_seed(seed) };
        Plan { faults: plan.faults.with(Fault::Rates), ..plan }
    };
    found("I1", plan);
    found("I5", plan);
}

/// The margin protects the locks. The histories above contain front ends that disagree by less than the margin.
#[test]
fn i1_store_clocks_apart_by_more_than_the_margin_are_detected() {
    found("I1", |seed| {
        let plan = Plan { skew: Duration::from_secs(10), ..Plan::from_seed(seed) };
        Plan { faults: plan.faults.with(Fault::Skew).without(Fault::Deletions), ..plan }
    });
}

#[test]
fn i3_a_resource_that_does_not_check_tokens_is_detected() {
    found("I3", |seed| Plan { fenced: false, ..Plan::from_seed(seed) });
}

/// A step that the model does not allow is detected: if the program makes another step, or if the model is another one.
#[test]
fn m1_a_program_that_differs_from_the_model_is_detected() {
    let altered: [(&str, Judge); 10] = [
        ("the model's contenders wait for longer", |step| explain(step, &Altered { waits: 1.02, ..NOTHING })),
        ("the model's holders renew for a shorter time", |step| {
            explain(step, &Altered { holds: 0.6, ..NOTHING })
        }),
        ("a takeover before the lease has lapsed", |step| {
            explain(step, &Altered { program: |_, _, by| by.lapsed = false, ..NOTHING })
        }),
        ("a grant that does not raise the token", |step| {
            explain(step, &Altered { program: |before, after, _| after.token = before.token, ..NOTHING })
        }),
        ("a renewal that changes the holder", |step| {
            explain(step, &Altered { program: |_, after, _| after.grant = 15, ..NOTHING })
        }),
        ("a renewal by another process", |step| {
            explain(step, &Altered { program: |_, _, by| by.owns_before = false, ..NOTHING })
        }),
        ("a renewal over the renewal of a copy", |step| {
            explain(step, &Altered { program: |_, _, by| by.wrote_before = false, ..NOTHING })
        }),
        ("a renewal without a heartbeat", |step| {
            explain(
                step,
                &Altered { program: |before, after, _| after.heartbeat = before.heartbeat, ..NOTHING },
            )
        }),
        ("a grant that is not in the history", |step| {
            explain(step, &Altered { program: |before, after, _| after.spent = before.spent, ..NOTHING })
        }),
        ("a write with an old nonce", |step| {
            explain(step, &Altered { program: |before, after, _| after.nonce = before.nonce, ..NOTHING })
        }),
    ];
    for (what, judge) in altered {
        let violations = (0..400).filter_map(|seed| run_with(&Plan::from_seed(seed), judge).err());
        let found = violations.map(|violation| violation.invariant).find(|invariant| *invariant == "M1");
        assert!(found.is_some(), "{what}: no violation in 400 histories");
    }
}

#[test]
fn a_violation_is_shrunk_to_the_faults_it_needs() {
    let plan = |seed| {
        let plan = Plan { rate_error: 0.3, ..Plan::from_seed(seed) };
        // With all kinds of fault, shrinking takes as long as the rest of the simulation.
        let few = [Fault::Rates, Fault::Partitions, Fault::LostAnswers, Fault::Crashes, Fault::WallSteps];
        Plan { faults: few.into_iter().fold(Faults::NONE, Faults::with), ..plan }
    };
    // How far a plan can be shrunk depends on its seed, so one of three is enough.
    let violations = (0..400).filter_map(|seed| run(&plan(seed)).err());
    let three = violations.filter(|violation| violation.invariant == "I1").take(3);
    let mut shrunk = three.map(|violation| shrink(violation, run));
    let violation =
        shrunk.find(|violation| violation.plan.faults.count() <= 2).expect("two faults are enough");
    println!("{violation}");
    assert_eq!(violation.invariant, "I1");
    assert!(violation.plan.faults.has(Fault::Rates), "{violation}");
    let again = run(&Plan::from_seed(0).with(&violation.plan.to_string()).unwrap()).unwrap_err();
    assert_eq!((again.invariant, again.what), (violation.invariant, violation.what), "it replays");
}
