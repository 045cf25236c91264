//! The cost of holding many locks: scenario f.

use std::fs;
use std::time::Duration;

use super::{END_TIMEOUT, READY_TIMEOUT, Run, now_us, start};
use crate::environment::Connection;
use crate::metrics::{ACQUIRE_S, CPU, HELD, LEFT, LOST, MEMORY, RENEWALS, REQUESTS_PER_S, STREAMS};
use crate::program::MeasureError;
use crate::results::Sample;
use crate::roster::Contender;

/// How long leasehold may take to acquire all locks. It then goes on with those that it holds, which shows what the
/// store can renew.
const TAKE_WITHIN: Duration = Duration::from_secs(90);

/// A time limit that is long enough to acquire all locks one by one on a slow server.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) async fn measure(
    run: &Run<'_>,
    contender: &Contender,
    lock: &str,
    connection: &mut Connection<'_>,
) -> Result<Sample, MeasureError> {
    let seconds = run.options.measured(run.scenario);
    let options = [
        ("lock", lock.to_owned()),
        ("locks", run.options.locks.to_string()),
        ("ttl-ms", run.options.ttl.as_millis().to_string()),
        ("within", TAKE_WITHIN.as_secs().to_string()),
        ("seconds", seconds.as_secs_f64().to_string()),
    ];
    let streams_before = connection.keep_alive_streams().await;
    let mut program = start(contender, connection, "many", &options)?;
    program.expect_line("ready", READY_TIMEOUT).await?;
    let begin = now_us();
    program.send("go").await?;
    let taken = loop {
        let line = program.line(ACQUIRE_TIMEOUT).await?;
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("short", why) => eprintln!("  {}: not all locks are held: {why}", contender.name),
            // The other programs print no number: they hold all of them.
            ("held", count) => break count.parse().unwrap_or(run.options.locks as f64),
            _ => return Err(MeasureError::Failed(format!("it printed {line:?} instead of `held`"))),
        }
    };
    let (held, id) = (now_us(), program.id());
    connection.begin_counting().await;
    let cpu_before = id.and_then(cpu_s);
    let (mut lost, mut renewals, mut left) = (Some(0.0), None, None);
    loop {
        let line = program.line(seconds + READY_TIMEOUT).await?;
        let number = |text: &str| text.parse::<f64>().ok();
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("done", _) => break,
            ("lost", count) => lost = number(count),
            ("renewals", count) => renewals = number(count),
            ("left", seconds) => left = number(seconds),
            _ => return Err(MeasureError::Failed(format!("it printed {line:?} instead of `done`"))),
        }
    }
    let (cpu_after, memory) = (id.and_then(cpu_s), id.and_then(peak_memory_mb));
    let took = (now_us() - held) as f64 / 1e6;
    let mut sample = Sample::default();
    if let Some(requests) = connection.requests().await {
        sample.record(REQUESTS_PER_S.name, Some(requests.values().sum::<u64>() as f64 / took));
        sample.requests = requests;
    }
    if let (Some(before), Some(now)) = (streams_before, connection.keep_alive_streams().await) {
        sample.record(STREAMS.name, Some(now.saturating_sub(before) as f64));
    }
    let cpu = cpu_before.zip(cpu_after).map(|(before, after)| (after - before) / took * 100.0);
    sample.record(CPU.name, cpu);
    sample.record(MEMORY.name, memory);
    sample.record(ACQUIRE_S.name, Some((held - begin) as f64 / 1e6));
    sample.record(HELD.name, Some(taken));
    sample.record(RENEWALS.name, renewals.map(|count: f64| count / took));
    sample.record(LEFT.name, left);
    sample.record(LOST.name, lost);
    // Releasing so many locks also takes some time.
    program.end(ACQUIRE_TIMEOUT + END_TIMEOUT).await?;
    Ok(sample)
}

/// Returns the processor time that the process has used, in seconds.
fn cpu_s(id: u32) -> Option<f64> {
    seconds_of_stat(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// Returns the sum of user and system time, which Linux reports in hundredths of a second.
fn seconds_of_stat(stat: &str) -> Option<f64> {
    // The program's name, in parentheses, may contain spaces and parentheses.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut times = rest.split_whitespace().skip(11).map(str::parse::<u64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((user + system) as f64 / 100.0)
}

/// Returns the peak memory of the process, in megabytes.
fn peak_memory_mb(id: u32) -> Option<f64> {
    mb_of_status(&fs::read_to_string(format!("/proc/{id}/status")).ok()?)
}

fn mb_of_status(status: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: f64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1_024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processor_time_and_memory_are_parsed() {
        let stat = "7 (a) b (c) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 1 0 99 0";
        assert_eq!(seconds_of_stat(stat), Some(2.0));
        assert_eq!(seconds_of_stat("7 (x) S 1"), None);
        assert_eq!(mb_of_status("Name:\tx\nVmHWM:\t  1000 kB\n"), Some(1.024));
        assert_eq!(mb_of_status("Name:\tx\n"), None);
    }

    #[test]
    fn a_running_process_has_processor_time_and_memory() {
        let this = std::process::id();
        assert!(cpu_s(this).is_some());
        assert!(peak_memory_mb(this).is_some_and(|mb| mb > 1.0));
    }
}
