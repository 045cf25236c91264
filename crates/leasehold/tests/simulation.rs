//! Thousands of histories of the real code, each from a seed. `LEASEHOLD_SEEDS=100000` runs more,
//! `LEASEHOLD_SEED=7` replays one.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a failed expectation is a failed test"
)]

use std::env::var;

use leasehold_testkit::simulation::{Game, History, Plan, run};

#[test]
fn no_history_breaks_the_promise() {
    many(Plan::from_seed, 1, busy);
}

/// Where a release deletes the lock's object, requests that come late find another world.
#[test]
fn no_history_of_locks_that_are_objects_breaks_the_promise() {
    many(|seed| Plan { by_existence: true, ..Plan::from_seed(seed) }, 2, busy);
}

#[test]
fn in_no_history_a_job_runs_twice_in_its_period() {
    many(Plan::once_from_seed, 4, |total, seeds| total.runs > seeds && total.already_ran > 20 * seeds);
}

/// Candidates that lead by turns, and observers whom nobody misleads.
#[test]
fn no_history_of_an_election_breaks_the_promise() {
    let plan = |seed: u64| Plan {
        game: Game::Election,
        by_existence: seed.is_multiple_of(4),
        ..Plan::from_seed(seed)
    };
    many(plan, 4, |total, seeds| busy(total, seeds) && total.told > 0);
}

/// Never more holders than permits, on both protocols.
#[test]
fn no_history_of_a_semaphore_has_more_holders_than_permits() {
    let plan = |seed| Plan { game: Game::Semaphore(1 + seed as usize % 3), ..of_several(seed) };
    many(plan, 16, |total, seeds| busy(total, seeds) && total.most == 3);
}

/// Nobody beside an exclusive holder, on both protocols.
#[test]
fn no_history_of_a_readers_writer_lock_has_anybody_beside_an_exclusive_holder() {
    let plan = |seed| Plan { game: Game::RwLock, ..of_several(seed) };
    many(plan, 16, |total, seeds| busy(total, seeds) && total.most > 2);
}

fn of_several(seed: u64) -> Plan {
    let plan = Plan::from_seed(seed);
    let (machines, by_existence) = (plan.machines + 2, seed.is_multiple_of(4));
    Plan { machines, deletions: false, by_existence, ..plan }
}

/// One in so many of the histories that were asked for. A simulation in which not enough happens proves nothing.
fn many(plan: fn(u64) -> Plan, one_in: u64, enough: fn(&History, usize) -> bool) {
    if let Ok(seed) = var("LEASEHOLD_SEED") {
        let plan = plan(seed.parse().expect("LEASEHOLD_SEED is a number"));
        let history = run(&plan).unwrap_or_else(|violation| panic!("{violation}"));
        println!("{history:?}");
        return;
    }
    let seeds = var("LEASEHOLD_SEEDS")
        .map_or(2_000, |seeds| seeds.parse().expect("LEASEHOLD_SEEDS is a number"))
        / one_in;
    let histories: Vec<_> = std::thread::scope(|scope| {
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
        let workers: Vec<_> =
            (0..threads).map(|first| scope.spawn(move || every(plan, first, threads, seeds))).collect();
        workers.into_iter().map(|worker| worker.join().expect("a violation, see above")).collect()
    });
    let total: History = histories.into_iter().sum();
    println!("{seeds} histories: {total:?}");
    assert!(enough(&total, seeds as usize), "{total:?}");
}

fn busy(total: &History, seeds: usize) -> bool {
    total.grants > 5 * seeds && total.losses > seeds / 10
}

fn every(plan: fn(u64) -> Plan, first: u64, step: u64, seeds: u64) -> History {
    let seeds = (first..seeds).step_by(step as usize);
    seeds.map(|seed| run(&plan(seed)).unwrap_or_else(|violation| panic!("{violation}"))).sum()
}

#[test]
fn clocks_outside_the_bound_are_found_out() {
    // The checker can fail: with clock rates off by 30 %, holders and contenders disagree.
    let found = (0..400).any(|seed| {
        let plan = Plan { rate_error: 0.3, deletions: false, ..Plan::from_seed(seed) };
        run(&plan).is_err_and(|violation| violation.starts_with("I1"))
    });
    assert!(found, "no violation in 400 histories with clocks that are 30 % off");
}
