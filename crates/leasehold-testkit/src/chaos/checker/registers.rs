//! The operations on registers, and what faults may do to them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Rule;
use crate::chaos::linearizable::{Operation, State, Step, first_violation};
use crate::chaos::plan::Kind;

/// The operations of all workers, by register.
#[derive(Debug, Default)]
pub(super) struct Registers {
    /// For how long after a server fault writes may be lost. If it is zero, no writes may be lost.
    pub(super) grace_ms: u64,
    reads: BTreeMap<usize, (String, Operation)>,
    /// The writes, in the order in which each process sent them.
    writes: BTreeMap<usize, Write>,
    /// The place of each write in `writes`, by its process and number.
    places: BTreeMap<(usize, u64), usize>,
    /// The number of each process.
    processes: BTreeMap<String, usize>,
    /// The server faults.
    failovers: Vec<(u64, u64)>,
    /// When the requests of a worker were doubled.
    doubled: Vec<(String, u64, u64)>,
}

/// A write that was sent.
#[derive(Debug)]
struct Write {
    register: String,
    who: String,
    by: usize,
    over: State,
    to: State,
    from: u64,
    /// The outcome, if it is known, and when it arrived.
    outcome: Option<(Outcome, u64)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Applied,
    Conflict,
    /// It certainly had no effect, but this does not show what was there.
    Refused,
}

impl Registers {
    pub(super) fn read_event(&mut self, event: &Value, from: u64, until: u64) -> Option<()> {
        let who = event["who"].as_str()?;
        let number = self.processes.len();
        let by = *self.processes.entry(who.to_owned()).or_insert(number);
        let place = self.reads.len() + self.writes.len();
        let register = || Some(event["register"].as_str()?.to_owned());
        match event["what"].as_str()? {
            "seen" => {
                let step = Step::Read(state(&event["state"])?);
                self.reads.insert(place, (register()?, Operation { step, by, from, until: Some(until) }));
            }
            "sent" => {
                let (over, to) = (state(&event["over"])?, state(&event["to"])?);
                let write =
                    Write { register: register()?, who: who.to_owned(), by, over, to, from, outcome: None };
                self.writes.insert(place, write);
                self.places.insert((by, event["change"].as_u64()?), place);
            }
            _ => {
                let outcome = match event["outcome"].as_str()? {
                    "applied" => Outcome::Applied,
                    "conflict" => Outcome::Conflict,
                    "refused" => Outcome::Refused,
                    _ => return None,
                };
                let place = self.places.get(&(by, event["change"].as_u64()?))?;
                self.writes.get_mut(place)?.outcome = Some((outcome, until));
            }
        }
        Some(())
    }

    pub(super) fn fault(&mut self, kind: &str, target: &Value, from: u64, until: u64) {
        let target = target.as_str().unwrap_or_default();
        if target == "server" {
            self.failovers.push((from, until));
        } else if [Kind::DoubleRequests.name(), Kind::GiveSecondAnswer.name()].contains(&kind) {
            self.doubled.push((format!("{target}."), from, until));
        }
    }

    /// Returns how many operations there are, and how many certainly changed a register.
    pub(super) fn counts(&self) -> (u64, u64) {
        let applied = |write: &&Write| matches!(write.outcome, Some((Outcome::Applied, _)));
        let changes = self.writes.values().filter(applied).count();
        ((self.reads.len() + self.writes.len()) as u64, changes as u64)
    }

    /// Returns the broken rules, at most one violation of each for a register.
    pub(super) fn violations(self) -> Vec<(Rule, String)> {
        let grace = self.grace_ms;
        let losses = match grace {
            0 => Vec::new(),
            _ => self.failovers.iter().map(|(from, until)| (*from, until.saturating_add(grace))).collect(),
        };
        let mut violations = Vec::new();
        for (register, operations) in self.operations() {
            let violation = |losses: &[(u64, u64)]| {
                let found = first_violation(&operations, losses)?;
                Some(format!("{register}: no order of the operations explains {found}"))
            };
            let Some(strictly) = violation(&[]) else { continue };
            violations.push((Rule::Linearizable, strictly));
            violations.extend(violation(&losses).map(|text| (Rule::LinearizableBetweenFailovers, text)));
        }
        violations
    }

    /// Returns the operations on each register.
    fn operations(self) -> BTreeMap<String, Vec<Operation>> {
        let mut all: Vec<(usize, String, Operation)> = Vec::new();
        for (place, write) in self.writes {
            let Write { register, who, by, over, to, from, outcome } = write;
            let until = outcome.map(|(_, until)| until);
            let change = Operation { step: Step::Write(over, to), by, from, until };
            // The other copy of the request has the same effect, at any time, if it finds what the request expects.
            let is_doubled = self.doubled.iter().any(|(worker, begin, end)| {
                who.starts_with(worker) && from <= *end && until.is_none_or(|until| *begin <= until)
            });
            if is_doubled {
                all.push((place, register.clone(), Operation { until: None, ..change.clone() }));
            }
            match outcome.map(|(outcome, _)| outcome) {
                None | Some(Outcome::Applied) => all.push((place, register, change)),
                Some(Outcome::Conflict) => {
                    all.push((place, register, Operation { step: Step::Conflict(over), ..change }));
                }
                Some(Outcome::Refused) => {}
            }
        }
        all.extend(self.reads.into_iter().map(|(place, (register, read))| (place, register, read)));
        all.sort_by_key(|(place, ..)| *place);
        let mut registers = BTreeMap::<String, Vec<Operation>>::new();
        for (_, register, operation) in all {
            registers.entry(register).or_default().push(operation);
        }
        registers
    }
}

/// Reads a value in hexadecimal digits, or null for none.
fn state(value: &Value) -> Option<State> {
    match value {
        Value::Null => Some(None),
        value => u128::from_str_radix(value.as_str()?, 16).ok().map(Some),
    }
}
