//! The simulated servers answer like the real ones. The same random requests, with right and wrong expectations, are sent to
//! both, and must have the same outcomes. So the statements and scripts do what the simulation assumes of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use leasehold::lease::{LeaseStore, StoreOptions};
use leasehold::raw::{RawAnswer, RawRecords, RawStep};
use leasehold::register::Version;
use leasehold::stores::memory::server::{self, MemoryServer};
use leasehold::{LockName, Register};
use leasehold_testkit::stores;
use serde_json::{Value, json};

use crate::leases::open;

const LOCKS: [&str; 2] = ["one", "two"];
const STEPS: u64 = 300;

/// Lines are beside the records.
#[cfg(feature = "mysql")]
#[tokio::test]
async fn a_table_of_mariadb_answers_like_the_simulated_one() {
    let leases = |server: Arc<dyn Register>| {
        server::leases_of_table(server, Duration::ZERO, StoreOptions::default()).unwrap()
    };
    same("mysql", &leases(simulated()), false).await;
}

/// Lines are in the rows.
#[cfg(feature = "postgres")]
#[tokio::test]
async fn a_table_of_postgresql_answers_like_the_simulated_server() {
    same("postgres", &server::leases(simulated(), StoreOptions::default()), true).await;
}

#[cfg(feature = "redis")]
#[tokio::test]
async fn redis_answers_like_the_simulated_server() {
    same("redis", &server::leases(simulated(), StoreOptions::default()), true).await;
}

fn simulated() -> Arc<MemoryServer> {
    Arc::new(MemoryServer::new(StoreOptions::default().env, Duration::ZERO, |_, _, _| {}))
}

/// Compares the store with this name with `simulated`. `in_turn`: the store itself adds waiters to the line.
async fn same(name: &str, simulated: &dyn LeaseStore, in_turn: bool) {
    for seed in 0..4 {
        let fresh = stores::fresh(name);
        let real = open(fresh.url()).await;
        let mut sides = [Side::of(&*real).await, Side::of(simulated).await];
        let mut counts = HashMap::<String, usize>::new();
        for step in 0..STEPS {
            let draw = seed * STEPS + step;
            let mut outcomes = Vec::new();
            for side in &mut sides {
                outcomes.push(side.step(seed, draw, in_turn).await);
            }
            assert_eq!(outcomes[0], outcomes[1], "{name}, seed {seed}, step {step}");
            *counts.entry(outcomes[0].split(':').next().unwrap().to_owned()).or_default() += 1;
        }
        println!("{name} {seed}: {counts:?}");
        let done = counts.iter().filter(|(what, _)| what.contains("committed") || what.contains("granted"));
        assert!(done.map(|(_, count)| count).sum::<usize>() > STEPS as usize / 10, "{counts:?}");
    }
}

/// A store, and what its answers have shown.
struct Side {
    records: RawRecords,
    seen: [Vec<(Version, Value)>; LOCKS.len()],
    versions: Vec<Version>,
    lines: Vec<Version>,
    /// The highest tokens of the locks.
    tokens: [u64; LOCKS.len()],
}

impl Side {
    async fn of(store: &dyn LeaseStore) -> Self {
        let records = RawRecords::of(store).unwrap();
        records.trust().await.unwrap();
        let (seen, versions, lines, tokens) = Default::default();
        Self { records, seen, versions, lines, tokens }
    }

    /// Sends the request that `draw` chooses, and returns its outcome without what differs between stores.
    async fn step(&mut self, seed: u64, draw: u64, in_turn: bool) -> String {
        let mut random = fastrand::Rng::with_seed(draw);
        // The locks of each seed have other names, because both servers keep the former ones.
        let (lock, id) = (random.usize(..LOCKS.len()), hex(draw + 1));
        let name = LockName::new(format!("{}-{seed}", LOCKS[lock])).unwrap();
        let old = hex(random.u64((draw / STEPS * STEPS)..=draw) + 1);
        // Usually the latest version that was seen, and sometimes an older one, or one of the other lock.
        let back = [0, 0, 0, 0, 1, 2][random.usize(..6)];
        let from = if random.u8(..12) == 0 { 1 - lock } else { lock };
        let over = self.seen[from].iter().rev().nth(back).cloned();
        let (kind, tokens, barges, sized) = (random.u8(..14), random.u64(1..5), random.bool(), random.bool());
        let waiter =
            |number: u64| json!({ "number": number, "claim": id, "holder": holder(), "polls_ms": 100 });
        let new = json!({
            "leasehold": 1, "state": "held", "token": 1, "grant": id, "heartbeat": 0, "nonce": id,
            "ttl_ms": 600_000, "holder": holder(), "size": if sized { 3 } else { 0 },
        });
        let version = over.as_ref().map(|(version, _)| version.clone());
        let over_ref = over.as_ref().map(|(version, record)| (version, record));
        let (what, step) = match (kind, &over) {
            (0, _) => ("read", RawStep::Read),
            (1, _) if !in_turn => ("create", RawStep::Write(None, new)),
            (2..=4, Some((_, before))) => ("grant", RawStep::Write(over_ref, granted(before, new, tokens))),
            (5 | 6, Some((_, before))) if before["state"] == "held" => {
                let renewed = changed(
                    before,
                    &id,
                    &[("heartbeat", (before["heartbeat"].as_u64().unwrap() + 1).into())],
                );
                ("renew", RawStep::Write(over_ref, renewed))
            }
            (5..=8, Some((_, before))) if before["grant"] != hex(0) => {
                let free = changed(before, &id, &[("state", "free".into()), ("history", history(before))]);
                ("free", RawStep::Write(over_ref, free))
            }
            (9, _) => ("claim again", RawStep::Claim(json_with(new, "grant", &old), tokens, barges)),
            // Nobody joins a lock without a record.
            (10, _) if in_turn && !self.seen[lock].is_empty() => ("join", RawStep::Join(waiter(0), 500)),
            (10 | 11, _) if in_turn => ("leave", RawStep::Leave(old.parse().unwrap())),
            (10, _) => {
                let found = self.records.step(&name, RawStep::ReadLine).await.unwrap();
                let mut line =
                    found.line.unwrap_or_else(|| json!({ "leasehold": 1, "last": 0, "waiters": [] }));
                let last = line["last"].as_u64().unwrap() + 1;
                line["waiters"].as_array_mut().unwrap().push(waiter(last));
                line["last"] = last.into();
                let old = self.lines.iter().rev().nth(back).cloned();
                self.lines.extend(found.version.clone());
                let expect = if back == 0 { found.version } else { old };
                let answer = self.records.step(&name, RawStep::WriteLine(expect.as_ref(), line)).await;
                return self.shown("line", lock, answer.map_err(|error| format!("{:?}", error.fault().kind)));
            }
            (11, _) => ("line is read", RawStep::ReadLine),
            (12, Some(_)) if !in_turn && tokens == 1 => {
                ("discard", RawStep::Discard(version.as_ref().unwrap()))
            }
            _ => ("claim", RawStep::Claim(new, tokens, barges)),
        };
        let answer = self.records.step(&name, step).await;
        self.shown(what, lock, answer.map_err(|error| format!("{:?}", error.fault().kind)))
    }

    fn shown(&mut self, what: &str, lock: usize, answer: Result<RawAnswer, String>) -> String {
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => return format!("{what} error: {error}"),
        };
        let mut shown = format!("{what} {}:", answer.outcome);
        let record = answer.record.clone().unwrap_or_default();
        if let Some(version) = answer.version.filter(|_| answer.record.is_some()) {
            if !self.versions.contains(&version) {
                self.versions.push(version.clone());
            }
            let number = self.versions.iter().position(|there| *there == version);
            let highest = &mut self.tokens[lock];
            let token = record["token"].as_u64().unwrap();
            shown += &format!(" version {number:?}, token {:?}", token.cmp(highest));
            *highest = token.max(*highest);
            if self.seen[lock].last().is_none_or(|(last, _)| *last != version) {
                self.seen[lock].push((version, record.clone()));
            }
            for field in ["state", "grant", "nonce", "heartbeat", "ttl_ms", "served", "size", "unconfirmed"] {
                shown += &format!(", {field} {}", record[field]);
            }
            for past in record["history"].as_array().into_iter().flatten() {
                shown += &format!(", {} {}", past["grant"], past["end"]);
            }
        }
        let waiting = answer.line.iter().flat_map(|line| line["waiters"].as_array().into_iter().flatten());
        let waiting = waiting.filter(|waiter| {
            waiter["number"].as_u64() > record["served"].as_u64().or(Some(0))
                && waiter["claim"] != record["grant"]
        });
        waiting.fold(shown, |shown, waiter| {
            shown + &format!("; {} {} {}", waiter["number"], waiter["claim"], waiter["polls_ms"])
        })
    }
}

fn holder() -> Value {
    json!({ "name": "alice", "host": "h", "pid": 1 })
}

fn hex(number: u64) -> String {
    format!("{number:032x}")
}

fn json_with(mut record: Value, field: &str, value: &str) -> Value {
    record[field] = value.into();
    record
}

/// Returns the history of a record whose grant ends.
fn history(before: &Value) -> Value {
    let mut history = before["history"].as_array().cloned().unwrap_or_default();
    if before["state"] == "held" {
        let ended = json!({ "token": before["token"], "grant": before["grant"], "holder": holder(), "end": "lapsed" });
        history.insert(0, ended);
        history.truncate(8);
    }
    history.into()
}

fn changed(before: &Value, nonce: &str, fields: &[(&str, Value)]) -> Value {
    let mut record = json_with(before.clone(), "nonce", nonce);
    for (field, value) in fields {
        record[*field] = value.clone();
    }
    record
}

/// Returns the record of a grant over `before`, before which so many waiters were passed over.
fn granted(before: &Value, new: Value, passed_over: u64) -> Value {
    let mut record = new;
    record["token"] = (before["token"].as_u64().unwrap() + 1).into();
    record["history"] = history(before);
    record["served"] = (before["served"].as_u64().unwrap_or(0) + passed_over).into();
    record["size"] = before["size"].as_u64().unwrap_or(0).into();
    record
}
