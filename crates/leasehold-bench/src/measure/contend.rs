//! Tasks and processes that contend for one lock: scenarios a to d.

use std::time::Duration;

use super::{END_TIMEOUT, READY_TIMEOUT, Run, now_us, start};
use crate::environment::Connection;
use crate::events::{Event, Fairness, Window, cycles_ms, hand_offs_ms, overlaps, overtaken};
use crate::metrics::{
    CYCLE_P50, CYCLE_P99, HAND_OFF_MEAN, HAND_OFF_P50, HAND_OFF_P90, HAND_OFF_P99, HAND_OFFS, JAIN_PROCESSES,
    JAIN_TASKS, LONGEST_WAIT, OPS, OVERTAKEN, REQUESTS, STARVED, TOOK,
};
use crate::program::{MeasureError, Program};
use crate::results::Sample;
use crate::roster::Contender;
use crate::scenario::{Load, Scenario};
use crate::stats::percentile;

/// The default ttl of leasehold. No lease may lapse in these scenarios.
const TTL: Duration = Duration::from_secs(30);

/// The first second does not count, because connections are opened and just-in-time compilers run.
const WARM_UP: Duration = Duration::from_secs(1);

/// The time within which a waiter gets its place in the line.
const JOIN_TIME: Duration = Duration::from_secs(1);

/// Returns how long the contenders warm up, and how long they are measured after that.
fn time(load: Load, measured: Duration) -> (Duration, Duration) {
    match load.turns {
        // All turns count. Twice the total hold time is enough for any client that works.
        Some(turns) => {
            let cycles = load.processes.saturating_mul(load.tasks).saturating_mul(turns);
            (Duration::ZERO, measured + load.hold * cycles * 2)
        }
        None => (WARM_UP.min(measured), measured),
    }
}

pub(super) async fn measure(
    run: &Run<'_>,
    contender: &Contender,
    lock: &str,
    connection: &mut Connection<'_>,
) -> Result<Sample, MeasureError> {
    let load = run.load;
    let (warm_up, counted) = time(load, run.options.measured(run.scenario));
    let seconds = (warm_up + counted).as_secs_f64();
    let mut programs = Vec::new();
    for process in 0..load.processes {
        let options = [
            ("lock", lock.to_owned()),
            ("tasks", load.tasks.to_string()),
            match load.turns {
                Some(turns) => ("count", turns.to_string()),
                None => ("seconds", seconds.to_string()),
            },
            ("ttl-ms", TTL.as_millis().to_string()),
            ("hold-us", load.hold.as_micros().to_string()),
        ];
        programs.push((process, start(contender, connection, "contend", &options)?));
    }
    for (_, program) in &mut programs {
        program.expect_line("ready", READY_TIMEOUT).await?;
    }
    connection.begin_counting().await;
    let begin = now_us();
    for (_, program) in &mut programs {
        program.send("go").await?;
    }
    let limit = warm_up + counted + READY_TIMEOUT;
    let mut waiting = Vec::new();
    for (process, program) in programs {
        waiting.push(tokio::spawn(read(process, program, limit)));
    }
    let mut events = Vec::new();
    let mut ended = Vec::new();
    for task in waiting {
        let (program, reported) = task.await.map_err(|error| MeasureError::Failed(error.to_string()))??;
        events.extend(reported);
        ended.push(program);
    }
    let requests = connection.requests().await;
    for program in ended {
        program.end(END_TIMEOUT).await?;
    }

    let from = begin + warm_up.as_micros() as u64;
    let window = Window { from, until: from + counted.as_micros() as u64 };
    let mut sample = Sample { violations: overlaps(&events), ..Sample::default() };
    sample.record(OPS.name, Some(window.rate(&events)));
    if let Some(requests) = requests {
        let all: u64 = requests.values().sum();
        sample.record(REQUESTS.name, (!events.is_empty()).then(|| all as f64 / events.len() as f64));
        sample.requests = requests;
    }
    match run.scenario {
        Scenario::Uncontended => {
            let [p50, p99] = cycles_ms(&events, window, [50.0, 99.0]);
            sample.record(CYCLE_P50.name, p50);
            sample.record(CYCLE_P99.name, p99);
        }
        Scenario::HandOff => record_hand_offs(&mut sample, &events, window),
        _ => {
            if run.scenario == Scenario::Waiters {
                record_hand_offs(&mut sample, &events, window);
                sample.record(OVERTAKEN.name, Some(overtaken(&events, JOIN_TIME.as_micros() as u64) as f64));
            }
            // With turns, there are no waits after the last turn.
            let last = events.iter().map(|event| event.released).max().filter(|_| load.turns.is_some());
            sample.record(TOOK.name, last.map(|last| last.saturating_sub(begin) as f64 / 1e6));
            let end = match last {
                Some(_) => begin,
                None => begin + Duration::from_secs_f64(seconds).as_micros() as u64,
            };
            let fairness = Fairness::of(&events, load.processes, load.tasks, begin, end);
            sample.record(STARVED.name, Some(fairness.starved as f64));
            sample.record(JAIN_TASKS.name, fairness.tasks);
            if load.processes > 1 {
                sample.record(JAIN_PROCESSES.name, fairness.processes);
            }
            sample.record(LONGEST_WAIT.name, Some(fairness.longest_wait_s));
        }
    }
    Ok(sample)
}

fn record_hand_offs(sample: &mut Sample, events: &[Event], window: Window) {
    let mut hand_offs = hand_offs_ms(events, window);
    sample.record(HAND_OFFS.name, Some(hand_offs.len() as f64));
    sample.record(HAND_OFF_MEAN.name, Some(hand_offs.iter().sum::<f64>() / hand_offs.len() as f64));
    for (metric, percent) in [(HAND_OFF_P50, 50.0), (HAND_OFF_P90, 90.0), (HAND_OFF_P99, 99.0)] {
        sample.record(metric.name, percentile(&mut hand_offs, percent));
    }
}

/// Runs one task that acquires the lock once.
pub(super) async fn take_once(
    contender: &Contender,
    lock: &str,
    connection: &Connection<'_>,
) -> Result<(), MeasureError> {
    let options = [
        ("lock", lock.to_owned()),
        ("tasks", "1".to_owned()),
        ("count", "1".to_owned()),
        ("ttl-ms", TTL.as_millis().to_string()),
        ("hold-us", "0".to_owned()),
    ];
    let mut program = start(contender, connection, "contend", &options)?;
    program.expect_line("ready", READY_TIMEOUT).await?;
    program.send("go").await?;
    program.events(0, READY_TIMEOUT).await?;
    program.end(END_TIMEOUT).await
}

async fn read(
    process: u32,
    mut program: Program,
    limit: Duration,
) -> Result<(Program, Vec<Event>), MeasureError> {
    let events = program.events(process, limit).await?;
    Ok((program, events))
}
