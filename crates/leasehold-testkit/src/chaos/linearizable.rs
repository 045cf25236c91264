//! Decides whether the history of a compare-and-set register is linearizable: whether each operation can have happened
//! at one moment between its request and its response, in one order.
//!
//! This is the algorithm of Wing and Gong (Testing and Verifying Concurrent Objects, 1993) in the form of Lowe (Testing
//! for Linearizability, 2017), "just-in-time linearization". It follows the history from response to response, with the
//! set of all states in which the register can be, and for each state the operations that have happened. An operation
//! happens only when the response of some operation requires it. Nothing is left out: if an order exists, so does one
//! in which each operation happens as late as possible. The set stays small, because values are unique: a write by
//! compare-and-set names the value that it replaces, so it can only happen at one point of an order.
//!
//! A check of the chain of values alone would be cheaper, but a value can occur twice if a failover loses writes or if a
//! request arrives twice.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The value of a register; `None` if it does not exist. No two writes write the same value.
pub type State = Option<u128>;

/// An operation, and its response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A read that returned this.
    Read(State),
    /// A write that replaced the first state by the second.
    Write(State, State),
    /// A write that found another state than this one.
    Conflict(State),
}

/// An operation on a register.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// The operation.
    pub step: Step,
    /// The process that sent it. It waits for a response, or gives up, before it sends the next request.
    pub by: usize,
    /// When the request was sent, at the earliest.
    pub from: u64,
    /// When the response arrived, at the latest. `None` if no response arrived: a write then happens at any time after
    /// `from`, or never.
    pub until: Option<u64>,
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named = |state: State| state.map_or("nothing".to_owned(), |value| format!("{value:032x}"));
        match self.step {
            Step::Read(state) => write!(f, "a read of {}", named(state))?,
            Step::Write(over, to) => write!(f, "a write of {} over {}", named(to), named(over))?,
            Step::Conflict(over) => write!(f, "a write that did not find {}", named(over))?,
        }
        write!(f, " between {} and {}", self.from, self.until.unwrap_or(u64::MAX))
    }
}

/// What is known of the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    Exactly(State),
    /// Any state that was written before, because writes may have been lost.
    AnyEarlier,
}

/// A state in which the register can be.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Possibility {
    state: Known,
    /// The operations whose response is still to come, and that have not happened.
    pending: BTreeSet<usize>,
    /// The operations without a response that have happened.
    happened: BTreeSet<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// What happens at the same time may overlap.
    Sent(usize),
    LossBegins,
    LossEnds,
    Answered(usize),
}

/// Returns the first operation, by its response, that no order of the operations explains. Those of one process are
/// given in the order in which it sent them. The register does not exist at first. During `losses`, it can lose writes: its state can become one that it had before.
pub fn first_violation<'a>(operations: &'a [Operation], losses: &[(u64, u64)]) -> Option<&'a Operation> {
    let mut events = Vec::new();
    for (n, operation) in operations.iter().enumerate() {
        events.push((operation.from, Event::Sent(n)));
        events.extend(operation.until.map(|until| (until, Event::Answered(n))));
    }
    for (from, until) in losses {
        events.extend([(*from, Event::LossBegins), (*until, Event::LossEnds)]);
    }
    events.sort_unstable();
    let mut search = Search { operations, open: BTreeMap::new(), written: BTreeSet::from([None]), losses: 0 };
    let start =
        Possibility { state: Known::Exactly(None), pending: BTreeSet::new(), happened: BTreeSet::new() };
    let mut possible = BTreeSet::from([start]);
    for (_, event) in events {
        match event {
            Event::Sent(n) => {
                possible = search.sent(n, possible);
            }
            Event::LossBegins => {
                search.losses += 1;
                possible = possible.into_iter().map(|one| search.with(one, Known::AnyEarlier)).collect();
            }
            Event::LossEnds => search.losses -= 1,
            Event::Answered(n) => {
                possible = search.answered(n, possible);
                if possible.is_empty() {
                    return Some(&operations[n]);
                }
            }
        }
    }
    None
}

struct Search<'a> {
    operations: &'a [Operation],
    /// The writes without a response that were sent, by the state that they replace.
    open: BTreeMap<State, Vec<usize>>,
    /// The states that a write that was sent can have caused.
    written: BTreeSet<State>,
    /// How many losses are in progress.
    losses: usize,
}

impl Search<'_> {
    fn sent(&mut self, n: usize, possible: BTreeSet<Possibility>) -> BTreeSet<Possibility> {
        let operation = &self.operations[n];
        if let Step::Write(over, to) = operation.step {
            self.written.insert(to);
            if operation.until.is_none() {
                self.open.entry(over).or_default().push(n);
            }
        }
        if operation.until.is_none() {
            return possible;
        }
        let also = |mut one: Possibility| {
            one.pending.insert(n);
            one
        };
        possible.into_iter().map(also).collect()
    }

    /// Returns the possibilities in which the operation `n` has happened.
    fn answered(&self, n: usize, possible: BTreeSet<Possibility>) -> BTreeSet<Possibility> {
        let mut seen = possible.clone();
        let mut left: Vec<_> = possible.into_iter().collect();
        let mut explained = BTreeSet::new();
        while let Some(one) = left.pop() {
            if !one.pending.contains(&n) {
                explained.insert(one);
                continue;
            }
            for next in self.next(&one) {
                if seen.insert(next.clone()) {
                    left.push(next);
                }
            }
        }
        explained
    }

    /// Returns what is possible after one more operation has happened.
    fn next(&self, one: &Possibility) -> Vec<Possibility> {
        let mut next = Vec::new();
        for n in one.pending.iter().copied().filter(|n| self.is_next(*n, one)) {
            if let Some(state) = self.after(self.operations[n].step, one.state) {
                let mut after = self.with(one.clone(), state);
                after.pending.remove(&n);
                next.push(after);
            }
        }
        // From an unknown state, nothing follows from the writes that may have happened.
        let Known::Exactly(state) = one.state else { return next };
        for n in self.open.get(&state).into_iter().flatten().copied() {
            if !one.happened.contains(&n)
                && self.is_next(n, one)
                && let Some(state) = self.after(self.operations[n].step, one.state)
            {
                let mut after = self.with(one.clone(), state);
                after.happened.insert(n);
                next.push(after);
            }
        }
        next
    }

    /// Returns whether everything that the same process did before the operation `n` has happened.
    fn is_next(&self, n: usize, one: &Possibility) -> bool {
        let by = self.operations[n].by;
        !one.pending.range(..n).any(|earlier| self.operations[*earlier].by == by)
    }

    /// Returns the state after `step`, if it can happen in this state.
    fn after(&self, step: Step, state: Known) -> Option<Known> {
        let can_be = |expected: State| match state {
            Known::Exactly(state) => state == expected,
            Known::AnyEarlier => self.written.contains(&expected),
        };
        match step {
            Step::Read(read) => can_be(read).then_some(Known::Exactly(read)),
            Step::Write(over, to) => can_be(over).then_some(Known::Exactly(to)),
            Step::Conflict(over) => (state != Known::Exactly(over)).then_some(state),
        }
    }

    fn with(&self, one: Possibility, state: Known) -> Possibility {
        Possibility { state: if self.losses > 0 { Known::AnyEarlier } else { state }, ..one }
    }
}

#[cfg(test)]
mod tests;
