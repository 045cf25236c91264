//! Shrinks the plan of a violation while the same invariant is violated.

use std::time::Duration;

use super::plan::{Fault, Plan};
use super::{History, Violation};

/// How many seeds each smaller plan is tried with, because leaving anything out changes all random choices.
const SEEDS: u64 = 48;

/// The maximum number of histories in total.
const HISTORIES: u32 = 8_000;

/// Runs the history of a plan.
type Run = fn(&Plan) -> Result<History, Box<Violation>>;

/// Finds a smaller plan that violates the same invariant. Leaves out kinds of fault one by one, then machines, late
/// faults, and the time after the violation. Runs some thousand histories at most, with `run`.
///
/// ```no_run
/// # use leasehold_testkit::simulation::{Plan, run, shrink};
/// if let Err(violation) = run(&Plan::from_seed(7)) {
///     panic!("{}", shrink(violation, run));
/// }
/// ```
pub fn shrink(violation: Box<Violation>, run: Run) -> Box<Violation> {
    let mut search = Search { run, smallest: violation, left: HISTORIES };
    // Leaves out faults first, while the history is long. In a short history, few violations remain once a fault is left
    // out.
    while search.leaves_a_fault_out() {}
    while search.makes_it_smaller() {}
    search.smallest
}

struct Search {
    run: Run,
    smallest: Box<Violation>,
    left: u32,
}

impl Search {
    /// Tries to leave out each fault. Returns whether a smaller plan violates the same invariant.
    fn leaves_a_fault_out(&mut self) -> bool {
        let mut smaller = false;
        for (fault, _) in Fault::ALL {
            let plan = &self.smallest.plan;
            if plan.has(fault) {
                smaller |= self.try_plan(plan.clone().with_faults(plan.faults.without(fault)));
            }
        }
        smaller
    }

    /// Tries smaller plans. Returns whether one of them violates the same invariant.
    fn makes_it_smaller(&mut self) -> bool {
        let mut smaller = self.leaves_a_fault_out();
        let plan = self.smallest.plan.clone();
        if plan.harm > 0.0 {
            smaller |= self.try_plan(Plan { harm: 0.0, ..plan.clone() });
        }
        if plan.machines > 1 {
            smaller |= self.try_plan(Plan { machines: plan.machines - 1, ..self.smallest.plan.clone() });
        }
        if plan.tasks > 1 {
            smaller |= self.try_plan(Plan { tasks: plan.tasks - 1, ..self.smallest.plan.clone() });
        }
        for part in [0.5, 0.8] {
            let plan = self.smallest.plan.clone();
            if plan.length > Duration::from_secs(2) {
                let length = plan.length.mul_f64(part);
                smaller |=
                    self.try_plan(Plan { length, faults_until: plan.faults_until.min(length), ..plan });
            }
            let plan = self.smallest.plan.clone();
            if plan.faults_until > Duration::from_secs(1) {
                let faults_until = plan.faults_until.mul_f64(part);
                smaller |= self.try_plan(Plan { faults_until, ..plan });
            }
        }
        smaller
    }

    /// Tries the plan's own seed first, because its random choices may be the same up to the violation.
    fn try_plan(&mut self, plan: Plan) -> bool {
        for n in 0..SEEDS {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let candidate = Plan { seed: plan.seed.wrapping_add(n), ..plan.clone() };
            if let Err(violation) = (self.run)(&candidate)
                && violation.invariant == self.smallest.invariant
            {
                self.smallest = violation;
                return true;
            }
        }
        false
    }
}
