//! A lock with several waiters, on a virtual clock: what the waits cost, and how long the lock is idle.
//!
//! `cargo test --workspace --all-features --lib pacing -- --nocapture what_waiting_costs` prints the table.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::*;

/// The duration of a request, which takes effect in the middle.
const ROUND_TRIP: Duration = Duration::from_millis(30);
/// The uncertainty of a `Date`.
const DOUBT: Duration = Duration::from_secs(1);

/// How waiters choose their pauses.
#[derive(Clone, Copy)]
enum Policy {
    /// The policy before [`Pacing`]: the first pause of 250 ms doubles, and starts again after each race.
    Doubling,
    Pacing,
}

struct Waiter {
    pacing: Pacing,
    doubled: Duration,
    clock_error: Duration,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Release,
    /// A read takes effect.
    Read(usize),
    /// Its answer: the version that was seen free, or `None`.
    Answer(usize, Option<usize>),
    /// A write over this version takes effect.
    Write(usize, usize),
}

struct Lock {
    /// Counts grants and releases: the lock is free if this is odd.
    version: usize,
    holder: Holder,
    granted: Duration,
    granted_us: u64,
    released: Duration,
    history: Vec<PastGrant>,
}

#[derive(Default)]
struct Told {
    reads: usize,
    writes: usize,
    /// The times from each release to the next grant.
    idle: Vec<Duration>,
}

/// A lock is held for `hold` and then released to `waiters`, who hold it for as long, one after the other.
fn drain(policy: Policy, waiters: usize, hold: Duration, seed: u64) -> Told {
    let random = Random::seeded(seed);
    let mut told = Told::default();
    let mut events = BinaryHeap::new();
    let upper_us = |now: Duration, error: Duration| micros(now + error);
    let mut lock = Lock {
        version: 0,
        holder: process(0),
        granted: Duration::ZERO,
        granted_us: upper_us(Duration::ZERO, DOUBT.mul_f64(random.fraction())),
        released: Duration::ZERO,
        history: Vec::new(),
    };
    events.push(Reverse((hold, Event::Release)));
    // Each waiter is refused while the first holder has the lock, and starts to wait.
    let mut all: Vec<_> = (0..waiters)
        .map(|waiter| {
            let came = hold.min(SECOND).mul_f64(random.fraction());
            events.push(Reverse((came, Event::Answer(waiter, None))));
            let clock_error = DOUBT.mul_f64(random.fraction());
            let doubled = Duration::from_millis(250);
            Waiter { pacing: Pacing::new(POLL_INTERVAL, at(came)), doubled, clock_error }
        })
        .collect();
    while told.idle.len() < waiters {
        let Reverse((now, event)) = events.pop().unwrap();
        match event {
            Event::Release => {
                let until = Duration::from_micros(upper_us(now, DOUBT.mul_f64(random.fraction())));
                let from = Duration::from_micros(lock.granted_us);
                lock.history.insert(0, past(lock.holder.pid, from, until));
                lock.history.truncate(8);
                (lock.version, lock.released) = (lock.version + 1, now);
            }
            Event::Read(waiter) => {
                told.reads += 1;
                let free = (lock.version % 2 == 1).then_some(lock.version);
                events.push(Reverse((now + ROUND_TRIP / 2, Event::Answer(waiter, free))));
            }
            Event::Answer(waiter, Some(version)) => {
                told.writes += 1;
                events.push(Reverse((now + ROUND_TRIP / 2, Event::Write(waiter, version))));
            }
            Event::Answer(waiter, None) => {
                let Waiter { pacing, doubled, clock_error } = &mut all[waiter];
                let pause = match policy {
                    Policy::Doubling => {
                        let pause = random.jittered(*doubled, 0.25);
                        *doubled = (*doubled * 2).min(POLL_INTERVAL.max);
                        pause
                    }
                    Policy::Pacing => {
                        let hi_us = upper_us(now, *clock_error);
                        let lo_us = hi_us.saturating_sub(micros(DOUBT));
                        let clock = Some(StoreTime::between(lo_us, hi_us));
                        let turns = Turns::of(
                            &lock.holder,
                            Some(lock.granted_us),
                            &lock.history,
                            clock,
                            POLL_INTERVAL,
                        );
                        pacing.pause(at(now), Token::new(lock.version as u64), turns, None, &random)
                    }
                };
                events.push(Reverse((now + pause + ROUND_TRIP / 2, Event::Read(waiter))));
            }
            Event::Write(waiter, version) if version == lock.version => {
                lock.version += 1;
                (lock.holder, lock.granted) = (process(waiter as u32 + 1), now);
                lock.granted_us = upper_us(now, all[waiter].clock_error);
                told.idle.push(now - lock.released);
                // The lock is held from the answer on. A release takes effect half a round trip after it is sent.
                events.push(Reverse((now + hold + ROUND_TRIP, Event::Release)));
            }
            Event::Write(waiter, _) => {
                all[waiter].doubled = Duration::from_millis(250);
                all[waiter].pacing = Pacing::new(POLL_INTERVAL, at(now));
                // The write is refused and the record read again. The next wait starts with that read.
                events.push(Reverse((now + ROUND_TRIP, Event::Read(waiter))));
            }
        }
    }
    told.idle.sort();
    told
}

struct Cost {
    reads: f64,
    writes: f64,
    median: Duration,
    mean: Duration,
}

fn cost(policy: Policy, waiters: usize, hold: Duration) -> Cost {
    const HISTORIES: u64 = 60;
    let (mut reads, mut writes, mut idle) = (0, 0, Vec::new());
    for seed in 0..HISTORIES {
        let told = drain(policy, waiters, hold, seed);
        (reads, writes) = (reads + told.reads, writes + told.writes);
        idle.extend(told.idle);
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
fn what_waiting_costs() {
    println!(
        "   hold  waiters | doubling: reads  writes  median   mean | pacing: reads  writes  median   mean"
    );
    for hold in [10, 100, 1_000, 10_000, 60_000].map(Duration::from_millis) {
        for waiters in [1, 4, 16] {
            let (before, now) = (cost(Policy::Doubling, waiters, hold), cost(Policy::Pacing, waiters, hold));
            let shown = |cost: &Cost| {
                let Cost { reads, writes, median, mean } = cost;
                format!("{reads:5.1}  {writes:6.2}  {:4} ms {:4} ms", median.as_millis(), mean.as_millis())
            };
            println!("{:>7?}  {waiters:7} | {:>40} | {:>38}", hold, shown(&before), shown(&now));
        }
    }
}
