//! Trace validation: whether each write of a lock's record in a simulated history is a step that the model
//! (`crates/leasehold-model`) explains.
//!
//! A step is mapped to the small numbers of the model: ids are numbered, and tokens and heartbeats are counted from those
//! of the record before, because only their order and their differences matter. The times that a writer may wait or
//! hold are computed with the model's formulas and the documented numbers, and not with the code under test.

use std::time::Duration;

use leasehold::clock::RATE_ERROR;
use leasehold_model::rules::{Rules, Safeguards};
use leasehold_model::time;
use leasehold_model::trace::{self, Step as Kind};
use leasehold_model::world as model;
use leasehold_testkit::simulation::{History, Plan, Record, Step, Store, Violation, Writer, run_with};

/// The token and the heartbeat of the record before.
const BEFORE: u8 = 100;
/// The largest difference that the model's numbers can show.
const MOST: i128 = 100;
/// How many ended grants a record remembers.
const HISTORY: usize = 8;
/// How many an item of DynamoDB remembers at least.
const LEAST_HISTORY: usize = 3;

/// A model or a program that is not the documented one.
pub(super) struct Altered {
    /// How much longer than documented a contender waits in the model.
    pub(super) waits: f64,
    /// How much longer than documented a holder relies on its lease in the model.
    pub(super) holds: f64,
    /// Changes a step of the program: the record before, the record after, and the writer.
    pub(super) program: fn(&model::Record, &mut model::Record, &mut trace::Writer),
}

pub(super) const NOTHING: Altered = Altered { waits: 1.0, holds: 1.0, program: |_, _, _| {} };

/// Runs the history of `plan`. Each write must be a step of the model.
pub(super) fn run(plan: &Plan) -> Result<History, Box<Violation>> {
    run_with(plan, |step| explain(step, &NOTHING))
}

/// Returns how many writes of a kind `history` has.
pub(super) fn count(history: &History, kind: Kind) -> usize {
    history.steps[kind as usize]
}

/// Returns the number of the kind of `step`, or why `altered` does not explain it.
pub(super) fn explain(step: &Step<'_>, altered: &Altered) -> Result<usize, String> {
    let Step { store, before, after, by, .. } = step;
    let numbers = Numbers { is_short: *store == Store::DynamoDb, ..Numbers::of(*before, *after) };
    let mut writer = writer(*before, by, &numbers, altered);
    let (found, mut written) =
        (before.map(|record| numbers.before(record, *after)), after.map(|r| numbers.after(r)));
    if let (Some(found), Some(written)) = (&found, &mut written) {
        (altered.program)(found, written, &mut writer);
    }
    let rules = (&Rules::ALL, &Safeguards::ALL);
    match trace::explain(rules, differences(*store), found.as_ref(), written.as_ref(), &writer) {
        Some(kind) => Ok(kind as usize),
        None => Err(format!(
            "the model does not allow a write of {}:\n  before {before:?}\n  after  {after:?}\n  by     {by:?}\n\
             in the model:\n  before {found:?}\n  after  {written:?}\n  by     {writer:?}",
            step.lock
        )),
    }
}

/// Returns how `store` differs from the model's store.
fn differences(store: Store) -> trace::Store {
    match store {
        Store::Register | Store::File | Store::Table | Store::DynamoDb | Store::Kubernetes | Store::Nats => {
            trace::Store::default()
        }
        // The server takes the token of a create from its own clock.
        Store::Server => trace::Store { never_unconfirmed: true, ..trace::Store::default() },
        // The version of an object is the token of a create.
        Store::Objects => {
            trace::Store { forgets: true, never_unconfirmed: true, random_heartbeats: true, deletes: true }
        }
    }
}

fn writer(
    before: Option<&Record<'_>>,
    by: &Writer,
    numbers: &Numbers<'_>,
    altered: &Altered,
) -> trace::Writer {
    let (mut lapsed, mut in_time) = (false, false);
    if let Some(before) = before {
        let ttl = before.ttl_ms as f64 / 1e3;
        let slack = (ttl / 100.0).max(0.05);
        let seconds = |seconds| Duration::try_from_secs_f64(seconds).unwrap_or_default();
        let delay = Duration::from_millis(before.lock_delay_ms);
        // The library rounds to nanoseconds and the store's times to microseconds.
        let span = seconds(time::contender_span(ttl, RATE_ERROR, slack) * altered.waits - 2e-6) + delay;
        let by_store = by.store_us.zip(before.renewed_at_us);
        let by_store =
            by_store.map(|(now_us, then_us)| Duration::from_micros(now_us.saturating_sub(then_us)));
        lapsed = by.watched.max(by_store).is_some_and(|passed| passed >= span);
        let span = seconds(time::holder_span(ttl, RATE_ERROR, slack) * altered.holds + 2e-6);
        in_time = by.since_sent.is_some_and(|passed| passed < span);
    }
    trace::Writer {
        operator: by.operator,
        owns_before: by.owns_before,
        owns_after: by.owns_after,
        wrote_before: by.wrote_before,
        confirmed: by.answered,
        in_time,
        lapsed,
        floor: if by.floor == 0 { 0 } else { numbers.token(by.floor) },
    }
}

/// The numbers of a step in the model.
struct Numbers<'a> {
    /// The ids of grants. Each has the number of its place, from 1.
    grants: Vec<&'a str>,
    /// The grant, the token and the heartbeat of the record before.
    from: Option<(&'a str, u64, u64)>,
    /// The nonce of the record before.
    nonce: Option<&'a str>,
    /// Whether the store may keep fewer ended grants.
    is_short: bool,
}

impl<'a> Numbers<'a> {
    fn of(before: Option<&'a Record<'a>>, after: Option<&'a Record<'a>>) -> Self {
        let mut grants = Vec::new();
        for record in before.into_iter().chain(after) {
            for grant in std::iter::once(record.grant).chain(record.history.iter().map(|past| past.grant)) {
                if !grants.contains(&grant) {
                    grants.push(grant);
                }
            }
        }
        let from = before.map(|record| (record.grant, record.token, record.heartbeat));
        Self { grants, from, nonce: before.map(|record| record.nonce), is_short: false }
    }

    fn grant(&self, id: &str) -> u8 {
        let place = self.grants.iter().position(|grant| *grant == id);
        u8::try_from(place.map_or(0, |place| place + 1)).expect("few grants")
    }

    fn token(&self, token: u64) -> u8 {
        difference(token, self.from.map_or(0, |(_, token, _)| token))
    }

    fn before(&self, record: &Record<'_>, after: Option<&Record<'_>>) -> model::Record {
        // If the history is full, and the step adds a grant to it, it loses the oldest one. The model's history has no
        // limit. An item of DynamoDB keeps at least three.
        let adds = after.is_some_and(|after| {
            record.state == "held" && (after.state != "held" || after.grant != record.grant)
        });
        let room = match (self.is_short, after) {
            (true, Some(after)) => after.history.len().max(LEAST_HISTORY),
            _ => HISTORY,
        };
        let kept = record.history.len().min(room - usize::from(adds));
        self.record(record, kept, 1, BEFORE)
    }

    fn after(&self, record: &Record<'_>) -> model::Record {
        let heartbeat = match self.from {
            Some((grant, _, heartbeat)) if grant == record.grant => difference(record.heartbeat, heartbeat),
            _ => u8::try_from(record.heartbeat).unwrap_or(u8::MAX),
        };
        let nonce = if self.nonce == Some(record.nonce) { 1 } else { 2 };
        self.record(record, record.history.len(), nonce, heartbeat)
    }

    fn record(&self, record: &Record<'_>, kept: usize, nonce: u8, heartbeat: u8) -> model::Record {
        let history = || record.history.iter().take(kept);
        let bits = |bits, grant| bits | 1 << self.grant(grant);
        let ended = history().filter(|past| ["lapsed", "evicted"].contains(&past.end));
        model::Record {
            // The model has no cooldowns.
            held: record.state == "held",
            token: self.token(record.token),
            grant: self.grant(record.grant),
            heartbeat,
            nonce,
            unconfirmed: record.unconfirmed,
            stamp: 0,
            edition: 0,
            ended: ended.map(|past| past.grant).fold(0, bits),
            spent: history().map(|past| past.grant).fold(0, bits),
        }
    }
}

/// Returns the model's number for `number`, if that of `before` is [`BEFORE`].
fn difference(number: u64, before: u64) -> u8 {
    let difference = (i128::from(number) - i128::from(before)).clamp(-MOST, MOST);
    u8::try_from(i128::from(BEFORE) + difference).expect("between 0 and 200")
}
