//! Simulates a lock with several waiters on a virtual clock. Measures what the waits cost and how long the lock is
//! idle.
//!
//! `cargo test --workspace --all-features --lib pacing -- --ignored --nocapture what_waiting_costs` prints the table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;
use crate::clock::micros;
use crate::lease::{MAX_WAITERS, Ttl, pause};

/// The duration of a request. The request takes effect halfway through.
const ROUND_TRIP: Duration = Duration::from_millis(30);
/// The uncertainty of a `Date`.
const DOUBT: Duration = Duration::from_secs(1);

/// Whether waiters have a line.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    None,
    Line,
}

struct Waiter {
    pacing: Pacing,
    /// The version at its latest poll in the line. When it sees the next holder, it begins another wait.
    seen: Option<usize>,
    clock_error: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Release,
    /// A read takes effect.
    Read(usize),
    /// The response to a read: the version that was seen free, or `None`.
    Answer(usize, Option<usize>),
    /// A write over this version takes effect.
    Write(usize, usize),
}

struct Lock {
    /// Counts grants and releases: the lock is free if this is odd.
    version: usize,
    granted_us: u64,
    released: Duration,
    /// The waiters that have joined, in order.
    line: Vec<usize>,
    /// How long the previous hold lasted, on the store's clock.
    previous: Duration,
}

impl Lock {
    /// Returns how many waiters in the line are before `waiter`.
    fn ahead(&self, waiter: usize) -> usize {
        self.line.iter().take_while(|first| **first != waiter).count()
    }
}

#[derive(Default)]
struct Totals {
    reads: usize,
    writes: usize,
    /// The times from each release to the next grant.
    idle: Vec<Duration>,
    /// The waiters that were granted the lock, in order.
    grants: Vec<usize>,
    /// The waiters in the order of joining.
    joined: Vec<usize>,
}

/// Simulates a lock that is held for `hold` and then released to `waiters`. They hold it one after the other for the
/// same time, and come back until there were `rounds` grants for each.
fn drain(order: Order, waiters: usize, rounds: usize, hold: Duration, seed: u64) -> Totals {
    let random = Random::seeded(seed);
    let mut totals = Totals::default();
    let mut events = BinaryHeap::new();
    let upper_us = |now: Duration, error: Duration| micros(now + error);
    let mut lock = Lock {
        version: 0,
        granted_us: upper_us(Duration::ZERO, DOUBT.mul_f64(random.fraction())),
        released: Duration::ZERO,
        line: Vec::new(),
        previous: Duration::ZERO,
    };
    events.push(Reverse((hold, Event::Release)));
    // Each waiter is refused while the first holder has the lock, and starts to wait.
    let mut all: Vec<_> = (0..waiters)
        .map(|waiter| {
            let came = hold.min(SECOND).mul_f64(random.fraction());
            events.push(Reverse((came, Event::Answer(waiter, None))));
            let clock_error = DOUBT.mul_f64(random.fraction());
            Waiter { pacing: Pacing::new(POLL_INTERVAL, at(came)), seen: None, clock_error }
        })
        .collect();
    while totals.idle.len() < waiters * rounds {
        let Reverse((now, event)) = events.pop().unwrap();
        match event {
            Event::Release => {
                (lock.version, lock.released) = (lock.version + 1, now);
                let clock_error =
                    totals.grants.last().map_or(Duration::ZERO, |holder| all[*holder].clock_error);
                let ended_us = upper_us(now, clock_error);
                lock.previous = Duration::from_micros(ended_us.saturating_sub(lock.granted_us));
                if let Some(holder) = totals.grants.last().filter(|_| rounds > 1) {
                    all[*holder].pacing = Pacing::new(POLL_INTERVAL, at(now));
                    events.push(Reverse((now + ROUND_TRIP, Event::Read(*holder))));
                }
            }
            Event::Read(waiter) => {
                totals.reads += 1;
                let is_free = lock.version % 2 == 1;
                if order == Order::Line && !lock.line.contains(&waiter) && !is_free {
                    totals.reads += 1;
                    if lock.line.len() < MAX_WAITERS {
                        totals.writes += 1;
                        lock.line.push(waiter);
                        totals.joined.push(waiter);
                    }
                }
                events.push(Reverse((
                    now + ROUND_TRIP / 2,
                    Event::Answer(waiter, is_free.then_some(lock.version)),
                )));
            }
            // The line is read once more and shows another waiter before this one.
            Event::Answer(waiter, Some(_)) if lock.line.first().is_some_and(|first| *first != waiter) => {
                totals.reads += 1;
                let wait = pause(POLL_INTERVAL.shortest(&random), lock.ahead(waiter), Ttl::DEFAULT);
                all[waiter].pacing = Pacing::new(POLL_INTERVAL, at(now));
                events.push(Reverse((now + ROUND_TRIP + wait + ROUND_TRIP / 2, Event::Read(waiter))));
            }
            Event::Answer(waiter, Some(version)) => {
                totals.writes += 1;
                let line_read = if lock.line.is_empty() { Duration::ZERO } else { ROUND_TRIP };
                totals.reads += usize::from(!lock.line.is_empty());
                events.push(Reverse((now + line_read + ROUND_TRIP / 2, Event::Write(waiter, version))));
            }
            Event::Answer(waiter, None) => {
                let Waiter { pacing, seen, clock_error } = &mut all[waiter];
                let hi_us = upper_us(now, *clock_error);
                let clock = Some(StoreTime::between(hi_us.saturating_sub(micros(DOUBT)), hi_us));
                let is_behind = order == Order::Line && lock.ahead(waiter) > 0;
                let before = if is_behind { lock.previous } else { Duration::ZERO };
                let age = held_for(Some(lock.granted_us), clock).max(before);
                let has_place = order == Order::Line && lock.line.contains(&waiter);
                if has_place && seen.replace(lock.version) != Some(lock.version) {
                    *pacing = Pacing::new(POLL_INTERVAL, at(now));
                }
                pacing.set_place(has_place.then(|| lock.ahead(waiter)));
                let next = pacing.pause(at(now), Token::new(lock.version as u64), age, None, &random);
                let next = match order {
                    Order::None => next,
                    Order::Line => pause(next, lock.ahead(waiter), Ttl::DEFAULT),
                };
                events.push(Reverse((now + next + ROUND_TRIP / 2, Event::Read(waiter))));
            }
            Event::Write(waiter, version) if version == lock.version => {
                lock.version += 1;
                lock.granted_us = upper_us(now, all[waiter].clock_error);
                lock.line.retain(|first| *first != waiter);
                totals.grants.push(waiter);
                totals.idle.push(now - lock.released);
                // The lock is held from the response on. A release takes effect half a round trip after it is sent.
                events.push(Reverse((now + hold + ROUND_TRIP, Event::Release)));
            }
            Event::Write(waiter, _) => {
                all[waiter].pacing = Pacing::new(POLL_INTERVAL, at(now));
                // The write is refused and the record read again. The next wait starts with that read.
                events.push(Reverse((now + ROUND_TRIP, Event::Read(waiter))));
            }
        }
    }
    totals.idle.sort();
    totals
}

struct Cost {
    reads: f64,
    writes: f64,
    median: Duration,
    mean: Duration,
}

fn cost(order: Order, waiters: usize, hold: Duration) -> Cost {
    let histories = 256_usize.div_ceil(waiters).min(30) as u64;
    let (mut reads, mut writes, mut idle) = (0, 0, Vec::new());
    for seed in 0..histories {
        let totals = drain(order, waiters, 1, hold, seed);
        if order == Order::Line {
            let of_the_line = totals.grants.iter().filter(|waiter| totals.joined.contains(waiter));
            assert!(of_the_line.eq(&totals.joined), "first come, first served");
        }
        (reads, writes) = (reads + totals.reads, writes + totals.writes);
        idle.extend(totals.idle);
    }
    idle.sort();
    let grants = idle.len();
    Cost {
        reads: reads as f64 / grants as f64,
        writes: writes as f64 / grants as f64,
        median: idle[grants / 2],
        mean: idle.iter().sum::<Duration>() / grants as u32,
    }
}

#[test]
#[ignore = "prints a table, and takes 15 seconds of processor time"]
fn what_waiting_costs() {
    println!(
        "   hold  waiters | no order: reads  writes  median    mean | line: reads  writes  median    mean"
    );
    for hold in [10, 100, 1_000, 2_000, 10_000, 60_000].map(Duration::from_millis) {
        for waiters in [1, 4, 16, 64, 100, 256, 1_024] {
            let line = cost(Order::Line, waiters, hold);
            let shown = |cost: &Cost| {
                let Cost { reads, writes, median, mean } = cost;
                format!("{reads:6.1}  {writes:6.2}  {:5} ms {:5} ms", median.as_millis(), mean.as_millis())
            };
            let none = if waiters > 64 { String::new() } else { shown(&cost(Order::None, waiters, hold)) };
            println!("{:>7?}  {waiters:7} | {none:>36} | {:>36}", hold, shown(&line));
        }
    }
}

#[test]
fn a_line_of_sixteen_behind_long_holds_costs_few_reads() {
    let Cost { reads, writes, .. } = cost(Order::Line, 16, Duration::from_secs(60));
    assert!(reads <= 130.0 && writes <= 3.5, "{reads} reads and {writes} writes a grant");
}

#[test]
fn a_line_of_sixteen_behind_holds_of_two_seconds_is_quick() {
    let Cost { reads, writes, mean, .. } = cost(Order::Line, 16, 2 * SECOND);
    assert!(reads <= 20.0 && writes <= 3.5, "{reads} reads and {writes} writes a grant");
    assert!(mean <= SECOND / 5, "idle for {mean:?}");
}

#[test]
fn a_hundred_waiters_behind_holds_of_two_seconds_cost_few_reads() {
    let Cost { reads, writes, mean, .. } = cost(Order::Line, 100, 2 * SECOND);
    assert!(reads <= 30.0 && writes <= 3.5, "{reads} reads and {writes} writes a grant");
    assert!(mean <= SECOND / 5, "idle for {mean:?}");
}

/// The pauses do not grow with the time for which the lock is idle, because they would make it idle for longer.
#[test]
fn processes_that_come_back_keep_a_short_lock_busy() {
    for seed in 0..20 {
        let totals = drain(Order::Line, 16, 20, 10 * MILLISECOND, seed);
        let mean = totals.idle.iter().sum::<Duration>() / totals.idle.len() as u32;
        assert!(mean <= 2 * POLL_INTERVAL.min, "idle for {mean:?}");
    }
}
